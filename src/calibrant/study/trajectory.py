"""Measurements of a network during training: figures of each split, computed from its predictions."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.binning import EqualMass
from calibrant.calibrators import TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.metrics import ECE, entropy_rows
from calibrant.study.measures import ORACLE, FoldFits, ignore_bound_warnings


def trajectory_entry(parts: Mapping[str, Predictions], *, model: nn.Module, loss: nn.Module) -> dict[str, Any]:
    """Return one entry of a trajectory.

    Args:
        parts: Predictions of the splits ``"train"``, ``"validation"`` and ``"test"``.
        model: The network, whose last layer is called ``classifier``.
        loss: The loss, whose state (AdaFocal's γ of each bin) is recorded.
    """
    entry: dict[str, Any] = {name: epoch_figures(part) for name, part in parts.items()}
    for name, part in parts.items():
        # the best temperature in hindsight, on test data too (Wang et al. 2021, Figure 4): descriptive, not an evaluation.
        # If all rows are correct, the log-loss falls without end as T → 0, so no best temperature exists.
        entry[name] |= {"temperature": None, "ece_at_own_t": None}
        if not bool(part.correct.all()):
            own = temperature_of_epoch(part)
            at_own = part.calibrated_by(own, allow_fit_rows=True)
            entry[name] |= {"temperature": own.temperature, "ece_at_own_t": ECE()(at_own)}
    fits = FoldFits([parts["validation"]], [parts["test"]])
    entry["test"] |= {name: fits.value(name) for name in ("nll_at_t", "ece_at_t")}
    # The T in .01 … 10 that minimises the ECE of the same rows, as an oracle. Wang et al. (2021) §5.1 call the resulting ECE
    # optimal, because no temperature chosen on validation data has a lower one.
    (optimal,) = fits.calibrators(ORACLE)
    entry["test"] |= {"optimal_temperature": optimal.temperature, "optimal_ece": fits.value(f"ece_{ORACLE}")}
    last = getattr(model, "classifier", None)
    if isinstance(getattr(last, "weight", None), Tensor):
        entry["classifier_norm"] = float(last.weight.detach().norm())  # type: ignore[union-attr]
    state = {name: buffer.tolist() for name, buffer in loss.named_buffers() if buffer.numel() <= 100}
    return {**entry, "loss_state": state} if state else entry


def epoch_figures(predictions: Predictions) -> dict[str, Any]:
    """Return error, log-loss and entropy (of all, correct and wrong samples), and calibration errors.

    A mean over no samples is None.

    Args:
        predictions: Labelled predictions, without weights, of at least one row.

    Examples:
        >>> from calibrant import Predictions
        >>> figures = epoch_figures(Predictions.from_logits([[2.0, 0.0], [2.0, 0.0]], [0, 1]))
        >>> round(figures["nll"], 4), round(figures["nll_wrong"], 4), figures["error"]
        (1.1269, 2.1269, 0.5)
    """
    correct, pairs = predictions.correct, predictions.top_label()
    figures: dict[str, Any] = {"error": float((~correct).double().mean())}
    for name, rows in (("nll", predictions.nll), ("entropy", entropy_rows(predictions))):
        figures[name] = float(rows.mean())
        figures[f"{name}_correct"], figures[f"{name}_wrong"] = _mean(rows[correct]), _mean(rows[~correct])
    mass = EqualMass(15).table(pairs.p, pairs.y)
    return figures | {"ece": ECE()(pairs), "ece_mass": mass.error(), "gaps_mass": mass.gap.tolist()}


def _mean(rows: Tensor) -> float | None:
    return float(rows.mean()) if len(rows) else None


def temperature_of_epoch(validation: Predictions) -> TemperatureScaling:
    """Return temperature scaling fitted by log-loss; if every sample is correct, it is at its bound, without a warning."""
    with ignore_bound_warnings():  # training data often give a T at its bound, which is then recorded
        return TemperatureScaling().fit(validation)


def learned_since(since: Tensor, correct: Tensor, *, epoch: int) -> Tensor:
    """Return the epoch since which each sample is classified correctly up to now; 0 while it is wrong.

    Args:
        since: (N,) int64, the result for the previous epoch; zeros before the first.
        correct: (N,) bool, whether each sample is classified correctly after this epoch.
        epoch: The number of this epoch, counted from 1.

    Examples:
        >>> before = learned_since(torch.tensor([0, 0]), torch.tensor([True, False]), epoch=1)
        >>> learned_since(before, torch.tensor([True, True]), epoch=2)
        tensor([1, 2])

    References:
        Wang et al. 2021, §5.1.
    """
    return torch.where(correct.cpu(), torch.where(since > 0, since, epoch), 0)
