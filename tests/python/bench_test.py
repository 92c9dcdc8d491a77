"""The plain parts of bench/: what is timed and how often, clocks, what a machine without torch is told."""
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(SOURCE / "bench"))
from peers import clocks, schedule  # noqa: E402

PROBLEMS = SOURCE / "tests/problems"


def problem(**changes):
    sizes = dict(batch=2, num_heads=3, seqlen_q=100, seqlen_k=100, head_dim=64, head_dim_v=64, causal=0, direction=0,
                 window_left=-1, window_right=-1)
    return types.SimpleNamespace(**{**sizes, **changes})


class Lines(unittest.TestCase):
    def test_comments_and_spaces(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("# a comment\n\nbf16 b1  sq5\th1 d8 # why\n   \nfp16 b1 sq6 h1 d8\n")
            file.flush()
            self.assertEqual(schedule.problem_lines(file.name), ["bf16 b1 sq5 h1 d8", "fp16 b1 sq6 h1 d8"])

    def test_words(self):
        line = "bf16 b1 sq512 h2 d64"
        self.assertTrue(schedule.has_words(line, ""))
        self.assertTrue(schedule.has_words(line, "forward dense d64"))
        self.assertFalse(schedule.has_words(line, "d6"))
        self.assertFalse(schedule.has_words(line + " backward", "forward"))
        self.assertTrue(schedule.has_words(line + " causal backward", "backward causal"))
        self.assertFalse(schedule.has_words(line + " causal", "dense"))

    def test_bench_has_the_figures_shapes(self):
        """Each head dim, length, mask and direction once in bf16, with hidden size 2048 and 16k tokens."""
        lines = schedule.problem_lines(PROBLEMS / "bench_gpu.txt")
        self.assertEqual(len(lines), len(set(lines)))
        for d in (64, 128, 256):
            for s in (512, 1024, 2048, 4096, 8192, 16384):
                for mask in ("dense", "causal"):
                    for direction in ("forward", "backward"):
                        words = f"bf16 b{16384 // s} sq{s} h{2048 // d} d{d} {mask} {direction}"
                        self.assertEqual(sum(schedule.has_words(line, words) for line in lines), 1, words)


class Flops(unittest.TestCase):
    def test_convention(self):
        self.assertEqual(schedule.flops(problem()), 4 * 100 * 100 * 64 * 3 * 2)
        self.assertEqual(schedule.flops(problem(causal=1, window_right=0)), 2 * 100 * 100 * 64 * 3 * 2)
        self.assertEqual(schedule.flops(problem(direction=1)), 10 * 100 * 100 * 64 * 3 * 2)
        self.assertEqual(schedule.flops(problem(head_dim_v=32)), 3 * 100 * 100 * 64 * 3 * 2)

    def test_windows_count_what_is_seen(self):
        for queries, keys in ((7, 7), (3, 9), (9, 4)):
            for causal in (0, 1):
                for left, right in ((2, 1), (0, 0), (-1, 2), (3, -1), (20, 20)):
                    if causal and left < 0:
                        continue
                    def sees(i, j):
                        own = i + keys - queries
                        return ((left < 0 or j >= own - left) and (right < 0 or j <= own + right)
                                and not (causal and j > own))
                    count = sum(sees(i, j) for i in range(queries) for j in range(keys))
                    self.assertEqual(schedule.pairs(queries, keys, causal, left, right), count,
                                     (queries, keys, causal, left, right))

    def test_lengths(self):
        line = "bf16 varlen:q=10,20:k=30,5 h3 d64"
        self.assertEqual(schedule.sequence_lengths(line), [(10, 30), (20, 5)])
        self.assertIsNone(schedule.sequence_lengths("bf16 b1 sq5 h1 d8"))
        self.assertEqual(schedule.flops(problem(), [(10, 30), (20, 5)]), 4 * (300 + 100) * 64 * 3)
        self.assertEqual(schedule.short("bf16 varlen:q=1,20,3,4,5:k=6,7 h3"), "bf16 varlen:q=1,20,3,...:k=6,7 h3")


class Turns(unittest.TestCase):
    def test_everybody_runs_once_and_in_every_place(self):
        names = ["a", "b", "c", "d", "e"]
        orders = [schedule.turn(names, i) for i in range(10)]
        for order in orders:
            self.assertEqual(sorted(order), names)
        for name in names:
            self.assertEqual({order.index(name) for order in orders}, set(range(5)), name)
        self.assertEqual(schedule.turn(["a"], 3), ["a"])

    def test_repeats(self):
        self.assertEqual(schedule.repeats(500.0, 10), 1)
        self.assertEqual(schedule.repeats(0.9, 10), 10)
        self.assertEqual(schedule.repeats(0.001, 1000), 25)

    def test_budget(self):
        now = [0.0]
        budget = schedule.Budget(100, 10, lambda: now[0])
        self.assertEqual(budget.next_cell(), 10)
        now[0] = 28.0  # the first took long
        self.assertEqual(budget.next_cell(), 8)
        budget.took(3.0)
        self.assertEqual(budget.next_cell(), 72 / 8 - 3)
        now[0] = 200.0
        self.assertEqual(budget.next_cell(), 0.2)

    def test_budget_is_kept(self):
        """Cells of all kinds of overhead: what they take together is what was asked for."""
        now = [0.0]
        budget = schedule.Budget(180, 96, lambda: now[0])
        for i in range(96):
            seconds = budget.next_cell()
            overhead = 0.2 + 1.5 * (i % 6 == 5)
            budget.took(overhead)
            now[0] += seconds + overhead
        self.assertLess(abs(now[0] - 180), 5)


class Clocks(unittest.TestCase):
    def test_summary(self):
        lines = ["1980, 3201, 650.25, 60\n", "1500, 3201, [N/A], 62\n", "broken\n", "1700, 3201, 700.00, 61\n"]
        found = clocks.summary(lines)
        self.assertEqual(found["sm_mhz"], {"min": 1500, "median": 1700, "max": 1980})
        self.assertEqual(found["power_w"], {"min": 650.25, "median": 675.125, "max": 700})
        self.assertEqual(clocks.summary([]), {})

    def test_without_nvidia_smi(self):
        watch = clocks.Clocks(0)
        watch.command = ["/nowhere/nvidia-smi"]
        with watch:
            pass
        self.assertEqual(watch.summary(), {})

    def test_lines_are_read(self):
        watch = clocks.Clocks(0)
        watch.command = ["sh", "-c", "echo 1000, 2000, 300, 40; exec sleep 60"]
        with watch:
            while not watch.lines:
                pass
        self.assertEqual(watch.summary()["sm_mhz"]["max"], 1000)


class Scripts(unittest.TestCase):
    def run_gpu_peers(self, *arguments):
        """Without site-packages, so without torch."""
        return subprocess.run([sys.executable, "-S", "-B", SOURCE / "bench/gpu_peers.py", *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_what_is_missing(self):
        done = self.run_gpu_peers()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, "^error: .* has no torch")

    def test_no_line(self):
        done = self.run_gpu_peers("--only", "d64 d128")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^error: no line of .*bench_gpu.txt")

    def test_all_compile(self):
        """Those that import torch too, which no other test loads."""
        for path in (SOURCE / "bench").rglob("*.py"):
            compile(path.read_text(), path, "exec")


if __name__ == "__main__":
    unittest.main()
