"""Running commands for tools/gpu_check: where the tree is, what is said, what a command printed."""
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def say(text):
    print(f"gpu_check: {text}", file=sys.stderr, flush=True)


def lines_of(command, **options):
    """Runs a command, passing its output on, and returns exit code and lines."""
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                          **options) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return process.returncode, lines


def output_of(command, seconds, stdin="", **options):
    """Runs a command quietly: its output, and its exit code (None: stopped after `seconds`, with all that it
    had started)."""
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                          **options) as process:
        try:
            return process.communicate(stdin, timeout=max(0.1, seconds))[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0], None
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def counts_in(lines):
    """The counts of run_ctest's closing line (tools/lib.sh), or None."""
    found = [re.fullmatch(r"cases: (\d+) passed, (\d+) failed, (\d+) skipped", line) for line in lines]
    found = next((m for m in found if m), None)
    if found is None:
        return None
    passed, failed, skipped = map(int, found.groups())
    return {"run": passed + failed, "failed": failed, "skipped": skipped}


def file_name(device):
    return re.sub(r"[^A-Za-z0-9]+", "_", device).strip("_") + ".json"
