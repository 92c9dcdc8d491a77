#!/usr/bin/env python3
r"""Tilewise next to PyTorch's scaled_dot_product_attention backends on one GPU, in one process, taking turns.

Problems are the lines of tests/problems/bench_gpu.txt (the grid of FlashAttention-2's figures) and of
bench_shapes_gpu.txt (other shapes). Every call is timed by CUDA events on a cold L2, behind a primed queue
so that host time does not count; host_us is what the calling thread spends in one call. Medians over all
calls. FLOPs: 4 S^2 d h b, half when causal, under a window the pairs that are seen; the
backward 2.5 times as many, and it is the backward alone. torch_math is the backend as torch ships it (fp32 inside). FlashAttention-3
and 4 are timed too when their libraries are at hand (bench/peers/flash_attention.py says how).

    bench/gpu_peers.py --json peers.json
    bench/gpu_peers.py --only "backward d128 causal" --seconds 30
    bench/gpu_peers.py --quick --peers torch_fa2,cudnn
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).resolve().parent)]
from peers import schedule  # noqa: E402

GRID, SHAPES = (ROOT / "tests/problems" / name for name in ("bench_gpu.txt", "bench_shapes_gpu.txt"))
QUICK = "bf16 d128"
QUICK_LENGTHS = ("sq512", "sq2048", "sq16384")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", default=ROOT / "build/cuda/src/libtilewise.so", help="libtilewise.so (build/cuda/src)")
    p.add_argument("--problems", help="a file of problem lines in place of those two")
    p.add_argument("--only", default="", help='words a line must have, e.g. "backward d128 dense"')
    p.add_argument("--quick", action="store_true", help="of the grid bf16, d 128, three lengths; 30 s unless --seconds")
    p.add_argument("--seconds", type=float, help="for all lines, setting up included (180)")
    p.add_argument("--peers", help="those to time, by name, with commas between (all)")
    p.add_argument("--kernels", help="time these of ours, e.g. sm80, in place of those that a plan chooses")
    p.add_argument("--no-memory", action="store_true", help="leave out the memory measurement")
    p.add_argument("--json", help="write all results there")
    p.add_argument("--lines", help="write each row there as it comes, one JSON object a line")
    return p.parse_args()


def chosen_lines(args):
    """[(key of the result, line)]: the grid's lines are `bench`, the others `shapes`."""
    files = {"bench": args.problems or GRID, "shapes": SHAPES}
    if args.problems or args.quick:
        del files["shapes"]
    lines = [(key, line) for key, path in files.items() for line in schedule.problem_lines(path)
             if schedule.has_words(line, args.only)]
    if args.quick:
        lines = [(key, line) for key, line in lines if schedule.has_words(line, QUICK)
                 and any(length in line.split() for length in QUICK_LENGTHS)]
    if not lines:
        sys.exit(f"error: no line of {' and '.join(map(str, files.values()))} has the words asked for")
    return lines


def chosen_peers(args, known, absent):
    if not args.peers:
        return list(known.values())
    names = args.peers.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        why = f": {absent[unknown[0]]}" if unknown[0] in absent else ""
        sys.exit(f"error: no peer {unknown[0]}{why}; there are {', '.join(known)}")
    return [known[name] for name in names]


def need_gpu(args):
    """torch and the library with a device for both; else one sentence and the end."""
    os.environ["TILEWISE_LIBRARY"] = str(args.lib)
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # torch_math needs nearly all memory
    try:
        import torch
    except ImportError:
        sys.exit(f"error: {sys.executable} has no torch, which the peers belong to")
    if not torch.cuda.is_available():
        sys.exit("error: torch finds no CUDA device")
    from tilewise import _lib
    try:
        if _lib.device_count() == 0:
            sys.exit(f"error: {args.lib} finds no CUDA device: {_lib.backend_note()}")
    except ImportError as error:
        sys.exit(f"error: {error}; tools/build cuda makes it")
    return torch


def text_of(row):
    def cell(name, r):
        return f"{name} {r['tflops']:.0f}" + (f" ({r['ms'] / row['ms']:.2f}x)" if row["kernel"] else "")
    ours = f"{row['tflops']:.0f}, {row['host_us']:.0f} us host" if row["kernel"] else "no kernel"
    return f"{schedule.short(row['problem']):<48} ours {ours:<18} " + "  ".join(cell(n, r) for n, r in row["peers"].items())


def time_all(lines, args, result):
    """Fills result: clocks, the row of every line, and the memory."""
    import torch
    from peers.calls import ABSENT, FLASH_ATTENTION, PEERS, Tilewise
    from peers.clocks import Clocks
    from peers.memory import memory_rows
    from peers.race import Race
    result["versions"] = {name: peer.version for name, peer in FLASH_ATTENTION.items()}
    result["absent"] = ABSENT
    for name, why in ABSENT.items():
        print(f"{name} is not timed: {why}", flush=True)
    race = Race(Tilewise(args.kernels), chosen_peers(args, PEERS, ABSENT))
    budget = schedule.Budget(args.seconds or (30 if args.quick else 180), len(lines), time.monotonic)
    with Clocks(torch.cuda.current_device()) as clocks:
        result["cublas"] = [race.cublas()]
        for key, line in lines:
            seconds, begin = budget.next_cell(), time.monotonic()
            row = race.row(line, seconds)
            torch.cuda.empty_cache()
            budget.took(time.monotonic() - begin - seconds)
            result.setdefault(key, []).append(row)
            print(text_of(row), flush=True)
            if args.lines:
                with open(args.lines, "a") as file:
                    print(json.dumps(row), file=file)
        result["cublas"].append(race.cublas())
    result["clocks"] = clocks.summary()
    print(f"cuBLAS, two 8192 x 8192 matrices in bf16: {result['cublas'][0]:.0f}, at the end {result['cublas'][1]:.0f}")
    if not args.no_memory:
        result["memory"] = memory_rows()
        for row in result["memory"]:
            print(f"memory {row['problem']:<40} {row['peak_bytes'] / 2**20:.0f} MiB", flush=True)


def main():
    args = arguments()
    lines = chosen_lines(args)
    torch = need_gpu(args)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cudnn": str(torch.backends.cudnn.version())}
    print(f"{result['device']}, torch {torch.__version__}; TFLOP/s (how many times as fast ours is)", flush=True)
    begin = time.monotonic()
    try:
        time_all(lines, args, result)
    finally:  # what is done stays when something breaks
        result["seconds"] = round(time.monotonic() - begin, 1)
        if args.json:
            Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
