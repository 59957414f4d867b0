"""Measurements of a network during training: figures of each split, computed from its predictions."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from calibrant._core.check import check_dense
from calibrant._core.constraints import Integer, checked
from calibrant.binning import EqualMass
from calibrant.calibrators import TemperatureScaling
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.metrics import ECE
from calibrant.study.measures import ignore_bound_warnings

__all__ = ["LearnedEpochs", "learned_epoch"]

MOST_SAMPLES = 1 << 32


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
        # If all rows are correct the log-loss falls for ever as T → 0, so that there is none.
        found: dict[str, float | None] = {"temperature": None, "ece_at_own_t": None}
        if not bool(part.correct.all()):
            own = temperature_of_epoch(part)
            at_own = part.calibrated_by(own, allow_fit_rows=True)
            found = {"temperature": own.temperature, "ece_at_own_t": ECE()(at_own)}
        entry[name] |= found
    with ignore_bound_warnings():  # a saturated network gives many samples equal logits
        calibrated = parts["test"].calibrated_by(temperature_of_epoch(parts["validation"]))
    entry["test"]["nll_at_t"] = float(calibrated.nll.mean())
    entry["test"]["ece_at_t"] = ECE()(calibrated)
    # The T in .01 … 10 that minimises the ECE of the same rows, as an oracle. Wang et al. (2021) §5.1 call the resulting ECE
    # optimal: no temperature chosen on validation data has a lower one, so it measures how well one could calibrate at best.
    with ignore_bound_warnings():
        optimal = TemperatureScaling("ece").fit(parts["test"])
    at_best = parts["test"].calibrated_by(optimal, allow_fit_rows=True)
    entry["test"] |= {"optimal_temperature": optimal.temperature, "optimal_ece": ECE()(at_best)}
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
    log_p, correct = predictions.log_probs, predictions.correct
    entropy = -torch.where(log_p > -math.inf, log_p.exp() * log_p, 0).sum(dim=1)
    pairs = predictions.top_label()
    figures: dict[str, Any] = {"error": float((~correct).double().mean())}
    for name, rows in (("nll", predictions.nll), ("entropy", entropy)):
        figures[name] = float(rows.mean())
        figures[f"{name}_correct"], figures[f"{name}_wrong"] = _mean(rows[correct]), _mean(rows[~correct])
    mass = EqualMass(15).table(pairs.p, pairs.y)
    return figures | {"ece": ECE()(pairs), "ece_mass": mass.error(), "gaps_mass": mass.gap.tolist()}


def _mean(rows: Tensor) -> float | None:
    return float(rows.mean()) if len(rows) else None


def temperature_of_epoch(validation: Predictions) -> TemperatureScaling:
    """Return temperature scaling fitted by log-loss; if every sample is correct, at its bound and without a warning."""
    with ignore_bound_warnings():  # at a bound on training data: the bound itself is recorded
        return TemperatureScaling().fit(validation)


@checked
def learned_epoch(correct: Tensor | Sequence[Any]) -> Tensor:
    """Return the epoch, counted from 1, from which each sample is classified correctly until the last one; 0 for never.

    Args:
        correct: (…, epochs) bool, or 0 and 1: whether each sample was correct after each epoch; at least one epoch.

    Returns:
        (…) int64.

    Raises:
        InputError: If ``correct`` is not such an array.

    Examples:
        >>> learned_epoch([[False, True, False, True, True], [True, True, True, True, False]]).tolist()
        [4, 0]

    References:
        Wang et al. 2021, §5.1.
    """
    try:
        seen = torch.as_tensor(correct)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError("correct (…, epochs) of booleans", f"{type(correct).__name__}", "pass one") from error
    check_dense(seen, name="correct")
    if seen.ndim < 1 or not seen.shape[-1] or not bool(((seen == 0) | (seen == 1)).all()):
        wanted, got = "correct (…, epochs) of booleans or 0 and 1", f"shape {tuple(seen.shape)} {seen.dtype}"
        raise InputError(wanted, got, "pass predicted == labels of every epoch, epochs last")
    tail = seen.bool().flip(-1).long().cumprod(dim=-1).sum(dim=-1)  # (…) epochs at the end without an error
    return torch.where(tail > 0, seen.shape[-1] - tail + 1, 0)


class LearnedEpochs:
    """The epoch since which each sample is classified correctly up to now (Wang et al. 2021 §5.1); 0 while it is wrong.

    Args:
        samples: N, ≥ 1.

    Raises:
        InputError: If ``samples`` is not an integer ≥ 1.

    Examples:
        >>> learned = LearnedEpochs(2)
        >>> for epoch, right in enumerate([[True, False], [True, True]], start=1):
        ...     learned.see(torch.tensor(right), epoch=epoch)
        >>> learned.since
        tensor([1, 2])
    """

    @checked
    def __init__(self, samples: Annotated[int, Integer(1, MOST_SAMPLES)]) -> None:
        self.since = torch.zeros(samples, dtype=torch.int64)

    def see(self, correct: Tensor, *, epoch: int) -> None:
        """Record which samples (N,) bool are correct after ``epoch``, counted from 1."""
        started = torch.where(self.since > 0, self.since, epoch)
        self.since = torch.where(correct.cpu(), started, 0)
