"""Black-box tests of `tilewise run`: files in, files out, what is refused, the check of real data.

  run_test.py build/bin/tilewise
"""
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

from command import BINARY, DATA, CommandTest, attention, numbers, read_safetensors, safetensors, tilewise

try:
    import numpy
except ImportError:
    numpy = None

# b, sq, sk, h, hk, d, dv
SIZES = (2, 5, 7, 4, 2, 8, 6)
# The library's default scale is a float, but for fp64.
FLOAT_SCALE = struct.unpack("<f", struct.pack("<f", 1 / math.sqrt(8)))[0]


def case(prefix="", dtype="F32", sizes=SIZES, seed=1):
    b, sq, sk, h, hk, d, dv = sizes
    shapes = {"q": [b, sq, h, d], "k": [b, sk, hk, d], "v": [b, sk, hk, dv]}
    return {prefix + name: (dtype, shape, numbers(math.prod(shape), seed + i))
            for i, (name, shape) in enumerate(shapes.items())}


def expected(tensors, prefix="", sizes=SIZES, **options):
    return attention(*(tensors[prefix + name][2] for name in "qkv"), sizes, **options)


class RunTest(CommandTest):
    def assert_close(self, got, want, tolerance):
        self.assertEqual(len(got), len(want))
        for x, y in zip(got, want):
            if math.isinf(y):
                self.assertEqual(x, y)
            else:
                self.assertLess(abs(x - y), tolerance)

    def input(self, tensors, metadata=None, name="in.safetensors"):
        return self.write(name, safetensors(tensors, metadata))


class Results(RunTest):
    def test_every_type_against_plain_python(self):
        for dtype, name, tolerance in [("F16", "fp16", 3e-3), ("BF16", "bf16", 2e-2), ("F32", "fp32", 2e-6),
                                       ("F64", "fp64", 1e-12)]:
            tensors = case("x.", dtype)
            out = self.path("out.safetensors")
            text = self.good("run", self.input(tensors), "-o", out)
            self.assertIn("2 tensors", text)
            results, metadata = read_safetensors(out)
            o, lse = expected(tensors, "x.", **({} if dtype == "F64" else {"scale": FLOAT_SCALE}))
            self.assertEqual(set(results), {"x.o", "x.lse"})
            self.assertEqual(results["x.o"][:2], (dtype, [2, 5, 4, 6]))
            self.assertEqual(results["x.lse"][:2], ("F32", [2, 4, 5]))
            self.assert_close(results["x.o"][2], o, tolerance)
            self.assert_close(results["x.lse"][2], lse, 1e-5)
            self.assertTrue(metadata["x.problem"].startswith(name + " b2 sq5 sk7 h4 hk2 d8 dv6"), metadata)

    def test_options_as_in_the_problem_line(self):
        tensors = case()
        source, out = self.input(tensors), self.path("out.safetensors")
        for words, options in [(["causal"], {"visible": lambda i, j: j <= i + 2}),
                               (["causal", "topleft"], {"visible": lambda i, j: j <= i}),
                               (["window:1,0"], {"visible": lambda i, j: i + 1 <= j <= i + 2}),
                               (["scale:-0.25"], {"scale": -0.25})]:
            self.good("run", source, *words, "-o", out)
            results, _ = read_safetensors(out)
            o, lse = expected(tensors, **options)
            self.assert_close(results["o"][2], o, 2e-6)
            self.assert_close(results["lse"][2], lse, 1e-5)

    def test_rows_without_keys(self):
        sizes = (1, 5, 3, 1, 1, 4, 4)
        tensors = case(sizes=sizes)
        out = self.path("out.safetensors")
        self.good("run", self.input(tensors), "causal", "--check", "-o", out)
        results, _ = read_safetensors(out)
        self.assertEqual(results["o"][2][:8], [0.0] * 8)
        self.assertEqual(results["lse"][2][:2], [-math.inf] * 2)

    def test_metadata_scale(self):
        tensors = case()
        out = self.path("out.safetensors")
        self.good("run", self.input(tensors, {"scale": "0.5"}), "-o", out)
        results, metadata = read_safetensors(out)
        self.assert_close(results["lse"][2], expected(tensors, scale=0.5)[1], 1e-5)
        self.assertIn("scale:0.5", metadata["problem"])
        self.good("run", self.input(tensors, {"scale": "0.5"}), "scale:2", "-o", out)
        self.assert_close(read_safetensors(out)[0]["lse"][2], expected(tensors, scale=2)[1], 1e-5)
        self.assertIn("scale 1/sqrt(8)", self.good("run", self.input(tensors), "--check"))
        self.assertIn("scale 0.5", self.good("run", self.input(tensors, {"scale": "0.5"}), "--check"))

    def test_several_cases_and_prefixes(self):
        source = self.input({**case("layer10."), **case("layer2.", seed=5), "other": ("I32", [1], [3])})
        out = self.path("out.safetensors")
        self.good("run", source, "-o", out)
        self.assertEqual(set(read_safetensors(out)[0]), {"layer2.o", "layer2.lse", "layer10.o", "layer10.lse"})
        self.good("run", source, "-o", out, "--prefix", "layer2.")
        self.assertEqual(set(read_safetensors(out)[0]), {"layer2.o", "layer2.lse"})
        self.good("run", source, "-o", out, "--prefix", "layer10", "--prefix", "layer2.")
        self.assertEqual(len(read_safetensors(out)[0]), 4)
        table = self.good("run", source, "--check")
        self.assertLess(table.index("layer2 "), table.index("layer10 "))

    def test_backward(self):
        b, sq, sk, h, hk, d, dv = SIZES
        tensors = {**case(), "do": ("F32", [b, sq, h, dv], numbers(b * sq * h * dv, 9))}
        source, out = self.input(tensors), self.path("out.safetensors")
        text = self.good("run", source, "causal", "--check", "-o", out)
        self.assertIn("gradients", text)
        results, metadata = read_safetensors(out)
        self.assertEqual({n: r[1] for n, r in results.items()},
                         {"o": [b, sq, h, dv], "lse": [b, h, sq], "dq": [b, sq, h, d], "dk": [b, sk, hk, d],
                          "dv": [b, sk, hk, dv]})
        self.assertIn("backward", metadata["problem"])
        # d(sum o*do)/dv[0] by a difference: o is linear in v.
        change = list(tensors["v"][2])
        change[0] += 1
        def loss(values):
            o, _ = attention(tensors["q"][2], tensors["k"][2], values, SIZES, lambda i, j: j <= i + 2)
            return sum(x * y for x, y in zip(o, tensors["do"][2]))
        self.assertLess(abs(loss(change) - loss(tensors["v"][2]) - results["dv"][2][0]), 1e-5)
        self.good("run", source, "backward", "deterministic", "-o", out)

    def test_varlen(self):
        h, hk, d = 2, 1, 8
        lengths_q, lengths_k = [3, 0, 5], [4, 2, 5]
        for integers in ["I32", "I64"]:
            tensors = {"q": ("F32", [8, h, d], numbers(8 * h * d)), "k": ("F32", [11, hk, d], numbers(11 * hk * d, 2)),
                       "v": ("F32", [11, hk, d], numbers(11 * hk * d, 3)),
                       "cu_seqlens_q": (integers, [4], [0, 3, 3, 8]), "cu_seqlens_k": (integers, [4], [0, 4, 6, 11])}
            out = self.path("out.safetensors")
            self.good("run", self.input(tensors), "--check", "-o", out)
            results, _ = read_safetensors(out)
            self.assertEqual(results["lse"][1], [h, 8])
            at_q = at_k = 0
            for sq, sk in zip(lengths_q, lengths_k):
                part = [tensors[n][2][at * heads * d:(at + length) * heads * d]
                        for n, at, length, heads in [("q", at_q, sq, h), ("k", at_k, sk, hk), ("v", at_k, sk, hk)]]
                o, lse = attention(*part, (1, sq, sk, h, hk, d, d))
                self.assert_close(results["o"][2][at_q * h * d:(at_q + sq) * h * d], o, 2e-6)
                for head in range(h):
                    self.assert_close(results["lse"][2][head * 8 + at_q:][:sq], lse[head * sq:][:sq], 1e-5)
                at_q, at_k = at_q + sq, at_k + sk

    def test_alibi(self):
        tensors = case()
        for shape in [[4], [2, 4]]:
            with_slopes = {**tensors, "alibi_slopes": ("F32", shape, [0.0] * math.prod(shape))}
            out = self.path("out.safetensors")
            self.good("run", self.input(with_slopes), "alibi", "--check", "-o", out)
            self.assert_close(read_safetensors(out)[0]["lse"][2], expected(tensors)[1], 1e-5)
        self.refused(1, ["alibi", '"alibi_slopes"'], "run", self.input(tensors), "alibi", "--check")
        bad = {**tensors, "alibi_slopes": ("F32", [3], [0.0] * 3)}
        self.refused(1, ["alibi_slopes", "(3,)", "(4,)"], "run", self.input(bad), "alibi", "--check")

    def test_empty_sizes(self):
        for sizes in [(0, 5, 7, 4, 2, 8, 6), (2, 0, 7, 4, 2, 8, 6), (2, 5, 0, 4, 2, 8, 6)]:
            out = self.path("out.safetensors")
            self.good("run", self.input(case(sizes=sizes)), "--check", "-o", out)
            self.assertEqual(read_safetensors(out)[0]["o"][1], [sizes[0], sizes[1], 4, 6])

    def test_dtype(self):
        source, out = self.input(case()), self.path("out.safetensors")
        self.good("run", source, "--dtype", "bf16", "-o", out)
        self.assertEqual(read_safetensors(out)[0]["o"][0], "BF16")
        self.refused(2, "--dtype", "run", source, "--dtype", "fp8", "--check")
        large = case()
        large["k"][2][3] = 1e6
        self.refused(1, ['"k"', "element 3 is 1e+06", "fp16"], "run", self.input(large), "--dtype", "fp16", "--check")

    def test_output_replaces_an_old_file_only_on_success(self):
        source, out = self.input(case()), self.write("out.safetensors", "old")
        self.refused(1, "", "run", self.write("bad.safetensors", "x"), "-o", out)
        self.good("run", source, "-o", out)
        self.assertGreater(os.path.getsize(out), 100)
        self.assertEqual(sorted(os.listdir(self.directory)), ["bad.safetensors", "in.safetensors", "out.safetensors"])


class Interrupts(RunTest):
    def run_until_a_file_is_begun(self, *arguments):
        # Seconds on the reference kernel, however fast the machine.
        shape = [1, 2048, 8, 64]
        source = self.input({name: ("F32", shape, [0.0] * math.prod(shape)) for name in "qkv"})
        process = subprocess.Popen([BINARY, "run", source, *arguments, "--kernel", "cpu.reference", "--threads", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not any(re.search(r"\.[A-Za-z0-9]{6}$", name) for name in self.listing()):
            self.assertLess(time.monotonic(), deadline, "no temporary file was begun")
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        return process

    def test_no_signal_leaves_a_file_behind(self):
        for signals in [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGHUP]]:
            for output in ["out.safetensors", "."]:
                with self.subTest(signals=signals, output=output):
                    process = self.run_until_a_file_is_begun("-o", self.path(output))
                    for number in signals:
                        process.send_signal(number)
                        time.sleep(0.2)  # two of one kind at the same time would be one
                    self.assertEqual(process.wait(timeout=60), -signals[-1])
                    self.assertEqual(list(self.listing()), [self.path("in.safetensors")])


class Refusals(RunTest):
    def test_command_line(self):
        source = self.input(case())
        self.refused(2, ["-o", "--check"], "run", source)
        self.refused(2, "input", "run", "-o", self.path("o.safetensors"))
        self.refused(2, "no input", "run", "causal", "--check")
        self.refused(2, ['"casual"', "did you mean causal?"], "run", source, "casual", "--check")
        self.refused(2, ['"fp16"', "--dtype fp16"], "run", source, "fp16", "--check")
        for word in ["b2", "sq5", "h4", "d64"]:
            self.refused(2, [f'"{word}"', "sizes come from the tensors"], "run", source, word, "--check")
        for word in ["varlen:q=1:k=1", "layout:bhsd", "stride:q=1,2,3", "seed:1", "data:normal"]:
            self.refused(2, f'"{word}"', "run", source, word, "--check")
        self.refused(2, "twice", "run", source, "causal", "causal", "--check")
        self.refused(2, "window", "run", source, "causal", "window:0,3", "--check")
        self.refused(2, "--json", "run", source, "--json", "-o", self.path("o.safetensors"))
        self.refused(1, "cuda", "run", source, "--check", "--device", "cuda:0")
        self.refused(1, ["one safetensors file"], "run", source, source, "--check")
        self.refused(1, ['"z."', '""'], "run", source, "--prefix", "z.", "--check")

    def test_outputs(self):
        source = self.input(case())
        self.refused(1, ["none", "does not exist"], "run", source, "-o", self.path("none/o.safetensors"))
        self.refused(1, "is the input", "run", source, "-o", source)
        os.symlink(source, self.path("link.safetensors"))
        self.refused(1, "is the input", "run", source, "-o", self.path("link.safetensors"))
        os.mkdir(self.path("d.safetensors"))
        self.refused(1, "is a directory", "run", source, "-o", self.path("d.safetensors"))
        self.refused(1, ["out.bin", "not an existing directory"], "run", source, "-o", self.path("out.bin"))
        two = self.input({**case("a."), **case("b.")})
        self.refused(1, "2 cases", "run", two, "-o", self.directory)

    def test_files(self):
        self.refused(1, ["none.safetensors", "No such file"], "run", self.path("none.safetensors"), "--check")
        os.mkdir(self.path("dir.safetensors"))
        self.refused(1, "is a directory", "run", self.path("dir.safetensors"), "--check")
        good = safetensors(case())
        for length in [0, 7, 8, 9, 100, len(good) - 1]:
            self.refused(1, "cut.safetensors", "run", self.write("cut.safetensors", good[:length]), "--check")
        self.refused(1, "file has", "run", self.write("long.safetensors", good + b"x"), "--check")
        for byte in range(8, 200, 3):  # never a crash; a changed name or shape is refused
            broken = bytearray(good)
            broken[byte] ^= 0xff
            code, _, err = tilewise("run", self.write("broken.safetensors", bytes(broken)), "--check", "--quiet")
            self.assertEqual(code, 1, err)
            self.assertIn("broken.safetensors", err)

    def test_tensors(self):
        b, sq, sk, h, hk, d, dv = SIZES
        plain = case("x.")

        def refused(words, changes, *options):
            tensors = {**plain, **changes}
            tensors = {n: t for n, t in tensors.items() if t is not None}
            self.refused(1, ["in.safetensors", *words], "run", self.input(tensors), *options, "--check")

        def like(dtype, *shape):
            return dtype, list(shape), numbers(math.prod(shape)) if dtype[0] != "I" else [0] * math.prod(shape)

        refused(['"x.v"', "missing"], {"x.v": None})
        refused(["no case", '"x.q"'], {"x.v": None, "x.k": None})
        refused(["differ in type"], {"x.k": like("F16", b, sk, hk, d)})
        refused(['"x.q" I32'], {"x.q": like("I32", b, sq, h, d)})
        refused(["differ in batch"], {"x.k": like("F32", 1, sk, hk, d)})
        refused(["differ in seqlen or heads"], {"x.v": like("F32", b, sk + 1, hk, dv)})
        refused(["differ in seqlen or heads"], {"x.v": like("F32", b, sk, h, dv)})
        refused(["differ in dim"], {"x.k": like("F32", b, sk, hk, d + 1)})
        refused(["(10, 4, 8)", "cu_seqlens_q"], {"x.q": like("F32", b * sq, h, d)})
        refused(["(40, 8)"], {"x.q": like("F32", b * sq * h, d)})
        refused(["4", "3"], {"x.k": like("F32", b, sk, 3, d), "x.v": like("F32", b, sk, 3, dv)})
        refused(["0"], {"x.q": like("F32", b, sq, h, 0), "x.k": like("F32", b, sk, hk, 0)})
        refused(["backward", '"x.do"'], {}, "backward")
        refused(['"x.do"', "(2, 5, 4, 6)"], {"x.do": like("F32", b, sq, h, d)})
        refused(["differ in type"], {"x.do": like("F16", b, sq, h, dv)})
        refused(['"x.o"', "(2, 5, 4, 6)"], {"x.o": like("F32", b, sq, h, d)})
        refused(['"x.lse"', "(2, 4, 5)"], {"x.lse": like("F32", b, sq, h)})
        refused(['"x.o"'], {"x.o": like("I32", b, sq, h, dv)})

    def test_lengths(self):
        def refused(words, cu_q, cu_k, dtype="I32"):
            tensors = {"q": ("F32", [4, 1, 8], numbers(32)), "k": ("F32", [4, 1, 8], numbers(32)),
                       "v": ("F32", [4, 1, 8], numbers(32))}
            if cu_q is not None:
                tensors["cu_seqlens_q"] = (dtype, [len(cu_q)], cu_q)
            if cu_k is not None:
                tensors["cu_seqlens_k"] = (dtype, [len(cu_k)], cu_k)
            self.refused(1, words, "run", self.input(tensors), "--check")

        refused('"cu_seqlens_k" is missing', [0, 4], None)
        refused('"cu_seqlens_q" is missing', None, [0, 4])
        refused(['"cu_seqlens_q"', "begins with 1"], [1, 4], [0, 4])
        refused(['"cu_seqlens_k"', "ends with 5", "4 tokens"], [0, 4], [0, 5])
        refused(["entry 2 is 1, less than 3"], [0, 3, 1, 4], [0, 1, 2, 4])
        refused(["differ in length"], [0, 2, 4], [0, 4])
        refused(["(batch + 1,)"], [], [0, 4])
        refused(["expected I32 or I64"], [0.0, 4.0], [0.0, 4.0], "F32")
        refused(["does not fit into 32 bits"], [0, 2**40], [0, 4], "I64")


class Golden(RunTest):
    def test_values_are_compared(self):
        tensors = case("x.")
        o, lse = expected(tensors, "x.")
        b, sq, sk, h, hk, d, dv = SIZES
        good = {**tensors, "x.o": ("F32", [b, sq, h, dv], o), "x.lse": ("F32", [b, h, sq], lse)}
        report = json.loads(self.good("run", self.input(good), "--check", "--json"))
        self.assertTrue(report["ok"])
        self.assertLess(report["golden_o_error"], 2e-6)
        self.assertLess(report["golden_lse_error"], 1e-5)
        self.assertIn("bench", report)
        for options in (["causal"], ["softcap:5"], ["scale:0.1"]):
            text = self.good("run", self.input(good), *options, "--check")
            self.assertIn("not compared", text)
        for name, at, change in [("x.o", 7, 0.01), ("x.lse", 3, 0.01)]:
            bad = {n: (t[0], t[1], list(t[2])) for n, t in good.items()}
            bad[name][2][at] += change
            code, out, err = tilewise("run", self.input(bad), "--check", "-o", self.path("out.safetensors"))
            self.assertEqual(code, 1)
            self.assertIn("FAILED", out)
            self.assertIn("golden", err)
            self.assertIn("nothing was written", err)
            self.assertEqual(os.listdir(self.directory), ["in.safetensors"])

    def test_golden_of_few_digits_and_of_many(self):
        tensors = case("", "F64")
        o, lse = expected(tensors)
        b, sq, sk, h, hk, d, dv = SIZES
        for dtype in ["F16", "F32", "F64"]:
            golden = {**tensors, "o": (dtype, [b, sq, h, dv], o), "lse": (dtype, [b, h, sq], lse)}
            self.good("run", self.input(golden), "--check")
            self.good("run", self.input(golden), "--check", "--dtype", "fp16")

    def test_causal_forms_add_a_row(self):
        tensors = case("x.")
        o, _ = expected(tensors, "x.", visible=lambda i, j: j <= i + 2)
        b, sq, sk, h, hk, d, dv = SIZES
        source = self.input({**tensors, "x.o_causal": ("F32", [b, sq, h, dv], o)})
        lines = self.good("run", source, "--check", "--json").splitlines()
        self.assertEqual([json.loads(x)["case"] for x in lines], ["x", "x causal"])
        self.assertIn("golden_o_error", json.loads(lines[1]))
        report = json.loads(self.good("run", source, "causal", "--check", "--json"))
        self.assertLess(report["golden_o_error"], 2e-6)
        out = self.path("out.safetensors")
        self.good("run", source, "--check", "-o", out)
        self.assertEqual(set(read_safetensors(out)[0]), {"x.o", "x.lse"})


class RealData(RunTest):
    def test_demo_file(self):
        text = self.good("run", DATA, "--check", timeout=1200)
        rows = re.findall(r"^(short|long)\.layer\d( causal)? .* ok$", text, re.M)
        self.assertEqual(len(rows), 10, text)
        self.assertRegex(text, r'In \S+, head \d+, "\w+" attends to:')
        self.assertGreaterEqual(text.count("#"), 10)
        self.assertIn("as in the file's metadata", text)
        self.assertIn("What to try next", text)

    def test_other_types_and_words(self):
        for options in (["--dtype", "bf16"], ["--dtype", "fp32", "--threads", "1"], ["causal", "--kernel", "cpu.reference"]):
            reports = [json.loads(x) for x in self.good("run", DATA, "--check", "--json", *options).splitlines()]
            self.assertTrue(all(r["ok"] for r in reports))
            golden = [r for r in reports if "golden_o_error" in r]
            self.assertEqual(len(golden), 1 if "causal" in options else 10)

    def test_a_changed_bit_fails(self):
        with open(DATA, "rb") as file:
            content = bytearray(file.read())
        length = struct.unpack("<Q", content[:8])[0]
        begin = json.loads(content[8:8 + length])["short.layer3.k"]["data_offsets"][0]
        content[8 + length + begin + 1001] ^= 0x40  # an exponent bit
        code, out, err = tilewise("run", self.write("bad.safetensors", bytes(content)), "--check", "--prefix", "short.layer3")
        self.assertEqual(code, 1)
        self.assertIn("golden", err)


@unittest.skipIf(numpy is None, "no NumPy")
class NumpyFiles(RunTest):
    def save(self, dtype, **arrays):
        for name, array in arrays.items():
            numpy.save(self.path(name + ".npy"), array.astype(dtype))
        return [self.path(name + ".npy") for name in arrays]

    def arrays(self, h=2, dv=8):
        random = numpy.random.default_rng(3)
        return (random.standard_normal((2, 9, h, 16)), random.standard_normal((2, 11, h, 16)),
                random.standard_normal((2, 11, h, dv)))

    def reference(self, q, k, v):
        scores = numpy.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
        top = scores.max(-1, keepdims=True)
        p = numpy.exp(scores - top)
        total = p.sum(-1, keepdims=True)
        return numpy.einsum("bhij,bjhd->bihd", p / total, v), (top + numpy.log(total))[..., 0]

    def test_round_trip(self):
        q, k, v = self.arrays()
        for dtype, tolerance in [("<f2", 4e-3), ("<f4", 2e-6), ("<f8", 1e-12)]:
            files = self.save(dtype, q=q, k=k, v=v)
            self.good("run", *files, "--check", "-o", self.directory)
            o, lse = self.reference(*(numpy.load(f).astype("f8") for f in files))
            got = numpy.load(self.path("o.npy"))
            self.assertEqual(got.dtype, numpy.dtype(dtype))
            self.assertLess(abs(got - o).max(), tolerance)
            self.assertLess(abs(numpy.load(self.path("lse.npy")) - lse).max(), 1e-5)

    def test_backward_and_safetensors_output(self):
        q, k, v = self.arrays()
        files = self.save("<f4", q=q, k=k, v=v, do=numpy.ones((2, 9, 2, 8)))
        self.good("run", *files, "causal", "--check", "-o", self.directory + "/")
        for name, like in [("dq", q), ("dk", k), ("dv", v)]:
            self.assertEqual(numpy.load(self.path(name + ".npy")).shape, like.shape)
        out = self.path("out.safetensors")
        self.good("run", *files, "-o", out)
        self.assertEqual(set(read_safetensors(out)[0]), {"o", "lse", "dq", "dk", "dv"})

    def test_refusals(self):
        q, k, v = self.arrays()
        files = self.save("<f4", q=q, k=k, v=v)
        self.refused(1, ["2 .npy files"], "run", *files[:2], "-o", self.directory)
        self.refused(1, ["not an existing directory"], "run", *files, "-o", self.path("none"))
        self.refused(1, ["NumPy has no type for BF16"], "run", *files, "--dtype", "bf16", "-o", self.directory)
        self.refused(1, "one kind", "run", files[0], self.input(case()), "--check")
        for save, words in [(lambda a: numpy.asfortranarray(a.astype("<f4")), "fortran_order"),
                            (lambda a: a.astype(">f4"), "big-endian"), (lambda a: a.astype("<c8"), "<c8"),
                            (lambda a: a.astype("<f4")[0], "(batch, seqlen, heads, dim)"),
                            (lambda a: a.astype("<f8"), "differ in type")]:
            numpy.save(self.path("k.npy"), save(k))
            self.refused(1, words, "run", *files, "-o", self.directory)
        shutil.copy(self.path("q.npy"), self.path("k.npy"))
        with open(self.path("k.npy"), "r+b") as file:
            file.truncate(200)
        self.refused(1, ["k.npy", "bytes of data"], "run", *files, "-o", self.directory)


if __name__ == "__main__":
    del sys.argv[1:]
    unittest.main()
