"""Stores runs in one folder per recipe, named by its fingerprint; a run is finished once its record is written."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from calibrant._core.config import own_version
from calibrant._files import as_path, error_boundary, read_arrays, read_text, write_arrays, write_whole
from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError
from calibrant.study.recipe import Recipe
from calibrant.study.train import Outcome


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run as stored: predictions, and the record of their provenance.

    Args:
        validation: Predictions of the validation samples.
        test: Predictions of the test samples.
        record: Recipe, epoch kept, uses of validation data, seconds, device, versions.
        ood: Predictions of out-of-distribution sets by name, without labels, for ``metrics.ood_auroc(test, ood[name])``.

    Examples:
        >>> from calibrant import Predictions
        >>> predictions = Predictions.from_logits([[2.0, 0.0]], [0])
        >>> Run(predictions, predictions, {"epoch": 20}, {}).record["epoch"]
        20
    """

    validation: Predictions
    test: Predictions
    record: dict[str, Any]
    ood: dict[str, Predictions] = field(default_factory=dict)


class Store:
    """A folder of finished and unfinished runs.

    Args:
        root: The folder, created at the first write.

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
        """Create the folder of an unfinished run, and return the path of its checkpoint.

        Raises:
            FileFormatError: If the folder cannot be created.
        """
        folder = self.folder(recipe)
        with error_boundary("a writable store", str(self.root), "choose another --store"):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / "checkpoint.pt"

    def finished(self, recipe: Recipe) -> bool:
        """Return whether the recipe's run is complete."""
        return (self.folder(recipe) / "record.json").is_file()

    def save(self, recipe: Recipe, outcome: Outcome) -> None:
        """Write a finished run. The record is written last, so an interrupted save does not count as finished."""
        folder = self.checkpoint(recipe).parent
        write_arrays(folder / "predictions.npz", _arrays_of({"val": outcome.validation, "test": outcome.test}))
        if outcome.ood:
            write_arrays(folder / "ood.npz", _arrays_of(outcome.ood))
        learned = {"learned_epochs": outcome.learned_epochs.numpy(), "max_logits": outcome.max_logits.numpy()}
        write_arrays(folder / "learned.npz", learned)
        write_whole(folder / "trajectory.jsonl", "".join(json.dumps(e) + "\n" for e in outcome.trajectory))
        record = {
            "recipe": json.loads(recipe.canonical()),
            "epoch": outcome.epoch,
            "validation_uses": outcome.validation_uses,
            "seconds": round(outcome.seconds, 3),
            "device": outcome.device,
            "versions": {"calibrant": own_version(), "torch": torch.__version__},
        }
        write_whole(folder / "record.json", json.dumps(record, indent=1) + "\n")
        (folder / "checkpoint.pt").unlink(missing_ok=True)

    def load(self, recipe: Recipe) -> Run:
        """Return a finished run.

        Raises:
            FileFormatError: If the run is not finished, or one of its files is damaged.
        """
        folder = self.folder(recipe)
        (record,) = _read_finished(folder / "record.json", lambda text: [json.loads(text)])
        splits = _predictions_of(folder / "predictions.npz")
        ood = _predictions_of(folder / "ood.npz") if recipe.data.get("ood") else {}
        return Run(splits["val"], splits["test"], record, ood)

    def trajectory(self, recipe: Recipe) -> list[dict[str, Any]]:
        """Return the trajectory of a finished run."""
        path = self.folder(recipe) / "trajectory.jsonl"
        return _read_finished(path, lambda text: [json.loads(line) for line in text.splitlines()])

    def of_training(self, recipe: Recipe, name: str) -> torch.Tensor:
        """Return one number for each training sample (N train,) of a finished run.

        Args:
            recipe: The recipe.
            name: ``"learned_epochs"`` for the epoch since which a sample is classified correctly, or ``"max_logits"`` for its
                largest logit.

        Raises:
            FileFormatError: If the file cannot be read.
        """
        return torch.from_numpy(read_arrays(self.folder(recipe) / "learned.npz")[name])


def _arrays_of(splits: Mapping[str, Predictions]) -> dict[str, Any]:
    """Return the arrays of a file that ``calibrant evaluate`` can read as well: val_logits, val_labels, test_logits …"""
    arrays = {
        f"{name}_{field}": getattr(rows, field)
        for name, rows in splits.items()
        for field in ("logits", "labels", "decision")
    }
    return {name: values.numpy() for name, values in arrays.items() if values is not None}


def _predictions_of(path: Path) -> dict[str, Predictions]:
    """Return the predictions of each split in a file of ``_arrays_of``."""
    arrays = {name: torch.from_numpy(values) for name, values in read_arrays(path).items()}
    found = {}
    for name in (key.removesuffix("_logits") for key in arrays if key.endswith("_logits")):
        rows = Predictions.from_logits(arrays[f"{name}_logits"], arrays.get(f"{name}_labels"), unchecked_kind=True)
        found[name] = replace(rows, decision=arrays.get(f"{name}_decision"))
    return found


def _read_finished(path: Path, parse: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the non-empty list of tables that ``parse`` reads from a file of a finished run."""
    if not path.is_file():
        raise FileFormatError("a finished run", f"no {path}", "run the study first")
    with error_boundary(f"a whole {path.stem}", f"a broken one in {path}", "delete that folder"):
        found = parse(read_text(path))
        if not found or not all(isinstance(entry, dict) for entry in found):
            raise ValueError("no entries")
    return found
