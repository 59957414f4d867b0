"""Penalties on a whole batch: maximum mean calibration error, difference of confidence and accuracy by class, soft-binned ECE."""

from typing import Annotated, Any, Literal, Unpack

import torch
from torch import Tensor

from calibrant._core.constraints import Bins, NonNegative, Number, Positive
from calibrant._core.numerics import row_chunks
from calibrant._objective.statistics import gradient_in_blocks, in_blocks, promoted
from calibrant._objective.true_class import confidence_with_logits
from calibrant.losses.penalty import BatchPenalty, PenaltyOptions

_SMALLEST = 1e-24  # MMCE² below this is taken as 0: the rounding error of the float64 sums stays below it


class MMCELoss(BatchPenalty):
    """base + λ MMCE, the kernel mean embedding distance between confidence and correctness under a Laplacian kernel.

    Use batches of at least 100 and a lower learning rate: on small batches the penalty can make training diverge.

    Args:
        strength: λ ≥ 0.
        kernel_width: w ≥ 0.01 of exp(−|r − r′|/w).
        weighted: MMCE_w: correct and misclassified samples have equal total weight, however few they are; 0 for a batch
            of only one kind.
        normalisation: ``"kumar"`` is the paper's, with the square root. ``"torrvision"`` is that of the reference code
            of Mukhoti et al.: unweighted it has no square root, weighted it divides by the pair counts twice.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights of the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        >>> MMCELoss()(logits, torch.tensor([0, 0, 1]))
        tensor(2.7924)

    References:
        Kumar, Sarawagi, Jain 2018, Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings,
        Eq. 4 and §4.2.
    """

    def __init__(
        self,
        strength: NonNegative = 2.0,
        kernel_width: Annotated[float, Number(0.01)] = 0.4,
        weighted: bool = True,
        normalisation: Literal["kumar", "torrvision"] = "kumar",
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(strength, **options)
        self.kernel_width = kernel_width
        self.weighted = weighted
        self.normalisation = normalisation

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and MMCE () of the batch."""
        logits, confidence, predicted = confidence_with_logits(logits)
        correct = (predicted == labels).to(torch.float64)
        return logits, self.of_confidence(confidence.to(torch.float64), correct, kept.to(torch.float64))

    def of_confidence(self, confidence: Tensor, correct: Tensor, kept: Tensor) -> Tensor:
        """Return MMCE () of ``confidence`` (N,) in [0, 1] and ``correct`` (N,), 0 or 1, over the rows where ``kept`` (N,) is 1."""
        reference = self.normalisation == "torrvision"
        if not self.weighted:
            square = self._square(confidence, kept * (correct - confidence) / kept.sum().clamp_min(1))
            return square if reference else _root(square)
        # Kumar et al. 2018 §4.2: residuals of correct rows (1 − r) and of wrong rows (−r), each averaged over its own kind
        is_correct, is_wrong = kept * correct, kept * (1 - correct)
        n_correct, n_wrong = is_correct.sum(), is_wrong.sum()
        power = 2 if reference else 1
        of_correct = is_correct * (1 - confidence) / n_correct.clamp_min(1) ** power
        signed = of_correct - is_wrong * confidence / n_wrong.clamp_min(1) ** power
        both = (n_correct > 0) & (n_wrong > 0)
        square = self._square(confidence, torch.where(both, signed, 0))
        return torch.where(both, torch.sqrt(square + 1e-10), 0) if reference else _root(square)

    def _square(self, r: Tensor, a: Tensor) -> Tensor:
        return (a * laplacian_sums(r, a, width=self.kernel_width)).sum()


def laplacian_sums(r: Tensor, a: Tensor, *, width: float) -> Tensor:
    """Return Σ_j a_j exp(−|r_i − r_j|/width) (N,) for ``r`` (N,) in [0, 1] and ``a`` (N,), both float64.

    For r_j < r_i the kernel factors into exp(r_j/width) · exp(−r_i/width), and likewise for r_j > r_i, so cumulative sums
    over the sorted sample give all N values. Ties are added separately, with gradient 0 for |r_i − r_j|, so that the order
    in which they are sorted has no effect.
    """
    ranked, order = torch.sort(r.detach())
    start = torch.searchsorted(ranked, r.detach())
    stop = torch.searchsorted(ranked, r.detach(), right=True)
    scaled = r / width
    zero = a.new_zeros(1)
    below = torch.cat([zero, torch.cumsum((a * torch.exp(scaled))[order], 0)])[start] * torch.exp(-scaled)
    upwards = torch.cumsum((a * torch.exp(-scaled))[order].flip(0), 0).flip(0)
    above = torch.cat([upwards, zero])[stop] * torch.exp(scaled)
    totals = torch.cat([zero, torch.cumsum(a[order], 0)])
    return below + above + totals[stop] - totals[start]


def _root(square: Tensor) -> Tensor:
    """Return √square, 0 with gradient 0 where it is 0 up to rounding (there the slope is infinite, or NaN below 0)."""
    positive = square > _SMALLEST
    return torch.where(positive, torch.sqrt(torch.where(positive, square, 1.0)), 0.0)


class MDCALoss(BatchPenalty):
    """base + λ (1/K) Σ_k |mean p_k − frequency of label k|: each class's mean probability should equal its batch frequency.

    The penalty is noisy where a batch holds few samples per class: prefer batches of several times K.

    Args:
        strength: λ ≥ 0.
        base: The loss to which the penalty is added; None is cross-entropy, the authors report focal loss with γ = 1 to 3.
        reduction: ``"mean"`` or ``"sum"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights of the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> MDCALoss(1.0)(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        tensor(1.1452)

    References:
        Hebbalaguppe et al. 2022, A Stitch in Time Saves Nine: A Train-Time Regularizing Loss for Improved Neural
        Network Calibration, Eq. 3.
    """

    def __init__(self, strength: NonNegative = 1.0, **options: Unpack[PenaltyOptions]) -> None:
        super().__init__(strength, **options)

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and (1/K) Σ_k |mean p_k − frequency of label k| ()."""
        count = kept.sum().clamp_min(1)
        totals = kept.new_zeros(logits.shape[1]).index_add(0, labels, kept)
        logits, sums = probability_sums(logits, kept)
        return logits, (sums - totals).abs().mean() / count


def probability_sums(logits: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``logits`` for further use, and Σ_i kept_i p_ik (K,) with p = softmax(logits); ``kept`` (N,) is 0 or 1."""
    if in_blocks(logits):
        pair: tuple[Tensor, Tensor] = _SumsInBlocks.apply(logits, kept)
        return pair
    return logits, _summed_softmax(logits, kept)


def _summed_softmax(logits: Tensor, kept: Tensor) -> Tensor:
    return (torch.softmax(promoted(logits), dim=1) * kept[:, None]).sum(dim=0)


class _SumsInBlocks(torch.autograd.Function):
    """``_summed_softmax`` in blocks of rows: nothing of size N × K is saved for the backward pass, and the gradient is written once."""

    @staticmethod
    def forward(logits: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        sums = kept.new_zeros(logits.shape[1])
        blocks = list(row_chunks(*logits.shape, itemsize=4, device=logits.device))
        work = sums.new_empty((blocks[0].stop, logits.shape[1]))
        for rows in blocks:
            p = torch.softmax(logits[rows].float(), dim=1, out=work[: rows.stop - rows.start])
            sums += p.mul_(kept[rows, None]).sum(dim=0)
        return logits.view_as(logits), sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, through: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, None]:
        logits, kept = ctx.saved_tensors
        if grad is None:
            return through, None
        if torch.is_grad_enabled():  # create_graph=True: repeat the forward pass with differentiable operations
            own = torch.autograd.grad(_summed_softmax(logits, kept), logits, grad, create_graph=True)[0]
            return own if through is None else through + own, None

        def write(rows: slice, out: Tensor) -> None:
            # d Σ_k g_k p_ik / d z_ij = p_ij (g_j − Σ_k g_k p_ik)
            p = torch.softmax(logits[rows].float(), dim=1)
            torch.mul(p, grad, out=out)
            out.sub_(out.sum(dim=1, keepdim=True) * p).mul_(kept[rows, None])

        return gradient_in_blocks(logits, through, write), None


class SoftBinnedECELoss(BatchPenalty):
    """base + λ (Σ_b (S_b/N) |A_b − C_b|^p)^(1/p), where each sample belongs to every bin with a membership weight.

    The weight of sample i in bin b is softmax_b(−(c_i − centre_b)²/T); S_b, A_b and C_b are the size, the accuracy and
    the mean confidence under these weights. Correctness is a constant in the gradient.

    Args:
        strength: λ ≥ 0.
        bins: B ≥ 1 bins of equal width.
        temperature: T > 0 of the membership weights; as T → 0 each sample belongs to one bin only.
        norm: p ≥ 1.
        base: The loss to which the penalty is added; None is cross-entropy.
        reduction: ``"mean"`` or ``"sum"``; with ``base``, set this and the next two arguments there.
        weight: (K,) class weights of the base, or None.
        ignore_index: Rows with this label are ignored.

    Examples:
        >>> SoftBinnedECELoss(1.0, bins=1)(torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([0, 1]))
        tensor(0.7697)

    References:
        Karandikar et al. 2021, Soft Calibration Objectives for Neural Networks, §4.1.
    """

    def __init__(
        self,
        strength: NonNegative = 1.0,
        bins: Bins = 15,
        temperature: Positive = 0.01,
        norm: Annotated[float, Number(1)] = 2.0,
        **options: Unpack[PenaltyOptions],
    ) -> None:
        super().__init__(strength, **options)
        self.bins = bins
        self.temperature = temperature
        self.norm = norm

    def penalty(self, logits: Tensor, labels: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``logits`` for the base, and the soft-binned calibration error () of the batch."""
        logits, confidence, predicted = confidence_with_logits(logits)
        confidence = confidence.to(torch.float64)
        centres = (torch.arange(self.bins, dtype=torch.float64, device=logits.device) + 0.5) / self.bins
        distance = (confidence[:, None] - centres).square() / self.temperature
        # Σ_b of a row's memberships is 1, so that Σ_b S_b = N as for hard bins
        membership = torch.softmax(-distance, dim=1) * kept[:, None].to(torch.float64)
        size = membership.sum(dim=0)
        gap = (membership * ((predicted == labels).to(torch.float64) - confidence)[:, None]).sum(dim=0)
        filled = size > 0
        mean = torch.where(filled, gap, 0) / torch.where(filled, size, 1)
        total = (size / kept.sum().clamp_min(1) * mean.abs() ** self.norm).sum()
        zero = total == 0  # where the root has an infinite derivative
        return logits, torch.where(zero, 0, torch.where(zero, 1, total) ** (1 / self.norm))
