"""Binned calibration errors of the top label: ECE, MCE, ACE, and within each predicted class."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant.binning import BinTable, EqualMass
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics._base import BinnedMetric, require_fixed_edges
from calibrant.statistics.binned import BinnedRows


@dataclass(frozen=True)
class ECE(BinnedMetric):
    """Expected calibration error Σ_b |B_b|/N · |accuracy − confidence| of the top label.

    The estimate is biased upward: on a finite sample a perfectly calibrated model does not score 0. Compare the value with
    ``statistics.null_band``, which returns the values that a calibrated model would have. ``statistics.interval`` returns a
    confidence interval.

    Args:
        binning: ``EqualWidth(15)`` (the papers' ECE) or ``EqualMass(15)`` (AdaECE, ECE-EM); an integer is a number of
            equal-width bins.
        norm: 1, or 2 for the root-mean-square calibration error (Σ_b |B_b|/N · gap²)^½, for which no interval is known.

    Examples:
        >>> from calibrant import Predictions
        >>> round(ECE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251

    References:
        Naeini et al. 2015; Guo et al. 2017 Eq. 3; Mukhoti et al. 2020 §2.
    """

    norm: Literal[1, 2] = 1

    cite = "Naeini et al. 2015"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in (1, 2):
            raise refuse("norm 1 or 2", shown(self.norm), "choose one of them")

    def gap_factor(self, table: BinTable) -> float | None:
        """Return 1, or None for norm 2."""
        return 1.0 if self.norm == 1 else None

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, B)."""
        return table.errors(norm=self.norm)


@dataclass(frozen=True)
class MCE(BinnedMetric):
    """Maximum calibration error: the largest |accuracy − confidence| of a non-empty bin.

    The bin with the largest gap often holds only a few samples, so look at its count as well.

    Args:
        binning: As in ``ECE``.

    Examples:
        >>> from calibrant import Predictions
        >>> round(MCE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.7311

    References:
        Naeini et al. 2015.
    """

    cite = "Naeini et al. 2015"

    def errors(self, table: BinTable) -> Tensor:
        """Return the largest |gap| (…) of tables (…, B)."""
        return table.gap.abs().amax(dim=-1)


@dataclass(frozen=True)
class ACE(BinnedMetric):
    """Average calibration error: the unweighted mean of |accuracy − confidence| over non-empty bins.

    Args:
        binning: As in ``ECE``.

    Examples:
        >>> from calibrant import Predictions
        >>> round(ACE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251

    References:
        Neumann et al. 2018.
    """

    cite = "Neumann et al. 2018"

    def errors(self, table: BinTable) -> Tensor:
        """Return the mean |gap| (…) over non-empty bins of tables (…, B)."""
        return table.gap.abs().sum(dim=-1) / (table.count > 0).sum().clamp_min(1)


@dataclass(frozen=True)
class TopLabelECE(BinnedMetric):
    """Σ_k Σ_b |B_kb|/N · |accuracy − confidence|, where B_kb are the rows predicted as class k with confidence in bin b.

    It detects more than the ECE, in which over-confidence in one predicted class can cancel under-confidence in another. With
    K · B bins the estimate is more biased than the ECE; compare it with ``statistics.null_band``.

    Args:
        binning: Bins of the confidence, as in ``ECE``; equal-mass bins are formed within each predicted class.

    Examples:
        >>> from calibrant import Pairs
        >>> pairs = Pairs.from_top_label([0.75, 0.75], [0, 1], [0, 0])
        >>> TopLabelECE()(pairs)
        0.5

    References:
        Gupta & Ramdas 2022, Eq. 5.
    """

    notion = "top-label"
    cite = "Gupta & Ramdas 2022"

    def gap_factor(self, table: BinTable) -> float:
        """Return 1."""
        return 1.0

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, K · B)."""
        return table.errors()

    def cells(self, data: Any) -> BinnedRows:
        """Return the rows in the bins of their predicted class.

        Raises:
            InputError: For pairs without predicted classes.
        """
        predicted, weight = data.predicted, data.weights
        if predicted is None:
            raise InputError(
                "pairs with predicted classes", "pairs without them", "make them with Pairs.from_top_label"
            )
        classes = data.classes if isinstance(data, Predictions) else int(predicted.max()) + 1
        p, bins = data.confidence, self.binning.bins
        if isinstance(self.binning, EqualMass):
            index = torch.empty_like(predicted)
            for k in torch.unique(predicted).tolist():
                rows = predicted == k
                index[rows] = self.binning.assign(p[rows], weight=None if weight is None else weight[rows])
        else:
            index = self.binning.assign(p)
        index = torch.where(index >= 0, index + predicted * bins, -1)
        return BinnedRows(index, p, data.correct, classes * bins, weight)

    def table(self, data: Any) -> BinTable:
        """Return the bin table (K · B)."""
        return self.cells(data).table()

    def state(self, rows: Any) -> BinTable:
        """Return the bin table (K · B).

        Raises:
            InputError: For equal-mass bins, whose edges within each class depend on all data.
        """
        require_fixed_edges(self.binning)
        return self.table(rows)
