"""Benchmarks of speed and statistical coverage. Each module is a command: ``python -m benchmarks.NAME``."""
