"""The accuracy rules over a list of problems: the worst case of each rule, type and direction."""
import json
from concurrent.futures import ThreadPoolExecutor

from evidence.process import output_of


def direction_of(line):
    return "backward" if "backward" in line.split() else "forward"


def worst_rows(reports):
    """Reports of `tilewise check --json` -> the evidence's rows, worst first among equals of a rule."""
    worst = {}
    for report in reports:
        line = report["problem"]
        for rule in report["rules"]:
            key = (rule["rule"], line.split()[0], direction_of(line))
            of_limit = float("inf") if rule["worst"] is None else rule["worst"]  # JSON has no infinity
            if key not in worst or of_limit > worst[key][0]:
                worst[key] = (of_limit, {"rule": key[0], "dtype": key[1], "direction": key[2],
                                         "tensor": rule["tensor"], "worst": rule["value"], "limit": rule["limit"],
                                         "problem": line})
    return [worst[key][1] for key in sorted(worst)]


def check(lines, tilewise, environment, seconds, workers):
    """Rows; counts {run, failed, refused}; and a note for each problem that failed or did not finish."""
    def reports_of(some):
        output, code = output_of([tilewise, "check", "-", "--device", "cuda:0", "--json", "--quiet"], seconds,
                                 stdin="\n".join(some) + "\n", env=environment)
        return [json.loads(text) for text in output.splitlines() if text.startswith("{")], code, output
    shares = [lines[i::workers] for i in range(min(workers, len(lines)))]
    reports, notes = [], []
    with ThreadPoolExecutor(len(shares)) as pool:
        for share, (some, code, output) in zip(shares, pool.map(reports_of, shares)):
            reports += some
            if len(some) != len(share):
                said = output.strip().splitlines()[-1:] or ["nothing"]
                notes.append(f"accuracy: {len(share) - len(some)} problems did not finish "
                             f"({'out of time' if code is None else said[0][:200]})")
    refused = [r for r in reports if not r["ok"] and not r["kernel"]]
    failed = [r for r in reports if not r["ok"] and r["kernel"]]
    notes += [f"accuracy: FAILED: {r['problem']}: {r['why'][0]}" for r in failed]
    counts = {"run": len(reports) - len(refused), "failed": len(failed) + len(lines) - len(reports),
              "refused": len(refused)}
    return worst_rows(reports), counts, notes
