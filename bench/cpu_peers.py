#!/usr/bin/env python3
r"""Tilewise next to PyTorch's CPU scaled_dot_product_attention, in one process and taking turns.

Both read the same memory, (batch, head, seqlen, dim). Time is thread CPU time for one thread and wall
time for more. Every measurement follows a register-only FMA loop; shares are of its median. The ratio
is the median over the rounds of torch's time over ours, so that a slow moment of a shared machine
hits both. PyTorch is not a dependency of anything else here (how to install it: CONTRIBUTING.md).

    bench/cpu_peers.py --lib build/src/libtilewise.so --json peers.json
    bench/cpu_peers.py --only "forward fp32" --sizes 512,2048
    # as on a machine without AVX-512:
    TILEWISE_CPU_ISA=avx2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
        ONEDNN_MAX_CPU_ISA=AVX2 bench/cpu_peers.py
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from tilewise import _lib  # noqa: E402: the package of this tree, not an installed one

TYPES = {"fp16": (_lib.FP16, torch.float16), "bf16": (_lib.BF16, torch.bfloat16), "fp32": (_lib.FP32, torch.float32)}


class Case:
    """q, k, v, do of one problem; both libraries read them."""

    def __init__(self, dtype, heads, heads_kv, seqlen_q, seqlen_k, dim, causal, factor=1.0, seed=0):
        make = torch.Generator().manual_seed(seed)
        self.dtype, self.causal, self.dim = dtype, causal, dim

        def tensor(h, s, x):
            return (torch.randn((1, h, s, dim), generator=make) * x).to(TYPES[dtype][1])
        self.q, self.do = tensor(heads, seqlen_q, factor), tensor(heads, seqlen_q, 1)
        self.k, self.v = tensor(heads_kv, seqlen_k, factor), tensor(heads_kv, seqlen_k, 1)

    def flops(self, op):
        sq, sk = self.q.shape[2], self.k.shape[2]
        pairs = sq * (sq + 1) / 2 if self.causal else sq * sk
        return 4.0 * self.q.shape[1] * pairs * self.dim * (2.5 if op == "backward" else 1)


def strides_of(t):
    """(batch, head, seqlen, dim) storage as (batch, seqlen, head, dim) strides."""
    return _lib.Strides(t.stride(0), t.stride(2), t.stride(1), 1)


class Tilewise:
    def plan(self, case, direction, threads):
        """The plan, its workspace as fields of a run, and the tensor that holds the workspace."""
        problem = _lib.Problem(direction=direction, dtype=TYPES[case.dtype][0], batch=1, seqlen_q=case.q.shape[2],
                               seqlen_k=case.k.shape[2], num_heads=case.q.shape[1], num_heads_kv=case.k.shape[1],
                               head_dim=case.dim, head_dim_v=case.dim, causal=int(case.causal))
        for name in ("q", "o", "do_", "dq"):
            setattr(problem, name, strides_of(case.q))
        for name in ("k", "v", "dk", "dv"):
            setattr(problem, name, strides_of(case.k))
        plan = _lib.Plan(problem, threads=threads)
        space = torch.empty(plan.workspace_bytes + plan.workspace_align, dtype=torch.uint8)
        aligned = space.data_ptr() + -space.data_ptr() % max(1, plan.workspace_align)
        return plan, dict(workspace=aligned, workspace_bytes=plan.workspace_bytes), space

    def make(self, case, op, threads):
        """A call without arguments; .results() gives its outputs."""
        c, o = case, torch.empty_like(case.q)
        lse = torch.empty(c.q.shape[:3], dtype=torch.float32)
        inputs = dict(q=c.q.data_ptr(), k=c.k.data_ptr(), v=c.v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr())
        plan, space, keep = self.plan(c, _lib.FORWARD, threads)
        params, outputs = _lib.Forward(**inputs, **space), [o]
        if op == "backward":
            plan.run(params)
            outputs = [torch.empty_like(t) for t in (c.q, c.k, c.v)]
            plan, space, keep = self.plan(c, _lib.BACKWARD, threads)
            gradients = dict(zip(("dq", "dk", "dv"), (t.data_ptr() for t in outputs)))
            params = _lib.Backward(do_=c.do.data_ptr(), **inputs, **gradients, **space)

        def call():
            plan.run(params)
        call.results, call.kernel, call.keep = (lambda: outputs), plan.kernel, (o, lse, keep, c)
        return call


class Torch:
    """grouped: the user folds the query heads of a kv head into the query axis, instead of enable_gqa."""

    def make(self, case, op, threads, grouped=False):
        sdpa, box = torch.nn.functional.scaled_dot_product_attention, {}
        q, k, v = case.q, case.k, case.v
        gqa = q.shape[1] != k.shape[1]
        if grouped:
            q = q.reshape(1, k.shape[1], -1, case.dim)
        options = dict(is_causal=case.causal, enable_gqa=gqa and not grouped)
        if op == "backward":
            q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                o = sdpa(q, k, v, **options)

        def call():
            if op == "backward":
                box["out"] = torch.autograd.grad(o, (q, k, v), case.do, retain_graph=True)
            else:
                with torch.no_grad(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                    box["out"] = (sdpa(q, k, v, **options),)
        call.results = lambda: [t.reshape(c.shape) for t, c in zip(box["out"], (case.q, case.k, case.v))]
        return call


def reference(case, op):
    """The same in fp64, three steps."""
    q, k, v = (t.double().requires_grad_(op == "backward") for t in (case.q, case.k, case.v))
    group = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(group, 1).transpose(-1, -2) / math.sqrt(case.dim)
    if case.causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    o = torch.softmax(s, -1) @ v.repeat_interleave(group, 1)
    return [o] if op != "backward" else list(torch.autograd.grad(o, (q, k, v), case.do.double()))


def relative_rmse(got, want):
    return [float((g.double() - w).norm() / w.norm()) for g, w in zip(got, want)]


class Peak:
    """harness/peak_loops.cc, compiled on the spot: the FMA loop of the widest registers here."""

    def __init__(self):
        self.dir = tempfile.TemporaryDirectory()
        lib = pathlib.Path(self.dir.name) / "peak.so"
        subprocess.run(["c++", "-O2", "-std=c++20", "-shared", "-fPIC", f"-I{ROOT}", "-o", lib,
                        ROOT / "harness/peak_loops.cc"], check=True)
        flags = pathlib.Path("/proc/cpuinfo").read_text()
        self.name = os.environ.get("TILEWISE_CPU_ISA", "").removesuffix("bf16") or (
            "avx512" if " avx512f " in flags else "avx2" if " avx2 " in flags else "scalar")
        symbol = f"fma_fp32_{self.name}"
        self.loop = getattr(ctypes.CDLL(str(lib)), f"_ZN8tilewise7harness{len(symbol)}{symbol}El")
        self.loop.restype = ctypes.c_double

    def gflops(self):
        start = time.thread_time()
        flops = self.loop(ctypes.c_long(100000))
        return flops / (time.thread_time() - start) * 1e-9


class Table:
    def __init__(self, args):
        self.args, self.rows, self.peak = args, [], Peak()
        self.ours, self.torch = Tilewise(), Torch()
        torch.set_num_threads(args.threads)

    def wanted(self, name):
        return all(word in name.split() for word in self.args.only.split())

    def clock(self):
        return time.thread_time() if self.args.threads == 1 else time.perf_counter()

    def seconds(self, call, repeats):
        start = self.clock()
        for _ in range(repeats):
            call()
        return (self.clock() - start) / repeats

    def measure(self, name, calls, flops, nbytes=0):
        """calls: {"ours": call, peer: call, ...}. One row for each peer."""
        repeats = {}
        for who, call in list(calls.items()):
            try:
                call()
                once = self.seconds(call, 1)
            except RuntimeError as e:
                print(f"{name}: {who}: {str(e)[:150]}", file=sys.stderr)
                del calls[who]
                continue
            repeats[who] = max(1, math.ceil(self.args.slice / max(once, 1e-9)))
            if once > self.args.max_seconds:
                del calls[who]
                print(f"{name}: {who} takes {once:.1f} s a call; left out", file=sys.stderr)
        times, peaks = {who: [] for who in calls}, []
        for r in range(self.args.rounds):
            order = list(calls)
            for who in order[r % len(order):] + order[:r % len(order)]:
                peaks.append(self.peak.gflops())
                times[who].append(self.seconds(calls[who], repeats[who]))
        peak = statistics.median(peaks) * self.args.threads
        ours = times["ours"]
        row = {"problem": name, "kernel": calls["ours"].kernel, "threads": self.args.threads, "peak_gflops": peak}
        for who, t in times.items():
            rate = flops / statistics.median(t) * 1e-9
            row[who] = {"ms": statistics.median(t) * 1e3, "gflops": rate, "peak_fraction": rate / peak}
            if nbytes:
                row[who]["gbytes_per_s"] = nbytes / statistics.median(t) * 1e-9
            if who != "ours":
                row[who]["ours_times"] = statistics.median(b / a for a, b in zip(ours, t))
        self.rows.append(row)
        print(self.line(row), flush=True)

    @staticmethod
    def line(row):
        def cell(r):
            text = f"{r['gbytes_per_s']:.1f} GB/s" if "gbytes_per_s" in r else \
                f"{r['gflops']:.0f} GF/s ({100 * r['peak_fraction']:.0f} %)"
            return text + (f" {r['ours_times']:.2f}x" if "ours_times" in r else "")
        cells = [f"{who} {cell(row[who])}" for who in ("ours", "torch", "torch_grouped") if who in row]
        return f"| {row['problem']} | {' | '.join(cells)} |"

    def prefill(self):
        for op in ("forward", "backward"):
            for dtype in ("fp32", "fp16", "bf16"):
                for s in map(int, self.args.sizes.split(",")):
                    for d in (64, 128):
                        for causal in (False, True):
                            h = 8 if s < 8192 else 2
                            name = f"{op} {dtype} sq{s} h{h} d{d} {'causal' if causal else 'dense'}"
                            if not self.wanted(name):
                                continue
                            case = Case(dtype, h, h, s, s, d, causal)
                            calls = {"ours": self.ours.make(case, op, self.args.threads),
                                     "torch": self.torch.make(case, op, self.args.threads)}
                            self.measure(name, calls, case.flops(op))

    def decode(self):
        for dtype in ("fp32", "fp16", "bf16"):
            for heads in (8, 32, 64):
                keys = 16384 if dtype == "fp32" else 32768  # 128 MiB of keys and values
                name = f"decode {dtype} sk{keys} h{heads} hk8 d128"
                if not self.wanted(name):
                    continue
                case = Case(dtype, heads, 8, 1, keys, 128, False)
                calls = {"ours": self.ours.make(case, "forward", self.args.threads),
                         "torch": self.torch.make(case, "forward", self.args.threads)}
                if heads > 8:
                    calls["torch_grouped"] = self.torch.make(case, "forward", self.args.threads, grouped=True)
                self.measure(name, calls, case.flops("forward"), 2 * case.k.numel() * case.k.element_size())

    def accuracy(self):
        print("\n| relative rmse against fp64 | ours | torch |\n|---|---|---|")
        for op in ("forward", "backward"):
            for dtype in ("fp32", "fp16", "bf16"):
                for factor in (1.0, 4.0):
                    for d in (64, 128):
                        name = f"{op} {dtype} sq512 h4 d{d} {'normal' if factor == 1 else 'large'}"
                        if not self.wanted(name):
                            continue
                        case = Case(dtype, 4, 4, 512, 512, d, False, factor)
                        want, row = reference(case, op), {"accuracy": name}
                        for who in (self.ours, self.torch):
                            call = who.make(case, op, self.args.threads)
                            call()
                            row["ours" if who is self.ours else "torch"] = relative_rmse(call.results(), want)
                        self.rows.append(row)
                        show = [" ".join(f"{e:.1e}" for e in row[who]) for who in ("ours", "torch")]
                        print(f"| {name} | {' | '.join(show)} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lib", default=ROOT / "build/src/libtilewise.so", help="libtilewise.so (build/src)")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--sizes", default="512,2048,8192")
    p.add_argument("--only", default="", help='words a row must have, e.g. "backward bf16"')
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--slice", type=float, default=0.03, help="seconds of one measurement, at least")
    p.add_argument("--max-seconds", type=float, default=8.0, help="leave out what takes longer a call")
    p.add_argument("--json", help="write the rows there")
    args = p.parse_args()
    os.environ["TILEWISE_LIBRARY"] = str(args.lib)
    table = Table(args)
    print(f"torch {torch.__version__}, FMA loop {table.peak.name}, {args.threads} thread(s), "
          f"load {os.getloadavg()[0]:.1f}\n\n| problem | ours | torch (ratio: how many times as long) |\n|---|---|---|")
    table.prefill()
    table.decode()
    table.accuracy()
    if args.json:
        head = {"torch": torch.__version__, "threads": args.threads, "loop": table.peak.name}
        pathlib.Path(args.json).write_text(json.dumps({**head, "rows": table.rows}, indent=1))


if __name__ == "__main__":
    main()
