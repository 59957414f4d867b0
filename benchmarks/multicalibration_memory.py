"""What a process holds in memory (Linux): imports nothing, so that both environments of benchmarks.multicalibration can use it."""

from pathlib import Path


def memory(name: str) -> float:
    """Return a figure of /proc/self/status in MiB: "VmRSS" now, "VmHWM" at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def forget_peak() -> float:
    """Set the peak to what is held now, and return that in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")
