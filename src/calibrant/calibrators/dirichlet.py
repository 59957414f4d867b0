"""Dirichlet calibration: a linear map of the log-probabilities, with its off-diagonal and intercept regularised."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._check import check_number
from calibrant.calibrators._affine import (
    Ridge,
    apply_affine,
    check_label_logits,
    fit_affine,
    keep_excluded,
    log_probs_of,
    total_weight,
)
from calibrant.calibrators._base import Calibrator

__all__ = ["DirichletCalibration"]


class DirichletCalibration(Calibrator):
    """softmax(W log p + b), p = softmax(z): what is right if log p is Dirichlet given each class (Kull et al. 2019).

    ODIR regularisation: off_diagonal / (K(K−1)) · Σ_{j≠k} W_jk² + intercept / K · Σ b_k² is added to the mean log-loss.
    The diagonal is drawn to 1 with 1/N only, which keeps separable data finite. The paper finds both strengths by
    cross-validation; here the default lets them fall as 1/N, so that more rows are trusted more. The fit is convex and
    ends with a gradient certificate.

    Args:
        off_diagonal: λ ≥ 0; None for (K(K−1))² / N.
        intercept: μ ≥ 0; None for K² / N.

    Attributes:
        scale: (K, K) the matrix W.
        bias: (K,) the biases b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Example:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> DirichletCalibration().fit(z, y).scale.shape
        torch.Size([2, 2])

    References:
        Kull et al. 2019, Beyond temperature scaling, §3 and §4.1 (ODIR).
    """

    preserves_argmax: ClassVar[bool] = False

    scale: Tensor
    bias: Tensor
    certificate: Tensor

    def __init__(self, *, off_diagonal: float | None = None, intercept: float | None = None) -> None:
        super().__init__()
        self.off_diagonal = None if off_diagonal is None else check_number(off_diagonal, name="off_diagonal", low=0)
        self.intercept = None if intercept is None else check_number(intercept, name="intercept", low=0)
        self._declare("scale", "bias", "certificate")

    @property
    def gradient(self) -> float:
        """The certificate; NaN before ``fit``."""
        return float(self.certificate) if self.fitted else math.nan

    def config(self) -> dict[str, Any]:
        """Return both strengths."""
        return {"off_diagonal": self.off_diagonal, "intercept": self.intercept}

    def _fit(self, logits: Tensor, labels: Tensor, weight: Tensor | None, groups: Tensor | None) -> None:
        check_label_logits(logits, labels)
        classes, total = logits.shape[1], total_weight(labels, weight)
        pairs = classes * (classes - 1)
        off = pairs**2 / total if self.off_diagonal is None else self.off_diagonal
        intercept = classes**2 / total if self.intercept is None else self.intercept
        ridge = Ridge(diagonal=1 / total, off=off / pairs, bias=intercept / classes)
        x = log_probs_of(logits.double())
        start = (self.scale, self.bias) if self.fitted else None
        self.scale, self.bias, found = fit_affine(x, labels, weight, ridge, diagonal=False, start=start)
        self.certificate = torch.tensor(found.gradient, dtype=torch.float64, device=logits.device)

    def _transform(self, logits: Tensor) -> Tensor:
        return keep_excluded(apply_affine(log_probs_of(logits), self.scale, self.bias), logits)
