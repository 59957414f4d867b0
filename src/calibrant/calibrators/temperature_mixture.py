"""Temperature scaling mixed with a little of the uniform distribution."""

import math

import torch
from torch import Tensor

from calibrant._core.check import check_number
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._mixture import mixture_minimum
from calibrant.calibrators._tempering import check_prior, fit_temperature, mix_with_uniform, narrowed
from calibrant.errors import InputError
from calibrant.rows import RowSource

__all__ = ["TemperatureMixture"]


class TemperatureMixture(Calibrator):
    """(1 − ε) · softmax(z / T) + ε / K: temperature scaling with probabilities bounded away from 0 and 1.

    By default ε = 1 / (N + 1), Laplace's share for the answer never seen, and T minimises the validation log-loss
    before mixing. With ``mixing="fit"`` both are fitted to the log-loss of the mixture, with one more, imagined row of
    which nothing but the uniform part is known, so that ε > 0. That problem is not convex: 41 temperatures in [0.02, 50],
    evenly in log T, with 27 ε each are tried, and Newton's method in (log T, log ε) goes on from the best three valleys.
    The decision never changes.

    Args:
        mixing: ``"laplace"``, ``"fit"``, or ε itself in [0, 1).
        prior: Standard deviation of a normal prior on log T about 0, or None for none. With 0.5 a small or all-correct
            validation set cannot drive T to its bound.

    Attributes:
        temperature: The fitted T.
        mixing_share: The ε in use.

    Examples:
        >>> import math
        >>> z = torch.tensor([[2 * math.log(4), 0.0]] * 10)
        >>> y = torch.tensor([0] * 8 + [1] * 2)
        >>> fitted = TemperatureMixture().fit(z, y)
        >>> round(fitted.temperature, 4), round(fitted.mixing_share, 4)
        (2.0, 0.0909)

    References:
        Guo et al. 2017, §4.2 (the temperature); Zhang, Kailkhura, Han 2020, Mix-n-Match (mixing with the uniform).
    """

    preserves_argmax = True

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

    def learned(self) -> str:
        """Return T and ε."""
        return f"temperature={self.temperature:.4g}, share={self.mixing_share:.3g}"

    def _fit(self, rows: RowSource) -> None:
        if self.mixing == "fit":
            temperature, share = mixture_minimum(rows, self.prior)
        else:
            temperature = fit_temperature(rows, self.prior)
            share = 1 / (rows.mass + 1) if isinstance(self.mixing, str) else self.mixing
        self.log_temperature = torch.tensor(math.log(temperature), dtype=torch.float64, device=rows.device)
        self.share = torch.tensor(share, dtype=torch.float64, device=rows.device)

    def _transform(self, logits: Tensor) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        log_p = torch.log_softmax(wide * torch.exp(-self.log_temperature).to(wide.dtype), dim=1)
        return narrowed(mix_with_uniform(log_p, self.share), logits.dtype)
