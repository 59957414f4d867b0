"""The numbers of a risk-coverage curve: the error among the most confident rows, by the fraction of rows predicted."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from calibrant._core.constraints import checked
from calibrant.plot.arguments import Rows
from calibrant.plot.diagrams import to_cpu

__all__ = ["Curve", "risk_curve"]

POINTS = 200


@dataclass(frozen=True)
class Curve:
    """Risk by coverage.

    Args:
        coverage: Fractions of the rows, increasing, the last 1.
        risk: The error among the most confident rows up to each.
    """

    coverage: Sequence[float]
    risk: Sequence[float]


@checked
def risk_curve(data: Rows) -> Curve:
    """Return the error among the most confident c · N rows (by weight) for up to 200 coverages c; rows of equal confidence stay together.

    Args:
        data: Labelled predictions or pairs, at least one row.

    Raises:
        InputError: If there are no rows.

    References:
        El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017.
    """
    pairs = data.top_label()
    p, y = to_cpu(pairs)
    weight = torch.ones_like(p) if pairs.weights is None else pairs.weights.detach().cpu().double()
    confidence, order = torch.sort(p, descending=True, stable=True)
    kept, errors = weight[order].cumsum(0), (weight * (1 - y))[order].cumsum(0)
    last_of_tie = torch.ones_like(confidence, dtype=torch.bool)
    last_of_tie[:-1] = confidence[:-1] != confidence[1:]
    ends = torch.nonzero(last_of_tie)[:, 0]
    if len(ends) > POINTS:
        ends = ends[torch.linspace(0, len(ends) - 1, POINTS).round().long()]
    return Curve((kept[ends] / kept[-1]).tolist(), (errors[ends] / kept[ends]).tolist())
