"""tilewise._lib on the library of this build: structs as in the header, errors as exceptions, a run."""
import ctypes
import re
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "python"))
import tilewise  # noqa: E402
from tilewise import _lib  # noqa: E402

HEADER = re.sub(r"/\*.*?\*/", "", (SOURCE / "include/tilewise/tilewise.h").read_text(), flags=re.S)
TYPES = {"size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
         "float": ctypes.c_float, "tilewise_strides": _lib.Strides}


def header_fields(struct):
    """[(name, ctypes type or None for a pointer)] of a struct of tilewise.h."""
    body = re.search(rf"typedef struct {struct} \{{(.*?)\}} {struct};", HEADER, re.S)[1]
    fields = []
    for declaration in filter(None, (d.strip() for d in body.split(";"))):
        kind, name = re.fullmatch(r"(.*?[\s*])(\w+)", declaration, re.S).groups()
        fields.append((name, None if "*" in kind else TYPES[kind.strip()]))
    return fields


def array(values):
    return (ctypes.c_float * len(values))(*values)


class Header(unittest.TestCase):
    def test_structs(self):
        for struct, ours in (("tilewise_problem", _lib.Problem), ("tilewise_plan_options", _lib.PlanOptions),
                             ("tilewise_plan_info", _lib.PlanInfo), ("tilewise_forward_params", _lib.Forward),
                             ("tilewise_backward_params", _lib.Backward)):
            fields = header_fields(struct)
            self.assertEqual([name for name, _ in fields], [name for name, _ in ours._fields_], struct)
            for (name, kind), (_, mine) in zip(fields, ours._fields_):
                if kind is None:
                    self.assertEqual(ctypes.sizeof(mine), ctypes.sizeof(ctypes.c_void_p), f"{struct}.{name}")
                else:
                    self.assertIs(mine, kind, f"{struct}.{name}")

    def test_constants(self):
        values = {name: int(value) for name, value in re.findall(r"TILEWISE_(\w+) = (\d+)", HEADER)}
        self.assertGreater(len(values), 15)
        names = {"BOTTOM_RIGHT", "TOP_LEFT"}  # corners: nothing here uses them
        self.assertEqual({n: getattr(_lib, n) for n in values if n not in names},
                         {n: v for n, v in values.items() if n not in names})
        self.assertEqual(_lib.ABI, int(re.search(r"VERSION_MAJOR (\d+)", HEADER)[1]))

    def test_defaults(self):
        """Our Problem() is what TILEWISE_PROBLEM_INIT is: the library takes it with sizes alone."""
        problem = _lib.Problem(batch=1, seqlen_q=3, seqlen_k=4, num_heads=1, num_heads_kv=1, head_dim=8, head_dim_v=8)
        self.assertEqual(_lib.text_of(problem), "fp32 b1 sq3 sk4 h1 d8")


class Loading(unittest.TestCase):
    def test_version(self):
        self.assertEqual(_lib.version_text(_lib.library().tilewise_version()), tilewise.__version__)

    def test_environment_names_the_only_candidate(self):
        with mock.patch.dict("os.environ", TILEWISE_LIBRARY="/nowhere/libtilewise.so"):
            self.assertEqual(_lib.candidates(), ["/nowhere/libtilewise.so"])
            with self.assertRaisesRegex(ImportError, "/nowhere/libtilewise.so"):
                _lib.load()

    def test_candidates_without_it(self):
        with mock.patch.dict("os.environ", TILEWISE_LIBRARY=""):
            self.assertIn(str(SOURCE / "build/src/libtilewise.so"), _lib.candidates())

    def test_other_abi(self):
        with mock.patch.object(_lib, "ABI", 7), self.assertRaisesRegex(ImportError, r"is Tilewise 0\.\d+\.\d+.*7\.x"):
            _lib.load()

    def test_other_library(self):
        with self.assertRaisesRegex(ImportError, "not a Tilewise library"):
            _lib.load(ctypes.util.find_library("c"))
        with self.assertRaisesRegex(ImportError, "not a Tilewise library"):
            _lib.load(__file__)

    def test_no_framework_is_imported(self):
        code = "import sys, tilewise._lib; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'jax')))"
        self.assertEqual(subprocess.run([sys.executable, "-Bc", code], cwd=SOURCE / "python").returncode, 0)


class Errors(unittest.TestCase):
    def test_wrong_argument(self):
        with self.assertRaisesRegex(ValueError, '"sqx": unknown word'):
            _lib.parse("fp32 b1 sqx h1 d8")

    def test_no_kernel(self):
        with self.assertRaisesRegex(NotImplementedError, "cpu.backward.scalar.*direction is forward"):
            _lib.Plan(_lib.parse("fp32 b1 sq5 h1 d64"), kernel="cpu.backward.scalar")

    def test_no_device(self):
        with self.assertRaisesRegex((RuntimeError, ValueError), "device"):
            _lib.Plan(_lib.parse("bf16 b1 sq5 h1 d64"), device_kind=_lib.CUDA, device_index=1000)

    def test_workspace(self):
        plan = _lib.Plan(_lib.parse("fp32 b1 sq40 h1 d8"))
        self.assertGreater(plan.workspace_bytes, 0)
        x = array([1.0] * 320)
        address = ctypes.addressof(x)
        out = array([0.0] * 320)
        with self.assertRaisesRegex(ValueError, "workspace"):
            plan.run(_lib.Forward(q=address, k=address, v=address, o=ctypes.addressof(out)))

    def test_every_status(self):
        for status, kind in ((1, ValueError), (2, NotImplementedError), (3, ValueError), (4, ValueError),
                             (5, RuntimeError), (6, RuntimeError), (7, RuntimeError)):
            with self.assertRaises(kind) as caught:
                _lib.check(status)
            self.assertIs(type(caught.exception), kind, status)
        _lib.check(_lib.OK)


class Running(unittest.TestCase):
    def test_forward_and_backward(self):
        """Ones in v: o is 1; every query hands out a weight of 1: dv sums to the elements of do."""
        line, count = "fp32 b1 sq5 h2 d8 causal", 5 * 2 * 8
        q = array([(i % 7 - 3) / 2 for i in range(count)])
        v, o, lse = array([1.0] * count), array([0.0] * count), array([0.0] * 10)
        gradients = [array([0.0] * count) for _ in range(3)]
        named = dict(q=q, k=q, v=v, o=o, lse=lse)
        self.run_line(line, _lib.Forward, named)
        self.assertLess(max(abs(x - 1) for x in o), 1e-6)
        named.update(zip(("do_", "dq", "dk", "dv"), (v, *gradients)))
        self.run_line(line + " backward", _lib.Backward, named)
        self.assertAlmostEqual(sum(gradients[2]), count, places=3)

    def run_line(self, line, params, named):
        plan = _lib.Plan(_lib.parse(line), threads=1)
        self.assertTrue(plan.kernel.startswith("cpu."))
        self.assertEqual(plan.threads, 1)
        room = ctypes.create_string_buffer(plan.workspace_bytes + plan.workspace_align)
        start = ctypes.addressof(room)
        plan.run(params(workspace=start + -start % max(1, plan.workspace_align), workspace_bytes=plan.workspace_bytes,
                        **{name: ctypes.addressof(values) for name, values in named.items()}))

    def test_text(self):
        line = "bf16 b2 sq40 sk50 h4 hk2 d64 dv32 causal window:7,0 backward"
        again = _lib.text_of(_lib.parse(line))
        self.assertEqual(_lib.text_of(_lib.parse(again)), again)
        self.assertEqual(_lib.parse(line).window_left, 7)


if __name__ == "__main__":
    unittest.main()
