"""Times the calls of one case against each other: in one process, taking turns, by CUDA events."""
import math
import statistics
import time

import torch

from peers import schedule
from peers.call import Call
from peers.calls import Case, Tilewise

ROUNDS = 5
SLOW_MS = 20  # a call this long, and longer than its share of a round, is timed in every other round only
CUBLAS_CALLS = 20
PRIME_CYCLES = 2_000_000  # about 1 ms: the launches of a burst are queued behind it
MOST_DIFFERENCE = 0.02  # relative L2 between two right answers in bf16 is below 0.005


class Race:
    def __init__(self, ours, peers):
        self.ours, self.peers = ours, peers
        l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.flush = torch.empty(2 * l2 + (64 << 20), dtype=torch.uint8, device="cuda")

    def burst(self, call, count):
        """Milliseconds of each of `count` calls on a cold L2, and the microseconds the host spent in it."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        host_us = []
        torch.cuda._sleep(PRIME_CYCLES)
        for start, stop in events:
            self.flush.zero_()
            start.record()
            before = time.perf_counter_ns()
            call.run()
            host_us.append((time.perf_counter_ns() - before) * 1e-3)
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in events], host_us

    def cublas(self):
        """TFLOP/s of torch's bf16 product of two 8192 x 8192 matrices (cuBLAS)."""
        a, b = (torch.randn((8192, 8192), device="cuda", dtype=torch.bfloat16) for _ in range(2))
        product = warmed_up(Call(lambda: torch.mm(a, b), lambda: ()))
        milliseconds, _ = self.burst(product, CUBLAS_CALLS)
        return round(2 * 8192 ** 3 / statistics.median(milliseconds) * 1e-9, 2)

    def prepare(self, case):
        """name -> Call of those that can, warmed up; name -> reason of the others."""
        calls, left_out = {}, {}
        for peer in [self.ours, *self.peers]:
            try:
                calls[peer.name] = warmed_up(peer.make(case))
            except (NotImplementedError, RuntimeError) as error:
                left_out[peer.name] = reason_of(error)
            if peer.name in left_out:  # the error no longer holds its tensors
                torch.cuda.empty_cache()
        return calls, left_out

    def times(self, calls, seconds, left_out):
        """name -> (milliseconds, microseconds on the host) of every call, in rounds of taking turns. A call
        that runs out of memory goes from calls to left_out."""
        once, samples = {}, {name: ([], []) for name in calls}

        def burst_of(name, count):
            try:
                with calls[name].context():
                    if count > 1:
                        calls[name].run()
                    return self.burst(calls[name], count)
            except torch.OutOfMemoryError as error:
                left_out[name] = reason_of(error)
            del calls[name], samples[name]
            torch.cuda.empty_cache()
        for name in list(calls):
            if burst := burst_of(name, 1):
                once[name] = burst[0][0]
        slice_ms = 1e3 * seconds / (ROUNDS * max(1, len(calls)))
        for number in range(ROUNDS):
            for name in schedule.turn(list(calls), number):
                if once[name] > max(SLOW_MS, slice_ms) and number % 2:
                    continue
                if burst := burst_of(name, schedule.repeats(once[name], slice_ms)):
                    for all_, some in zip(samples[name], burst):
                        all_ += some
        return samples

    def row(self, line, seconds):
        """The evidence's row of a problem line, from `seconds` of timing."""
        case = Case(line)
        calls, left_out = self.prepare(case)
        row = {"problem": case.line, "direction": "backward" if case.backward else "forward"}
        difference = difference_from_peers(calls)
        if difference and not difference <= MOST_DIFFERENCE:  # another function: its time says nothing
            left_out[self.ours.name] = f"WRONG: {calls.pop(self.ours.name).kernel} differs from its peer"
        samples = self.times(calls, seconds, left_out)
        results = {name: result_of(case, *both) for name, both in samples.items()}
        ours = calls.get(self.ours.name)
        if ours:
            row.update(kernel=ours.kernel, **results.pop(self.ours.name))
        else:
            row.update(kernel=None, why=left_out.pop(self.ours.name))
        row["peers"] = results
        if left_out:
            row["left_out"] = left_out
        if difference is not None:
            row["difference"] = difference if math.isfinite(difference) else str(difference)
        return row


def warmed_up(call):
    with call.context():
        call.run()
        torch.cuda.synchronize()
    return call


def result_of(case, milliseconds, host_us):
    ms = statistics.median(milliseconds)
    return {"ms": round(ms, 5), "tflops": round(schedule.flops(case.problem, case.lengths) / ms * 1e-9, 2),
            "host_us": round(statistics.median(host_us), 2), "calls": len(milliseconds)}


def reason_of(error):
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return str(error).strip().split("\n")[0][:200] or type(error).__name__


def difference_from_peers(calls):
    """Largest relative L2 of our outputs from the first peer's; None without one of the two."""
    ours, peer = calls.get(Tilewise.name), next((c for n, c in calls.items() if n != Tilewise.name), None)
    if ours is None or peer is None:
        return None
    worst = max(float((a.float() - b.float()).norm() / b.float().norm())
                for a, b in zip(ours.outputs(), peer.outputs()))
    return float(f"{worst:.3g}")
