"""Vector scaling: a factor and a bias for each class."""

from calibrant.calibrators._ridge_affine import RidgeAffine

__all__ = ["VectorScaling"]


class VectorScaling(RidgeAffine):
    """softmax(w ∘ z + b), with w and b (K,) that minimise the validation log-loss (Guo et al. 2017).

    The fit is convex and ends with a gradient certificate. Without regularisation it is known to hurt where classes are
    many or rows few, so by default w and b are shrunk towards temperature scaling: ridge / N · Σ ((w_k T − 1)² + b_k²) is
    added to the mean log-loss, T being the best temperature. Biases may change the decision.

    Args:
        ridge: Strength in rows, ≥ 0. With 0 there may be no finite optimum, which is an error.
        prior: Standard deviation of a normal prior on log T about 0, or None for none.

    Attributes:
        scale: (K,) the factors w.
        bias: (K,) the biases b.
        gradient: The largest entry of the objective's gradient at the end, in nats: the certificate.

    Examples:
        >>> import torch
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1, 1, 0])
        >>> VectorScaling().fit(z, y).bias.shape
        torch.Size([2])

    References:
        Guo et al. 2017, On Calibration of Modern Neural Networks, §4.2.
    """

    preserves_argmax = False
    diagonal = True
