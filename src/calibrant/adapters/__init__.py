"""Adapters to other tools; each module imports one optional package, and no other module imports it."""

__all__: list[str] = []
