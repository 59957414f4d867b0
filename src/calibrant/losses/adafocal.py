"""AdaFocal: focal loss with one γ per bin of confidence, adapted to the bin's calibration error on validation data."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self, Unpack

import torch
from torch import Tensor, distributed, nn

from calibrant._core.check import check_number
from calibrant._core.numerics import apply_in_precision
from calibrant.binning import EqualMass
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.losses.loss import LossOptions, WeightedNLL
from calibrant.scores import power_of_rest


class AdaFocalLoss(WeightedNLL):
    """Focal loss with one γ for each bin of confidence; bins with γ < 0 use inverse focal loss.

    Call ``loss.update(validation_predictions)`` once per epoch. The bins have equal mass: they hold equally many
    validation samples by *top-1* confidence. A training sample takes the γ of the bin of its *true-class* probability,
    so a misclassified sample falls into a low bin, as the authors intend. Where a validation bin is over-confident, γ
    grows; where it is under-confident, γ shrinks and, below ``switch``, changes sign. Until the first update this is
    focal loss with ``gamma_init``. Keep one object for the whole training: an object created for every batch never adapts.

    Args:
        bins: B ≥ 1.
        rate: λ ≥ 0, the rate of adaptation.
        switch: S ≥ 0; a γ with |γ| < S becomes S with the opposite sign.
        gamma_min: Lowest γ, < 0.
        gamma_max: Highest γ, > 0.
        gamma_init: γ of all bins before the first update.
        detach_weight: Treat the weight as a constant in the gradient. γ itself is always a constant there.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: (K,) class weights, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> from calibrant import Predictions
        >>> loss = AdaFocalLoss(bins=2)
        >>> loss.update(Predictions.from_logits([[2.0, 0.0], [3.0, 0.0], [4.0, 0.0]], [1, 1, 0]))
        >>> loss
        AdaFocalLoss(bins=2, updates=1)

    References:
        Ghosh, Schaaf, Gormley 2022, AdaFocal: Calibration-aware Adaptive Focal Loss, Eq. 8 and Algorithm 1.
    """

    in_float64 = True
    gammas: Tensor
    edges: Tensor
    updates: Tensor

    def __init__(
        self,
        bins: int = 15,
        rate: float = 1.0,
        switch: float = 0.2,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        gamma_init: float = 1.0,
        detach_weight: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(detach_weight, **options)
        self.bins, self.rate = bins, check_number(rate, name="rate", low=0)
        self.gamma_min = check_number(gamma_min, name="gamma_min", high=0, open_high=True)
        self.gamma_max = check_number(gamma_max, name="gamma_max", low=0, open_low=True)
        self.switch = check_number(switch, name="switch", low=0, high=min(-gamma_min, gamma_max))
        self.gamma_init = gamma_init
        self.register_buffer("gammas", torch.full((bins,), self.gamma_init, dtype=torch.float64))
        self.register_buffer("edges", torch.arange(bins + 1, dtype=torch.float64) / bins)
        self.register_buffer("updates", torch.tensor(0))

    def extra_repr(self) -> str:
        """Show the arguments that are not the defaults, and the number of updates."""
        return ", ".join(part for part in (super().extra_repr(), f"updates={int(self.updates)}") if part)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # model.half() must not round γ: Eq. 8 multiplies it by factors within 1 % of 1, which half precision loses
        apply_in_precision(self, partial(super()._apply, fn, recurse), but="weight")
        return self

    @torch.no_grad()
    def update(self, validation: Predictions | Pairs) -> None:
        """Update each bin's γ from the bin's calibration error on ``validation``, and the edges from its confidences.

        γ ← γ·e^{λE} if γ > 0, γ·e^{−λE} otherwise, with E = confidence − accuracy in the bin; then the sign switch, then
        clipping to [``gamma_min``, ``gamma_max``]. A γ keeps its bin index while the edges move; an empty bin has E = 0.

        Args:
            validation: Labelled predictions of the current network, in evaluation mode. In distributed training each
                process passes its own part, and every process updates from all parts together.
        """
        confidence, correct = decisions_of_all_processes(validation)
        binning = EqualMass(bins=self.bins, ties="interpolated")
        gap = binning.table(confidence, correct).gap
        self.gammas.copy_(self.adapted(self.gammas, gap.to(self.gammas.device)))
        self.edges.copy_(binning.edges(confidence))
        self.updates += 1

    def adapted(self, gammas: Tensor, gap: Tensor) -> Tensor:
        """Return the updated γ (B,) of bins with γ = ``gammas`` (B,) and E = ``gap`` (B,), confidence minus accuracy."""
        # Eq. 8: γ > 0 is focal loss, whose confidence falls as γ grows; γ < 0 is inverse focal loss, whose confidence
        # rises with |γ|. Multiplying keeps the sign, so that over-confidence raises γ in both cases.
        grown = gammas * torch.exp(self.rate * torch.where(gammas > 0, gap, -gap))
        # Algorithm 1: where |γ| < S the sign switches to ∓S, because the multiplication above never changes a sign
        switched = torch.where(grown > 0, -1, 1).to(grown.dtype) * self.switch
        return torch.where(grown.abs() < self.switch, switched, grown).clamp(self.gamma_min, self.gamma_max)

    def gamma_of(self, p: Tensor) -> Tensor:
        """Return the γ of each true-class probability ``p``: bins [lo, hi), the first and the last without outer edge."""
        inner = self.edges[1:-1].to(p)  # .to(p): the loss also works if it was not moved to the model's device
        return self.gammas.to(p)[torch.bucketize(p.detach(), inner, right=True)]

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ where γ ≥ 0 and (1 + p)^|γ| where γ < 0."""
        p = torch.exp(log_p)
        gamma = self.gamma_of(p)
        return power_of_rest(log_not_p, gamma.clamp_min(0)) * torch.exp(-gamma.clamp_max(0) * torch.log1p(p))


def require_update(loss: nn.Module, remedy: str) -> None:
    """Raise an error at the end of a training in which ``loss`` was never updated, so that its γ never adapted.

    Raises:
        InputError: If ``loss`` counts its updates and there were none.
    """
    if getattr(loss, "updates", 1) == 0:
        raise InputError(f"{type(loss).__name__}.update once per epoch", "no call in the whole training", remedy)


def of_all_processes(part: Any, group: Any = None) -> list[Any]:
    """Return ``part`` of every process in order of rank; a process without data must call it as well."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [part]
    parts = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(parts, part, group=group)
    return parts


def decisions_of_all_processes(validation: Predictions | Pairs) -> tuple[Tensor, Tensor]:
    """Return the confidence (N,) and whether it was right (N,) float64 of all processes' rows, on the CPU."""
    parts = of_all_processes((validation.confidence.cpu(), validation.correct.double().cpu()))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
