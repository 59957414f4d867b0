"""Binned calibration errors of the top label: ECE, MCE, ACE."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant.binning import BinTable
from calibrant.errors import NoIntervalError
from calibrant.metrics._base import Data
from calibrant.metrics._binned import BinnedMetric, cells_interval
from calibrant.statistics import Interval, corrected_error

__all__ = ["ACE", "ECE", "MCE"]


@dataclass(frozen=True)
class ECE(BinnedMetric):
    """Expected calibration error Σ_b |B_b|/N · |accuracy − confidence| of the top label.

    The plug-in value is biased upward: a perfectly calibrated model of finite sample does not score 0. Compare it
    with ``statistics.null_band``; ``statistics.interval`` gives an interval that covers.

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

    norm: float = 1

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "confidence"
    cite: ClassVar[str] = "Naeini et al. 2015"

    def __post_init__(self) -> None:
        check_number(self.norm, name="norm", low=1)

    def errors(self, table: BinTable) -> Tensor:
        """Return the error (…) of tables (…, B)."""
        return table.errors(norm=self.norm)

    def interval(self, data: Data, *, level: float = 0.95, seed: int = 0, null: Tensor | None = None) -> Interval:
        """Return the interval of the error in these bins (``statistics.error_interval``).

        Args:
            data: Predictions or pairs; rows of one group are not taken for independent.
            level: Nominal coverage.
            seed: Of the null draws.
            null: (draws,) null draws made already, or None.

        Raises:
            NoIntervalError: For a norm other than 1.
        """
        self._need_norm_1()
        return cells_interval(self.cells(data), groups=data.groups, level=level, seed=seed, null=null)

    def influence(self, data: Data) -> tuple[float, Tensor]:
        """Return the corrected error, and what each row (N,) adds to it: ± (confidence − correct), by its bin's sign."""
        self._need_norm_1()
        cells = self.cells(data)
        table = cells.table()
        sign = torch.sign(table.gap)[cells.index.clamp_min(0)] * (cells.index >= 0)
        return float(corrected_error(table).centre), sign * (cells.p - cells.y.double())

    def _need_norm_1(self) -> None:
        if self.norm != 1:
            raise NoIntervalError(
                f"expected norm 1, got {self!r}, for which no interval is known to cover; use null_band"
            )


@dataclass(frozen=True)
class MCE(BinnedMetric):
    """Maximum calibration error: the largest |accuracy − confidence| of a non-empty bin.

    Often that of a bin with a handful of samples: read it with the counts.

    Args:
        binning: As in ``ECE``.

    Example:
        >>> from calibrant import Predictions
        >>> round(MCE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.7311

    References:
        Naeini et al. 2015.
    """

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "confidence"
    cite: ClassVar[str] = "Naeini et al. 2015"

    def errors(self, table: BinTable) -> Tensor:
        """Return the largest |gap| (…) of tables (…, B)."""
        return table.gap.abs().amax(dim=-1)


@dataclass(frozen=True)
class ACE(BinnedMetric):
    """Average calibration error: the unweighted mean of |accuracy − confidence| over non-empty bins.

    Args:
        binning: As in ``ECE``.

    Example:
        >>> from calibrant import Predictions
        >>> round(ACE()(Predictions.from_logits([[2.0, 0.0], [0.0, 1.0]], [0, 0])), 4)
        0.4251

    References:
        Neumann et al. 2018.
    """

    better: ClassVar[Literal["lower", "higher"]] = "lower"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    notion: ClassVar[str] = "confidence"
    cite: ClassVar[str] = "Neumann et al. 2018"

    def errors(self, table: BinTable) -> Tensor:
        """Return the mean |gap| (…) over non-empty bins of tables (…, B)."""
        filled = (table.count > 0).sum().clamp_min(1)
        return table.gap.abs().sum(dim=-1) / filled
