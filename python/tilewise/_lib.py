"""The C ABI by ctypes: the library found and loaded, its structs, a status turned into an exception.

    from tilewise import _lib
    problem = _lib.parse("bf16 b2 sq4096 h16 d128 causal")
    plan = _lib.Plan(problem, device_kind=_lib.CUDA)
    plan.run(_lib.Forward(q=..., k=..., v=..., o=..., workspace=..., workspace_bytes=plan.workspace_bytes))

Pointers are plain integers (tensor.data_ptr()); the caller keeps what they point to alive. Meaning,
shapes and units of every field: include/tilewise/tilewise.h.
"""
import ctypes
import ctypes.util
import functools
import os
from pathlib import Path

ABI = 0  # TILEWISE_VERSION_MAJOR of the header that the structs below repeat
OK, INVALID_ARGUMENT, UNSUPPORTED, OVERFLOW, WORKSPACE, OUT_OF_MEMORY, DEVICE_ERROR, INTERNAL_ERROR = range(8)
FORWARD, BACKWARD = range(2)
FP16, BF16, FP32, FP64 = range(4)
CPU, CUDA = range(2)

_FILE = "libtilewise.so"
_size, _i32, _i64, _u64, _f32 = (ctypes.c_size_t, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_float)
_pointer, _text = ctypes.c_void_p, ctypes.c_char_p
Strides = _i64 * 4  # of a (batch, seqlen, head, dim) view, in elements; all 0: contiguous


class Struct(ctypes.Structure):
    """Begins with struct_size, which is filled here as the _INIT macros do."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.struct_size = ctypes.sizeof(self)


class Problem(Struct):
    _fields_ = (
        [("struct_size", _size), ("direction", _i32), ("dtype", _i32)]
        + [(n, _i64) for n in ("batch", "seqlen_q", "seqlen_k", "num_heads", "num_heads_kv", "head_dim", "head_dim_v")]
        + [(n, _i32) for n in ("causal", "window_left", "window_right", "align", "has_softmax_scale")]
        + [("softmax_scale", _f32), ("softcap", _f32)]
        + [(n, _i32) for n in ("alibi", "deterministic", "varlen")]
        + [(n, _i64) for n in ("total_q", "total_k", "max_seqlen_q", "max_seqlen_k")]
        + [(n, Strides) for n in ("q", "k", "v", "o", "do_", "dq", "dk", "dv")])

    def __init__(self, **fields):
        super().__init__(**{"dtype": FP32, "window_left": -1, "window_right": -1, **fields})


class PlanOptions(Struct):
    _fields_ = [("struct_size", _size), ("device_kind", _i32), ("device_index", _i32), ("threads", _i32),
                ("reserved", _i32), ("kernel", _text)]


class PlanInfo(Struct):
    _fields_ = [("struct_size", _size), ("kernel", _text), ("threads", _i32), ("num_splits", _i32),
                ("workspace_bytes", _u64), ("workspace_align", _u64)]


_RUN = [("alibi_slopes", _pointer), ("alibi_batch_stride", _i64), ("cu_seqlens_q", _pointer),
        ("cu_seqlens_k", _pointer), ("workspace", _pointer), ("workspace_bytes", _u64), ("stream", _pointer),
        ("pool", _pointer)]


class Forward(Struct):
    _fields_ = [("struct_size", _size)] + [(n, _pointer) for n in ("q", "k", "v", "o", "lse")] + _RUN


class Backward(Struct):
    _fields_ = ([("struct_size", _size)]
                + [(n, _pointer) for n in ("q", "k", "v", "o", "do_", "lse", "dq", "dk", "dv")] + _RUN)


_handle = ctypes.POINTER(ctypes.c_void_p)
_FUNCTIONS = {  # name -> (result, arguments)
    "tilewise_version": (_i32, []),
    "tilewise_last_error": (_text, []),
    "tilewise_plan_create": (_i32, [ctypes.POINTER(Problem), ctypes.POINTER(PlanOptions), _handle]),
    "tilewise_plan_destroy": (None, [_pointer]),
    "tilewise_plan_get_info": (_i32, [_pointer, ctypes.POINTER(PlanInfo)]),
    "tilewise_forward": (_i32, [_pointer, ctypes.POINTER(Forward)]),
    "tilewise_backward": (_i32, [_pointer, ctypes.POINTER(Backward)]),
    "tilewise_problem_parse": (_i32, [_text, ctypes.POINTER(Problem)]),
    "tilewise_problem_print": (_i32, [ctypes.POINTER(Problem), _text, _size, ctypes.POINTER(_size)]),
    "tilewise_device_count": (_i32, [_i32, ctypes.POINTER(_i32)]),
    "tilewise_backend_note": (_text, [_i32]),
}


def candidates():
    """Where the library may be, best first: TILEWISE_LIBRARY alone if set, else beside this file, in the
    build folders of a source tree, and where the dynamic linker looks."""
    named = os.environ.get("TILEWISE_LIBRARY")
    if named:
        return [named]
    here = Path(__file__).resolve().parent
    tree = here.parent.parent
    found = [here / _FILE, tree / "build/cuda/src" / _FILE, tree / "build/src" / _FILE]
    return [str(p) for p in found] + list(filter(None, [ctypes.util.find_library("tilewise")]))


def load(path=None):
    """The library at `path`, or the first candidate that is there. ImportError when there is none, or when
    it speaks another version of the ABI."""
    paths = [str(path)] if path else candidates()
    usable = [p for p in paths if os.path.exists(p) or "/" not in p]
    if not usable:
        raise ImportError(f"no {_FILE}; looked at {', '.join(paths)}; TILEWISE_LIBRARY names another one")
    try:
        library = ctypes.CDLL(usable[0])
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ImportError(f"{usable[0]} is not a Tilewise library that can be used here: {error}") from error
    version = library.tilewise_version()
    if version // 10000 != ABI:
        raise ImportError(f"{usable[0]} is Tilewise {version_text(version)}, this package needs {ABI}.x")
    return library


@functools.lru_cache(maxsize=None)
def library():
    """The library that this process uses, loaded by the first call."""
    return load()


def version_text(version):
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def check(status, of=None):
    """Raises what the status means, with the library's sentence: ValueError for a wrong argument, size or
    workspace, NotImplementedError when no kernel computes the problem, RuntimeError for the rest."""
    if status == OK:
        return
    text = (of or library()).tilewise_last_error().decode(errors="replace")
    if status in (INVALID_ARGUMENT, OVERFLOW, WORKSPACE):
        raise ValueError(text)
    raise NotImplementedError(text) if status == UNSUPPORTED else RuntimeError(text)


def parse(line):
    """The problem of one line of text, e.g. "bf16 b2 sq4096 h16 d128 causal". ValueError says which word."""
    problem = Problem()
    check(library().tilewise_problem_parse(line.encode(), ctypes.byref(problem)))
    return problem


def text_of(problem):
    """The problem as one line, as every part of Tilewise prints it."""
    needed = _size()
    check(library().tilewise_problem_print(ctypes.byref(problem), None, 0, ctypes.byref(needed)))
    buffer = ctypes.create_string_buffer(needed.value)
    check(library().tilewise_problem_print(ctypes.byref(problem), buffer, needed, None))
    return buffer.value.decode()


def device_count(kind=CUDA):
    """Devices of the kind that can be used here; backend_note(kind) says why there is none."""
    count = _i32()
    check(library().tilewise_device_count(kind, ctypes.byref(count)))
    return count.value


def backend_note(kind=CUDA):
    return library().tilewise_backend_note(kind).decode()


class Plan:
    """The kernel chosen for a problem on a device: kernel, threads, num_splits, workspace_bytes,
    workspace_align (bytes). Immutable; any number of threads may run it, each with its own workspace."""

    def __init__(self, problem, device_kind=CPU, device_index=0, threads=0, kernel=None):
        """kernel: forces one by name. NotImplementedError lists every kernel with its reason."""
        self._library, self._plan = library(), ctypes.c_void_p()
        options = PlanOptions(device_kind=device_kind, device_index=device_index, threads=threads,
                              kernel=kernel.encode() if kernel else None)
        check(self._library.tilewise_plan_create(ctypes.byref(problem), ctypes.byref(options),
                                                 ctypes.byref(self._plan)))
        info = PlanInfo()
        check(self._library.tilewise_plan_get_info(self._plan, ctypes.byref(info)))
        self.kernel, self.threads, self.num_splits = info.kernel.decode(), info.threads, info.num_splits
        self.workspace_bytes, self.workspace_align = info.workspace_bytes, info.workspace_align
        self._run = (self._library.tilewise_backward if problem.direction == BACKWARD
                     else self._library.tilewise_forward)

    def run(self, params):
        """params: a Forward or a Backward, as the problem's direction asks for."""
        status = self._run(self._plan, ctypes.byref(params))
        if status != OK:
            check(status)

    def __del__(self):
        if getattr(self, "_plan", None):
            self._library.tilewise_plan_destroy(self._plan)
