"""Binned calibration errors of the top label: ECE, MCE, ACE."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from calibrant._check import check_number
from calibrant.binning import Binning, BinTable, EqualWidth
from calibrant.metrics._base import Data, SumMetric

__all__ = ["ACE", "ECE", "MCE"]


@dataclass(frozen=True)
class ECE(SumMetric[BinTable]):
    """Expected calibration error Σ_b |B_b|/N · |accuracy − confidence| of the top label.

    The plug-in value is biased upward: a perfectly calibrated model of finite sample does not score 0. Compare it
    with ``statistics.null_band``.

    Args:
        binning: ``EqualWidth(15)`` (the papers' ECE) or ``EqualMass(15)`` (AdaECE, ECE-EM).
        norm: Exponent q ≥ 1 of (Σ_b |B_b|/N · |gap|^q)^(1/q); 2 is the RMS calibration error.

    Example:
        >>> from calibrant import Predictions
        >>> round(ECE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251

    References:
        Naeini et al. 2015; Guo et al. 2017 Eq. 3; Mukhoti et al. 2020 §2.
    """

    binning: Binning = field(default=EqualWidth(15))
    norm: float = 1

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "confidence"
    cite: ClassVar[str] = "Naeini et al. 2015"

    def __post_init__(self) -> None:
        check_number(self.norm, name="norm", low=1)

    def state(self, data: Data) -> BinTable:
        """Return the bin table of (confidence, decision was right)."""
        pairs = data.top_label()
        return self.binning.table(pairs.p, pairs.y)

    def value(self, state: BinTable) -> float:
        """Return the error of a bin table."""
        return state.error(norm=self.norm)


@dataclass(frozen=True)
class MCE(SumMetric[BinTable]):
    """Maximum calibration error: the largest |accuracy − confidence| of a non-empty bin.

    Often that of a bin with a handful of samples: read it with the counts.

    Args:
        binning: As in ``ECE``.

    Example:
        >>> from calibrant import Predictions
        >>> round(MCE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.7311
    """

    binning: Binning = field(default=EqualWidth(15))

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "confidence"
    cite: ClassVar[str] = "Naeini et al. 2015"

    def state(self, data: Data) -> BinTable:
        """Return the bin table of (confidence, decision was right)."""
        pairs = data.top_label()
        return self.binning.table(pairs.p, pairs.y)

    def value(self, state: BinTable) -> float:
        """Return the error of a bin table."""
        return state.maximum()


@dataclass(frozen=True)
class ACE(SumMetric[BinTable]):
    """Average calibration error: the unweighted mean of |accuracy − confidence| over non-empty bins.

    Args:
        binning: As in ``ECE``.

    Example:
        >>> from calibrant import Predictions
        >>> round(ACE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251
    """

    binning: Binning = field(default=EqualWidth(15))

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "confidence"
    cite: ClassVar[str] = "Neumann et al. 2018"

    def state(self, data: Data) -> BinTable:
        """Return the bin table of (confidence, decision was right)."""
        pairs = data.top_label()
        return self.binning.table(pairs.p, pairs.y)

    def value(self, state: BinTable) -> float:
        """Return the error of a bin table."""
        return state.unweighted()
