"""The focal calibration map as a calibrator: undo what training under focal loss did to the probabilities."""

import torch
from torch import Tensor

from calibrant._objective.log_pairs import log_normalise
from calibrant.calibrators.base.calibrator import Calibrator
from calibrant.calibrators.focal.log_temperature import narrowed
from calibrant.rows import RowSource
from calibrant.scores import FocalScore
from calibrant.theory.focal_map import FocalTerms

__all__ = ["FocalCalibration"]


class FocalCalibration(Calibrator):
    """p_j ∝ q_j / [(1 − q_j)^γ (1 + γ u(q_j))], q = softmax(z), u(q) = −q log q / (1 − q), at a given γ.

    The probabilities a network should have given if it has minimised focal loss at γ. Nothing is learned but the number
    of classes. In log space, so the decision never changes and saturated rows stay ordered.

    Args:
        gamma: γ > −1, usually the one of training; 0 is the identity, γ > 0 makes confident rows more confident and
            may make flat ones less, γ < 0 makes confident rows less so.

    Examples:
        >>> z, y = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> FocalCalibration(1.0).fit(z, y)(z).exp()
        tensor([[0.9732, 0.0268],
                [0.1445, 0.8555]])

    References:
        Charoenphakdee et al. 2021. Komisarenko & Kull 2024, Propositions 2 and 4.
    """

    preserves_argmax = True

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = float(FocalScore(gamma).gamma)

    def _fit(self, rows: RowSource) -> None:
        return

    def _transform(self, logits: Tensor) -> Tensor:
        return focal_log_probs(logits, self.gamma)


def focal_log_probs(logits: Tensor, gamma: float | Tensor) -> Tensor:
    """Return log p (N, K) of the focal map; as ``theory.focal_map``, but without a branch on values, so that it traces."""
    log_p = log_normalise(FocalTerms.of(logits).scores(gamma))
    # the top class is computed in another way than the others, so that rounding could put one that is tied with it first
    top, at = logits.max(dim=1, keepdim=True)
    lead = log_p.gather(1, at)
    log_p = torch.where(logits == top, lead, torch.minimum(log_p, lead))
    return narrowed(log_p.masked_fill(torch.isneginf(logits), -torch.inf), logits.dtype)
