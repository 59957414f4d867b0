"""Temperature scaling mixed with a little of the uniform distribution."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant.calibrators._affine import total_weight
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._mixture import HIGH, LOW, POINTS, Mixture, mixture_sums, settle
from calibrant.calibrators._solver import golden_section
from calibrant.calibrators._tempering import check_prior, fit_temperature, mix_with_uniform, narrowed
from calibrant.errors import InputError

__all__ = ["TemperatureMixture"]


class TemperatureMixture(Calibrator):
    """(1 − ε) · softmax(z / T) + ε / K: a temperature that cannot be infinitely sure.

    By default ε = 1 / (N + 1), Laplace's share for the answer never seen, and T minimises the validation log-loss
    before mixing. With ``mixing="fit"`` both are fitted to the log-loss of the mixture, with one more, imagined row of
    which nothing but the uniform part is known, so that ε > 0. That problem is not convex: for each T the best ε is
    exact, and T is searched on 41 points in [0.02, 50], evenly in log T, then by golden section and Newton's method in
    (log T, log ε). The decision never changes.

    Args:
        mixing: ``"laplace"``, ``"fit"``, or ε itself in [0, 1).
        prior: Standard deviation of a normal prior on log T about 0, or None for none. With 0.5 a small or all-correct
            validation set cannot drive T to its bound.

    Attributes:
        temperature: The fitted T.
        mixing_share: The ε in use.

    Example:
        >>> z = torch.tensor([[2 * math.log(4), 0.0]] * 10)
        >>> y = torch.tensor([0] * 8 + [1] * 2)
        >>> fitted = TemperatureMixture().fit(z, y)
        >>> round(fitted.temperature, 4), round(fitted.mixing_share, 4)
        (2.0, 0.0909)

    References:
        Guo et al. 2017, §4.2 (the temperature); Zhang, Kailkhura, Han 2020, Mix-n-Match (mixing with the uniform).
    """

    preserves_argmax: ClassVar[bool] = True

    log_temperature: Tensor
    share: Tensor

    def __init__(self, mixing: str | float = "laplace", *, prior: float | None = None) -> None:
        super().__init__()
        if isinstance(mixing, str) and mixing not in {"laplace", "fit"}:
            raise InputError(f"expected mixing to be 'laplace', 'fit' or a number, got {mixing!r}; choose one of these")
        self.mixing = (
            mixing if isinstance(mixing, str) else check_number(mixing, name="mixing", low=0, high=1, open_high=True)
        )
        self.prior = check_prior(prior)
        self._declare("log_temperature", "share")

    @property
    def temperature(self) -> float:
        """The fitted T; NaN before ``fit``."""
        return math.exp(float(self.log_temperature)) if self.fitted else math.nan

    @property
    def mixing_share(self) -> float:
        """The ε in use; NaN before ``fit``."""
        return float(self.share) if self.fitted else math.nan

    def config(self) -> dict[str, Any]:
        """Return the mixing and the prior."""
        return {"mixing": self.mixing, "prior": self.prior}

    def learned(self) -> str:
        """Return T and ε."""
        return f"temperature={self.temperature:.4g}, share={self.mixing_share:.3g}"

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        if self.mixing == "fit":
            temperature, share = _fit_both(logits, labels, weight, self.prior)
        else:
            temperature = fit_temperature(logits, labels, weight, self.prior)
            share = 1 / (total_weight(labels, weight) + 1) if isinstance(self.mixing, str) else self.mixing
        self.log_temperature = torch.tensor(math.log(temperature), dtype=torch.float64, device=logits.device)
        self.share = torch.tensor(share, dtype=torch.float64, device=logits.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_p = torch.log_softmax(wide * torch.exp(-self.log_temperature).to(wide.dtype), dim=1)
        return narrowed(mix_with_uniform(log_p, self.share), logits.dtype)


def _fit_both(logits: Tensor, labels: Tensor, weight: Tensor | None, prior: float | None) -> tuple[float, float]:
    """Return the (T, ε) that minimise the mixture's penalised log-loss."""
    total = total_weight(labels, weight)
    weight = torch.ones_like(labels, dtype=torch.float64) if weight is None else weight
    classes = logits.shape[1]

    def profile(u: float) -> tuple[float, float]:
        log_p = torch.log_softmax(logits.double() * math.exp(-u), dim=1)
        p = log_p.gather(1, labels[:, None])[:, 0].exp()
        share = _best_share(p, weight, classes)
        loss = -float(weight @ ((1 - share) * p + share / classes).log()) - math.log(share)
        return (loss + (0.0 if prior is None else u**2 / (2 * prior**2))) / total, share

    best = golden_section(lambda u: profile(u)[0], low=LOW, high=HIGH, points=POINTS, width=1e-3)
    start = Mixture(best, profile(best)[1])
    found = settle(lambda at: mixture_sums(logits, labels, weight, at), start, total=total, prior=prior)
    return math.exp(found.log_temperature), found.share


def _best_share(p: Tensor, weight: Tensor, classes: int) -> float:
    """Return the ε in (0, 1) that maximises Σ w log((1 − ε) p + ε/K) + log ε, a concave function, by bisection."""
    low, high = 0.0, 1.0
    rise = 1 / classes - p
    while high - low > 1e-9 * high:
        share = (low + high) / 2
        slope = float((weight * rise / (p + share * rise)).sum()) + 1 / share
        low, high = (share, high) if slope > 0 else (low, share)
    return min((low + high) / 2, 1 - 1e-9)
