"""Losses, metrics and calibration maps as pure functions, in the style of ``torch.nn.functional``.

Losses accept integer labels, whose shape is that of the logits without the class axis, or target probabilities with the
shape of the logits. Their arguments ``reduction``, ``weight`` and ``ignore_index`` are those of
``torch.nn.functional.cross_entropy``. Metrics return a 0-dimensional float64 tensor without a gradient. Each function
calls the class that implements the formula.
"""

from typing import Unpack

import torch
from torch import Tensor

from calibrant._core.check import check_floating, check_number, refuse
from calibrant.binning import EqualWidth
from calibrant.data.predictions import Predictions
from calibrant.losses import BrierLoss, CrossEntropyLoss, FocalLoss, InverseFocalLoss, LabelSmoothingLoss
from calibrant.losses.cross_entropy import Spread
from calibrant.losses.loss import LossOptions
from calibrant.metrics import ACE, ECE, NLL, Accuracy, Brier, Metric
from calibrant.theory.focal_map import focal_map

__all__ = [
    "accuracy",
    "ace",
    "brier",
    "brier_loss",
    "ece",
    "focal_calibration_map",
    "focal_loss",
    "inverse_focal_loss",
    "label_smoothing_loss",
    "nll",
    "temperature_scale",
]


def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    detach_weight: bool = False,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Return the focal loss (1 − p_y)^γ · (−log p_y); for target probabilities q, Σ_k q_k (1 − p_k)^γ · (−log p_k).

    Args:
        logits: Floating-point logits (N, K), (N, K, d1, …) or (K,).
        labels: Class indices (N,), (N, d1, …) or (), or target probabilities with the shape of ``logits``.
        gamma: The exponent γ ≥ 0; 0 gives the cross-entropy.
        detach_weight: Treat (1 − p_y)^γ as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Returns:
        A scalar, or a tensor of the labels' shape with ``reduction="none"``.

    Raises:
        InputError: If shapes do not match, or a label or another argument is invalid.

    Examples:
        >>> import torch
        >>> focal_loss(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]), gamma=3.0)
        tensor(0.0563)

    References:
        Lin et al. 2017, Focal Loss for Dense Object Detection, Eq. 4.
    """
    return FocalLoss(gamma, detach_weight, **options).forward(logits, labels)


def inverse_focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 1.0,
    detach_weight: bool = False,
    **options: Unpack[LossOptions],
) -> Tensor:
    """Return the inverse focal loss (1 + p_y)^γ · (−log p_y).

    Args:
        logits: Floating-point logits (N, K), (N, K, d1, …) or (K,).
        labels: Class indices (N,), (N, d1, …) or ().
        gamma: The exponent γ ≥ 0; 0 gives the cross-entropy.
        detach_weight: Treat (1 + p_y)^γ as a constant in the gradient.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Returns:
        A scalar, or a tensor of the labels' shape with ``reduction="none"``.

    Raises:
        InputError: If shapes do not match, or a label or another argument is invalid.

    Examples:
        >>> import torch
        >>> inverse_focal_loss(torch.tensor([[1.0, 0.5, -0.5]]), torch.tensor([0]), gamma=1.0)
        tensor(0.9343)

    References:
        Wang, Feng, Zhang 2021, Rethinking Calibration of Deep Neural Networks, Eq. 4.
    """
    return InverseFocalLoss(gamma, detach_weight, **options).forward(logits, labels)


def brier_loss(logits: Tensor, labels: Tensor, **options: Unpack[LossOptions]) -> Tensor:
    """Return the Brier score Σ_k (p_k − [k = y])², in [0, 2]; for target probabilities q, Σ_k (p_k − q_k)².

    Args:
        logits: Floating-point logits (N, K), (N, K, d1, …) or (K,).
        labels: Class indices (N,), (N, d1, …) or (), or target probabilities with the shape of ``logits``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Returns:
        A scalar, or a tensor of the labels' shape with ``reduction="none"``.

    Raises:
        InputError: If shapes do not match, or a label or another argument is invalid.

    Examples:
        >>> import torch
        >>> brier_loss(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))
        tensor(0.1400)
    """
    return BrierLoss(**options).forward(logits, labels)


def label_smoothing_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    smoothing: float = 0.1,
    spread: Spread = "all",
    **options: Unpack[LossOptions],
) -> Tensor:
    """Return the cross-entropy −Σ_k t_k log p_k against the smoothed target t.

    Args:
        logits: Floating-point logits (N, K), (N, K, d1, …) or (K,).
        labels: Class indices (N,), (N, d1, …) or (), or target probabilities with the shape of ``logits``.
        smoothing: The smoothing parameter α in (−1, 1).
        spread: ``"all"`` sets t = (1 − α) e_y + α/K; ``"others"`` sets 1 − α for the true class and α/(K − 1) for each other
            class.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) weights of the true class, or None.
        ignore_index: Rows with this label are ignored.

    Returns:
        A scalar, or a tensor of the labels' shape with ``reduction="none"``.

    Raises:
        InputError: If shapes do not match, or a label or another argument is invalid.

    Examples:
        >>> import torch
        >>> label_smoothing_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), smoothing=0.1, spread="others")
        tensor(0.3269)
    """
    return LabelSmoothingLoss(smoothing, spread, **options).forward(logits, labels)


def accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy: the fraction of rows whose largest logit belongs to the label.

    Args:
        logits: Logits (N, K).
        labels: Integer labels (N,) in [0, K).

    Returns:
        A 0-dimensional float64 tensor in [0, 1].

    Raises:
        InputError: If shapes do not match or labels are invalid.

    Examples:
        >>> accuracy(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor(0.5000, dtype=torch.float64)
    """
    return _measured(Accuracy(), logits, labels)


def nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood: the mean of −log p of the label, in nats, or of −Σ_k q_k log p_k for targets q.

    Args:
        logits: Logits (N, K).
        labels: Integer labels (N,) in [0, K), or target probabilities (N, K).

    Returns:
        A 0-dimensional float64 tensor ≥ 0; +inf if a label has probability 0.

    Raises:
        InputError: If shapes do not match or labels are invalid.

    Examples:
        >>> round(float(nll(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))), 4)
        0.7201
    """
    return _scored(CrossEntropyLoss(), NLL(), logits, labels)


def brier(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the Brier score: the mean of Σ_k (p_k − y_k)², or of Σ_k (p_k − q_k)² for targets q.

    Args:
        logits: Logits (N, K).
        labels: Integer labels (N,) in [0, K), or target probabilities (N, K).

    Returns:
        A 0-dimensional float64 tensor in [0, 2].

    Raises:
        InputError: If shapes do not match or labels are invalid.

    Examples:
        >>> round(float(brier(torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([0]))), 4)
        0.14

    References:
        Brier 1950.
    """
    return _scored(BrierLoss(), Brier(), logits, labels)


def ece(logits: Tensor, labels: Tensor, *, bins: int = 15) -> Tensor:
    """Return the expected calibration error Σ_b |B_b|/N · |accuracy − confidence| in bins of equal width.

    Args:
        logits: Logits (N, K).
        labels: Integer labels (N,) in [0, K).
        bins: Number of bins B ≥ 1.

    Returns:
        A 0-dimensional float64 tensor in [0, 1].

    Raises:
        InputError: If shapes do not match, or labels or ``bins`` are invalid.

    Examples:
        >>> round(float(ece(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))), 4)
        0.4251

    References:
        Naeini et al. 2015; Guo et al. 2017 Eq. 3.
    """
    return _measured(ECE(EqualWidth(bins)), logits, labels)


def ace(logits: Tensor, labels: Tensor, *, bins: int = 15) -> Tensor:
    """Return the average calibration error: the unweighted mean of |accuracy − confidence| over non-empty bins.

    Args:
        logits: Logits (N, K).
        labels: Integer labels (N,) in [0, K).
        bins: Number of equal-width bins B ≥ 1.

    Returns:
        A 0-dimensional float64 tensor in [0, 1].

    Raises:
        InputError: If shapes do not match, or labels or ``bins`` are invalid.

    Examples:
        >>> round(float(ace(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))), 4)
        0.4251

    References:
        Neumann et al. 2018.
    """
    return _measured(ACE(EqualWidth(bins)), logits, labels)


def temperature_scale(logits: Tensor, temperature: Tensor | float) -> Tensor:
    """Return ``logits`` / T, whose softmax is less confident for T > 1 and more confident for T < 1.

    Args:
        logits: Floating-point logits (N, K), (N, K, d1, …) or (K,).
        temperature: T > 0: a number, or a floating-point tensor that broadcasts with ``logits`` and may require
            gradients.

    Returns:
        Logits of the broadcast shape, in the dtype of ``logits``.

    Raises:
        InputError: If the logits are not floating-point, or T is not a number > 0 or does not broadcast.

    Examples:
        >>> import torch
        >>> temperature_scale(torch.tensor([[2.0, 0.0]]), 2.0)
        tensor([[1., 0.]])

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, Eq. 9.
    """
    if check_floating(logits, name="logits").dim() == 0:
        raise refuse("logits of shape (N, K)", "a scalar", "pass one row per sample")
    if isinstance(temperature, Tensor):
        shape = check_floating(temperature, name="temperature").shape
        if not all(a == b or 1 in (a, b) for a, b in zip(reversed(shape), reversed(logits.shape), strict=False)):
            got = f"shapes {tuple(shape)} and {tuple(logits.shape)}"
            remedy = "pass a number, or one value per row with shape (N, 1)"
            raise refuse("a temperature that broadcasts against the logits", got, remedy)
    else:
        check_number(temperature, name="temperature", low=0, open_low=True)
    inverse = 1 / temperature
    return logits * (inverse.to(logits.dtype) if isinstance(inverse, Tensor) else inverse)


def focal_calibration_map(logits: Tensor, gamma: float) -> Tensor:
    """Return the log-probabilities of a model trained with focal loss, corrected for the effect of this loss.

    A network that minimises the focal loss with parameter γ outputs q = softmax(logits) instead of the true class
    probabilities p. This map recovers them: p_j ∝ q_j / [(1 − q_j)^γ (1 + γ u(q_j))] with u(q) = −q log q / (1 − q).

    Args:
        logits: Logits (…, K); −inf for an excluded class.
        gamma: The γ > −1 used in training; 0 gives the identity.

    Returns:
        The log-probabilities log p (…, K), which can be used as logits.

    Raises:
        InputError: If the logits are not a floating-point tensor with K ≥ 2.
        RangeError: If γ ≤ −1.

    Examples:
        >>> import torch
        >>> focal_calibration_map(torch.tensor([[0.7, 0.2, 0.1]]).log(), 2.0).exp()
        tensor([[0.9197, 0.0546, 0.0257]])

    References:
        Komisarenko & Kull 2024, Proposition 4.
    """
    return focal_map(logits, gamma)


def _measured(metric: Metric, logits: Tensor, labels: Tensor) -> Tensor:
    return torch.tensor(metric(Predictions.from_logits(logits, labels)), dtype=torch.float64)


def _scored(loss: CrossEntropyLoss | BrierLoss, metric: Metric, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss for target probabilities, or the metric for labels."""
    if isinstance(labels, Tensor) and labels.is_floating_point():
        value: Tensor = loss(logits.detach().double(), labels.detach().double())
        return value
    return _measured(metric, logits, labels)
