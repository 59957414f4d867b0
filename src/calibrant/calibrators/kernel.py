"""A smooth correction of the log-probabilities that varies over the simplex: a kernel machine with random Fourier features."""

import math

import torch
from torch import Tensor

from calibrant._core.check import check_count, check_number
from calibrant.calibrators.affine import AffineRows, fit_affine, full_sums, log_probs_of
from calibrant.calibrators.base import Certified, check_label_logits, keep_excluded
from calibrant.rows import Batch, RowSource

_LOWEST = -12.0  # lower log-probabilities (below 6e-6) are clipped, because their differences carry no information
_EQUAL = 1e-10  # if the variance of x is smaller, rows are equal up to rounding


class KernelScaling(Certified):
    """A correction that is smooth over the simplex: softmax(log p + B φ(log p)), where φ are sines and cosines of log p.

    A map with one shape for all rows cannot correct errors that differ between kinds of rows, for example between questions
    with two and with four options. Here, the correction of a row depends on rows with similar probabilities, under the Gaussian
    kernel exp(−‖x − x'‖² / 2h²), which φ approximates by fixed, orthogonal random features (Rahimi & Recht 2007). The penalty
    ridge / N · Σ B² is added to the mean log-loss, so that a few rows change little. After another calibrator, as in
    ``Chain(VectorScaling(), KernelScaling())``, it corrects the remaining errors. The fit is convex and ends with a gradient
    certificate. The decision may change.

    Args:
        waves: Number M ≥ 1 of sines, and of cosines.
        ridge: Strength > 0, in rows, of the shrinkage towards no correction.
        width: Kernel width h > 0, relative to the root mean squared distance between the points x = max(log p, −12) of two rows.

    Attributes:
        coefficients: The matrix B (K, 2M).
        gradient: The largest entry of the objective's gradient at the solution, in nats: the certificate.

    Examples:
        >>> g = torch.Generator().manual_seed(0)
        >>> z = torch.randn(2000, 3, generator=g)
        >>> y = torch.where(
        ...     z[:, 0] > 0, z.argmax(dim=1), z.argmin(dim=1)
        ... )  # the model is right if the first logit is positive, and wrong otherwise
        >>> fitted = KernelScaling().fit(z, y)
        >>> bool(torch.nn.functional.cross_entropy(fitted(z), y) < 0.6 * torch.nn.functional.cross_entropy(z, y))
        True

    References:
        Rahimi & Recht 2007, Random features for large-scale kernel machines; Yu et al. 2016, Orthogonal random features;
        Wenger, Kjellström, Triebel 2020, Non-parametric calibration for classification (a Gaussian process).
    """

    frequencies: Tensor
    phases: Tensor
    coefficients: Tensor

    def __init__(self, *, waves: int = 20, ridge: float = 2.0, width: float = 0.6) -> None:
        super().__init__()
        self.waves = check_count(waves, name="waves")
        self.ridge = check_number(ridge, name="ridge", low=0, open_low=True)
        self.width = check_number(width, name="width", low=0, open_low=True)

    def _fit(self, rows: RowSource) -> None:
        mass, device = rows.mass, rows.device
        center, squares = (part / mass for part in rows.total(_point_sums))
        spread = float(squares - center.square().sum())
        # the mean squared distance between two rows is twice the variance; rows that are equal up to rounding have no scale
        length = self.width * math.sqrt(2 * spread) if spread > _EQUAL else 1.0
        self.frequencies = _directions(rows.classes, self.waves).to(device) / length
        self.phases = center @ self.frequencies
        shape, zero = (rows.classes, 2 * self.waves), torch.zeros(2 * self.waves * rows.classes).to(center)
        start = self.coefficients.view(-1) if self.coefficients.shape == shape else zero
        ready, ridge = rows.map(_kernel_rows, self.frequencies, self.phases), torch.full_like(zero, self.ridge / mass)
        found = fit_affine(ready, full_sums, start, ridge=ridge, centre=zero, hessian=False, tolerance=self.tolerance)
        self.coefficients = found.theta.view(shape)
        self.certificate = torch.tensor(found.gradient, dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        log_p = log_probs_of(logits)
        phi = _waves(log_p, self.frequencies.to(log_p.dtype), self.phases.to(log_p.dtype))
        return keep_excluded(log_p + phi @ self.coefficients.to(log_p.dtype).T, logits)


def _directions(classes: int, waves: int) -> Tensor:
    """Return the wave vectors (K, M) for a kernel with h = 1: orthogonal within blocks, and as long as normal random vectors."""
    generator = torch.Generator().manual_seed(0)
    blocks = []
    for first in range(0, waves, classes):
        count = min(classes, waves - first)
        normal = torch.randn(2, classes, classes, generator=generator, dtype=torch.float64)
        blocks.append(torch.linalg.qr(normal[0])[0][:, :count] * normal[1].norm(dim=0)[:count])
    return torch.cat(blocks, dim=1)


def _waves(log_p: Tensor, frequencies: Tensor, phases: Tensor) -> Tensor:
    """Return the features φ (n, 2M): cosines and sines, scaled so that each row has length 1."""
    angle = log_p.clamp_min(_LOWEST) @ frequencies - phases
    return torch.cat([angle.cos(), angle.sin()], dim=1) / math.sqrt(frequencies.shape[1])


def _kernel_rows(batch: Batch, frequencies: Tensor, phases: Tensor) -> AffineRows:
    log_p = log_probs_of(batch.logits.double())
    return AffineRows(
        _waves(log_p, frequencies, phases).T.contiguous(), batch.labels, batch.row_weights, log_p.T.contiguous()
    )


def _point_sums(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return Σ w x and Σ w ‖x‖² over the points x = max(log p, −12), between which the kernel measures distances."""
    check_label_logits(batch)
    points = log_probs_of(batch.logits.double()).clamp_min(_LOWEST)
    return batch.row_weights @ points, batch.row_weights @ points.square().sum(dim=1)
