"""The distribution of a metric for a perfectly calibrated model with the same probabilities: its mean and its limits.

Sums of absolute gaps have formulas unless few events are expected (``binned.gap_band``). Other functions of a bin table are computed
from simulated counts, and all other metrics from simulated labels.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.numerics import computing_on, row_chunks
from calibrant.binning import BinTable
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.statistics.binned import matching_binomials
from calibrant.statistics.interval import require_metric
from calibrant.statistics.means import Interval


def null_band(metric: Any, predictions: Data, *, draws: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Return the mean and the central range that ``metric`` would have if the predicted probabilities were calibrated.

    A value inside the band does not reject calibration. Of independent rows, the bands of ``ECE``, ``TopLabelECE`` and
    ``ClasswiseECE`` do not depend on ``draws`` and ``seed``. With ``groups``, the sums of the bins are simulated with the
    covariance of whole groups.

    Args:
        metric: Any metric.
        predictions: The data; for ``Pairs``, outcomes are drawn with probability ``p``.
        draws: Number of simulated sets of outcomes, ≥ 1, for metrics that need them.
        seed: Seed of the simulation; the same seed gives the same band.
        level: The fraction of values inside the band, in (0, 1).

    Returns:
        An interval: ``estimate`` is the mean for a calibrated model, and ``high`` the limit that a fraction (1 + level) / 2 of
        calibrated models stays below, by default 97.5 %.

    Raises:
        NoIntervalError: For grouped rows, if there are fewer than ten groups or the metric is not binned.

    Examples:
        >>> from calibrant import Predictions
        >>> from calibrant.metrics import ECE
        >>> data = Predictions.from_logits([[1.4, 0.0]] * 100, [0] * 80 + [1] * 20)
        >>> 0 < null_band(ECE(), data).estimate < 0.1
        True

    References:
        Bröcker & Smith 2007; Vaicenavicius et al. 2019; de Moivre 1730 (see Diaconis & Zabell 1991).
    """
    rows = require_metric(metric, level=level, draws=draws).check(predictions)
    with computing_on(rows.scores.device):
        band: Interval = metric.null_band(rows, level=level, draws=draws, seed=seed)
    return band


def calibrated_table(table: BinTable, *, draws: int, seed: int) -> BinTable:
    """Return the table with simulated outcome sums (draws, B), for independent rows of a calibrated model."""
    square, mean, noise = (one.cpu().numpy() for one in (table.squares[1], table.sum_p, table.noise))
    trials, rate, unit = matching_binomials(mean, noise, square)
    found = np.random.default_rng(seed).binomial(trials, rate, size=(draws, len(rate))) * unit
    return replace(table, sum_y=torch.from_numpy(found).to(table.sum_p))


def band_of(values: Tensor, *, level: float) -> Interval:
    """Return the mean and the central range of simulated values (draws,)."""
    found = values.cpu().double().numpy()
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(float(found.mean()), low, high, level, f"outcomes drawn from the probabilities, {len(found)} draws")


def redraw(predictions: Data, *, generator: torch.Generator) -> Data:
    """Return the same predictions with labels drawn from their probabilities.

    Args:
        predictions: Predictions over all classes, or pairs.
        generator: The random generator.
    """
    if isinstance(predictions, Pairs):
        happened = torch.rand(len(predictions), dtype=torch.float64, generator=generator) < predictions.p.cpu()
        return replace(
            predictions, y=happened.double().to(predictions.p.device), decision=None, labels=None, features=None
        )
    drawn = []
    for rows in row_chunks(len(predictions), predictions.classes, device=predictions.logits.device):
        p = predictions.float64_probs(rows)
        uniform = torch.rand(len(p), 1, dtype=torch.float64, generator=generator).to(p.device)
        cumulative = p.cumsum(dim=1)
        below = (cumulative < uniform * cumulative[:, -1:]).sum(dim=1)
        drawn.append(below.clamp_max(predictions.classes - 1))
    return predictions.relabelled(torch.cat(drawn))
