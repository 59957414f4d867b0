"""Calibrant inside the tools people already use; each module needs its own optional package, imported by nobody else."""

__all__: list[str] = []
