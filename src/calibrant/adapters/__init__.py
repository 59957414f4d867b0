"""Adapters to other tools.

Each public module imports one optional package, which the rest of Calibrant does not need.
"""

__all__: list[str] = []
