"""Rows as ``operate`` needs them: at least one, labels if needed, no weights, one row per group."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.check import as_array, check_floating
from calibrant._core.config import renewed
from calibrant.calibrators import Calibrator, PriorShift
from calibrant.data.checks import Data, MeasuredRows
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError

Floats = NDArray[np.float64]
FOLDS = 5  # of rows that a calibrator was fitted on

# without weights, and one of each group; of a window labels may be missing
WINDOW = MeasuredRows(weighted=False, independent=True)
LABELLED = MeasuredRows(weighted=False, independent=True, labelled=True)
CLASS_WINDOW = MeasuredRows(weighted=False, independent=True, classes=True)
LABELLED_CLASSES = MeasuredRows(weighted=False, independent=True, labelled=True, classes=True)


def values_of_rows(values: Any, *, name: str, rows: int) -> Any:
    """Return ``values`` as an array if there is one for each row."""
    array = as_array(values, name=name)
    if array.shape != (rows,):
        raise InputError(f"{name} must hold one value per row, in the shape ({rows},), not {array.shape}")
    return array


def need_logits(logits: Any, *, classes: int | None, home: Tensor) -> Tensor:
    """Return ``logits`` if they are a floating tensor (N, K) on the device of ``home``; values are not checked."""
    tensor = check_floating(logits, name="logits", of="the rule", home=home)
    if logits.dim() != 2 or logits.shape[1] < 2 or (classes is not None and logits.shape[1] != classes):
        raise InputError(f"logits must have the shape (N, {classes or 'K ≥ 2'}), not {tuple(logits.shape)}")
    return tensor


def confidence_of(data: Data) -> Tensor:
    """Return the confidence (N,) float64 of the decisions, with the same operations as a deployed module."""
    if isinstance(data, Pairs) or data.given_probs is not None:
        return data.confidence.double()
    # as ``Abstention.forward`` computes it: another order of operations could fall on the other side of a threshold
    p = torch.softmax(data.logits.double(), dim=1)
    return p.gather(1, data.predicted[:, None])[:, 0]


def need_source(calibrator: Calibrator) -> None:
    """Raise if ``calibrator`` was adapted to class frequencies other than those of its labelled rows."""
    if any(isinstance(part, PriorShift) and bool((part.offset != 0).any()) for part in calibrator.modules()):
        raise InputError(
            "the calibrator was adapted to other class frequencies than those of the reference; pass labelled rows with "
            "these frequencies, or leave the reference out"
        )


def matched_out_of_fold(calibrator: Calibrator, data: Predictions) -> tuple[Predictions, Floats]:
    """Return the fitting rows ``data``, each fifth calibrated by a fit of the same method on the others, to avoid optimism.

    Also what they are in bins of the calibrator's own values: their probabilities (N, K + 1) on the scale of ``calibrator`` itself,
    those of the decision last: the one that has the same rank among its values on all rows as the other fit gives the row among its
    own. Fits of other rows are all higher or lower by their noise, which goes against that of the rows left out: in bins of their
    values the rates would be those of single fifths.
    """
    place = torch.arange(len(data), device=data.logits.device)
    folds = [place[place % FOLDS == fold] for fold in range(FOLDS)]
    own, parts = _columns(data.calibrated_by(calibrator, allow_fit_rows=True)), []
    matched = np.empty_like(own)
    for out in folds:
        other = renewed(calibrator).fit(data[torch.isin(place, out, invert=True)])
        whole = data.calibrated_by(other, allow_fit_rows=True)
        parts.append(whole[out])
        at, columns = out.cpu().numpy(), _columns(whole)
        for k in range(own.shape[1]):
            ranked = np.sort(columns[:, k])
            ends = [np.searchsorted(ranked, columns[at, k], side) for side in ("left", "right")]
            matched[at, k] = np.sort(own[:, k])[(ends[0] + ends[1] - 1) // 2]  # of equal values that in the middle
    return Predictions.cat(parts)[torch.cat(folds).argsort()], matched


def _columns(data: Predictions) -> Floats:
    """Return the probabilities (N, K + 1) of the classes and of the decision; equal ones but for rounding are equal."""
    found = torch.cat([data.log_probs.exp(), data.confidence[:, None].double()], dim=1)
    return np.asarray(found.cpu().numpy().round(9))


def stratum_edges(values: Floats, *, bins: int, weight: Floats | None = None) -> Floats:
    """Return the edges (≤ bins − 1,) of about equally full bins of ``values`` (N,), each midway between two that differ.

    Scores of few values then keep their bin whatever their last digit is. A bin is as full as the ``weight`` (N,) of its rows.
    """
    known = np.unique(np.round(values, 9))
    if len(known) < 2:
        return np.empty(0)
    # quantiles that are values themselves; 1e-9 lets equal scores with other last digits be one
    parts = np.linspace(0, 1, bins + 1)[1:-1]
    if weight is None:
        cut = np.quantile(values, parts, method="lower")
    else:
        order = np.argsort(values)
        up_to = np.cumsum(weight[order])
        cut = values[order][np.searchsorted(up_to, parts * up_to[-1])]
    at = np.searchsorted(known, cut - 1e-9)
    at = np.unique(np.minimum(at, len(known) - 2))
    return np.asarray((known[at] + known[at + 1]) / 2)
