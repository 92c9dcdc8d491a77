#!/usr/bin/env python3
"""Draws what tilewise_bench_ablation measured, or prints it as tables.

  bench/ablation/plot.py RESULTS.json --figure OUT.svg    the chain of changes (needs matplotlib)
  bench/ablation/plot.py RESULTS.json --tables            Markdown, as in docs/kernels/flash_attention_2.md
"""
import argparse
import json

# The chain: each adds one of FlashAttention-2's changes to the one before.
CHAIN = {
    "fa1": "FlashAttention-1",
    "fa1+1": "+ normalised once",
    "fa1+12": "+ parallel over the sequence",
    "fa1+123": "+ warps split the queries",
    "tilewise": "Tilewise, sm_80 kernel",
}
VARIANTS = ["fa1", "fa1+1", "fa1+2", "fa1+3", "fa1+12", "fa1+13", "fa1+23", "fa1+123", "tilewise"]
COLORS = ["#9aa0a6", "#7fb3d5", "#2e86c1", "#1b4f72", "#d98c21"]
PANELS = [(64, False), (64, True), (128, False), (128, True)]


def mask_name(causal):
    return "causal" if causal else "dense"


def tflops(results, variant, head_dim, causal):
    """{seqlen: TFLOP/s} of one variant."""
    return {
        t["seqlen"]: t["tflops"]
        for t in results["timings"]
        if (t["variant"], t["head_dim"], t["causal"]) == (variant, head_dim, causal)
    }


def draw(results, path):
    """One panel for each head dim and mask, a group of bars for each length, a bar for each step of the chain."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text, and the same numbers give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tilewise"})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 6.4), sharey=True)
    width = 0.8 / len(CHAIN)
    for axis, (head_dim, causal) in zip(axes.flat, PANELS):
        for i, (variant, label) in enumerate(CHAIN.items()):
            speeds = tflops(results, variant, head_dim, causal)
            places = [n + (i - (len(CHAIN) - 1) / 2) * width for n in range(len(speeds))]
            axis.bar(places, speeds.values(), width, label=label, color=COLORS[i])
        axis.set_xticks(range(len(speeds)), [f"{s // 1024}k" if s >= 1024 else str(s) for s in speeds])
        axis.set_title(f"head dim {head_dim}, {mask_name(causal)}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", linewidth=0.4)
        axis.set_axisbelow(True)
    for axis in axes[:, 0]:
        axis.set_ylabel("TFLOP/s, forward")
    for axis in axes[1]:
        axis.set_xlabel("sequence length")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(CHAIN), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)


def print_speeds(results):
    print("| d, mask | S | " + " | ".join(VARIANTS) + " |")
    print("|---|--:|" + "--:|" * len(VARIANTS))
    for head_dim, causal in PANELS:
        columns = [tflops(results, v, head_dim, causal) for v in VARIANTS]
        for seqlen in columns[0]:
            cells = [f"{c[seqlen]:.0f}" for c in columns]
            print(f"| {head_dim} {mask_name(causal)} | {seqlen} | " + " | ".join(cells) + " |")


def print_gains(results, seqlens=(512, 2048, 16384)):
    """What each step of the chain is worth, and all three together."""
    steps = list(CHAIN)[:4]
    print("| d, mask | S | normalised once | parallel over the sequence | warps split the queries | all three |")
    print("|---|--:|--:|--:|--:|--:|")
    for head_dim, causal in PANELS:
        columns = [tflops(results, v, head_dim, causal) for v in steps]
        for s in seqlens:
            gains = [b[s] / a[s] for a, b in zip(columns, columns[1:])] + [columns[-1][s] / columns[0][s]]
            print(f"| {head_dim} {mask_name(causal)} | {s} | " + " | ".join(f"{g:.2f}" for g in gains) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--figure")
    parser.add_argument("--tables", action="store_true")
    arguments = parser.parse_args()
    with open(arguments.results) as file:
        results = json.load(file)
    if arguments.figure:
        draw(results, arguments.figure)
    if arguments.tables:
        print_speeds(results)
        print()
        print_gains(results)


if __name__ == "__main__":
    main()
