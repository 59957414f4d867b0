"""Sums over rows of several labels, from which the binary metrics of each label, pooled and averaged, are computed."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.arguments import check_kind
from calibrant._core.check import check_choice, refuse, shown
from calibrant.binning import EqualWidth
from calibrant.data.multilabel import MultiLabelPredictions

__all__ = ["LabelSums"]

Average = Literal["pooled", "macro"]

BINS = 15
METRICS = ("NLL", "Brier", "Bias")  # means over labels of rows; the ECE is a function of the bins' sums
_CHUNK = 1 << 20  # scores looked at together


@dataclass(frozen=True)
class LabelSums:
    """Weighted sums of each of L labels; they add across batches, files and machines.

    Args:
        n: Rows, by their counts if they have any.
        mass: (L,) weight of the rows in which each is known.
        positives: (L,) weight of those in which it is 1.
        count: (L,) rows in which it is known.
        totals: (3, L) of ``METRICS``.
        bins: (L, 15, 2) Σ w (p − y) and Σ w of each bin of equal width.

    Examples:
        >>> from calibrant import MultiLabelPredictions
        >>> data = MultiLabelPredictions.from_logits([[2.0, -1.0], [0.5, 3.0]], [[1, 0], [-1, 1]])
        >>> one, other = LabelSums.of(data[:1]), LabelSums.of(data[1:])
        >>> (one + other).value("Brier", "macro") == LabelSums.of(data).value("Brier", "macro")
        True
    """

    n: int
    mass: Tensor
    positives: Tensor
    count: Tensor
    totals: Tensor
    bins: Tensor

    @classmethod
    def of(cls, data: MultiLabelPredictions) -> "LabelSums":
        """Return the sums of labelled predictions.

        Args:
            data: Predictions of several labels a row.

        Raises:
            InputError: If they are anything else, or without labels.
        """
        remedy = "make them with MultiLabelPredictions.from_logits(logits, labels)"
        check_kind(data, MultiLabelPredictions, name="data", remedy=remedy).need_labels()
        step = max(1, _CHUNK // data.logits.shape[1])
        parts = [cls._of(data[start : start + step]) for start in range(0, len(data), step)]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return whole

    @classmethod
    def _of(cls, data: MultiLabelPredictions) -> "LabelSums":
        known, y = data.known, (data.labels == 1).double() if data.labels is not None else torch.zeros(())
        p, columns = data.probs.double(), data.logits.shape[1]
        weight = weights_of(data)[:, None] * known
        home = homes(p)
        flat = [(weight * (p - y)).reshape(-1), weight.reshape(-1)]
        bins = [torch.bincount(home, weights=one, minlength=columns * BINS).view(columns, BINS) for one in flat]
        totals = torch.stack([_weighted(terms_of(data, name), weight) for name in METRICS])
        n = int(data.weights.sum()) if data.weights is not None and data.weight_kind == "frequency" else len(data)
        return cls(n, weight.sum(dim=0), (weight * y).sum(dim=0), known.sum(dim=0), totals, torch.stack(bins, dim=2))

    def __add__(self, other: "LabelSums") -> "LabelSums":
        if not isinstance(other, LabelSums) or other.mass.shape != self.mass.shape:
            raise refuse("sums of the same labels", shown(other), "make both with LabelSums.of")
        parts = ("n", "mass", "positives", "count", "totals", "bins")
        return LabelSums(*(getattr(self, name) + getattr(other, name) for name in parts))

    def means(self, metric: str) -> Tensor:
        """Return a metric (L,) of each label: "NLL", "Brier", "Bias" or "ECE"; NaN where none of its labels is known."""
        check_choice(metric, name="metric", choices=(*METRICS, "ECE"))
        if metric == "ECE":
            return self.bins[:, :, 0].abs().sum(dim=1) / self.mass
        return self.totals[METRICS.index(metric)] / self.mass

    def value(self, metric: str, average: Average) -> float:
        """Return a metric of all labels pooled, or its mean over labels."""
        check_choice(metric, name="metric", choices=(*METRICS, "ECE"))
        check_choice(average, name="average", choices=("pooled", "macro"))
        if average == "macro":
            return float(self.means(metric).mean())
        if metric == "ECE":
            return float(self.bins[:, :, 0].sum(dim=0).abs().sum() / self.mass.sum())
        return float(self.totals[METRICS.index(metric)].sum() / self.mass.sum())


def weights_of(data: MultiLabelPredictions) -> Tensor:
    """Return the rows' weights (N,) float64, 1 each if there are none."""
    if data.weights is not None:
        return data.weights.double()
    return torch.ones(len(data), dtype=torch.float64, device=data.logits.device)


def homes(p: Tensor) -> Tensor:
    """Return the bin of each probability (N, L) among the 15 L bins of all labels, flat (N · L,)."""
    return EqualWidth(BINS).assign(p.reshape(-1)) + BINS * torch.arange(p.shape[1], device=p.device).repeat(len(p))


def _weighted(terms: Tensor, weight: Tensor) -> Tensor:
    """Return Σ weight · terms (L,), where a weight of 0 leaves out an infinite term."""
    return torch.where(weight > 0, weight * terms, 0.0).sum(dim=0)


def terms_of(data: MultiLabelPredictions, metric: str) -> Tensor:
    """Return one number (N, L) for each label of each row, float64, 0 where it is missing.

    NLL: −log of the probability of what happened, from the logits, so that no margin rounds it to 0 or ∞. Brier: (p − y)².
    Bias: p − y.
    """
    y = data.labels == 1 if data.labels is not None else data.known
    if metric == "NLL":
        z = data.logits.double()
        found = F.softplus(torch.where(y, -z, z))
    else:
        gap = data.probs.double() - y.double()
        found = gap.square() if metric == "Brier" else gap
    return torch.where(data.known, found, 0.0)


def row_scores(terms: Tensor, data: MultiLabelPredictions, average: Average) -> Tensor:
    """Return one number (N,) a row whose weighted mean is the metric, and which vary as the metric's linear part does.

    Pooled: m + (Σ_j known_ij (t_ij − m)) W / Σ_j W_j, with W the rows' mass and W_j that of rows in which label j is known.
    Macro: m + 1/L · Σ_j known_ij (t_ij − m_j) W / W_j. How many labels are known varies with the rows: it is in them.
    """
    known = data.known.double()
    weight = weights_of(data)
    mass = weight @ known
    means = (weight @ terms) / mass
    if average == "macro":
        value = means.mean()
        return value + ((terms - means) * known * (weight.sum() / mass)).mean(dim=1)
    value = (weight @ terms).sum() / mass.sum()
    return value + ((terms - value) * known).sum(dim=1) * (weight.sum() / mass.sum())
