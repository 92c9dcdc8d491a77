"""tools/gpu_check on a GPU: build, tests, sanitizers, accuracy, bench with peers -> evidence/gpu/<device>.json."""
import datetime
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from evidence import accuracy, sanitizer, tables
from evidence.form import SCHEMA, lacks, missing_keys
from evidence.process import ROOT, counts_in, file_name, lines_of, output_of, say
from peers import schedule  # of bench/

PARTS = ("tests", "sm80", "sanitizer", "accuracy", "bench")
SECONDS = {False: {"tests": 200, "sm80": 200, "sanitizer": 100, "accuracy": 100, "bench": 125},
           True: {"tests": 45, "sm80": 45, "sanitizer": 30, "accuracy": 30, "bench": 25}}  # by --quick
ALONE = "cuda_alone"
SM80 = "cuda-sm80"  # the tests compiled for sm_80 alone: newer devices translate that and run it
OF_BENCH = ("torch", "cudnn", "versions", "absent", "clocks", "cublas", "bench", "shapes", "memory")
WITH_LIB = 'root=$1; shift; . "$root/tools/lib.sh"; '


class Choice:
    """What --quick and --only ask for: parts by name, problems by words."""

    def __init__(self, quick, only):
        words = only.split()
        self.quick, self.whole = quick, not quick and not words
        self.parts = [p for p in PARTS if p in words] or [p for p in PARTS if not (quick and p == "sm80")]
        self.words = " ".join(w for w in words if w not in PARTS)

    def lines(self, name):
        path = ROOT / "tests/problems" / name
        chosen = [line for line in schedule.problem_lines(path) if schedule.has_words(line, self.words)]
        if not chosen:
            say(f"no line of tests/problems/{name} has the words {self.words}")
        return chosen


def query(fields):
    out = subprocess.run(["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader"],
                         capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"error: nvidia-smi finds no GPU: {out.stdout.strip() or out.stderr.strip()}")
    return [cell.strip() for cell in out.stdout.strip().split(",")]


def machine(parts):
    """Device, driver and nvcc; one sentence and the end where something is missing."""
    if not shutil.which("nvidia-smi"):
        sys.exit("error: no nvidia-smi, so no GPU driver here; tools/gpu_check --cpu checks the CPU's kernels")
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not os.path.exists(nvcc):
        sys.exit("error: no nvcc on PATH nor in /usr/local/cuda/bin; the CUDA kernels need CUDA 13 or later to build")
    if "bench" in parts and importlib.util.find_spec("torch") is None:
        sys.exit(f'error: {sys.executable} has no torch, which the bench compares with; '
                 f'--only "{" ".join(p for p in PARTS if p != "bench")}" goes without')
    name, driver, capability = query("name,driver_version,compute_cap")
    version = re.search(r"release ([\d.]+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)
    return {"device": name, "driver": driver, "nvcc": version[1] if version else "?"}, capability


def build(name, architectures, *target):
    """build/<name>, for the architectures that are given or as shipped."""
    begin = time.monotonic()
    chosen = f"-DTILEWISE_CUDA_ARCHITECTURES={architectures}" if architectures else "-UTILEWISE_CUDA_ARCHITECTURES"
    script = WITH_LIB + ('need_build_packages; cd "$root"; d=$(binary_dir "$1"); '
                         'quietly "Configuring $1" cmake --preset cuda -B "$d" "$2"; '
                         'quietly "Building $1" cmake --build "$d" -j "$(jobs)" "${@:3}"')
    if subprocess.run(["bash", "-euc", script, "gpu_check", ROOT, name, chosen, *target], cwd=ROOT).returncode != 0:
        sys.exit("error: the build failed")
    say(f"built {name} in {time.monotonic() - begin:.0f} s")
    return name


def build_all(choice, capability):
    """The library as shipped, or for this device alone when quick, and what else the parts need: at the same
    time, because the longest kernels of one leave processors to the other."""
    own = capability.replace(".", "") + ("a-real" if capability == "9.0" else "-real")
    wanted = [("cuda-quick", own) if choice.quick else ("cuda", None)]
    if "sm80" in choice.parts:
        wanted.append((SM80, "80-virtual", "--target", "tilewise_test_cuda"))
    with ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(lambda one: build(*one), wanted))[0]


def run_tests(preset, environment, seconds, *chosen):
    """Counts of some of the CUDA tests, and notes."""
    script = WITH_LIB + 'run_ctest "$@"'
    output, code = output_of(["bash", "-uc", script, "gpu_check", ROOT, preset, "-L", "cuda", "-j", "4", *chosen],
                             seconds, env=environment)
    counts = counts_in(output.splitlines())
    if code == 0 and counts and counts["run"] > 0:
        return counts, []
    print(output[-6000:], flush=True)
    if counts is None or counts["failed"] == 0:
        why = "out of time" if code is None else "none ran" if code == 0 else f"ctest exited with {code}"
        counts = {**(counts or {"run": 0, "skipped": 0}), "failed": 1}
        return counts, [f"tests: {why}"]
    return counts, [f"tests: {counts['failed']} failed"]


def run_bench(choice, directory, seconds):
    """device's clocks, rows and memory as bench/gpu_peers.py writes them."""
    path = directory / "gpu_peers.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, "-B", ROOT / "bench/gpu_peers.py", "--lib", directory / "src/libtilewise.so",
               "--only", choice.words, "--seconds", str(seconds), "--json", path]
    command += ["--quick"] if choice.quick and not choice.words else []
    command += ["--no-memory"] if not choice.whole else []
    code, _ = lines_of(command)
    result = json.loads(path.read_text()) if path.exists() else {}
    notes = [f"bench: bench/gpu_peers.py exited with {code}"] if code != 0 else []
    notes += [f"bench: {row['problem']}: {row['why']}" for row in [*result.get("bench", ()), *result.get("shapes", ())]
              if row["kernel"] is None and "WRONG" in row["why"]]
    return {key: result[key] for key in OF_BENCH if key in result}, notes


def check_kernels(choice, preset, tilewise, seconds):
    """Tests, sanitizers and accuracy: at the same time, as the host is what takes the time."""
    shared = dict(os.environ, OMP_NUM_THREADS="2")  # the oracle's: many programs share the host
    if choice.quick:
        shared["TILEWISE_FUZZ_CASES"] = "100"
    environment = dict(shared, CUDA_DISABLE_PTX_JIT="1")  # what runs is what was checked for spills
    workers = max(2, (os.cpu_count() or 2) // 2)
    results, notes, work, begin = {}, [], {}, time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        if "tests" in choice.parts:
            work["tests"] = pool.submit(run_tests, preset, environment, seconds["tests"], "-E", ALONE)
        if "sm80" in choice.parts:
            translated = dict(shared, CUDA_CACHE_PATH=str(ROOT / "build" / SM80 / "translated"))
            work["sm80"] = pool.submit(run_tests, SM80, translated, seconds["sm80"], "-E", f"{ALONE}|nvrtc")
        if "sanitizer" in choice.parts and (lines := choice.lines("sanitizer_gpu.txt")):
            work["sanitizer"] = pool.submit(sanitizer.check, lines, tilewise, environment, seconds["sanitizer"],
                                            workers)
        if "accuracy" in choice.parts and (lines := choice.lines("accuracy_gpu.txt")):
            work["accuracy"] = pool.submit(accuracy.check, lines, tilewise, environment, seconds["accuracy"], workers)
        for part, future in work.items():
            if part == "accuracy":
                results["accuracy"], results["accuracy_cases"], more = future.result()
            else:
                results[part], more = future.result()
            notes += more
            say(f"{part}: done {time.monotonic() - begin:.0f} s after the build")
    if "tests" in choice.parts:  # what looks at the device's memory runs when nothing else does
        alone, more = run_tests(preset, environment, seconds["tests"], "-R", ALONE)
        results["tests"] = {key: results["tests"][key] + alone[key] for key in alone}
        notes += more
        say(f"tests: the last ones done {time.monotonic() - begin:.0f} s after the build")
    return results, notes


def save(results, whole):
    """Writes evidence when every part came to something, else build/gpu_check.json; returns the path."""
    path = ROOT / "build/gpu_check.json"
    if whole and not missing_keys(results):
        path = ROOT / "evidence/gpu" / file_name(results["device"])
        path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path.relative_to(ROOT)


def check(quick, only, sources):
    begin, choice = time.monotonic(), Choice(quick, only)
    about, capability = machine(choice.parts)
    preset = build_all(choice, capability)
    directory = ROOT / "build" / preset
    results = {"schema": SCHEMA, **about, "date": datetime.date.today().isoformat(), **sources}
    more, notes = check_kernels(choice, preset, directory / "bin/tilewise", SECONDS[quick])
    results.update(more)
    save(results, False)  # the bench takes longest, and may be cut off
    if "bench" in choice.parts and choice.lines("bench_gpu.txt"):
        more, why = run_bench(choice, directory, SECONDS[quick]["bench"])
        results.update(more)
        notes += why
    path = save(results, choice.whole)
    if choice.whole:
        notes += [f"evidence: {sentence}" for sentence in lacks(results)]
    print(f"\n{tables.closing(results)}")
    print("".join(f"{note}\n" for note in notes), end="")
    say(f"wrote {path} after {time.monotonic() - begin:.0f} s")
    return 1 if notes else 0
