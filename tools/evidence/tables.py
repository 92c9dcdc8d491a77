"""README's tables, and the closing lines of tools/gpu_check, from a file of GPU evidence."""
import math
import re
from dataclasses import dataclass, field

from evidence.sanitizer import TOOLS
from peers.schedule import short  # of bench/

SHOWN_LENGTHS = (512, 2048, 16384)
PEERS = {"torch_fa2": "torch FA2", "cudnn": "cuDNN", "torch_efficient": "torch mem-efficient",
         "torch_math": "torch math", "fa3": "FA3", "fa4": "FA4"}


@dataclass
class Group:
    """Rows of one type, head dim, mask and direction, by sequence length."""
    rows: dict = field(default_factory=dict)

    def tflops(self, seqlen):
        row = self.rows.get(seqlen)
        return f"{row['tflops']:.0f}" if row and row["kernel"] else "–"

    def ratios(self, peer):
        """How many times as fast as the peer, by length; only where both ran."""
        return {s: row["peers"][peer]["ms"] / row["ms"] for s, row in sorted(self.rows.items())
                if row["kernel"] and peer in row["peers"]}

    def against(self, peer):
        ratios = self.ratios(peer)
        if not ratios:
            return "–"
        worst = min(ratios, key=ratios.get)
        return f"{number(geometric_mean(ratios.values()))} ({number(ratios[worst])} at {length(worst)})"


def number(ratio):
    return f"{ratio:.2f}" if ratio < 9.95 else f"{ratio:.0f}"


def length(seqlen):
    return f"{seqlen // 1024}k" if seqlen % 1024 == 0 else str(seqlen)


def geometric_mean(values):
    values = list(values)
    return math.exp(sum(map(math.log, values)) / len(values))


def key_of(problem):
    """(dtype, direction, head dim, mask), seqlen of a problem line."""
    words = problem.split()
    size = {w: int(n) for w, n in re.findall(r"\b(sq|d)(\d+)\b", problem)}
    direction = "backward" if "backward" in words else "forward"
    return (words[0], direction, size["d"], "causal" if "causal" in words else "dense"), size["sq"]


def groups(bench):
    """key_of -> Group: bf16 before fp16, the forward before the backward, dense before causal."""
    found = {}
    for row in bench:
        key, seqlen = key_of(row["problem"])
        found.setdefault(key, Group()).rows[seqlen] = row
    return dict(sorted(found.items(), key=lambda i: (i[0][0], i[0][1] == "backward", i[0][2], i[0][3] == "causal")))


def peers_in(bench):
    present = {name for row in bench for name in row["peers"]}
    return [name for name in PEERS if name in present] + sorted(present - set(PEERS))


def bench_rows(bench):
    """Header and rows of cells."""
    peers = peers_in(bench)
    header = ["type", "direction", "head dim", "mask", f"TFLOP/s at S = {', '.join(map(length, SHOWN_LENGTHS))}",
              *(PEERS.get(p, p) for p in peers)]
    rows = []
    for (dtype, direction, dim, mask), group in groups(bench).items():
        some = any(row["kernel"] for row in group.rows.values())
        speed = " / ".join(map(group.tflops, SHOWN_LENGTHS)) if some else "no kernel yet"
        rows.append([dtype, direction, str(dim), mask, speed, *map(group.against, peers)])
    return header, rows


def shape_rows(shapes):
    """Header and rows of cells: each shape by itself."""
    peers = peers_in(shapes)

    def against(row, peer):
        return number(row["peers"][peer]["ms"] / row["ms"]) if row["kernel"] and peer in row["peers"] else "–"
    header = ["problem", "µs", "TFLOP/s", *(PEERS.get(p, p) for p in peers)]
    return header, [[short(r["problem"]), f"{1e3 * r['ms']:,.0f}" if r["kernel"] else "no kernel yet",
                     f"{r['tflops']:.0f}" if r["kernel"] else "–", *(against(r, p) for p in peers)] for r in shapes]


def cublas_text(rates):
    rates = " and ".join(f"{rate:.0f}" for rate in rates)
    return f"cuBLAS' product of two 8192 x 8192 matrices in bf16 before and after all that: {rates} TFLOP/s"


def memory_rows(memory):
    header = ["S", "forward and backward" if all("backward" in r["problem"] for r in memory) else "forward",
              "of it workspace", "torch math"]

    def mib(count):
        return f"{count / 2**20:,.0f} MiB" if count is not None else "–"
    return header, [[length(r["seqlen"]), mib(r["peak_bytes"]), mib(r["workspace_bytes"]),
                     mib(r.get("torch_math_bytes"))] for r in memory]


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def plain(header, rows):
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    return "".join("  ".join(c.ljust(w) for c, w in zip(cells, widths)).rstrip() + "\n" for cells in [header, *rows])


def sanitizer_text(sanitizer):
    def one(tool):
        errors = sanitizer[tool]
        shapes = sanitizer["shapes"][tool]
        return f"{tool} {errors} error{'s' * (errors != 1)} in {shapes} shapes" if isinstance(errors, int) else \
            f"{tool} did not run ({errors})"
    return "; ".join(map(one, TOOLS))


def readme_part(evidence):
    """Everything that README says of one device."""
    tests, sm80 = evidence["tests"], evidence["sm80"]
    text = (f"{evidence['device']}, driver {evidence['driver']}, nvcc {evidence['nvcc']}, torch {evidence['torch']}, "
            f"{evidence['date']}: {tests['run']} tests, {tests['failed']} failed; "
            f"compiled for sm_80 and translated: {sm80['run']} tests, {sm80['failed']} failed; "
            f"{sanitizer_text(evidence['sanitizer'])}.\n\n"
            "Speed over each peer: geometric mean over the lengths (worst of them); hidden size 2048, 16k tokens.\n\n")
    text += markdown(*bench_rows(evidence["bench"]))
    if evidence.get("shapes"):  # older files have none
        text += f"\nOther shapes, and the speed over each peer. {cublas_text(evidence['cublas'])}.\n\n"
        text += markdown(*shape_rows(evidence["shapes"]))
    shape = re.sub(r" sq\d+| sk\d+| backward", "", evidence["memory"][0]["problem"])
    return f"{text}\nPeak device memory, tensors included, `{shape}`:\n\n{markdown(*memory_rows(evidence['memory']))}"


def closing(results):
    """What the terminal shows last: of the parts that ran."""
    text = ""
    if "tests" in results:
        text += "tests      {run} run, {failed} failed, {skipped} skipped\n".format(**results["tests"])
    if "sm80" in results:
        text += "sm80 code  {run} run, {failed} failed, {skipped} skipped\n".format(**results["sm80"])
    if "sanitizer" in results:
        text += f"sanitizer  {sanitizer_text(results['sanitizer'])}; {results['sanitizer']['refused']} of " \
                f"{results['sanitizer']['listed']} shapes have no kernel\n"
    if "accuracy" in results:
        text += "accuracy   {run} problems, {failed} failed, {refused} without a kernel\n".format(
            **results["accuracy_cases"])
    if results.get("accuracy"):
        text += "\n" + plain(["rule", "type", "direction", "worst", "limit", "problem"],
                             [[r["rule"], r["dtype"], r["direction"], f"{r['worst'] or 0:.3g}",
                               f"{r['limit'] or math.inf:.3g}", r["problem"]] for r in results["accuracy"]])
    if results.get("bench"):
        text += "\n" + plain(*bench_rows(results["bench"]))
    if results.get("shapes"):
        text += "\n" + plain(*shape_rows(results["shapes"]))
    if results.get("cublas"):
        text += f"\n{cublas_text(results['cublas'])}\n"
    if results.get("memory"):
        text += "\n" + plain(*memory_rows(results["memory"]))
    return text
