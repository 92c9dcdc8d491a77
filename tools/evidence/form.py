"""The form of evidence/gpu/*.json, and what a file lacks to be complete.

{schema, device, driver, nvcc, torch, cudnn, date, source_hash, sources, tests: {run, failed, skipped},
 sm80: {run, failed, skipped}: the tests compiled for sm_80 alone,
 sanitizer: {memcheck, racecheck, initcheck, synccheck: errors, or why it did not run;
             shapes: {tool: problems run}, refused, listed},
 accuracy: [{rule, dtype, direction, tensor, worst, limit, problem}], accuracy_cases: {run, failed, refused},
 versions: {peer: version} of those that torch does not bring, absent: {peer: why},
 clocks: {sm_mhz, memory_mhz, power_w, celsius: {min, median, max}},
 bench: [{problem, direction, kernel, ms, tflops, host_us, calls, difference,
          peers: {name: {ms, tflops, host_us, calls}}, left_out: {name: why}}],
 shapes: [rows like bench's, of shapes beside the grid], cublas: [TFLOP/s before, after],
 memory: [{seqlen, problem, peak_bytes, workspace_bytes, outside_bytes, torch_math_bytes}]}

A peer that was not there is left out of peers. kernel is null, with `why`, when none computes the problem.
"""
from evidence.sanitizer import TOOLS

SCHEMA = 1
KEYS = ("device", "driver", "nvcc", "torch", "date", "source_hash", "sources", "tests", "sm80", "sanitizer",
        "accuracy", "accuracy_cases", "clocks", "cublas", "bench", "shapes", "memory")


def missing_keys(evidence):
    """Parts that did not come to anything: such a run is no evidence."""
    return [key for key in KEYS if not evidence.get(key)]


def lacks(evidence):
    """Sentences on what is missing or went wrong; none when the evidence is complete."""
    if evidence.get("schema") != SCHEMA:
        return [f"schema is {evidence.get('schema')}, expected {SCHEMA}"]
    found = [f"no {key}" for key in missing_keys(evidence)]
    sanitizer = evidence.get("sanitizer") or {}
    for part, name in (("tests", "tests"), ("sm80", "tests compiled for sm_80")):
        if (evidence.get(part) or {}).get("failed"):
            found.append(f"{evidence[part]['failed']} {name} failed")
    for tool in TOOLS if sanitizer else ():
        errors = sanitizer.get(tool)
        if not isinstance(errors, int):
            found.append(f"{tool} did not run: {errors}")
        elif errors:
            found.append(f"{tool} counted {errors} errors")
    cases = evidence.get("accuracy_cases") or {}
    if cases.get("failed"):
        found.append(f"{cases['failed']} problems failed the accuracy rules")
    without = sum(row["kernel"] is None for row in [*(evidence.get("bench") or ()), *(evidence.get("shapes") or ())])
    if without:
        found.append(f"{without} rows of the bench have no kernel")
    return found
