"""What tools/gpu_check makes of its programs' output: counts, sanitizers, accuracy, tables, form of the evidence."""
import copy
import importlib.util
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from importlib.machinery import SourceFileLoader
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(SOURCE / "tools"), str(SOURCE / "bench")]
from evidence import accuracy, form, gpu, process, sanitizer, tables  # noqa: E402

LINE = "bf16 b1 sq65 h2 d64"
GOOD = json.dumps({"problem": LINE, "ok": True, "kernel": "sm80.forward", "rules": []})
REFUSED = json.dumps({"problem": LINE, "ok": False, "kernel": "", "rules": [], "why": ["FAIL plan: no"]})
WRONG = json.dumps({"problem": LINE, "ok": False, "kernel": "sm80.forward", "rules": [], "why": ["FAIL A1 o: 2"]})


def tool(name):
    """A script of tools/ as a module."""
    loader = SourceFileLoader(name, str(SOURCE / "tools" / name))
    spec = importlib.util.spec_from_loader(name, loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def row(problem, ms, **peers):
    direction = "backward" if "backward" in problem else "forward"
    result = {"problem": problem, "direction": direction, "kernel": "k" if ms else None,
              "peers": {n: {"ms": p, "tflops": 100 / p, "host_us": 20, "calls": 9} for n, p in peers.items()}}
    return {**result, **({"ms": ms, "tflops": 100 / ms, "host_us": 9, "calls": 9} if ms else {"why": "no kernel"})}


def evidence(**changes):
    bench = [row("bf16 b32 sq512 h32 d64", 1.0, torch_fa2=2.0, torch_math=20.0),
             row("bf16 b1 sq16384 h32 d64", 2.0, torch_fa2=1.0),
             row("bf16 b8 sq2048 h32 d64 causal", 0.5, torch_fa2=1.0, cudnn=0.25)]
    whole = {"schema": 1, "device": "NVIDIA H200", "driver": "580.1", "nvcc": "13.0", "torch": "2.11", "cudnn": "91900",
             "date": "2026-11-30", "source_hash": "ab", "sources": {"a": "b"},
             "tests": {"run": 30, "failed": 0, "skipped": 1}, "sm80": {"run": 29, "failed": 0, "skipped": 2},
             "sanitizer": {"memcheck": 0, "racecheck": 0, "initcheck": 0, "synccheck": 0, "refused": 0, "listed": 16,
                           "shapes": {"memcheck": 16, "racecheck": 9, "initcheck": 16, "synccheck": 16}},
             "accuracy": [{"rule": "A1", "dtype": "bf16", "direction": "forward", "tensor": "o", "worst": 0.1,
                           "limit": 0.2, "problem": LINE}],
             "accuracy_cases": {"run": 9, "failed": 0, "refused": 0}, "clocks": {"sm_mhz": {"median": 1700}},
             "bench": bench, "cublas": [700.4, 690.0],
             "shapes": [row("bf16 b1 sq1 sk8192 h32 hk8 d128", 0.02, cudnn=0.01), row("bf16 varlen:q=1,2,3,4,5 h1 d64", 1.0)],
             "memory": [{"seqlen": 1024, "problem": "bf16 b1 sq1024 sk1024 h16 d128 causal backward",
                         "peak_bytes": 48 << 20, "workspace_bytes": 8 << 20, "outside_bytes": 0,
                         "torch_math_bytes": 600 << 20},
                        {"seqlen": 65536, "problem": "bf16 b1 sq65536 sk65536 h16 d128 causal backward",
                         "peak_bytes": 3072 << 20, "workspace_bytes": 512 << 20, "outside_bytes": 0}]}
    return {**copy.deepcopy(whole), **changes}


class Counts(unittest.TestCase):
    def test_closing_line(self):
        lines = ["100% tests passed", "cases: 12 passed, 1 failed, 3 skipped"]
        self.assertEqual(process.counts_in(lines), {"run": 13, "failed": 1, "skipped": 3})
        self.assertIsNone(process.counts_in(["cases: many"]))

    def test_time_limit_ends_the_children(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "late"
            output, code = process.output_of(["sh", "-c", f"echo begun; (sleep 1; touch {path}) & wait"], 0.3)
            self.assertEqual((output, code), ("begun\n", None))
            subprocess.run(["sleep", "1.2"])
            self.assertFalse(path.exists())


class Sanitizer(unittest.TestCase):
    def test_summaries(self):
        self.assertEqual(sanitizer.errors_in("========= ERROR SUMMARY: 0 errors\n"), 0)
        self.assertEqual(sanitizer.errors_in("========= ERROR SUMMARY: 1 error\n"), 1)
        self.assertEqual(sanitizer.errors_in(
            "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n"), 3)
        self.assertIsNone(sanitizer.errors_in("========= COMPUTE-SANITIZER\n"))

    def test_read(self):
        summary = "\n========= ERROR SUMMARY: 2 errors\n"
        self.assertEqual(sanitizer.read("memcheck", LINE, GOOD + summary, 0).errors, 2)
        self.assertTrue(sanitizer.read("memcheck", LINE, WRONG + summary, 1).wrong)
        report = "========= COMPUTE-SANITIZER\n========= Invalid read of size 4\n=========     at kernel+0x40\n"
        self.assertEqual(sanitizer.read("memcheck", LINE, report + GOOD + summary, 0).said,
                         "Invalid read of size 4; at kernel+0x40")
        refused = sanitizer.read("memcheck", LINE, REFUSED + summary, 1)
        self.assertEqual((refused.refused, refused.errors), (True, None))
        broken = sanitizer.read("memcheck", LINE, "========= Error: Device not supported\n", 1)
        self.assertEqual((broken.errors, broken.why), (None, "Error: Device not supported"))
        self.assertIn("out of time", sanitizer.read("memcheck", LINE, GOOD, None).why)

    def test_a_tool_that_did_not_run_has_no_number(self):
        runs = [sanitizer.Run("memcheck", LINE, errors=0), sanitizer.Run("memcheck", LINE + " causal", errors=2),
                sanitizer.Run("racecheck", LINE, why="not run: out of time"),
                sanitizer.Run("initcheck", LINE, refused=True, why="no kernel computes it")]
        found = sanitizer.evidence_of(runs, 2)
        self.assertEqual((found["memcheck"], found["racecheck"]), (2, "not run: out of time"))
        self.assertEqual((found["initcheck"], found["synccheck"]), ("no shape was run",) * 2)
        self.assertEqual(found["shapes"], {"memcheck": 2, "racecheck": 0, "initcheck": 0, "synccheck": 0})
        self.assertEqual((found["refused"], found["listed"]), (1, 2))

    def run_list(self, script, seconds=20):
        """check() with a compute-sanitizer of our own."""
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "compute-sanitizer"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            before = os.environ["PATH"]
            os.environ["PATH"] = f"{folder}:{before}"
            try:
                return sanitizer.check([LINE, LINE + " causal"], "tilewise", os.environ, seconds, 4)
            finally:
                os.environ["PATH"] = before

    def test_list(self):
        found, notes = self.run_list(f"echo '{GOOD}'; test $2 = racecheck && "
                                     "echo 'RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)' || "
                                     "echo 'ERROR SUMMARY: 0 errors'")
        self.assertEqual([found[t] for t in sanitizer.TOOLS], [0, 2, 0, 0])
        self.assertEqual(set(found["shapes"].values()), {2})
        self.assertEqual(len(notes), 2)

    def test_probe_failed(self):
        found, notes = self.run_list("echo '========= Error: Device not supported'; exit 1")
        for name in sanitizer.TOOLS:
            self.assertIn("Device not supported", found[name])
        self.assertEqual(len(notes), 1)

    def test_out_of_time(self):
        found, _ = self.run_list(f"echo '{GOOD}'; test $2 = memcheck || sleep 9; echo 'ERROR SUMMARY: 0 errors'", 1)
        self.assertEqual(found["memcheck"], 0)
        self.assertIn("out of time", found["synccheck"])


class Accuracy(unittest.TestCase):
    def test_worst_of_each_rule(self):
        def report(problem, worst, tensor="o"):
            return {"problem": problem, "rules": [{"rule": "A1", "tensor": tensor, "worst": worst, "value": 7.0,
                                                   "limit": 8.0}]}
        rows = accuracy.worst_rows([report(LINE, 0.2), report(LINE + " causal", 0.6), report(LINE + " backward", 0.1),
                                    report("fp16 b1 sq9 h1 d8", None), report("fp16 b1 sq9 h1 d16", 0.9)])
        self.assertEqual([(r["dtype"], r["direction"], r["problem"]) for r in rows],
                         [("bf16", "backward", LINE + " backward"), ("bf16", "forward", LINE + " causal"),
                          ("fp16", "forward", "fp16 b1 sq9 h1 d8")])
        self.assertEqual((rows[1]["worst"], rows[1]["limit"]), (7.0, 8.0))

    def check(self, script, lines, seconds=20):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "tilewise"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            return accuracy.check(lines, program, os.environ, seconds, 2)

    def test_counts(self):
        rows, counts, notes = self.check(f"read line; echo '{GOOD}'; read line && echo '{WRONG}'", [LINE] * 3)
        self.assertEqual((rows, counts), ([], {"run": 3, "failed": 1, "refused": 0}))
        self.assertEqual(len(notes), 1)
        _, counts, notes = self.check(f"echo '{REFUSED}'", [LINE])
        self.assertEqual((counts, notes), ({"run": 0, "failed": 0, "refused": 1}, []))

    def test_a_crash_counts_as_failed(self):
        _, counts, notes = self.check(f"echo '{GOOD}'; echo Segmentation fault >&2; exit 139", [LINE] * 4)
        self.assertEqual(counts, {"run": 2, "failed": 2, "refused": 0})
        self.assertIn("Segmentation fault", notes[0])


class Tables(unittest.TestCase):
    def test_ratios(self):
        header, rows = tables.bench_rows(evidence()["bench"])
        self.assertEqual(header[-3:], ["torch FA2", "cuDNN", "torch math"])
        self.assertEqual(rows[0], ["bf16", "forward", "64", "dense", "100 / – / 50", "1.00 (0.50 at 16k)", "–",
                                   "20 (20 at 512)"])
        self.assertEqual(rows[1][4:], ["– / 200 / –", "2.00 (2.00 at 2k)", "0.50 (0.50 at 2k)", "–"])

    def test_order_and_missing_kernel(self):
        bench = [row("fp16 b1 sq512 h1 d64", 1.0), row("bf16 b1 sq512 h1 d128 backward", None, cudnn=1.0),
                 row("bf16 b1 sq512 h1 d256", 1.0), row("bf16 b1 sq512 h1 d128 causal", 1.0),
                 row("bf16 b1 sq512 h1 d128", 1.0)]
        _, rows = tables.bench_rows(bench)
        self.assertEqual([cells[:4] for cells in rows],
                         [["bf16", "forward", "128", "dense"], ["bf16", "forward", "128", "causal"],
                          ["bf16", "forward", "256", "dense"], ["bf16", "backward", "128", "dense"],
                          ["fp16", "forward", "64", "dense"]])
        self.assertEqual(rows[3][4:], ["no kernel yet", "–"])

    def test_readme(self):
        text = tables.readme_part(evidence())
        self.assertIn("30 tests, 0 failed; compiled for sm_80 and translated: 29 tests, 0 failed; memcheck 0 errors in 16 shapes; racecheck 0 errors in 9 shapes", text)
        self.assertIn("| 64k | 3,072 MiB | 512 MiB | – |", text)
        self.assertIn("`bf16 b1 h16 d128 causal`", text)

    def test_shapes(self):
        header, rows = tables.shape_rows(evidence()["shapes"])
        self.assertEqual(header, ["problem", "µs", "TFLOP/s", "cuDNN"])
        self.assertEqual(rows, [["bf16 b1 sq1 sk8192 h32 hk8 d128", "20", "5000", "0.50"],
                                ["bf16 varlen:q=1,2,3,... h1 d64", "1,000", "100", "–"]])
        self.assertIn("700 and 690 TFLOP/s", tables.readme_part(evidence()))

    def test_closing_shows_what_ran(self):
        text = tables.closing({"tests": evidence()["tests"]})
        self.assertEqual(text, "tests      30 run, 0 failed, 1 skipped\n")
        self.assertIn("A1", tables.closing(evidence()))


class Form(unittest.TestCase):
    def test_complete(self):
        self.assertEqual(form.lacks(evidence()), [])

    def test_what_is_missing_is_named(self):
        self.assertEqual(form.lacks({"schema": 2}), ["schema is 2, expected 1"])
        self.assertEqual(form.lacks(evidence(clocks={})), ["no clocks"])
        self.assertEqual(form.lacks(evidence(tests={"run": 3, "failed": 1, "skipped": 0})), ["1 tests failed"])
        bad = evidence()
        bad["sanitizer"].update(racecheck="not run: out of time", initcheck=4)
        self.assertEqual(form.lacks(bad), ["racecheck did not run: not run: out of time", "initcheck counted 4 errors"])
        bad = evidence()
        bad["bench"].append(row("bf16 b1 sq512 h1 d64 backward", None))
        self.assertEqual(form.lacks(bad), ["1 rows of the bench have no kernel"])


class Choice(unittest.TestCase):
    def test_parts_and_words(self):
        choice = gpu.Choice(False, "bench backward d128")
        self.assertEqual((choice.parts, choice.words, choice.whole), (["bench"], "backward d128", False))
        self.assertEqual(len(choice.lines("bench_gpu.txt")), 18)
        self.assertTrue(gpu.Choice(False, "").whole)
        self.assertFalse(gpu.Choice(True, "").whole)


class Scripts(unittest.TestCase):
    def test_source_hash_of_the_gpu(self):
        sources = tool("source_hash").sources("gpu")
        self.assertIn("cmake/cuda.cmake", sources)
        self.assertIn("src/cuda/params.h", sources)
        self.assertFalse(any(name.startswith("src/cpu") for name in sources))
        self.assertFalse(any(name.startswith("src/cuda") for name in tool("source_hash").sources("cpu")))

    def test_status_names_what_changed(self):
        changes = tool("evidence_status").changes({"sources": {"a": "1", "b": "2"}}, {"sources": {"b": "3", "c": "4"}})
        self.assertEqual(list(changes), ["new  a", "changed  b", "removed  c"])

    def test_gpu_check_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(sys.executable, f"{folder}/python3")
            done = subprocess.run([sys.executable, "-B", SOURCE / "tools/gpu_check"], env={"PATH": folder},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("error: no nvidia-smi", done.stderr)


if __name__ == "__main__":
    unittest.main()
