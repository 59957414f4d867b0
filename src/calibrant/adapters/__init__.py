"""Adapters to other tools.

Each public module needs one optional package, which the rest of Calibrant does not import.
"""

__all__: list[str] = []
