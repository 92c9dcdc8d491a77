"""Black-box tests of info, check, bench, explain and of the command line itself.

  verbs_test.py build/bin/tilewise
"""
import json
import os
import signal
import subprocess
import sys
import unittest

from command import BINARY, CommandTest, tilewise

VERBS = ["info", "check", "bench", "explain", "run"]
SMALL = "fp32 b1 sq5 sk7 h2 d16"


class CommandLine(CommandTest):
    def test_version(self):
        self.assertRegex(self.good("--version"), r"^tilewise \d+\.\d+\.\d+\n$")

    def test_help_lists_verbs_and_each_has_examples(self):
        text = self.good("--help")
        for verb in VERBS:
            self.assertIn(verb, text)
            help_text = self.good(verb, "--help")
            self.assertIn("Examples:", help_text)
            self.assertIn(f"tilewise {verb}", help_text)

    def test_wrong_words(self):
        self.refused(2, ["no verb", "info, check, bench, explain and run"])
        self.refused(2, ['"chekc"', "did you mean check?"], "chekc", SMALL)
        self.refused(2, ['"frobnicate"', "info, check, bench, explain and run"], "frobnicate")
        self.refused(2, "--frob", "--frob")
        for verb in VERBS:
            self.refused(2, "--frobnicate", verb, "--frobnicate", SMALL)

    def test_values_of_options(self):
        for verb in ["check", "bench", "explain"]:
            for bad in ["-1", "x", "1.5", "99999999999", ""]:
                self.refused(2, "--threads", verb, SMALL, "--threads", bad)
            self.refused(2, "--threads", verb, SMALL, "--threads")
            self.refused(2, ['"gpu"', "cpu or cuda:N"], verb, SMALL, "--device", "gpu")
            self.refused(2, '"cuda:x"', verb, SMALL, "--device", "cuda:x")
            self.refused(1, "--device cuda:99: ", verb, SMALL, "--device", "cuda:99")
            self.refused(2, ['"cpu.referense"', "did you mean cpu.reference?"], verb, SMALL, "--kernel", "cpu.referense")
        for bad in ["-1", "x", "1.5"]:
            self.refused(2, "--seed", "check", SMALL, "--seed", bad)
        self.refused(2, "--seconds", "bench", SMALL, "--seconds", "-1")
        self.refused(2, "problem", "check")
        self.refused(2, "problem", "bench")
        self.refused(2, "problem", "explain")

    def test_stdout_that_cannot_be_written(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "w") as full:
            done = subprocess.run([BINARY, "info"], stdout=full, stderr=subprocess.PIPE, encoding="utf-8")
        self.assertEqual(done.returncode, 1)
        self.assertIn("stdout", done.stderr)


class ProblemText(CommandTest):
    def test_bad_lines(self):
        cases = {
            "": "", "fp99 b1 sq5 h2 d16": '"fp99"', "fp32": "b<n>", "fp32 b1 sq5 h2": "d<n>",
            SMALL + " casual": ['"casual"', "did you mean causal?"],
            SMALL + " widnow:3,4": "did you mean window?",
            SMALL + " zebra": ['"zebra"', "words are"],
            SMALL + " causal causal": ['"causal"', "twice"], SMALL + " b2": ['"b2"', "twice"],
            SMALL + " window:1": "window:L,R", SMALL + " window:-2,0": "-2",
            SMALL + " scale:nan": "", SMALL + " scale:x": '"scale:x"', SMALL + " softcap:-1": "-1",
            SMALL + " data:zebra": ['"data:zebra"', "normal"], SMALL + " seed:x": '"seed:x"',
            SMALL + " layout:sideways": '"layout:sideways"',
            "fp32 b1 sq5 h3 hk2 d16": "3", "fp32 b1 sq5 h2 d0": "0", "fp32 b-1 sq5 h2 d16": "-1",
            "fp32 b99999999999999999999 sq5 h2 d16": '"b99999999999999999999"',
            "fp32 varlen:q=1,2:k=1 h2 d16": "varlen", "fp32 varlen:q=-1:k=1 h2 d16": "varlen",
        }
        for line, words in cases.items():
            for verb in ["check", "explain"]:
                self.refused(2, words, verb, line)

    def test_files(self):
        good = self.write("good.txt", f"# a comment\n\n{SMALL}   # and another\n\tfp16 b1 sq3 h1 d8 causal\n")
        out = self.good("check", good, "--quiet")
        self.assertIn("2 of 2 problems checked, 0 failed", out)
        self.assertIn("2 of 2", self.good("check", "-", stdin=f"{SMALL}\n{SMALL} causal\n"))
        self.assertIn("3 of 3", self.good("check", good, SMALL + " topleft causal"))
        bad = self.write("bad.txt", f"{SMALL}\n{SMALL} zebra\n")
        self.refused(2, ["bad.txt", "2", '"zebra"'], "check", bad)
        self.refused(2, "no problem", "check", self.write("empty.txt", "# nothing\n"))
        self.refused(2, ["none.txt", "no such file"], "check", self.path("none.txt"))
        self.refused(2, "directory", "check", self.directory)
        self.refused(2, "", "check", self.write("binary.txt", bytes(range(256))))

    def test_words_need_no_quotes(self):
        self.assertIn("1 of 1", self.good("check", *SMALL.split(), "causal"))


class Info(CommandTest):
    def test_text(self):
        out = self.good("info")
        for word in ["library", "compiler", "processor", "isa", "cpu.reference"]:
            self.assertIn(word, out)
        self.assertRegex(out, r"\ncuda +(on|off): \S")

    def test_json(self):
        report = json.loads(self.good("info", "--json"))
        self.assertIn(report["cpu"]["isa"], ["scalar", "avx2", "avx512", "avx512bf16"])
        self.assertGreaterEqual(report["cpu"]["cores"], 1)
        self.assertEqual(report["kernels"][-1]["name"], "cpu.reference")
        for field in ["version", "abi", "compiler", "backends"]:
            self.assertIn(field, report)

    def test_kernel_table_has_every_cpu_kernel(self):
        table = self.good("info", "--kernels").splitlines()
        names = [kernel["name"] for kernel in json.loads(self.good("info", "--json"))["kernels"]
                 if kernel["name"].startswith("cpu.")]
        self.assertEqual(len(table), 2 + len(names))
        for row, name in zip(table[2:], names):
            self.assertTrue(row.startswith(f"| `{name}` |"), row)
        self.assertEqual(len({row.count("|") for row in table}), 1)
        self.refused(2, "--json", "info", "--kernels", "--json")

    def test_isa_override(self):
        out = self.good("info", env={"TILEWISE_CPU_ISA": "scalar"})
        self.assertIn("scalar", out)
        self.refused(1, ["TILEWISE_CPU_ISA", "sse9"], "info", env={"TILEWISE_CPU_ISA": "sse9"})


class Check(CommandTest):
    def test_verdict_worst_rule_and_kernel(self):
        out = self.good("check", "fp32 b2 sq9 sk12 h4 hk2 d32 causal backward")
        self.assertRegex(out, r"ok +fp32 b2 sq9 sk12 h4 hk2 d32 causal backward +\w+ \w+ +\d")
        self.assertIn("cpu.", out)
        self.assertIn("A1", self.good("check", SMALL, "--verbose"))

    def test_json(self):
        lines = self.good("check", SMALL, SMALL + " backward", "--json").splitlines()
        self.assertEqual(len(lines), 2)
        for line in lines:
            report = json.loads(line)
            self.assertTrue(report["ok"])
            self.assertTrue(all(rule["worst"] <= 1 for rule in report["rules"]))

    def test_forced_kernel_and_seed(self):
        out = self.good("check", SMALL, "--kernel", "cpu.reference", "--threads", "1", "--seed", "99")
        self.assertIn("cpu.reference", out)
        self.assertIn("seed:99", out)
        self.assertIn("cpu.reference", self.good("check", SMALL, env={"TILEWISE_KERNEL": "cpu.reference"}))

    def test_refused_run_fails(self):
        names = [k["name"] for k in json.loads(self.good("info", "--json"))["kernels"]]
        forward = next((n for n in names if "forward" in n), None)
        if forward is None:
            self.skipTest("no forward kernel beside the reference")
        code, out, err = tilewise("check", "fp64 b1 sq5 h1 d8", "--kernel", forward)
        self.assertEqual((code, err), (1, ""))
        self.assertIn("FAILED", out)
        self.assertIn("1 failed", out)
        self.assertIn("fp64", out)

    def test_more_memory_than_there_is(self):
        code, out, _ = tilewise("check", "fp32 b1 sq1000000000 h1 d64")
        self.assertEqual(code, 1)
        self.assertIn("memory", out)


class Bench(CommandTest):
    def test_json_fields(self):
        line = self.good("bench", "fp32 b1 sq64 h1 d32", "--json", "--seconds", "0.02", "--threads", "1", "--quiet")
        report = json.loads(line)
        for field in ["problem", "direction", "kernel", "device", "threads", "ms", "gflops", "peak_gflops",
                      "peak_instruction", "peak_fraction", "peak_fraction_quiet"]:
            self.assertIn(field, report)
        self.assertEqual((report["threads"], report["direction"]), (1, "forward"))
        self.assertGreater(report["gflops"], 0)

    def test_table(self):
        out = self.good("bench", "fp32 b1 sq64 h1 d32", "fp32 b1 sq64 h1 d32 backward", "--seconds", "0.02")
        self.assertIn("GFLOP/s", out)
        self.assertEqual(out.count("fp32 b1 sq64"), 2)

    def test_refused(self):
        code, out, err = tilewise("bench", "fp64 b1 sq8 h1 d8", "fp32 b1 sq8 h1 d8", "--seconds", "0.01", "--json",
                                  "--kernel", "cpu.reference", env={"TILEWISE_CPU_ISA": "sse9"})
        self.assertEqual((code, out), (1, ""))
        self.assertIn("sse9", err)

    def test_interrupt_keeps_the_lines_so_far(self):
        cases = self.write("many.txt", "fp32 b1 sq64 h1 d32\n" * 500)
        process = subprocess.Popen([BINARY, "bench", cases, "--seconds", "0.05", "--json"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, encoding="utf-8")
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, -signal.SIGINT)
        for line in [first, *rest.splitlines()]:
            json.loads(line)
        self.assertLess(len(rest.splitlines()), 400)
        self.assertIn("interrupted after", err)


class Explain(CommandTest):
    def test_every_kernel_with_a_reason(self):
        names = [kernel["name"] for kernel in json.loads(self.good("info", "--json"))["kernels"]]
        out = self.good("explain", "bf16 b2 sq128 h8 hk2 d64 causal")
        for name in names:
            if name.startswith("cpu."):  # those of another device may share a row
                self.assertIn(name, out)
        self.assertEqual(out.count(" chosen "), 1)
        report = json.loads(self.good("explain", "bf16 b2 sq128 h8 hk2 d64 causal", "--json"))
        self.assertEqual([c["kernel"] for c in report["candidates"]], names)
        self.assertTrue(all(c["reason"] for c in report["candidates"]))

    def test_one_problem(self):
        self.refused(2, "one problem", "explain", SMALL, SMALL)

    def test_forced_kernel(self):
        out = self.good("explain", SMALL, "--kernel", "cpu.reference", "--threads", "1")
        self.assertRegex(out, r"\* +cpu.reference +chosen +1 thread")


class ProgressDisplay(CommandTest):
    def terminal(self, *arguments, env=None):
        """stderr as a terminal shows it, stdout as a pipe."""
        import pty
        leader, follower = pty.openpty()
        process = subprocess.Popen([BINARY, *arguments], stdout=subprocess.PIPE, stderr=follower,
                                   env={**os.environ, "TERM": "xterm", **(env or {})})
        os.close(follower)
        out = process.stdout.read().decode()
        process.stdout.close()
        process.wait(timeout=120)
        shown = b""
        try:
            while chunk := os.read(leader, 65536):
                shown += chunk
        except OSError:
            pass
        os.close(leader)
        return process.returncode, out, shown.decode()

    def test_on_a_terminal(self):
        cases = self.write("some.txt", "fp32 b1 sq64 h1 d32\n" * 12)
        code, out, shown = self.terminal("bench", cases, "--seconds", "0.3")
        self.assertEqual(code, 0)
        self.assertIn("\r", shown)
        self.assertRegex(shown, r"\[\d+/12\] \d+ %, \d+:\d\d left")
        self.assertNotIn("\033", out)
        code, out, shown = self.terminal("bench", cases, "--seconds", "0.3", "--quiet")
        self.assertEqual((code, shown), (0, ""))
        code, out, shown = self.terminal("bench", cases, "--seconds", "0.02", env={"TERM": "dumb"})
        self.assertNotIn("\033", shown)

    def test_short_work_shows_nothing(self):
        # On a busy machine it may be long: one short run of five is enough.
        runs = (self.terminal("check", SMALL) for _ in range(5))
        self.assertTrue(any((code, shown) == (0, "") for code, _, shown in runs))


if __name__ == "__main__":
    del sys.argv[1:]
    unittest.main()
