"""Stores records in one JSON file per family, together with the machine and the package versions."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import calibrant

PEERS = (
    "torchmetrics",
    "netcal",
    "probmetrics",
    "torch-uncertainty",
    "scikit-learn",
    "relplot",
    "probcal",
    "kornia",
)


def versions() -> dict[str, str]:
    """Return the versions of all libraries that are timed; "absent" if a library is not installed."""
    found = {"python": platform.python_version(), "calibrant": calibrant.__version__, "torch": torch.__version__}
    for name in PEERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def machine() -> dict[str, Any]:
    """Return the processor's model and the cores that this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {"processor": models[0] if models else platform.machine(), "cores": cores()}


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


class Store:
    """The records of one family in a folder. Each record is written immediately, so that an interrupted run can be resumed.

    Args:
        folder: The folder of ``bench-FAMILY.json``; None stores nothing.
        family: The name of the family.

    Raises:
        SystemExit: If the file contains records from another machine or other versions.
    """

    def __init__(self, folder: Path | None, family: str) -> None:
        self.path = folder / f"bench-{family}.json" if folder else None
        self.content: dict[str, Any] = {"machine": machine(), "versions": versions(), "records": []}
        if self.path is None or not self.path.exists():
            return
        kept = json.loads(self.path.read_text())
        for part in ("machine", "versions"):
            if kept[part] != self.content[part]:
                raise SystemExit(
                    f"expected records of this {part} in {self.path}, got those of {kept[part]}; name another folder"
                )
        self.content = kept

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """Return the record that has all of ``key``, or None."""
        for record in self.content["records"]:
            if all(record.get(name) == value for name, value in key.items()):
                return dict(record)
        return None

    def add(self, record: dict[str, Any]) -> None:
        """Add a record; the file is replaced atomically."""
        self.content["records"].append(record)
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".partial")
        records = ",\n".join(json.dumps(one, ensure_ascii=False) for one in self.content["records"])
        head = {name: self.content[name] for name in ("machine", "versions")}
        beside.write_text(f'{json.dumps(head, ensure_ascii=False)[:-1]}, "records": [\n{records}\n]}}\n')
        beside.replace(self.path)
