"""Matrix scaling: a full linear map of the logits."""

from calibrant.calibrators._ridge_affine import RidgeAffine

__all__ = ["MatrixScaling"]


class MatrixScaling(RidgeAffine):
    """softmax(W z + b), with W (K, K) and b (K,) that minimise the validation log-loss (Guo et al. 2017).

    K² + K parameters overfit badly beyond a few classes: prefer ``StructuredMatrixScaling``, which knows which of them
    to trust. By default ridge / N · (Σ (W T − I)² + Σ b²) is added to the mean log-loss, T being the best temperature.
    The fit is convex and ends with a gradient certificate.

    Args:
        ridge: Strength in rows, ≥ 0. With 0 there may be no finite optimum, which is an error.
        prior: Standard deviation of a normal prior on log T about 0, or None for none.

    Attributes:
        scale: (K, K) the matrix W.
        bias: (K,) the biases b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> MatrixScaling().fit(z, y).scale.shape
        torch.Size([2, 2])

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2.
    """

    preserves_argmax = False
    diagonal = False
