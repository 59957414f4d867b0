"""Makes the examples that the package carries from finished runs of studies: logits in float16, and the recipe beside them.

    calibrant study run cifar10 --only Cross-entropy --seeds 1 --store runs --accelerator cpu
    python -m benchmarks.examples runs/runs/FINGERPRINT cifar10 Cross-entropy

Each is one training of ten minutes at most on one core; nothing is tuned, and no test label is used.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import calibrant
from calibrant._core.files import read_arrays, write_arrays

HOME = Path(calibrant.__file__).parent / "_examples"


def make(run: Path, study: str, objective: str, *, name: str, home: Path = HOME) -> None:
    """Write ``NAME.npz`` and ``NAME.toml`` of the finished run in the folder ``run``."""
    arrays = read_arrays(run / "predictions.npz")
    kept = {
        key: values.astype(np.float16) if key.endswith("logits") else values.astype(np.uint8)
        for key, values in arrays.items()
        if key.endswith(("_logits", "_labels"))
    }
    write_arrays(home / f"{name}.npz", kept)
    record = json.loads((run / "record.json").read_text())
    recipe = record["recipe"]
    recipe["data"].pop("folder", None)  # where the data lay, not what they were
    about = {
        "study": study,
        "objective": objective,
        "scale": "cpu",
        "seed": recipe["seed"],
        "command": f"calibrant study run {study} --only '{objective}' --seeds 1 --accelerator cpu",
        "logits": "float16, rounded from the network's float32",
        "versions": record["versions"],
        "recipe": recipe,
    }
    (home / f"{name}.toml").write_text("\n".join(to_toml(about)) + "\n", encoding="utf-8")


def to_toml(table: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the lines of a TOML table of plain values and tables."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items() if value is not None]
    for key, value in table.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{prefix}{key}]", *to_toml(value, f"{prefix}{key}.")]
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    parser.add_argument("study")
    parser.add_argument("objective")
    parser.add_argument("--name", help="of the example; the study's if left out")
    given = parser.parse_args()
    make(given.run, given.study, given.objective, name=given.name or given.study)
