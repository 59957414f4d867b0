"""Stores runs in one folder per recipe, named by the recipe's fingerprint. A run is finished once its record is written.

Every file contains the fingerprint of the recipe that it belongs to, so that mixed-up files are detected.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant._core.config import own_version
from calibrant._files import as_path, error_boundary, read_arrays, read_text, write_arrays, write_whole
from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError
from calibrant.study.measures import Run
from calibrant.study.recipe import Recipe

OWNER = "fingerprint"  # key of the recipe's fingerprint in every file


class Store:
    """A folder of finished and unfinished runs.

    Args:
        root: The folder; it is created at the first write.

    Examples:
        >>> from calibrant.study import Recipe, Training
        >>> Store("runs").finished(Recipe({"name": "digits"}, {"type": "MLP"}, {"type": "BrierLoss"}, Training(1, 32)))
        False
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = as_path(root, name="root")

    def folder(self, recipe: Recipe) -> Path:
        """Return the folder of a recipe's run."""
        return self.root / "runs" / recipe.fingerprint

    def checkpoint(self, recipe: Recipe) -> Path:
        """Return the path of the checkpoint of an unfinished run."""
        return self.folder(recipe) / "checkpoint.pt"

    def finished(self, recipe: Recipe) -> bool:
        """Return whether the run of a recipe is complete."""
        return (self.folder(recipe) / "record.json").is_file()

    def save(self, recipe: Recipe, run: Run) -> None:
        """Write a finished run. The record is written last, so that a run whose saving is interrupted counts as unfinished."""
        folder = self.folder(recipe)
        make_folder(folder)
        owner = {OWNER: np.array(recipe.fingerprint)}
        write_arrays(folder / "predictions.npz", owner | _arrays_of({"val": run.validation, "test": run.test}))
        if run.ood:
            write_arrays(folder / "ood.npz", owner | _arrays_of(run.ood))
        learned = {"learned_epochs": run.learned_epochs.numpy(), "max_logits": run.max_logits.numpy()}
        write_arrays(folder / "learned.npz", owner | learned)
        record = {
            OWNER: recipe.fingerprint,
            "recipe": json.loads(recipe.canonical()),
            **run.record,
            "versions": {"calibrant": own_version(), "torch": torch.__version__},
            "trajectory": run.trajectory,
        }
        write_whole(folder / "record.json", json.dumps(record) + "\n")
        (folder / "checkpoint.pt").unlink(missing_ok=True)

    def load(self, recipe: Recipe) -> Run:
        """Return a finished run.

        Raises:
            FileFormatError: If the run is not finished, or one of its files is damaged or belongs to another recipe.
        """
        folder = self.folder(recipe)
        if not self.finished(recipe):
            raise FileFormatError("a finished run", f"no {folder / 'record.json'}", "run the study first")

        def read(name: str, parse: Callable[[Path], dict[str, Any]] = read_arrays) -> dict[str, Any]:
            with error_boundary(f"the {name} of this run", f"a broken one in {folder}", "delete that folder"):
                content = parse(folder / name)
                if str(content.pop(OWNER)) != recipe.fingerprint:
                    raise ValueError("it belongs to another recipe")
                return content

        record = read("record.json", lambda path: json.loads(read_text(path)))
        splits = _predictions_of(read("predictions.npz"))
        ood = _predictions_of(read("ood.npz")) if recipe.data.get("ood") else {}
        learned = {name: torch.from_numpy(values) for name, values in read("learned.npz").items()}
        return Run(splits["val"], splits["test"], ood, record.pop("trajectory"), **learned, record=record)


def make_folder(folder: Path) -> None:
    """Create the folder of a run.

    Raises:
        FileFormatError: If it cannot be created.
    """
    with error_boundary("a writable store", str(folder), "choose another --store"):
        folder.mkdir(parents=True, exist_ok=True)


def _arrays_of(splits: Mapping[str, Predictions]) -> dict[str, Any]:
    """Return the arrays to store (val_logits, val_labels, test_logits …), which ``calibrant evaluate`` can read as well."""
    arrays = {
        f"{name}_{field}": getattr(rows, field)
        for name, rows in splits.items()
        for field in ("logits", "labels", "decision")
    }
    return {name: values.numpy() for name, values in arrays.items() if values is not None}


def _predictions_of(arrays: Mapping[str, Any]) -> dict[str, Predictions]:
    """Return the predictions of each split, from the arrays that ``_arrays_of`` returned."""
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    found = {}
    for name in (key.removesuffix("_logits") for key in tensors if key.endswith("_logits")):
        rows = Predictions.from_logits(tensors[f"{name}_logits"], tensors.get(f"{name}_labels"), unchecked_kind=True)
        found[name] = replace(rows, decision=tensors.get(f"{name}_decision"))
    return found
