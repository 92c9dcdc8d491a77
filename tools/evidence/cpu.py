"""tools/gpu_check --cpu: the whole suite and the benchmarks on this machine's CPU."""
import datetime
import glob
import json
import os
import subprocess
import sys

from evidence.process import ROOT, counts_in, file_name, lines_of, say

TILEWISE = ROOT / "build/bin/tilewise"


def run_tests(quick):
    environment = dict(os.environ, TILEWISE_FUZZ_CASES="200") if quick else None
    code, lines = lines_of(["tools/test", "-j", str(os.cpu_count())], env=environment)
    counts = counts_in(lines)
    if counts is None:
        sys.exit(f"error: tools/test exited with {code} and no count of cases")
    if code != 0 and counts["failed"] == 0:
        sys.exit(f"error: tools/test exited with {code}: a test program did not finish")
    return counts


def run_bench():
    rows = []
    for path in sorted(glob.glob("tests/problems/bench_cpu*.txt", root_dir=ROOT)):
        code, lines = lines_of([TILEWISE, "bench", path, "--threads", "1", "--json"])
        if code != 0:
            sys.exit(f"error: tilewise bench {path} exited with {code}")
        rows += [json.loads(line) for line in lines if line.startswith("{")]
    if not rows:
        sys.exit("error: no benchmark ran: no tests/problems/bench_cpu*.txt, or nothing in it")
    return rows


def machine():
    """What `tilewise info` says of processor, instruction set in use and compiler."""
    info = json.loads(subprocess.run([TILEWISE, "info", "--json"], capture_output=True, text=True, check=True).stdout)
    return {"cpu": info["cpu"]["name"], "isa": info["cpu"]["isa"], "compiler": info["compiler"]}


def check(quick, sources):
    tests = run_tests(quick)
    if quick:
        return 1 if tests["failed"] else 0
    evidence = {"schema": 1, **machine(), "date": datetime.date.today().isoformat(), **sources, "tests": tests,
                "bench": run_bench()}
    path = ROOT / "evidence/cpu" / file_name(evidence["cpu"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(evidence, indent=1) + "\n")
    say(f"wrote {path.relative_to(ROOT)}: {tests['run']} tests, {tests['failed']} failed; "
        f"{len(evidence['bench'])} benchmarks")
    return 1 if tests["failed"] else 0
