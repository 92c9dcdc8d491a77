"""What the black-box tests of the command share: running it, and safetensors files written from scratch."""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import unittest

BINARY = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "build/bin/tilewise"
SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(SOURCE, "examples", "data", "minilm-attention.safetensors")
FORMATS = {"F16": "e", "F32": "f", "F64": "d", "I32": "i", "I64": "q", "BF16": "H", "U8": "B"}


def tilewise(*arguments, env=None, stdin=None, timeout=600):
    """Exit code, stdout, stderr."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("TILEWISE_")}
    variables.update(env or {})
    done = subprocess.run([BINARY, *map(str, arguments)], env=variables, input=stdin, timeout=timeout,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    return done.returncode, done.stdout, done.stderr


class CommandTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="tilewise-test-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)

    def good(self, *arguments, **options):
        code, out, err = tilewise(*arguments, **options)
        self.assertEqual((code, err), (0, ""), f"{arguments}: {out} {err}")
        return out

    def refused(self, code, words, *arguments, **options):
        """Exit code, every word in one message on stderr, nothing on stdout, no file touched."""
        before = self.listing()
        got, out, err = tilewise(*arguments, **options)
        self.assertEqual(got, code, f"{arguments}: {out} {err}")
        self.assertEqual(out, "", arguments)
        self.assertTrue(err.startswith("tilewise: "), err)
        for word in [words] if isinstance(words, str) else words:
            self.assertIn(word, err, arguments)
        self.assertEqual(self.listing(), before, arguments)
        return err

    def listing(self):
        found = {}
        for folder, _, names in os.walk(self.directory):
            for name in names:
                full = os.path.join(folder, name)
                found[full] = (os.stat(full).st_mtime_ns, os.stat(full).st_size)
        return found


def pack(dtype, values):
    if dtype == "BF16":
        values = [bfloat16_bits(x) for x in values]
    return struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)


def bfloat16_bits(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) & 0xffff


def safetensors(tensors, metadata=None):
    """tensors: name -> (dtype, shape, values)."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        block = pack(dtype, values)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(block)]}
        data += block
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(path):
    """name -> (dtype, shape, values), and the metadata."""
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        count = math.prod(entry["shape"])
        values = struct.unpack(f"<{count}{FORMATS[entry['dtype']]}", data[begin:end])
        if entry["dtype"] == "BF16":
            values = [struct.unpack("<f", struct.pack("<I", x << 16))[0] for x in values]
        tensors[name] = (entry["dtype"], entry["shape"], list(values))
    return tensors, metadata


def numbers(count, seed=1):
    """Small multiples of 1/8, so that every type holds them exactly."""
    state = seed
    values = []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        values.append(((state >> 8) % 33 - 16) / 8)
    return values


def attention(q, k, v, sizes, visible=lambda i, j: True, scale=None):
    """Plain lists in (b, s, h, d) order; returns o and lse (b, h, s)."""
    b, sq, sk, h, hk, d, dv = sizes
    scale = 1 / math.sqrt(d) if scale is None else scale
    o, lse = [0.0] * (b * sq * h * dv), [-math.inf] * (b * h * sq)
    for n in range(b):
        for head in range(h):
            kv = head // (h // hk)
            for i in range(sq):
                row = q[((n * sq + i) * h + head) * d:][:d]
                scores = {}
                for j in range(sk):
                    if visible(i, j):
                        key = k[((n * sk + j) * hk + kv) * d:][:d]
                        scores[j] = scale * sum(x * y for x, y in zip(row, key))
                if not scores:
                    continue
                top = max(scores.values())
                total = sum(math.exp(s - top) for s in scores.values())
                lse[(n * h + head) * sq + i] = top + math.log(total)
                for j, s in scores.items():
                    p = math.exp(s - top) / total
                    at = ((n * sk + j) * hk + kv) * dv
                    for x in range(dv):
                        o[((n * sq + i) * h + head) * dv + x] += p * v[at + x]
    return o, lse
