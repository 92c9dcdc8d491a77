"""Tilewise and its peers as calls without arguments on the same tensors, (batch, seqlen, heads, dim).

A peer is a class with `name` and make(case), which gives a Call or raises what keeps it from computing
the case (NotImplementedError, RuntimeError). To add one, write the class and put it into PEERS.
"""
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from peers.call import Call
from peers.flash_attention import flash_attention_peers
from peers.schedule import sequence_lengths
from tilewise import _lib

NAMES = {_lib.FP16: "fp16", _lib.BF16: "bf16"}
TILES = (64, 96, 128, 192, 256)  # head dims of kernels
DTYPES = {_lib.FP16: torch.float16, _lib.BF16: torch.bfloat16}


class Case:
    """The problem of one line and its inputs on the current device: N(0,1), the same for everybody. Varlen:
    sequences one after the other, as a batch of one; lengths [(queries, keys)]."""

    def __init__(self, line):
        self.line, self.problem, self.lengths = line, _lib.parse(line), sequence_lengths(line)
        p = self.problem
        if p.dtype not in DTYPES or p.alibi or p.head_dim != p.head_dim_v:
            raise ValueError(f"{line}: peers are timed on fp16 and bf16 with d = dv, without ALiBi")
        make = torch.Generator(device="cuda").manual_seed(1)

        def tensor(seqlen, total, heads):
            shape = (1, total) if p.varlen else (p.batch, seqlen)
            return torch.randn((*shape, heads, p.head_dim), generator=make, device="cuda", dtype=DTYPES[p.dtype])
        self.q, self.do = (tensor(p.seqlen_q, p.total_q, p.num_heads) for _ in range(2))
        self.k, self.v = (tensor(p.seqlen_k, p.total_k, p.num_heads_kv) for _ in range(2))
        self.cu_seqlens_q, self.cu_seqlens_k = map(cumulative, zip(*self.lengths)) if p.varlen else (None, None)
        self.backward = p.direction == _lib.BACKWARD
        self.window = window_of(p)


def window_of(p):
    """(left, right) of a sliding window, None for no end; None without a window."""
    left, right = p.window_left, None if p.causal else p.window_right
    ends = tuple(None if end is None or end < 0 else end for end in (left, right))
    return None if ends == (None, None) else ends


def cumulative(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")


class Tilewise:
    name = "tilewise"

    def __init__(self, family=None):
        """family: "sm80" or the like, whose kernels are timed in place of the plan's own choice."""
        self.family = family

    def kernel(self, p):
        if self.family is None:
            return None
        tile = next(d for d in TILES if p.head_dim <= d)
        banded = p.causal or window_of(p)
        variant = "general" if p.varlen or p.softcap else "banded" if banded else "full"
        direction = "backward" if p.direction == _lib.BACKWARD else "forward"
        return f"{self.family}.{direction}.d{tile}.{variant}.{NAMES[p.dtype]}"

    def plan(self, problem, direction):
        """The plan, its workspace as a tensor, and the fields of a run that name workspace and stream."""
        copy = _lib.Problem.from_buffer_copy(problem)
        copy.direction = direction
        plan = _lib.Plan(copy, device_kind=_lib.CUDA, device_index=torch.cuda.current_device(),
                         kernel=self.kernel(copy))
        workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
        return plan, workspace, dict(workspace=workspace.data_ptr(), workspace_bytes=plan.workspace_bytes,
                                     stream=torch.cuda.current_stream().cuda_stream)

    def make(self, case):
        p, o = case.problem, torch.empty_like(case.q)
        lse = torch.empty(case.q.shape[:-1], dtype=torch.float32, device="cuda")  # as much as it needs
        pointers = {n: t.data_ptr() for n, t in zip(("q", "k", "v", "o", "lse"), (case.q, case.k, case.v, o, lse))}
        if p.varlen:
            pointers.update(cu_seqlens_q=case.cu_seqlens_q.data_ptr(), cu_seqlens_k=case.cu_seqlens_k.data_ptr())
        plan, workspace, rest = self.plan(p, _lib.FORWARD)
        params, outputs = _lib.Forward(**pointers, **rest), [o]
        if case.backward:
            plan.run(params)
            outputs = [torch.empty_like(t) for t in (case.q, case.k, case.v)]
            pointers.update(zip(("dq", "dk", "dv"), (t.data_ptr() for t in outputs)))
            plan, workspace, rest = self.plan(p, _lib.BACKWARD)
            params = _lib.Backward(do_=case.do.data_ptr(), **pointers, **rest)
        return Call(lambda: plan.run(params), lambda: outputs, kernel=plan.kernel, keep=(case, o, lse, workspace))


class Sdpa:
    """torch's scaled_dot_product_attention with one backend. It takes (batch, heads, seqlen, dim): views."""

    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def make(self, case):
        p = case.problem
        if p.deterministic or p.varlen or p.softcap or case.window or (p.causal and p.seqlen_q != p.seqlen_k):
            raise NotImplementedError("scaled_dot_product_attention has no argument for that")
        q, k, v, do = (t.transpose(1, 2) for t in (case.q, case.k, case.v, case.do))
        options = dict(is_causal=bool(p.causal), enable_gqa=p.num_heads != p.num_heads_kv)
        out = []

        def forward():
            with torch.no_grad():
                out[:] = [F.scaled_dot_product_attention(q, k, v, **options)]

        def backward():
            out[:] = torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
        if case.backward:
            q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
            with sdpa_kernel(self.backend):
                o = F.scaled_dot_product_attention(q, k, v, **options)
        return Call(backward if case.backward else forward, lambda: [t.transpose(1, 2) for t in out],
                    context=lambda: sdpa_kernel(self.backend))


FLASH_ATTENTION, ABSENT = flash_attention_peers()
PEERS = {peer.name: peer for peer in (Sdpa("torch_fa2", SDPBackend.FLASH_ATTENTION),
                                      Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION),
                                      Sdpa("torch_efficient", SDPBackend.EFFICIENT_ATTENTION),
                                      Sdpa("torch_math", SDPBackend.MATH))} | FLASH_ATTENTION
