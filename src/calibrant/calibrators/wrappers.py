"""Wrappers that keep a calibrator from changing decisions, or that bin the confidence of its decisions."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant._core.check import check_count
from calibrant._core.config import renewed
from calibrant._core.log_pairs import log_pair_of_top
from calibrant._core.numerics import in_row_chunks, rank_in, sort_down
from calibrant.calibrators.auto import MIN_ERRORS, AutoCalibrator, check_inner, held_out
from calibrant.calibrators.base import LOWEST, Calibrator, Identity, break_ties, narrowed, wrong_mass
from calibrant.calibrators.binned import CentredIsotonic
from calibrant.calibrators.one_vs_rest import BetaCalibration, PlattScaling, SplineCalibration
from calibrant.rows import Batch, MemoryRows, RowSource

_BINS = 10  # number of confidence bins; fewer bins increase the log-loss, more bins increase the ECE
_MARGIN = 1e-6  # lead of the decision in log-odds, larger than the rounding errors of log-probabilities in float32


class KeepDecision(Calibrator):
    """Wraps a calibrator so that the model's decision never changes.

    The wrapped calibrator returns probabilities p. If these are the true probabilities, probabilities q have the expected
    log-loss KL(p ‖ q) + H(p). The result is therefore the q with the smallest KL(p ‖ q) among those that keep the decision on
    top. If p prefers another class, the decision cannot be both kept and calibrated; the two classes then get (almost) the same
    probability.

    Args:
        calibrator: The calibrator to wrap.

    Examples:
        >>> from calibrant.calibrators import VectorScaling
        >>> z = torch.tensor([[1.0, 0.5], [0.5, 1.0], [2.0, 0.0], [0.0, 2.0]]).repeat(5, 1)
        >>> y = torch.tensor([1, 1, 0, 1] * 4 + [0, 1, 0, 0])
        >>> KeepDecision(VectorScaling()).fit(z, y)(z[:1]).argmax(dim=1)
        tensor([0])

    References:
        Csiszár 1975, I-divergence geometry (the nearest distribution under constraints).
    """

    preserves_argmax = True

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = check_inner(calibrator)

    def _fit(self, rows: RowSource) -> None:
        self.calibrator._learn(rows)

    def _transform(self, logits: Tensor) -> Tensor:
        decided = logits.argmax(dim=1, keepdim=True)
        free = torch.log_softmax(self.calibrator(logits).double(), dim=1)
        return break_ties(narrowed(lead(free, decided), logits.dtype), decided)


def lead(log_p: Tensor, decided: Tensor) -> Tensor:
    """Return the log q (N, K) with the smallest KL(p ‖ q) such that q_d ≥ q_j for the decision d (N, 1).

    The decision and the classes above it all get their mean probability. If s_1 ≥ s_2 ≥ … are the probabilities of the other
    classes, s_m is included while it is above the mean of p_d, s_1 … s_{m−1}. This satisfies the Karush–Kuhn–Tucker conditions,
    because the mean increases with each class that is included, and no other class is above the mean.
    """
    p = log_p.exp()
    own = p.gather(1, decided)
    rivals = sort_down(p.scatter(1, decided, -1.0))[0][:, :-1]
    counts = torch.arange(1, rivals.shape[1] + 1, dtype=p.dtype, device=p.device)
    means = torch.cat([own, (own + rivals.cumsum(dim=1)) / (counts + 1)], dim=1)
    joined = (rivals > means[:, :-1]).sum(dim=1, keepdim=True)  # if a class is not included, no later class is
    level = torch.where(joined > 0, means.gather(1, joined).log(), log_p.gather(1, decided))
    return torch.minimum(log_p, level).scatter(1, decided, level)


class ConfidenceBinning(Calibrator):
    """Wraps a calibrator and replaces the confidence of its decision with one of ten values, for a low calibration error.

    A calibrator with many parameters is over-confident on new rows, but not on the rows it was fitted on. A curve is therefore
    fitted to its out-of-fold confidences: ``AutoCalibrator`` chooses among Platt scaling, beta calibration, centred isotonic
    regression and splines. The new confidences are the means of this curve in ten bins of equal mass. The decision remains that
    of the wrapped calibrator, and the other classes keep their proportions. If no curve shows a gain, nothing is changed.

    Args:
        calibrator: The calibrator to wrap.
        folds: Number of folds, ≥ 2; the fit takes that many times as long.

    Attributes:
        edges: Bin edges (B − 1,) for the log-odds of the calibrator's confidence; empty if nothing is changed.
        values: The log-odds of each bin's new confidence (B,).

    Examples:
        >>> from calibrant.calibrators import Identity
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = 3 * torch.randn(2000, 3, generator=generator)
        >>> y = torch.softmax(z / 2, dim=1).multinomial(1, generator=generator)[:, 0]
        >>> fitted = ConfidenceBinning(Identity()).fit(z, y)
        >>> len(fitted.values), bool(fitted(z).softmax(dim=1).amax(dim=1).mean() < z.softmax(dim=1).amax(dim=1).mean())
        (10, True)

    References:
        Kumar, Liang, Ma 2019, Verified Uncertainty Calibration (means of scaled probabilities in bins of equal mass).
    """

    top_label = True
    decision_on_top = True

    edges: Tensor
    values: Tensor

    def __init__(self, calibrator: Calibrator, *, folds: int = 5) -> None:
        super().__init__()
        self.calibrator = check_inner(calibrator)
        self.folds = check_count(folds, name="folds", low=2)

    def _update_facts(self) -> None:
        self.preserves_argmax = self.calibrator.preserves_argmax

    def learned(self) -> str:
        """Return the number of distinct confidences as text, for the repr."""
        return f"{len(self.values)} confidence values" if len(self.values) else "confidence unchanged"

    def _fit(self, rows: RowSource) -> None:
        self.edges, self.values = torch.empty(2, 0, dtype=torch.float64, device=rows.device)
        self.calibrator._learn(rows)
        if float(rows.total(wrong_mass)) < MIN_ERRORS:
            return
        pairs = top_pairs(held_out([Identity(), renewed(self.calibrator)], rows, self.folds))
        curves = [PlattScaling(ridge=1.0), BetaCalibration(), CentredIsotonic(), SplineCalibration()]
        curve = AutoCalibrator(folds=self.folds, candidates=curves)
        curve._learn(MemoryRows(pairs))
        # if the unchanged confidence has most of the weight, ten values instead of many would only lose information
        if float(curve.weights[0]) > 0.5:
            return
        log_odds, order = pairs.logits[:, 1].sort()
        weights = pairs.row_weights[order]
        p = torch.softmax(curve(pairs.logits[order]), dim=1)[:, 1]
        ends = torch.searchsorted(weights.cumsum(0), weights.sum() * torch.arange(1, _BINS).to(weights) / _BINS)
        edges = torch.unique(log_odds[ends.clamp_max(len(log_odds) - 1)])
        self.edges = edges[edges < log_odds[-1]]  # the bin above the largest value would be empty, with a mean of 0/0
        index = rank_in(self.edges, log_odds)
        mass = torch.bincount(index, weights, minlength=len(self.edges) + 1)
        means = torch.bincount(index, weights * p, minlength=len(self.edges) + 1) / mass
        self.values = torch.logit(means).clamp(LOWEST, -LOWEST)

    def _transform(self, logits: Tensor) -> Tensor:
        answer: Tensor = self.calibrator(logits)
        if not self.values.shape[0]:
            return answer
        binned = in_row_chunks(partial(with_confidence, edges=self.edges, values=self.values), answer.double())
        return narrowed(binned, logits.dtype)


def top_pairs(answers: Iterable[tuple[Batch, Tensor]]) -> Batch:
    """Return rows with two classes, wrong and right, whose logits are 0 and the log-odds of the decision's probability.

    Args:
        answers: Rows with log-probabilities (M, n, K), of which the last of the M are used.
    """
    batches = []
    for batch, log_p in answers:
        log_q, log_rest, decided = log_pair_of_top(log_p[-1])
        log_odds = (log_q.gather(1, decided) - log_rest).clamp(LOWEST, -LOWEST)
        two = torch.cat([torch.zeros_like(log_odds), log_odds], dim=1)
        batches.append(Batch(two, (decided[:, 0] == batch.labels).long(), batch.weights, batch.groups))
    return Batch.cat(batches)


def with_confidence(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Return log-probabilities (N, K) float64 in which the decision has its bin's probability and stays on top.

    The other classes keep their proportions. If the bin's probability is below that of the runner-up, the two become almost equal.
    """
    log_q, log_rest, decided = log_pair_of_top(logits.double())
    others = log_q - log_rest
    runner_up = others.scatter(1, decided, -torch.inf).amax(dim=1, keepdim=True)
    log_odds = values[rank_in(edges, (log_q.gather(1, decided) - log_rest)[:, 0])][:, None]
    log_odds = torch.maximum(log_odds, runner_up + _MARGIN)
    answer = (others + logsigmoid(-log_odds)).scatter(1, decided, logsigmoid(log_odds))
    return answer.masked_fill(torch.isneginf(logits), -torch.inf)
