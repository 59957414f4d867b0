"""One Ray cluster for every test that asks for it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant import Predictions, save_predictions


def in_parts(data: Predictions, home: Path, *, parts: int = 3) -> Path:
    """Return the folder ``home``, made if it is not there, with the rows in files of equal size."""
    home.mkdir(exist_ok=True)
    step = -(-len(data) // parts)
    for part in range(parts):
        save_predictions(home / f"{part}.parquet", {"all": data[part * step : (part + 1) * step]})
    return home


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Ray with two workers in this machine, which import what this process can."""
    module = pytest.importorskip("ray", reason="optional package 'ray' is not installed")
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (root / "src", root, Path(__file__).parent)))
    module.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield module
    module.shutdown()
