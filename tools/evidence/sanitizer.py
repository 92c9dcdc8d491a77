"""compute-sanitizer's four tools over a list of problems, as many as fit into the time."""
import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from evidence.process import output_of

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
PROBE_SECONDS = 60
SUMMARIES = (re.compile(r"ERROR SUMMARY: (\d+) error()"),
             re.compile(r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)"))


@dataclass
class Run:
    """One tool on one problem. errors None: it did not run to its summary, and `why` says what it said."""
    tool: str
    line: str
    errors: int | None = None
    why: str = ""
    refused: bool = False  # no kernel computes the problem
    wrong: bool = False    # the results were not what the oracle says
    said: str = ""         # its first report


def errors_in(output):
    """The count of the tool's closing summary (races: errors and warnings), or None."""
    for pattern in SUMMARIES:
        found = pattern.findall(output)
        if found:
            return sum(int(n) for n in found[-1] if n)
    return None


def first_report(output, most=3):
    """The first lines of what the tool reports, joined."""
    lines = [text.strip("= ") for text in output.splitlines() if text.startswith("=========")]
    lines = [text for text in lines if text and "SUMMARY" not in text and text != "COMPUTE-SANITIZER"]
    return "; ".join(lines[:most])[:400]


def read(tool, line, output, code):
    """The Run of what `compute-sanitizer ... tilewise check --json` printed."""
    reports = [json.loads(text) for text in output.splitlines() if text.startswith("{")]
    if code is None:
        return Run(tool, line, why="stopped: out of time")
    if reports and not reports[0]["ok"] and not reports[0]["kernel"]:
        return Run(tool, line, refused=True, why="no kernel computes it")
    errors = errors_in(output)
    if errors is None or not reports:
        said = [text.strip("= ") for text in output.splitlines() if text.strip("= ")]
        return Run(tool, line, why=(said[-1] if said else f"exit code {code}, no output")[:200])
    return Run(tool, line, errors=errors, wrong=not reports[0]["ok"], said=first_report(output) if errors else "")


def run_one(tool, line, tilewise, environment, seconds):
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [program, "--tool", tool, tilewise, "check", line, "--device", "cuda:0", "--json", "--quiet"]
    try:
        output, code = output_of(command, seconds, env=environment)
    except OSError as error:
        return Run(tool, line, why=f"{program}: {error.strerror}")
    return read(tool, line, output, code)


def evidence_of(runs, listed):
    """{tool: errors, or why there is no number; "shapes": {tool: shapes run}, "listed", "refused"}."""
    result = {}
    for tool in TOOLS:
        mine = [r for r in runs if r.tool == tool]
        done = [r for r in mine if r.errors is not None]
        why = next((r.why for r in mine if r.errors is None and not r.refused), "no shape was run")
        result[tool] = sum(r.errors for r in done) if done else why
    result["shapes"] = {tool: sum(r.tool == tool and r.errors is not None for r in runs) for tool in TOOLS}
    result["refused"] = len({r.line for r in runs if r.refused})
    result["listed"] = listed
    return result


def check(lines, tilewise, environment, seconds, workers):
    """Runs of every tool over the lines, first lines first, until the time is up; and what deserves a look."""
    begin = time.monotonic()
    probe = run_one("memcheck", lines[0], tilewise, environment, min(PROBE_SECONDS, seconds))
    if probe.errors is None and not probe.refused:
        runs = [Run(tool, lines[0], why=f"not run, the probe failed: {probe.why}") for tool in TOOLS]
        return evidence_of(runs, len(lines)), [f"sanitizers: {runs[0].why}"]

    def job(tool, line):
        left = seconds - (time.monotonic() - begin)
        if left <= 0:
            return Run(tool, line, why="not run: out of time")
        return run_one(tool, line, tilewise, environment, left)
    jobs = [(tool, line) for line in lines for tool in TOOLS if (tool, line) != ("memcheck", lines[0])]
    with ThreadPoolExecutor(workers) as pool:
        runs = [probe, *pool.map(lambda j: job(*j), jobs)]
    notes = [f"{r.tool}: {r.errors} errors: {r.line}: {r.said}" for r in runs if r.errors]
    notes += [f"{r.tool}: wrong results: {r.line}" for r in runs if r.wrong]
    notes += [f"{r.tool}: {r.why}: {r.line}" for r in runs
              if r.errors is None and not r.refused and "out of time" not in r.why]
    return evidence_of(runs, len(lines)), notes
