"""Fits on tables larger than memory: the in-memory algorithms, whose sums come from passes over the shards."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.calibrators import (
    EnsembleTemperatureScaling,
    FocalCalibration,
    FocalTemperatureScaling,
    PlattScaling,
    TemperatureMixture,
    TemperatureScaling,
)
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._log_temperature import Rows, certified_root
from calibrant.errors import InputError
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.fit_grid import fit_focal_temperature, fit_temperature_grid
from calibrant.scale.fit_mixture import fit_both, fit_ensemble_weights
from calibrant.scale.fit_platt import fit_platt
from calibrant.scale.passes import PassProgress, StreamedPasses, labelled
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["fit_streamed", "fit_temperature_streamed"]

C = TypeVar("C", bound=Calibrator)
Learned = dict[str, Any]


def fit_streamed(
    calibrator: C,
    path: str | os.PathLike[str],
    *,
    executor: Executor = in_turn,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: PassProgress | None = None,
) -> C:
    """Fit a calibrator of one or two numbers on a Parquet data set of any size: the in-memory answer and certificate.

    ``TemperatureScaling``, ``TemperatureMixture``, ``EnsembleTemperatureScaling``, ``FocalTemperatureScaling`` (by full
    grid or line) and ``PlattScaling`` for two classes; ``FocalCalibration`` has nothing to learn. Criteria are log-loss or
    an ECE of equal-width bins. The fitted calibrator carries no hashes of its rows, so the fence against judging on them
    does not hold.

    Args:
        calibrator: What to fit; one that was fitted starts from what it knows.
        path: A file or a folder, as ``ParquetRows`` takes it, with labels.
        executor: What runs the shards; all give the same bits.
        checkpoint: A JSON file that keeps every sum that was asked for; a second call goes on from it. It is removed when
            the fit has ended.
        progress: Called with (passes begun, rows done in this one, rows in all).

    Returns:
        ``calibrator`` itself, fitted.

    Raises:
        InputError: If this calibrator cannot be fitted by sums, labels are missing, or data are not valid: file, row group
            and row are named.
        FileFormatError: If a file is broken, or the checkpoint belongs to other data or another fit.
        FitError: If the certificate is not reached.
    """
    rows = ParquetRows(path)
    fit = _fit_of(calibrator, rows.classes)
    start = getattr(calibrator, "temperature", None) if calibrator.fitted else None
    what = f"{type(calibrator).__name__} {calibrator.config()!r} from {start!r}"
    passes = StreamedPasses(rows, what, executor=executor, journal=checkpoint, progress=progress)
    learned = fit(calibrator, passes)
    _keep(calibrator, learned | {"classes": rows.classes})
    passes.remove()
    return calibrator


def fit_temperature_streamed(
    path: str | os.PathLike[str],
    *,
    start: float = 1.0,
    executor: Executor = in_turn,
    progress: Callable[[int], None] | None = None,
) -> TemperatureScaling:
    """Fit temperature scaling by log-loss on a Parquet data set of any size, with the in-memory fit's certificate.

    Every Newton step is one pass; about six to nine are needed from T = 1, fewer from a good ``start``. The fitted
    calibrator carries no hashes of its rows, so the fence against judging on them does not hold.

    Args:
        path: A file or a folder, as ``ParquetRows`` takes it, with labels.
        start: A first guess of T > 0, such as a fit on a sample.
        executor: What runs the shards.
        progress: Called with the number of passes done.

    Raises:
        InputError: If labels are missing or data are not valid; file, row group and row are named.
        FitError: If the search did not end.
    """
    rows = ParquetRows(path)

    def tell(passes: int, done: int, total: int) -> None:
        if progress is not None and done == total:
            progress(passes)

    passes = StreamedPasses(rows, "TemperatureScaling", executor=executor, progress=tell)
    calibrator = TemperatureScaling()
    learned = _temperature(passes, start=float(torch.tensor(start, dtype=torch.float64).log()))
    _keep(calibrator, learned | {"classes": rows.classes})
    return calibrator


@dataclass
class TemperaturePasses:
    """The sums a temperature fit asks for, as ``certified_root`` takes them."""

    passes: StreamedPasses

    @property
    def mass(self) -> float:
        """Rows."""
        return float(self.passes.rows.rows)

    @cached_property
    def margin(self) -> float:
        """Mean of z_y − max z."""
        return float(self.passes.total(margin_of)) / self.mass

    def moments(self, beta: float, dtype: torch.dtype) -> tuple[float, float]:
        """Return the sums of mean and of variance of z − max z under softmax(βz)."""
        first, second = self.passes.total(moments_of, beta=beta, dtype=dtype).tolist()
        return first, second


def margin_of(rows: ParquetRows, shard: Shard) -> Tensor:
    """Return Σ (z_y − max z) of a shard."""
    parts = [Rows.of(logits, labels, None) for logits, labels in labelled(rows, shard)]
    return torch.tensor([sum(part.margin * part.mass for part in parts)], dtype=torch.float64)


def moments_of(rows: ParquetRows, shard: Shard, *, beta: float, dtype: torch.dtype) -> Tensor:
    """Return the sums of mean and of variance of z − max z under softmax(βz) of a shard."""
    total = torch.zeros(2, dtype=torch.float64)
    for logits, labels in labelled(rows, shard):
        total += torch.tensor(Rows.of(logits, labels, None).moments(beta, dtype), dtype=torch.float64)
    return total


def _temperature(passes: StreamedPasses, *, start: float = 0.0, prior: float | None = None) -> Learned:
    data = TemperaturePasses(passes)
    pull = 0.0 if prior is None else 1 / (prior**2 * data.mass)
    root = certified_root(data, start=start, pull=pull)
    return {"log_temperature": root.x, "certificate": [root.value]}


def _fit_temperature(calibrator: TemperatureScaling, passes: StreamedPasses) -> Learned:
    if calibrator.grid is None and calibrator.criterion in (None, "nll"):
        return _temperature(passes, start=float(calibrator.log_temperature) if calibrator.fitted else 0.0)
    return fit_temperature_grid(calibrator, passes)


def _fit_mixture(calibrator: TemperatureMixture, passes: StreamedPasses) -> Learned:
    if calibrator.mixing == "fit":
        return fit_both(passes, calibrator.prior)
    found = _temperature(passes, prior=calibrator.prior)
    share = 1 / (passes.rows.rows + 1) if isinstance(calibrator.mixing, str) else calibrator.mixing
    return {"log_temperature": found["log_temperature"], "share": share}


def _fit_ensemble(calibrator: EnsembleTemperatureScaling, passes: StreamedPasses) -> Learned:
    found = _temperature(passes, prior=calibrator.prior)["log_temperature"]
    return {"log_temperature": found, "weights": fit_ensemble_weights(passes, math.exp(found))}


def _fit_focal_temperature(calibrator: FocalTemperatureScaling, passes: StreamedPasses) -> Learned:
    return fit_focal_temperature(calibrator, passes, lambda: _temperature(passes)["log_temperature"])


def _fit_platt(calibrator: PlattScaling, passes: StreamedPasses) -> Learned:
    return {"coefficients": fit_platt(passes, ridge=calibrator.ridge)}


def _fit_focal(calibrator: FocalCalibration, passes: StreamedPasses) -> Learned:
    return {}


_FITS: dict[type[Calibrator], Callable[[Any, StreamedPasses], Learned]] = {
    TemperatureScaling: _fit_temperature,
    TemperatureMixture: _fit_mixture,
    EnsembleTemperatureScaling: _fit_ensemble,
    FocalTemperatureScaling: _fit_focal_temperature,
    FocalCalibration: _fit_focal,
    PlattScaling: _fit_platt,
}


def _fit_of(calibrator: Calibrator, classes: int) -> Callable[[Any, StreamedPasses], Learned]:
    names = ", ".join(kind.__name__ for kind in _FITS if kind is not PlattScaling)
    known = type(calibrator) in _FITS and not (isinstance(calibrator, PlattScaling) and classes > 2)
    if not known:
        raise InputError(
            f"expected a calibrator that is fitted by a few sums ({names}, or PlattScaling for two classes), got "
            f"{type(calibrator).__name__} for {classes} classes; fit it on a sample in one file"
        )
    return _FITS[type(calibrator)]


def _keep(calibrator: Calibrator, learned: Learned) -> None:
    """Put what was learned into the buffers."""
    like = calibrator.state_dict()
    state = {name: torch.as_tensor(learned.get(name, value), dtype=value.dtype) for name, value in like.items()}
    calibrator.load_state_dict(state)
    calibrator.fit_rows = torch.empty(0, dtype=torch.int64)
