"""One map of the log-odds for each class against the rest, then normalised; with two classes, one map and no more."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant.calibrators._affine import LOWEST
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._solver import minimise


def log_odds(logits: Tensor) -> Tensor:
    """Return log(p_k / (1 − p_k)) of softmax ``logits``, in float64 and [−100, 100]: (N, 1) of class 1 if K = 2, else (N, K).

    The odds of the top class come from the other logits, since 1 − p has lost its digits where p is nearly 1.
    """
    z = logits.double()
    if z.shape[1] == 2:
        return (z[:, 1:] - z[:, :1]).clamp(LOWEST, -LOWEST)
    top = z.argmax(dim=1, keepdim=True)
    log_p = torch.log_softmax(z, dim=1)
    rest = torch.logsumexp(z.scatter(1, top, -torch.inf), dim=1, keepdim=True)
    odds = log_p - torch.log1p(-log_p.exp().clamp_max(0.5))  # of classes that are not the top: p ≤ ½
    return odds.scatter(1, top, z.gather(1, top) - rest).clamp(LOWEST, -LOWEST)


class OneVsRest(Calibrator):
    """A binary method for every class: subclasses give how one map is fitted and how all are applied."""

    preserves_argmax: ClassVar[bool] = False

    @abstractmethod
    def _fit_one(self, odds: Tensor, hit: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        """Return what is learned for one class from log-odds, whether it is the class (1.0, 0.0), and row weights."""

    @abstractmethod
    def _keep(self, learned: list[tuple[Tensor, ...]]) -> None:
        """Put what was learned for each class into buffers."""

    @abstractmethod
    def _probabilities(self, odds: Tensor) -> Tensor:
        """Return log-odds (N, C) of the calibrated, not yet normalised probabilities for log-odds (N, C)."""

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        odds = log_odds(logits)
        first = 1 if logits.shape[1] == 2 else 0
        weight = torch.ones_like(odds[:, 0]) if weight is None else weight
        hits = (labels[:, None] == torch.arange(first, logits.shape[1], device=labels.device)).double()
        self._keep([self._fit_one(odds[:, c], hits[:, c], weight) for c in range(odds.shape[1])])

    def _transform(self, logits: Tensor) -> Tensor:
        answer = self._probabilities(log_odds(logits))
        if logits.shape[1] == 2:
            answer = torch.cat([-answer, answer], dim=1)
        answer = torch.nn.functional.logsigmoid(answer)
        if logits.shape[1] > 2:
            answer = torch.where(torch.isneginf(logits), -torch.inf, answer)
            # where no class is left with a positive probability, all that were allowed are alike
            lost = torch.isneginf(answer.amax(dim=1, keepdim=True))
            answer = torch.log_softmax(torch.where(lost & ~torch.isneginf(logits), 0.0, answer), dim=1)
        return answer.to(logits.dtype)


class RidgeOneVsRest(OneVsRest):
    """A binary method with a few coefficients a class under a ridge, given in rows."""

    coefficients: Tensor

    def __init__(self, *, ridge: float) -> None:
        super().__init__()
        self.ridge = check_number(ridge, name="ridge", low=0)
        self._declare("coefficients")

    def config(self) -> dict[str, Any]:
        """Return the ridge."""
        return {"ridge": self.ridge}

    def _keep(self, learned: list[tuple[Tensor, ...]]) -> None:
        self.coefficients = torch.stack([theta for (theta,) in learned])


def platt_targets(hit: Tensor, weight: Tensor) -> Tensor:
    """Return (N₊ + 1) / (N₊ + 2) for hits and 1 / (N₋ + 2) for the rest: one imagined row of each kind (Platt 1999)."""
    hits = float(weight @ hit)
    high, low = platt_levels(hits, float(weight.sum()) - hits)
    return torch.where(hit > 0, high, low)


def platt_levels(hits: float, misses: float) -> tuple[float, float]:
    """Return the target of a hit and that of a miss."""
    return (hits + 1) / (hits + 2), 1 / (misses + 2)


@dataclass(frozen=True)
class LogisticProblem:
    """Mean log-loss of σ(features θ) against soft targets, plus Σ ridge_j (θ_j − centre_j)²."""

    features: Tensor
    target: Tensor
    share: Tensor
    ridge: Tensor
    centre: Tensor

    @property
    def rows(self) -> int:
        """N."""
        return self.features.shape[0]

    def value_and_gradient(self, theta: Tensor) -> tuple[float, Tensor]:
        """Return the penalised loss and its gradient."""
        s = self.features @ theta
        loss = torch.nn.functional.softplus(s) - self.target * s
        gap = (torch.sigmoid(s) - self.target) * self.share
        off = theta - self.centre
        value = float(self.share @ loss + self.ridge @ off**2)
        return value, self.features.T @ gap + 2 * self.ridge * off

    def hessian(self, theta: Tensor) -> Tensor:
        """Return the Hessian (P, P)."""
        s = self.features @ theta
        curvature = torch.sigmoid(s) * torch.sigmoid(-s) * self.share
        return self.features.T @ (self.features * curvature[:, None]) + torch.diag(2 * self.ridge)

    def narrowed(self) -> None:
        """Return None: the problem is small."""

    def blocks(self) -> Tensor:
        """Return the Hessian's diagonal at the centre, as blocks (P, 1, 1)."""
        return self.hessian(self.centre).diagonal().clamp_min(1e-12)[:, None, None]


def fit_logistic(features: Tensor, target: Tensor, weight: Tensor, *, ridge: Tensor | float, centre: Tensor) -> Tensor:
    """Return the certified optimum θ (P,) of ``LogisticProblem``; ``ridge`` counts in rows and is divided by their number.

    Features are brought to a maximum of 1 within, so that one tolerance suits all.

    Raises:
        FitError: If there is no finite optimum, which a positive ridge excludes.
    """
    total = float(weight.sum())
    scale = features.abs().amax(dim=0).clamp_min(1e-12)
    strength = torch.as_tensor(ridge, dtype=features.dtype, device=features.device).expand_as(centre) / total
    problem = LogisticProblem(features / scale, target, weight / total, strength / scale**2, centre * scale)
    return minimise(problem, centre * scale).x / scale
