"""The calibration error of the whole probability vector.

The error is estimated as the mean over rows of ⟨v, y − p⟩, with a direction v that depends only on p and on other rows.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.check import check_choice, refuse
from calibrant.data.predictions import Predictions
from calibrant.metrics._base import Metric
from calibrant.statistics.design import require_ungrouped
from calibrant.statistics.losses import rows_interval
from calibrant.statistics.means import Interval, normal_quantile

_ENDS = (0.1, 0.2, 0.35, 0.55, 0.75)  # ends of the blocks, as fractions of the rows
_SLOPE = 1.0  # ridge penalty on the common slope, in rows; small, because nearly all models need this parameter


@dataclass(frozen=True)
class CanonicalError(Metric):
    """Lower bound on the canonical calibration error E ‖E[y | p] − p‖_q.

    The canonical error is the mean distance between the predicted probabilities p and the class frequencies given p. With
    c = E[y | p], ‖c − p‖_q is the largest ⟨v, c − p⟩ over all v with dual norm ≤ 1. Therefore E ⟨v(p), y − p⟩ does not
    exceed the error for any v that depends only on p and on other rows. Here v is the dual vector of ĉ − p: sign(ĉ − p) for
    q = 1, and (ĉ − p) / ‖ĉ − p‖ for q = 2. The recalibrated probabilities ĉ come from a map with a common slope and with a
    slope and a bias for each class. The rows are put in random order and split into blocks. For each block, ĉ is fitted on
    all earlier blocks.

    Miscalibration that this map cannot describe is missed, so the value is a lower bound. It is close to the error if the
    map describes the miscalibration. A negative value means that no error was found. The lower end of the interval is a
    confidence limit that is valid whatever ĉ is. How much larger the error is cannot be known, so the upper end is the
    largest possible error.

    Args:
        norm: The order q of the norm, 1 or 2.
        part: The rows to measure: "all"; "over" for over-confident rows, whose decision has a lower probability in ĉ than
            in p; or "under" for the other rows. The values of "over" and "under" add up to the value of "all".

    Examples:
        >>> from calibrant import Predictions
        >>> data = Predictions.from_probs([[0.8, 0.2]] * 500 + [[0.3, 0.7]] * 500, [0, 1] * 500)
        >>> round(CanonicalError()(data), 2), round(CanonicalError(part="under")(data), 2)
        (0.5, 0.0)

    References:
        Berta et al. 2026, arXiv 2602.24230 (variational estimators of L_p calibration errors).
    """

    norm: Literal[1, 2] = 1
    part: Literal["all", "over", "under"] = "all"

    better = "zero"  # an estimate can be negative, although the error cannot
    bounds = (-2.0, 2.0)
    notion = "canonical"
    cite = "Berta et al. 2026"
    needs_classes = True

    def __post_init__(self) -> None:
        check_choice(self.norm, name="norm", choices=(1, 2))
        check_choice(self.part, name="part", choices=("all", "over", "under"))

    def measure(self, rows: Predictions) -> float:
        """Return the mean of ⟨v, y − p⟩ over ``rows``.

        Raises:
            InputError: If there is only one row.
        """
        return float(self.rows(rows) @ rows.row_weights / rows.row_weights.sum())

    def rows(self, data: Predictions) -> Tensor:
        """Return ⟨v, y − p⟩ (N,) for each row of labelled predictions; the mean is the metric."""
        p, direction = self._directions(data)
        at_label = direction.gather(1, data.require_labels()[:, None])[:, 0]
        found: Tensor = at_label - (direction * p).sum(dim=1)
        return found

    def interval(self, rows: Predictions, *, level: float = 0.95) -> Interval:
        """Return the interval from the lower confidence limit of the error to the largest possible error, 2^(1/q).

        Raises:
            InputError: If there is only one row.
            NoIntervalError: If there are too few wrong decisions or groups.
        """
        found = rows_interval(self.rows(rows), rows, what=self, level=level)
        return replace(found, high=2 ** (1 / self.norm), method=f"lower bound: {found.method}")

    def null_band(self, rows: Predictions, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Interval:
        """Return the central range for a calibrated model, from a normal distribution with mean 0.

        The probabilities p determine its variance.

        Raises:
            InputError: If there is only one row.
            NoIntervalError: If the rows have groups.
        """
        require_ungrouped(rows.groups, what=self)
        p, direction = self._directions(rows)
        # given v, the variance of ⟨v, y⟩ under p
        spread = (p * direction.square()).sum(dim=1) - (p * direction).sum(dim=1).square()
        weight = rows.row_weights
        deviation = math.sqrt(float(weight.square() @ spread.clamp_min(0.0))) / float(weight.sum())
        half = normal_quantile((1 + level) / 2) * deviation
        return Interval(0.0, -half, half, level, "normal, with the variance of the probabilities")

    def _directions(self, predictions: Predictions) -> tuple[Tensor, Tensor]:
        """Return the probabilities p and the directions v, (N, K) each."""
        if len(predictions) < 2:
            raise refuse(f"at least two rows for {self}", "one", "use more rows")
        p, recalibrated, block = recalibrated_in_blocks(predictions)
        weight = _scaled_weights(predictions)
        gap = recalibrated - p
        if self.norm == 1:
            direction = gap.sign()
        else:
            direction = gap / gap.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        if self.part != "all":
            over = gap.gather(1, predictions.predicted[:, None]) < 0
            direction = torch.where(over == (self.part == "over"), direction, 0.0)
        # the first block is used only for fitting; the mean is over the other blocks
        measured = weight * (block > 0)
        return p, direction * (float(weight.sum()) / max(float(measured.sum()), torch.finfo(torch.float64).tiny))


def recalibrated_in_blocks(predictions: Predictions) -> tuple[Tensor, Tensor, Tensor]:
    """Return p and ĉ, (N, K) each, and the block (N,) of each row; rows of block 0 are not recalibrated.

    The blocks are random, and each is recalibrated by a fit on the earlier blocks. If the model is calibrated, ⟨v, y − p⟩
    of a row has mean 0 given all earlier rows, so the variances of the rows add up. Cross-validation would correlate the
    sums of the folds: the standard deviation of the mean was up to 1.45 times the one computed from the rows. All rows of a
    group are in the same block.
    """
    labels, p, weight = predictions.require_labels(), predictions.float64_probs(), _scaled_weights(predictions)
    groups = predictions.groups
    unit = torch.arange(len(p), device="cpu") if groups is None else groups.unique(return_inverse=True)[1].cpu()
    count = int(unit.max()) + 1
    place = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu").double() / count
    ends = torch.tensor(_ENDS, dtype=torch.float64, device="cpu")
    block = torch.bucketize(place, ends, right=True)[unit].to(p.device)
    recalibrated = p.clone()
    for later in range(1, len(_ENDS) + 1):
        held, before = block == later, (block < later) & (weight > 0)
        if bool(held.any()) and bool(before.any()):
            recalibrated[held] = _vector_scaled(p[before], labels[before], weight[before], p[held])
    return p, recalibrated, block


def _scaled_weights(predictions: Predictions) -> Tensor:
    """Return the rows' weights (N,), scaled to mean 1."""
    weight = predictions.row_weights
    return weight / weight.mean()


def _vector_scaled(p: Tensor, labels: Tensor, weight: Tensor, new: Tensor) -> Tensor:
    """Return softmax((1 + t + u_k) x_k + b_k) for the rows ``new`` (M, K), with parameters fitted on the rows ``p`` (N, K).

    Here x = log((1 − ε) p + ε / K), where ε = 1 / (N + 1) limits the influence of a single saturated row. The log-loss with
    ridge penalties is convex. The penalties on each u_k and b_k are worth K rows, as in structured vector scaling (Berta et
    al. 2025).
    """
    from scipy.optimize import minimize

    mass, classes = float(weight.sum()), p.shape[1]
    share = 1 / (mass + 1)
    # (K, N): a softmax over few classes is vectorised only if the rows are contiguous
    x, fresh = (((1 - share) * part + share / classes).log().T.contiguous() for part in (p, new))
    ridge = torch.full((2 * classes + 1,), classes / mass, dtype=torch.float64, device=p.device)
    ridge[0] = _SLOPE / mass

    def log_q(theta: Tensor, inputs: Tensor) -> Tensor:
        slope, bias = (1 + theta[0] + theta[1 : 1 + classes])[:, None], theta[1 + classes :, None]
        return torch.log_softmax(torch.addcmul(bias, slope, inputs), dim=0)

    def value_and_gradient(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            theta = torch.from_numpy(parameters).to(x).requires_grad_()
            loss = ridge @ theta.square() - weight @ log_q(theta, x).gather(0, labels[None])[0] / mass
        return float(loss.detach()), torch.autograd.grad(loss, theta)[0].cpu().numpy()

    options = {"gtol": 3e-8, "ftol": 0.0, "maxcor": 20, "maxiter": 5000}
    found = minimize(value_and_gradient, np.zeros(len(ridge)), jac=True, method="L-BFGS-B", options=options)
    return log_q(torch.from_numpy(found.x).to(x), fresh).exp().T
