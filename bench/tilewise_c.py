"""The C ABI by ctypes, for PyTorch tensors stored as (batch, head, seqlen, dim)."""
import ctypes

import torch

TYPES = {"fp16": (0, torch.float16), "bf16": (1, torch.bfloat16), "fp32": (2, torch.float32)}
I32, I64, F32, PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class Struct(ctypes.Structure):
    def __init__(self, **fields):
        super().__init__(**fields)
        self.struct_size = ctypes.sizeof(self)


class Problem(Struct):
    _fields_ = (
        [("struct_size", ctypes.c_size_t), ("direction", I32), ("dtype", I32)]
        + [(n, I64) for n in ("batch", "seqlen_q", "seqlen_k", "num_heads", "num_heads_kv", "head_dim", "head_dim_v")]
        + [(n, I32) for n in ("causal", "window_left", "window_right", "align", "has_softmax_scale")]
        + [("softmax_scale", F32), ("softcap", F32)]
        + [(n, I32) for n in ("alibi", "deterministic", "varlen")]
        + [(n, I64) for n in ("total_q", "total_k", "max_seqlen_q", "max_seqlen_k")]
        + [(n, I64 * 4) for n in ("q", "k", "v", "o", "do_", "dq", "dk", "dv")])


class PlanOptions(Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("device_kind", I32), ("device_index", I32),
                ("threads", I32), ("reserved", I32), ("kernel", ctypes.c_char_p)]


class PlanInfo(Struct):
    _fields_ = [("struct_size", ctypes.c_size_t), ("kernel", ctypes.c_char_p), ("threads", I32),
                ("num_splits", I32), ("workspace_bytes", ctypes.c_uint64), ("workspace_align", ctypes.c_uint64)]


COMMON = [("alibi_slopes", PTR), ("alibi_batch_stride", I64), ("cu_seqlens_q", PTR), ("cu_seqlens_k", PTR),
          ("workspace", PTR), ("workspace_bytes", ctypes.c_uint64), ("stream", PTR), ("pool", PTR)]


class Forward(Struct):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [(n, PTR) for n in ("q", "k", "v", "o", "lse")] + COMMON


class Backward(Struct):
    _fields_ = ([("struct_size", ctypes.c_size_t)]
                + [(n, PTR) for n in ("q", "k", "v", "o", "do_", "lse", "dq", "dk", "dv")] + COMMON)


def strides_of(t):
    """(batch, head, seqlen, dim) storage as (batch, seqlen, head, dim) strides."""
    return (I64 * 4)(t.stride(0), t.stride(2), t.stride(1), 1)


class Tilewise:
    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        self.lib.tilewise_last_error.restype = ctypes.c_char_p

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.tilewise_last_error().decode())

    def plan(self, case, direction, threads):
        c = case
        p = Problem(direction=direction, dtype=TYPES[c.dtype][0], batch=1, seqlen_q=c.q.shape[2],
                    seqlen_k=c.k.shape[2], num_heads=c.q.shape[1], num_heads_kv=c.k.shape[1], head_dim=c.dim,
                    head_dim_v=c.dim, causal=int(c.causal), window_left=-1, window_right=-1)
        for name in ("q", "o", "do_", "dq"):
            setattr(p, name, strides_of(c.q))
        for name in ("k", "v", "dk", "dv"):
            setattr(p, name, strides_of(c.k))
        handle, info, options = PTR(), PlanInfo(), PlanOptions(threads=threads)
        self.check(self.lib.tilewise_plan_create(ctypes.byref(p), ctypes.byref(options), ctypes.byref(handle)))
        self.check(self.lib.tilewise_plan_get_info(handle, ctypes.byref(info)))
        space = torch.empty(info.workspace_bytes + 64, dtype=torch.uint8)
        aligned = space.data_ptr() + -space.data_ptr() % 64
        return handle, dict(workspace=aligned, workspace_bytes=info.workspace_bytes), info.kernel.decode(), space

    def make(self, case, op, threads):
        """A call without arguments; .results() gives its outputs."""
        c, o = case, torch.empty_like(case.q)
        lse = torch.empty(c.q.shape[:3], dtype=torch.float32)
        inputs = dict(q=c.q.data_ptr(), k=c.k.data_ptr(), v=c.v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr())
        handle, space, kernel, keep = self.plan(c, 0, threads)
        args, run, outputs = Forward(**inputs, **space), self.lib.tilewise_forward, [o]
        if op == "backward":
            self.check(run(handle, ctypes.byref(args)))
            outputs = [torch.empty_like(t) for t in (c.q, c.k, c.v)]
            handle, space, kernel, keep = self.plan(c, 1, threads)
            grads = dict(zip(("dq", "dk", "dv"), (t.data_ptr() for t in outputs)))
            args, run = Backward(do_=c.do.data_ptr(), **inputs, **grads, **space), self.lib.tilewise_backward

        def call():
            self.check(run(handle, ctypes.byref(args)))
        call.results, call.kernel, call.keep = (lambda: outputs), kernel, (o, lse, keep, c)
        return call
