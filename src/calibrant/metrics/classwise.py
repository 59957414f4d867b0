"""Classwise calibration error: every class's probability against its frequency."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from calibrant.binning import Binning, BinTable, EqualWidth
from calibrant.metrics._base import Data, SumMetric, need_predictions

__all__ = ["ClasswiseECE"]


@dataclass(frozen=True)
class ClassTables:
    """One bin table a class."""

    tables: tuple[BinTable, ...]

    def __add__(self, other: Self) -> "ClassTables":
        return ClassTables(tuple(a + b for a, b in zip(self.tables, other.tables, strict=True)))


@dataclass(frozen=True)
class ClasswiseECE(SumMetric[ClassTables]):
    """(1/K) Σ_k Σ_b |B_bk|/N · |frequency − probability|, over all N rows and all K classes.

    Mukhoti et al. (2020) print the sum to K − 1, a misprint: their code averages all classes. Probabilities of 0
    count (in the first bin), and classes absent from the labels count.

    Args:
        binning: As in ``ECE``.

    Example:
        >>> from calibrant import Predictions
        >>> round(ClasswiseECE()(Predictions.from_probs([[1.0, 0.0, 0.0]], [1])), 4)
        0.6667
    """

    binning: Binning = field(default=EqualWidth(15))

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "classwise"
    cite: ClassVar[str] = "Kull et al. 2019"
    needs_classes: ClassVar[bool] = True

    def state(self, data: Data) -> ClassTables:
        """Return one bin table a class."""
        predictions = need_predictions(data, metric=self)
        pairs = (predictions.one_vs_rest(k) for k in range(predictions.classes))
        return ClassTables(tuple(self.binning.table(one.p, one.y) for one in pairs))

    def value(self, state: ClassTables) -> float:
        """Return the mean over classes of the binned error."""
        return sum(table.error() for table in state.tables) / len(state.tables)
