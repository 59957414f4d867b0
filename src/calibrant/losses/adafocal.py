"""AdaFocal: focal loss with one γ per confidence bin, adapted to the calibration error of the bin on validation data."""

from collections.abc import Callable
from functools import partial
from typing import Any, Self, Unpack

import torch
from torch import Tensor, distributed, nn

from calibrant._core.check import check_number, refuse, shown
from calibrant._core.numerics import apply_in_precision
from calibrant.binning import EqualMass
from calibrant.data.pairs import Pairs
from calibrant.data.predictions import Predictions
from calibrant.errors import InputError
from calibrant.losses.loss import LossOptions, WeightedNLL
from calibrant.scores import power_of_rest


class AdaFocalLoss(WeightedNLL):
    """Focal loss with one γ for each confidence bin; bins with γ < 0 use inverse focal loss.

    Call ``loss.update(validation_predictions)`` once per epoch. The bins have equal mass, that is, they contain equally many
    validation samples by *top-1* confidence. A training sample uses the γ of the bin that contains its *true-class*
    probability, so a misclassified sample falls into a low bin, as the authors intend. If a validation bin is over-confident,
    its γ grows; if it is under-confident, γ shrinks and changes sign below ``switch``. Before the first update, this is focal
    loss with ``gamma_init``. Keep one object for the whole training run: an object that is created for every batch never
    adapts.

    Args:
        bins: Number of bins B ≥ 1.
        rate: Adaptation rate λ ≥ 0.
        switch: S ≥ 0; a γ with |γ| < S becomes S with the opposite sign.
        gamma_min: Lowest γ, < 0.
        gamma_max: Highest γ, > 0.
        gamma_init: The γ of all bins before the first update.
        detach_weight: Treat the weight as a constant in the gradient. γ itself is always treated as a constant.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: Class weights (K,), or None.
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
        """Return, as text, the arguments that differ from their defaults, and the number of updates."""
        return ", ".join(part for part in (super().extra_repr(), f"updates={int(self.updates)}") if part)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # model.half() must not round γ: Eq. 8 multiplies it by factors within 1 % of 1, which half precision loses
        apply_in_precision(self, partial(super()._apply, fn, recurse), but="weight")
        return self

    @torch.no_grad()
    def update(self, validation: Predictions | Pairs) -> None:
        """Update each bin's γ from the calibration error of the bin on ``validation``, and the bin edges from the confidences.

        With E = confidence − accuracy in the bin, γ ← γ·e^{λE} if γ > 0, and γ·e^{−λE} otherwise. The sign switch follows, and then
        clipping to [``gamma_min``, ``gamma_max``]. A γ keeps its bin index while the edges move; an empty bin has E = 0.

        Args:
            validation: Labelled predictions of the current network, in evaluation mode. In distributed training, each process
                passes its own part, and every process is updated with all parts together.
        """
        if not isinstance(validation, Predictions | Pairs):
            remedy = "pass Predictions.collect(model, validation_loader)"
            raise refuse("Predictions with at least one labelled row", shown(validation), remedy)
        confidence, correct = decisions_of_all_processes(validation)
        if not len(confidence):
            raise refuse("Predictions with at least one labelled row", "no rows", "check how the rows were selected")
        binning = EqualMass(bins=self.bins, ties="interpolated")
        gap = binning.table(confidence, correct).gap
        self.gammas.copy_(self.adapted(self.gammas, gap.to(self.gammas.device)))
        self.edges.copy_(binning.edges(confidence))
        self.updates += 1

    def adapted(self, gammas: Tensor, gap: Tensor) -> Tensor:
        """Return the updated γ (B,) for bins with γ = ``gammas`` (B,) and E = ``gap`` (B,), the confidence minus the accuracy."""
        # Eq. 8: γ > 0 is focal loss, whose confidence decreases as γ grows; γ < 0 is inverse focal loss, whose confidence
        # increases with |γ|. The factors keep the sign and are such that over-confidence increases γ in both cases.
        grown = gammas * torch.exp(self.rate * torch.where(gammas > 0, gap, -gap))
        # Algorithm 1: where |γ| < S, γ becomes ∓S, because the multiplication above never changes a sign
        switched = torch.where(grown > 0, -1, 1).to(grown.dtype) * self.switch
        return torch.where(grown.abs() < self.switch, switched, grown).clamp(self.gamma_min, self.gamma_max)

    def gamma_of(self, p: Tensor) -> Tensor:
        """Return the γ for each true-class probability ``p``, from bins [lo, hi) whose first and last have no outer edge."""
        inner = self.edges[1:-1].to(p)  # .to(p): the loss also works if it was not moved to the model's device
        return self.gammas.to(p)[torch.bucketize(p.detach(), inner, right=True)]

    def sample_weight(self, log_p: Tensor, log_not_p: Tensor) -> Tensor:
        """Return (1 − p)^γ where γ ≥ 0 and (1 + p)^|γ| where γ < 0."""
        p = torch.exp(log_p)
        gamma = self.gamma_of(p)
        return power_of_rest(log_not_p, gamma.clamp_min(0)) * torch.exp(-gamma.clamp_max(0) * torch.log1p(p))


def require_update(loss: nn.Module, remedy: str) -> None:
    """Raise an error at the end of a training run in which ``loss`` was never updated, so that it never adapted.

    Raises:
        InputError: If ``loss`` counts its updates and there were none.
    """
    if getattr(loss, "updates", 1) == 0:
        raise InputError(f"{type(loss).__name__}.update once per epoch", "no call in the whole training run", remedy)


def of_all_processes(part: Any, group: Any = None) -> list[Any]:
    """Return the ``part`` of every process in order of rank. Every process must call this function, even without data."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [part]
    parts = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(parts, part, group=group)
    return parts


def decisions_of_all_processes(validation: Predictions | Pairs) -> tuple[Tensor, Tensor]:
    """Return the confidences (N,) and whether the decisions are correct (N,), float64, for the rows of all processes, on the CPU."""
    parts = of_all_processes((validation.confidence.cpu(), validation.correct.double().cpu()))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
