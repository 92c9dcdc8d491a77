#!/usr/bin/env python3
"""Draws the bar charts of the FlashAttention papers from a file of GPU evidence.

    bench/plot.py evidence/gpu/NVIDIA_H200.json -o figures                 PNG and SVG
    bench/plot.py evidence/gpu/NVIDIA_H200.json -o docs/figures --format svg

One figure for each direction and mask, a panel for each head dim: TFLOP/s over sequence length, a bar
for each implementation. Needs matplotlib.
"""
import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT / "tools"))
from evidence import tables  # noqa: E402

COLOURS = {"tilewise": "#1b5e9b", "torch_fa2": "#e08a2c", "cudnn": "#6aa84f", "torch_efficient": "#9b7bb8",
           "torch_math": "#9a9a9a", "fa3": "#c0504d", "fa4": "#7f4f2c"}
LABELS = {"tilewise": "Tilewise", **tables.PEERS}


def speeds(group, name):
    """Sequence length -> TFLOP/s of one implementation, where it ran."""
    results = {s: row if name == "tilewise" else row["peers"].get(name, {}) for s, row in sorted(group.rows.items())}
    return {s: result["tflops"] for s, result in results.items() if "tflops" in result}


def draw(plt, evidence, groups, title):
    """A panel for each (head dim, group)."""
    names = ["tilewise", *tables.peers_in(evidence["bench"])]
    figure, axes = plt.subplots(1, len(groups), figsize=(5.2 * len(groups), 3.6), squeeze=False, sharey=True)
    for panel, (dim, group) in zip(axes[0], groups):
        lengths, width = sorted(group.rows), 0.84 / len(names)
        for number, name in enumerate(names):
            found = speeds(group, name)
            at = [lengths.index(s) + (number - (len(names) - 1) / 2) * width for s in found]
            drawn = panel.bar(at, list(found.values()), width, label=LABELS.get(name, name), color=COLOURS.get(name))
            panel.bar_label(drawn, fmt="%.0f", fontsize=5.5)
        panel.set_xticks(range(len(lengths)), list(map(tables.length, lengths)))
        panel.set(title=f"head dim {dim}", xlabel="sequence length")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("TFLOP/s")
    axes[0][0].legend(fontsize=7, frameon=False)
    figure.suptitle(f"{title}, {evidence['device']}", fontsize=11)
    figure.tight_layout()
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evidence", type=Path, help="a file of evidence/gpu, or what bench/gpu_peers.py --json wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the pictures")
    parser.add_argument("--format", action="append", choices=("png", "svg"), help="may be repeated (both)")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "fp16"))
    options = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        sys.exit(f"error: {sys.executable} has no matplotlib")
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "tilewise"  # the same bytes for the same figures
    from matplotlib import pyplot as plt
    evidence = json.loads(options.evidence.read_text())
    figures = {}
    for (dtype, direction, dim, mask), group in tables.groups(evidence["bench"]).items():
        if dtype == options.dtype:
            figures.setdefault((direction, mask), []).append((dim, group))
    if not figures:
        sys.exit(f"error: {options.evidence} has no {options.dtype} rows")
    options.output.mkdir(parents=True, exist_ok=True)
    for (direction, mask), groups in figures.items():
        figure = draw(plt, evidence, groups, f"{direction}, {mask}, {options.dtype}")
        for kind in options.format or ("png", "svg"):
            path = options.output / f"{direction}_{mask}_{options.dtype}.{kind}"
            figure.savefig(path, dpi=160, metadata={"Date": None} if kind == "svg" else None)
            print(path)
        plt.close(figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
