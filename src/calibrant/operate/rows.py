"""Checks that rows are independent and unweighted, and calibrates a calibrator's own fitting rows out of fold."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant._core.config import renewed
from calibrant.calibrators import Calibrator, PriorShift
from calibrant.data.checks import Data, require_independent, require_predictions, require_rows, require_unweighted
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError

Floats = NDArray[np.float64]
FOLDS = 5  # number of folds for the rows that a calibrator was fitted on


def require_window(data: Data, *, what: str, labelled: bool = True) -> Data:
    """Return the rows of ``data`` if they are independent, unweighted and, unless ``labelled`` is false, labelled."""
    rows = require_independent(require_unweighted(require_rows(data, what=what), what=what))
    if labelled and isinstance(rows, Predictions):
        rows.require_labels()
    return rows


def require_classes(data: Data, *, what: str, labelled: bool = True) -> Predictions:
    """Return ``data`` if it satisfies ``require_window`` and has predictions for all classes."""
    rows = require_predictions(data, what=what)
    require_window(rows, what=what, labelled=labelled)
    return rows


def names_of(data: Data) -> tuple[str, ...]:
    """Return the names of the classes in order, or none if they are unknown."""
    return (data.class_names if isinstance(data, Predictions) else None) or ()


def row_confidence(data: Data) -> Tensor:
    """Return the confidence of the decisions (N,), float64, computed with the same operations as in a deployed module."""
    if isinstance(data, Pairs) or data.given_probs is not None:
        return data.confidence.double()
    # computed as in ``Abstention.forward``, because rounding in another order could cross a threshold
    p = torch.softmax(data.logits.double(), dim=1)
    return p.gather(1, data.predicted[:, None])[:, 0]


def require_source(calibrator: Calibrator) -> None:
    """Raise an error if ``calibrator`` was adapted to class frequencies other than those of its labelled rows."""
    if any(isinstance(part, PriorShift) and bool((part.offset != 0).any()) for part in calibrator.modules()):
        raise InputError(
            "the calibrator was adapted to other class frequencies than those of the reference; pass labelled rows with these "
            "frequencies, or leave the reference out"
        )


def matched_out_of_fold(calibrator: Calibrator, data: Predictions) -> tuple[Predictions, Floats]:
    """Return the fitting rows ``data``, calibrated out of fold, and their probabilities (N, K + 1) on the scale of ``calibrator``.

    Each fifth of the rows is calibrated by the same method fitted on the other rows. The values of different fits cannot be binned
    together, because each fit is shifted by noise that is opposite to the noise in the rows left out. Each out-of-fold value is
    therefore replaced with the value of ``calibrator`` that has the same rank over all rows. The first column is the decision's.
    """
    place = torch.arange(len(data), device=data.logits.device)
    folds = [place[place % FOLDS == fold] for fold in range(FOLDS)]
    own, parts = columns_of(data.calibrated_by(calibrator, allow_fit_rows=True)), []
    matched = np.empty_like(own)
    for out in folds:
        other = renewed(calibrator).fit(data[torch.isin(place, out, invert=True)])
        whole = data.calibrated_by(other, allow_fit_rows=True)
        parts.append(whole[out])
        at, columns = out.cpu().numpy(), columns_of(whole)
        for k in range(own.shape[1]):
            ranked = np.sort(columns[:, k])
            ends = [np.searchsorted(ranked, columns[at, k], side) for side in ("left", "right")]
            matched[at, k] = np.sort(own[:, k])[(ends[0] + ends[1] - 1) // 2]  # ties take the middle rank
    return Predictions.cat(parts)[torch.cat(folds).argsort()], matched


def row_log_probs(data: Predictions) -> Tensor:
    """Return the log-probabilities (N, K) of all classes, float64."""
    return data.logits.detach().cpu().double().log_softmax(dim=1)


def temperature_of(reference: Data) -> float:
    """Return the temperature with the lowest log-loss on labelled rows, under a standard normal prior on log T; 1 for pairs."""
    if isinstance(reference, Pairs):
        return 1.0
    from scipy.optimize import minimize_scalar

    rows = torch.isfinite(reference.nll)
    log_p, labels = row_log_probs(reference[rows]), reference[rows].require_labels().cpu()

    def penalised(t: float) -> float:
        return float(torch.nn.functional.cross_entropy(log_p * math.exp(-t), labels, reduction="sum")) + t * t / 2

    return math.exp(minimize_scalar(penalised, bounds=(-2, 2), method="bounded").x) if len(labels) else 1.0


def columns_of(data: Predictions, temperature: float = 1.0) -> Floats:
    """Return the probabilities of the decision and of each class (N, K + 1), rounded so that equal values are identical."""
    p = torch.softmax(row_log_probs(data) / temperature, dim=1)
    own = p.gather(1, data.predicted.cpu()[:, None])
    return np.asarray(torch.cat([own, p], dim=1).numpy().round(9))


def stratum_edges(values: Floats, *, bins: int, weight: Floats | None = None) -> Floats:
    """Return the edges (≤ bins − 1,) of bins of ``values`` (N,) that have about equal total ``weight`` (N,).

    Each edge is midway between two different values, so that rounding in the last digit does not change the bin of a value.
    """
    known = np.unique(np.round(values, 9))
    if len(known) < 2:
        return np.empty(0)
    order = np.argsort(values)
    up_to = np.cumsum(np.ones(len(values)) if weight is None else weight[order])
    # quantiles that are values themselves; with 1e-9, scores that differ only in the last digits count as equal
    cut = values[order][np.searchsorted(up_to, np.arange(1, bins) / bins * up_to[-1])]
    at = np.unique(np.minimum(np.searchsorted(known, cut - 1e-9), len(known) - 2))
    return np.asarray((known[at] + known[at + 1]) / 2)
