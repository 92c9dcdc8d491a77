"""FlashAttention-3 and 4 as peers, where their libraries are at hand. Neither is part of torch, and no
binary of theirs belongs into this tree.

  fa3   FA3_LIB names flash_attn_3's extension (flash_attn_3/_C.so of the xformers 0.0.34 wheel). It was
        built for CUDA 12: CUDART12 names a libcudart.so.12 (wheel nvidia-cuda-runtime-cu12).
  fa4   the packages flash-attn-4, nvidia-cutlass-dsl (with its -libs-base, -libs-core and -libs-cu13),
        quack-kernels, apache-tvm-ffi and torch-c-dlpack-ext are on PYTHONPATH, and so is the folder
        nvidia_cutlass_dsl/dsl_packages. Each kernel is compiled on its first call, which takes seconds;
        FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 keeps it for the next process.
"""
import ctypes
import hashlib
import importlib
import importlib.metadata
import os
from pathlib import Path

import torch

from peers.call import Call

FEW_QUERIES = 64  # below, FlashAttention-3 may split the keys


class Fa3:
    name = "fa3"

    def __init__(self):
        if not os.environ.get("FA3_LIB"):
            raise ImportError("FA3_LIB is not set")
        try:
            if os.environ.get("CUDART12"):
                ctypes.CDLL(os.environ["CUDART12"], mode=ctypes.RTLD_GLOBAL)
            torch.ops.load_library(os.environ["FA3_LIB"])
        except OSError as error:
            raise ImportError(str(error).split("\n")[0]) from error
        self.forward, self.backward = (getattr(torch.ops.flash_attn_3, n).default for n in ("fwd", "bwd"))

    @property
    def version(self):
        return f"sha256 {hashlib.sha256(Path(os.environ['FA3_LIB']).read_bytes()).hexdigest()[:12]}"

    def make(self, case):
        p = case.problem
        if p.varlen or p.softcap:
            raise NotImplementedError("only dense problems are timed")
        left, right = (-1 if end is None else end for end in case.window or (None, None))
        options = dict(softmax_scale=p.head_dim ** -0.5, is_causal=bool(p.causal), window_size_left=left,
                       window_size_right=right)
        q, k, v = case.q, case.k, case.v
        splits = 0 if p.seqlen_q < FEW_QUERIES else 1  # 0: it chooses
        out = []

        def forward():
            out[:] = self.forward(q, k, v, num_splits=splits, **options)[:2]
        if not case.backward:
            return Call(forward, lambda: out[:1])
        forward()
        o, lse = out
        gradients = [torch.empty_like(t) for t in (q, k, v)]
        options["deterministic"] = bool(p.deterministic)
        return Call(lambda: self.backward(case.do, q, k, v, o, lse, *gradients, **options), lambda: gradients)


class Fa4:
    name = "fa4"

    def __init__(self):
        self.interface = importlib.import_module("flash_attn.cute.interface")

    @property
    def version(self):
        return importlib.metadata.version("flash-attn-4")

    def make(self, case):
        p = case.problem
        if p.varlen or p.softcap:
            raise NotImplementedError("only dense problems are timed")
        options = dict(causal=bool(p.causal))
        if case.window:
            options.update(zip(("window_size_left", "window_size_right"), case.window))
        q, k, v = case.q, case.k, case.v
        out = []

        def forward():
            out[:] = self.interface._flash_attn_fwd(q, k, v, return_lse=True, **options)[:2]
        try:
            forward()
            if not case.backward:
                return Call(forward, lambda: out[:1])
            o, lse = out
            options["deterministic"] = bool(p.deterministic)
            dq, dk, dv = gradients = [torch.empty_like(t) for t in (q, k, v)]

            def backward():
                self.interface._flash_attn_bwd(q, k, v, o, case.do, lse, dq=dq, dk=dk, dv=dv, **options)
            backward()
        except RuntimeError:
            raise
        except Exception as error:  # its compiler has exceptions of its own
            raise NotImplementedError(str(error) or type(error).__name__) from error
        return Call(backward, lambda: gradients)


def flash_attention_peers():
    """name -> peer of those that are there, and name -> why not of the others."""
    there, absent = {}, {}
    for kind in (Fa3, Fa4):
        try:
            there[kind.name] = kind()
        except Exception as error:  # half installed, a package raises anything
            absent[kind.name] = (str(error) or type(error).__name__).split("\n")[0][:200]
    return there, absent
