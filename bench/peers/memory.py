"""Memory that a forward and a backward need as sequences grow: tensors and workspace, nothing else."""
import torch
from torch.nn.attention import SDPBackend

from peers.calls import Case, Sdpa, Tilewise
from tilewise import _lib

SEQLENS = [1024 << i for i in range(7)]  # 1k to 64k
MATH_SEQLENS = SEQLENS[:5]  # torch's three steps keep (heads, S, S) in fp32: 17 GB each at 16k


def peak_of(peer, line):
    """Bytes at most in torch's hands while the peer computes the line from nothing, tensors included; and
    bytes that the device lost meanwhile to anything but torch (the library itself must take none)."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, taken = torch.cuda.memory_allocated(), outside_torch()
    call = peer.make(Case(line))
    with call.context():
        call.run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, outside_torch() - taken


def outside_torch():
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def plans_of(ours, line):
    """The line, with or without its backward: what kernels compute; and the bytes of workspace it takes."""
    problem = _lib.parse(line)
    forward = ours.plan(problem, _lib.FORWARD)[0].workspace_bytes
    try:
        both = forward + ours.plan(problem, _lib.BACKWARD)[0].workspace_bytes
    except NotImplementedError:
        return _lib.text_of(problem), forward
    problem.direction = _lib.BACKWARD
    return _lib.text_of(problem), both


def memory_rows(seqlens=tuple(SEQLENS), shape="bf16 b1 h16 d128 causal"):
    """A row for each length: the problem (of the forward alone while no kernel computes the backward), our
    peak and workspaces in bytes, and torch_math's peak where it fits."""
    rows, ours, math = [], Tilewise(), Sdpa("torch_math", SDPBackend.MATH)
    for seqlen in seqlens:
        line, workspace = plans_of(ours, f"{shape} sq{seqlen}")
        peak_of(ours, line)  # the kernels' code is loaded by their first call
        peak, outside = peak_of(ours, line)
        row = {"seqlen": seqlen, "problem": line, "peak_bytes": peak, "workspace_bytes": workspace,
               "outside_bytes": outside}
        if seqlen in MATH_SEQLENS:
            try:
                row["torch_math_bytes"] = peak_of(math, line)[0]
            except torch.OutOfMemoryError:
                pass  # left out of the row
        rows.append(row)
    return rows
