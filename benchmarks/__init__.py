"""What Calibrant costs and covers, measured: each module is a command, ``python -m benchmarks.NAME``."""
