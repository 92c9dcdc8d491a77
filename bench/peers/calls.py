"""Tilewise and its peers as calls without arguments on the same tensors, (batch, seqlen, heads, dim).

A peer is a class with `name` and make(case), which gives a Call or raises what keeps it from computing
the case (NotImplementedError, RuntimeError). To add one, write the class and put it into PEERS.
"""
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from peers.call import Call
from peers.flash_attention import flash_attention_peers
from tilewise import _lib

DTYPES = {_lib.FP16: torch.float16, _lib.BF16: torch.bfloat16}


class Case:
    """The problem of one line and its inputs on the current device: N(0,1), the same for everybody."""

    def __init__(self, line):
        self.problem = _lib.parse(line)
        self.line = _lib.text_of(self.problem)
        p = self.problem
        if p.dtype not in DTYPES or p.varlen or p.head_dim != p.head_dim_v:
            raise ValueError(f"{line}: peers are timed on dense fp16 and bf16 with d = dv")
        make = torch.Generator(device="cuda").manual_seed(1)

        def tensor(seqlen, heads):
            return torch.randn((p.batch, seqlen, heads, p.head_dim), generator=make, device="cuda",
                               dtype=DTYPES[p.dtype])
        self.q, self.do = tensor(p.seqlen_q, p.num_heads), tensor(p.seqlen_q, p.num_heads)
        self.k, self.v = tensor(p.seqlen_k, p.num_heads_kv), tensor(p.seqlen_k, p.num_heads_kv)
        self.backward = p.direction == _lib.BACKWARD


class Tilewise:
    name = "tilewise"

    @staticmethod
    def plan(problem, direction):
        """The plan, its workspace as a tensor, and the fields of a run that name workspace and stream."""
        copy = _lib.Problem.from_buffer_copy(problem)
        copy.direction = direction
        plan = _lib.Plan(copy, device_kind=_lib.CUDA, device_index=torch.cuda.current_device())
        workspace = torch.empty(max(1, plan.workspace_bytes), dtype=torch.uint8, device="cuda")
        return plan, workspace, dict(workspace=workspace.data_ptr(), workspace_bytes=plan.workspace_bytes,
                                     stream=torch.cuda.current_stream().cuda_stream)

    def make(self, case):
        p, o = case.problem, torch.empty_like(case.q)
        lse = torch.empty((p.batch, p.num_heads, p.seqlen_q), dtype=torch.float32, device="cuda")
        pointers = {n: t.data_ptr() for n, t in zip(("q", "k", "v", "o", "lse"), (case.q, case.k, case.v, o, lse))}
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
