"""Clocks, power and temperature of the GPU while something else runs, by nvidia-smi."""
import statistics
import subprocess
import threading

FIELDS = {"clocks.sm": "sm_mhz", "clocks.mem": "memory_mhz", "power.draw": "power_w", "temperature.gpu": "celsius"}


def summary(lines):
    """Lines of numbers in the order of FIELDS -> {name: {min, median, max}}; what is no number is left out."""
    columns = {name: [] for name in FIELDS.values()}
    for line in lines:
        cells = line.split(",")
        for name, cell in zip(columns, cells if len(cells) == len(columns) else []):
            try:
                columns[name].append(float(cell))
            except ValueError:  # "[N/A]"
                continue
    return {name: {"min": min(v), "median": statistics.median(v), "max": max(v)} for name, v in columns.items() if v}


class Clocks:
    """with Clocks(0) as clocks: ...; clocks.summary() afterwards. {} where there is no nvidia-smi."""

    def __init__(self, device):
        self.lines = []
        self.command = ["nvidia-smi", f"--id={device}", f"--query-gpu={','.join(FIELDS)}",
                        "--format=csv,noheader,nounits", "--loop-ms=250"]
        self.process = None

    def __enter__(self):
        try:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return self
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True)
        self.reader.start()
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.reader.join()
            self.process.stdout.close()

    def summary(self):
        return summary(self.lines)
