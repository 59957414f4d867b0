"""Calibrated arrays in the layout of the file they came from: names, axes, order and everything beside them stay."""

from dataclasses import replace

import torch

from calibrant._check import as_tensor, check_labels
from calibrant._files import Array, read_arrays, write_arrays
from calibrant.calibrators import Calibrator
from calibrant.cli._calibrators import with_logits
from calibrant.errors import InputError
from calibrant.predictions import Predictions
from calibrant.splits import split_prefixes, splits_of, stale_names


def calibrate_file(
    path: str, calibrator: Calibrator, *, shown: str, class_dim: int = 1, ignore_index: int | None = None
) -> dict[str, Array]:
    """Return the arrays of the file at ``path`` with every split's logits (or probabilities) as calibrated logits.

    Args:
        path: A predictions file; labels, if there are any, are checked.
        calibrator: A fitted calibrator.
        shown: What messages call the file.
        class_dim: The class axis.
        ignore_index: A label that marks rows without one; their logits are calibrated all the same.
    """
    arrays = read_arrays(path)
    prefixes = split_prefixes(arrays, shown)
    splits = splits_of(arrays, shown, class_dim=class_dim, ignore_index=ignore_index)
    for name, data in splits.items():
        with_logits(data, file=shown, split=name)
    for prefix in prefixes.values():
        kind = next(kind for kind in ("logits", "probs") if prefix + kind in arrays)
        make = Predictions.from_logits if kind == "logits" else Predictions.from_probs
        values = as_tensor(arrays[prefix + kind], name=kind)
        before = make(values, class_dim=class_dim)
        shape = values.movedim(class_dim, -1).shape[:-1]
        if prefix + "decision" in arrays:
            decided = as_tensor(arrays[prefix + "decision"], name="decision").reshape(-1)
            before = replace(before, decision=check_labels(decided, rows=len(before), classes=before.classes))
        for name in stale_names(arrays, prefix):  # what calibration changes is computed anew or left out
            del arrays[name]
        # every row is passed through, the fitted ones too: nothing is evaluated here
        after = before.calibrated_by(calibrator, allow_fit_rows=True)
        arrays[prefix + "logits"] = _like(values, after.logits, class_dim)
        if after.decision is not None:
            arrays[prefix + "decision"] = after.decision.reshape(shape).numpy()
    return arrays


def write_like(path: str, arrays: dict[str, Array]) -> None:
    """Write ``arrays`` to ``path``, refusing parquet for what is not columns of one length."""
    if path.endswith(".parquet"):
        lengths = {array.shape[0] for array in arrays.values()}
        if len(lengths) > 1 or any(array.ndim > 2 for array in arrays.values()):
            raise InputError(
                f"expected columns of one length for parquet, got the arrays {', '.join(sorted(arrays))}; write .npz or "
                ".safetensors"
            )
    write_arrays(path, arrays)


def _like(values: torch.Tensor, logits: torch.Tensor, class_dim: int) -> Array:
    """Return ``logits`` (rows, K) with the axes of ``values``."""
    return logits.reshape(values.movedim(class_dim, -1).shape).movedim(-1, class_dim).contiguous().numpy()
