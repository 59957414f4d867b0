"""A calibrator that chooses among candidates by cross-validation, and changes nothing unless a gain can be shown.

Each candidate is fitted on four fifths of the rows and scored on the remaining fifth, in turn. The candidates, including the
uncalibrated model, are then mixed with weights that depend on their log-loss.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant._core.check import check_count, refuse
from calibrant._core.check import shown as described
from calibrant._core.config import config_of, renewed, shown
from calibrant._core.notebook import to_html
from calibrant._core.warn import report_progress
from calibrant.calibrators.affine import BiasScaling, StructuredMatrixScaling, StructuredVectorScaling
from calibrant.calibrators.base import Calibrator, Chain, Identity, mix_with_uniform, narrowed, with_logits, wrong_mass
from calibrant.calibrators.binned import CentredIsotonic
from calibrant.calibrators.focal import FocalTemperatureScaling
from calibrant.calibrators.folds import fold_by_scores, in_random_sample
from calibrant.calibrators.kernel import KernelScaling
from calibrant.calibrators.one_vs_rest import BetaCalibration, SplineCalibration
from calibrant.calibrators.temperature import (
    PRIOR,
    EnsembleTemperatureScaling,
    TemperatureScaling,
    fit_mixture_weights,
)
from calibrant.errors import CalibrantError, CalibrantWarning, FitError
from calibrant.rows import Batch, MemoryRows, RowSource

# These constants were chosen on half of 44 real data sets, split by model family, and evaluated on the other half.
_RATE = 0.5  # rate of the exponential weights; 1 would be Bayes' rule, ½ is robust to a wrong model
MIN_ERRORS = 3  # with fewer wrong rows, nothing can be learned about errors
# The uncalibrated model has this prior weight relative to any other candidate. The weight doubles at _FEW_ERRORS wrong rows, and grows
# further with fewer, because less is then known about possible harm. For two classes, where all candidates fit the same noise, it
# is multiplied by _TWO_CLASSES.
_NOTHING = 5.0
_FEW_ERRORS = 60.0
_TWO_CLASSES = 4.0
_STACKED = 1000  # with at least this many rows, the weights are those of the best mixture if the uncalibrated model is excluded
_LIGHT = 0.01  # candidates with a smaller weight cost time and hardly change the result
# The following constants concern speed and numerics.
# With more classes, matrices, kernels and curves take longer than all other candidates together and gain little
_FEW_CLASSES = 20
_SAMPLE = 1 << 13  # candidates are compared on this many rows if there are more than twice as many
_ROUGH = 1e-5  # gradient tolerance in nats for the fits on folds, which are only scored
_MIXED = tuple(10.0**power for power in range(-7, -1))  # candidates for the ε that replaces exact zeros


@dataclass(frozen=True)
class Trial:
    """The result for one candidate.

    Attributes:
        name: The candidate as text.
        loss: Cross-fitted mean log-loss in nats; +inf if the candidate could not be fitted or was not tried.
        gain: Log-loss of the uncalibrated model minus ``loss``.
        error: Standard error of the gain, over rows.
        weight: The weight of the candidate in the mixture, in [0, 1].
    """

    name: str
    loss: float
    gain: float
    error: float
    weight: float


@dataclass(frozen=True)
class Evidence:
    """The evidence for the choice that an ``AutoCalibrator`` made.

    Attributes:
        rows: Number N of validation rows.
        wrong: Total weight of the rows whose decision was wrong.
        folds: Number of cross-fitting folds.
        trials: One result for each candidate.
        verdict: The choice, as a sentence.
    """

    rows: int
    wrong: float
    folds: int
    trials: tuple[Trial, ...]
    verdict: str

    _repr_html_ = to_html

    def __str__(self) -> str:
        width = max(len(trial.name) for trial in self.trials)
        head = f"{self.rows} rows, {self.wrong:g} wrong, {self.folds}-fold cross-fitted log-loss:"
        lines = [self.verdict, head, f"  {'candidate':{width}}  log-loss      gain  ± s.e.   weight"]
        for one in self.trials:
            numbers = f"{one.loss:8.4f}  {one.gain:+8.4f}  {one.error:.4f}  {one.weight:7.3f}"
            lines.append(f"  {one.name:{width}}  {'not tried' if math.isinf(one.loss) else numbers}")
        return "\n".join(lines)


class AutoCalibrator(Calibrator):
    """A cross-validated mixture of calibrators, which leaves the logits unchanged unless a gain can be shown.

    Each candidate is fitted without one of five folds and scored on that fold, in turn. Candidate m gets the weight
    w_m ∝ π_m exp(0.5 · Σ_i gain_mi), where gain_mi is the log-loss of the uncalibrated model on row i minus that of the
    candidate. The prior π of the uncalibrated model is 5 · (1 + 60 / wrong rows) times that of any other candidate, and four
    times more with two classes. The result is log Σ_m w_m p_m, with candidates fitted on all rows; candidates with a weight
    below 1 % are left out. With fewer than 3 wrong rows, nothing is changed. With at least 1,000 rows, and if the uncalibrated
    model has been left out, the weights are those of the mixture with the lowest log-loss on the folds.

    A row's fold depends on its scores and not on the order of the rows, and rows of one group share a fold. With more than
    16,384 rows, the candidates are compared on a random sample of about 8,192 rows, and those in use are fitted on all rows.

    A class that the model often expects but that never occurs becomes rare. Exact zeros are replaced first, by
    (1 − ε) p + ε / K. Among six values of ε, the one is used whose temperature scaling has the lowest cross-fitted log-loss. In
    rows with several classes above 0, zeros that were never the true class are kept.

    Args:
        folds: Number of folds, ≥ 2.
        candidates: Calibrators to try in addition to the uncalibrated model. None tries ensemble temperature scaling; focal
            temperature scaling, alone and followed by structured matrix scaling with a fifth of the published ridge (for more
            than 20 classes, followed by structured vector scaling, and by bias scaling); for up to 20 classes, centred isotonic
            regression, alone and followed by the same matrix scaling; for up to 20 classes and 16,384 rows, focal temperature
            scaling followed by bias scaling and kernel scaling; for two classes, beta calibration and splines.

    Attributes:
        evidence: The candidates, their scores and the choice; ``print(calibrator.evidence)`` shows a table.
        weights: The weights (M,) of the uncalibrated model and of the candidates, in order; they sum to 1.
        epsilon: The ε that replaces exact zeros; 0 if there are no zeros or they are kept.

    Raises:
        InputError: If a candidate needs more than logits or does not calibrate all classes.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = 5 * torch.randn(400, 3, generator=generator)
        >>> y = torch.multinomial(torch.softmax(z / 3, dim=1), 1, generator=generator)[:, 0]
        >>> fitted = AutoCalibrator().fit(z, y)
        >>> fitted.evidence.verdict.split(":")[0]
        'calibrated'

    References:
        Juditsky, Rigollet, Tsybakov 2008, Learning by mirror averaging (exponential weights); Yang 2004, Aggregating
        regression procedures to improve performance; Wolpert 1992, Stacked generalization.
    """

    weights: Tensor
    losses: Tensor
    errors: Tensor
    counts: Tensor
    epsilon: Tensor

    def __init__(self, *, folds: int = 5, candidates: Sequence[Calibrator] | None = None) -> None:
        super().__init__()
        self.folds = check_count(folds, name="folds", low=2)
        self.candidates = None if candidates is None else [check_inner(one) for one in candidates]
        if self.candidates == []:
            raise refuse("at least one candidate", "none", "pass a calibrator such as TemperatureScaling()")
        self.members: Any = nn.ModuleList([Identity()])  # once fitted, followed by the candidates that were tried

    @property
    def evidence(self) -> Evidence | None:
        """The candidates, their scores and the choice; None before ``fit``."""
        if not self.fitted:
            return None
        losses, weights, errors = (part.tolist() for part in (self.losses, self.weights, self.errors))
        found = zip(self.members, losses, errors, weights, strict=True)
        trials = tuple(Trial(_name(m), loss, losses[0] - loss, error, weight) for m, loss, error, weight in found)
        rows, wrong, folds = self.counts.tolist()
        return Evidence(int(rows), wrong, int(folds), trials, _describe_choice(trials, wrong))

    def learned(self) -> str:
        """Return the calibrators in use and their weights as text, for the repr."""
        pairs = zip(self.members, self.weights.tolist(), strict=True)
        used = " + ".join(f"{weight:.2f} {_name(one, settings=False)}" for one, weight in pairs if weight > 0)
        return f"uses {used}" + (f", zeros mixed by {float(self.epsilon):g}" if float(self.epsilon) else "")

    def _pool(self, classes: int, rows: int, wrong: float) -> nn.ModuleList:
        """Return ``Identity`` and the candidates, unfitted."""
        usual = self.candidates is None
        candidates = usual_candidates(classes, rows) if usual else [renewed(one) for one in self.candidates or ()]
        return nn.ModuleList([Identity(), *(candidates if wrong >= MIN_ERRORS else [])])

    def _update_facts(self) -> None:
        self.preserves_argmax = self.fitted and all(one.preserves_argmax for one in self.members if one.fitted)
        # plain numbers, so that a traced forward pass does not depend on the values of tensors
        self._weights, self._epsilon = self.weights.tolist(), float(self.epsilon) if self.epsilon.numel() else 0.0

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if len(counts := state_dict.get(prefix + "counts", ())):
            self.members = self._pool(int(state_dict[prefix + "classes"]), int(counts[0]), float(counts[1]))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _fit(self, rows: RowSource) -> None:
        sample: RowSource = rows  # the rows in memory on which the candidates are compared
        if rows.count > 2 * _SAMPLE:
            sample = MemoryRows(Batch.cat(rows.collected(in_random_sample, _SAMPLE / rows.count)))
        elif not isinstance(rows, MemoryRows):
            sample = MemoryRows(rows.gathered())
        epsilon = _mixing(sample, self.folds)
        if epsilon:
            sample, rows = (some.map(with_logits, _mix_zeros, epsilon) for some in (sample, rows))
        wrong, compared = float(rows.total(wrong_mass)), float(sample.total(wrong_mass))
        self.members = self._pool(rows.classes, rows.count, wrong)
        weight, losses = cross_fitted(self.members, sample, self.folds)
        self.losses = weight @ losses / weight.sum()
        if not math.isfinite(float(self.losses[0])):
            raise FitError("a finite log-loss of the uncalibrated logits", "inf", "check the range of the logits")
        gain = losses[:, :1] - losses
        spread = (weight @ (gain - (self.losses[0] - self.losses)).square()).sqrt() / weight.sum()
        self.errors = spread.nan_to_num(nan=math.inf)  # NaN if a candidate has no finite loss
        self.weights = mixing_weights(gain, weight, wrong=compared, classes=rows.classes)
        pairs = list(zip(self.members, self.weights.tolist(), strict=True))
        done = iter(fit_members([member for member, one in pairs if one > 0], rows))
        self.members = nn.ModuleList(m if one > 0 and next(done) else renewed(m) for m, one in pairs)
        self.epsilon = torch.tensor(epsilon, dtype=torch.float64)
        self.counts = torch.tensor([rows.count, wrong, self.folds], dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        inputs = _mix_zeros(logits, self._epsilon) if self._epsilon else logits
        used = [(self._weights[m], member) for m, member in enumerate(self.members) if member.fitted]
        if len(used) == 1:
            answer = torch.as_tensor(used[0][1](inputs))
        else:
            parts = [torch.log_softmax(member(inputs), dim=1) + math.log(weight) for weight, member in used]
            answer = torch.logsumexp(torch.stack(parts), dim=0)
        return narrowed(answer, logits.dtype)


def usual_candidates(classes: int, rows: int) -> list[Calibrator]:
    """Return the default candidates for this number of classes and rows."""

    def focal() -> Calibrator:
        return FocalTemperatureScaling(gammas=(-0.9, 5.0), prior=PRIOR)

    def matrix() -> Calibrator:
        return StructuredMatrixScaling(strength=0.2, prior=PRIOR)

    usual = [EnsembleTemperatureScaling(prior=PRIOR), focal()]
    if classes > _FEW_CLASSES:
        return [*usual, Chain(focal(), BiasScaling()), Chain(focal(), StructuredVectorScaling(prior=PRIOR))]
    usual += [Chain(focal(), matrix()), CentredIsotonic(), Chain(CentredIsotonic(), matrix())]
    if rows <= 2 * _SAMPLE:
        usual.append(Chain(focal(), BiasScaling(), KernelScaling()))
    return [*usual, BetaCalibration(), SplineCalibration()] if classes == 2 else usual


def check_inner(calibrator: Any) -> Calibrator:
    """Return ``calibrator`` if it calibrates all classes and needs only logits, and raise an error otherwise."""
    if not isinstance(calibrator, Calibrator) or calibrator.top_label or calibrator.needs_features:
        remedy = "pass a calibrator such as TemperatureScaling()"
        raise refuse("a calibrator that calibrates all classes and needs only logits", described(calibrator), remedy)
    return calibrator


# Exact zeros.


def _mix_zeros(logits: Tensor, epsilon: float) -> Tensor:
    """Return log((1 − ε) p + ε / K) (N, K) for p = softmax(logits)."""
    return mix_with_uniform(torch.log_softmax(logits.double(), dim=1), epsilon)


def _mixing(rows: RowSource, folds: int) -> float:
    """Return the ε that replaces exact zeros, or 0 if there are no zeros or all of them are masks.

    A zero is a mask if its class is not the true one and its row has several classes above 0.
    """
    if not bool(rows.total(_telling_zeros)):
        return 0.0
    temperature, losses = TemperatureScaling(prior=PRIOR), []
    for epsilon in _MIXED:
        weight, found = cross_fitted([Identity(), temperature], rows.map(with_logits, _mix_zeros, epsilon), folds)
        losses.append(float(weight @ found[:, 1]))
    return _MIXED[losses.index(min(losses))]


def _telling_zeros(batch: Batch) -> Tensor:
    zero = torch.isneginf(batch.logits)
    alone = zero.sum(dim=1) == zero.shape[1] - 1
    return (zero.gather(1, batch.labels[:, None])[:, 0] | alone).sum()


# Out-of-fold log-losses of the candidates, and the weights that follow from them.


def cross_fitted(members: Sequence[Calibrator], rows: RowSource, folds: int) -> tuple[Tensor, Tensor]:
    """Return the weights (N,) and the out-of-fold log-losses (N, M) of all rows; inf where a member cannot be fitted.

    Args:
        members: Calibrators, the first of which leaves the logits unchanged. They are fitted in place, and each fold's fit starts
            from that of the previous fold.
        rows: The data.
        folds: Number of folds.

    Returns:
        Weights and log-losses, with the rows in the order of their folds.
    """
    weights, losses = [], []
    for batch, log_p in held_out(members, rows, folds):
        weights.append(batch.row_weights.cpu())
        losses.append(-log_p.gather(2, batch.labels.expand(len(log_p), -1)[:, :, None])[:, :, 0].T.cpu())
    return torch.cat(weights), torch.cat(losses)


def held_out(members: Sequence[Calibrator], rows: RowSource, folds: int) -> Iterator[tuple[Batch, Tensor]]:
    """Yield the rows of each fold, with their log-probabilities (M, n, K) under each member fitted on the other folds.

    The log-probabilities of a member that cannot be fitted are −inf.

    Args:
        members: Calibrators, the first of which leaves the logits unchanged.
        rows: The data.
        folds: Number of folds.

    Yields:
        The rows of a fold and their log-probabilities.
    """
    whole = rows.gathered()
    fold = fold_by_scores(whole, folds)
    for k in range(folds):
        held, rest = whole.selected(fold == k), whole.selected(fold != k)
        if not len(held):
            continue
        report_progress(f"{len(members) - 1} candidates, fold {k + 1} of {folds}")
        done = fit_members(members[1:], MemoryRows(rest), _ROUGH) if len(rest) else [False] * len(members[1:])
        z = held.logits.double()
        answers = [
            m(z).log_softmax(1) if ok else torch.full_like(z, -math.inf)
            for m, ok in zip(members[1:], done, strict=True)
        ]
        yield held, torch.stack([z.log_softmax(dim=1), *answers])


def fit_members(members: Sequence[Calibrator], rows: RowSource, tolerance: float | None = None) -> list[bool]:
    """Fit every member on the same rows, and return which fits succeeded. Chains with equal first stages share the fits of these.

    Args:
        members: Calibrators.
        rows: The data.
        tolerance: Gradient in nats at which a fit may stop; None for each method's default.

    Returns:
        For each member, whether its fit succeeded.
    """
    fits: dict[str, Calibrator | None] = {}  # the fitted stage, by the stages up to and including it
    after: dict[str, RowSource] = {}  # the rows after these stages
    done = []
    for member in members:
        key, inputs, fitted = "", rows, None
        for stage in member.stages if isinstance(member, Chain) else [member]:
            if fitted is not None:
                inputs = after[key] = after.get(key) or inputs.map(with_logits, fitted)
            key += f" {type(stage)} {config_of(stage)}"
            if key not in fits:
                stage.tolerance = tolerance
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", CalibrantWarning)  # the score reflects a fit that ends at its bound
                    try:
                        stage._learn(inputs)
                        fits[key] = stage
                    except CalibrantError:
                        fits[key] = None
            fitted = fits[key]
            if fitted is None:
                break
            if fitted is not stage:
                stage.load_state_dict(fitted.state_dict())
        if fitted is not None:
            member._note(rows)
        done.append(fitted is not None)
    return done


def mixing_weights(gain: Tensor, weight: Tensor, *, wrong: float, classes: int) -> Tensor:
    """Return the mixture weights (M,) of the members, the first of which leaves the logits unchanged.

    Args:
        gain: Gains in log-loss (N, M) on held-out rows.
        weight: Row weights (N,).
        wrong: Total weight of the rows whose decision is wrong.
        classes: Number of classes K.

    Returns:
        The weights, which sum to 1.
    """
    odds = _NOTHING * (_TWO_CLASSES if classes == 2 else 1.0) * (1 + _FEW_ERRORS / max(wrong, 1.0))
    log_weights = _RATE * torch.nan_to_num(weight @ gain, neginf=-math.inf)
    log_weights[0] += math.log(odds)
    weights = _drop_negligible(torch.softmax(log_weights, dim=0))
    if float(weights[0]) or len(gain) < _STACKED:
        return weights
    known = torch.isfinite(gain).all(dim=0)
    # a factor common to all probabilities of a row does not matter, so gains can replace log-probabilities
    p = torch.exp(gain[:, known] - gain[:, known].amax(dim=1, keepdim=True))
    stacked = fit_mixture_weights(p, weight)
    return _drop_negligible(torch.zeros_like(weights).index_copy(0, torch.nonzero(known)[:, 0], stacked))


def _drop_negligible(weights: Tensor) -> Tensor:
    kept = torch.where(weights < _LIGHT, 0.0, weights)
    return kept / kept.sum()


def _name(member: Calibrator, *, settings: bool = True) -> str:
    """Return the class name of a calibrator, or of the stages of a chain, with or without settings."""
    if isinstance(member, Chain):
        return f"Chain({', '.join(_name(stage, settings=settings) for stage in member.stages)})"
    return f"{type(member).__name__}({shown(member)})" if settings else type(member).__name__


def _describe_choice(trials: Sequence[Trial], wrong: float) -> str:
    if wrong < MIN_ERRORS:
        return f"abstained: {wrong:g} wrong rows are too few to learn from (at least {MIN_ERRORS} are needed)"
    if trials[0].weight == 1:
        return "abstained: no candidate showed a gain"
    used = [trial for trial in trials if trial.weight > 0]
    if all(trial.gain <= 0 for trial in used):
        weight = f"{1 - trials[0].weight:.2f} of the weight is on {len(used) - 1} of the candidates"
        return f"hardly changed: no candidate showed a gain, and {weight}"
    tried = sum(math.isfinite(trial.loss) for trial in trials)  # excludes candidates that could not be fitted
    gain = sum(trial.weight * trial.gain for trial in used)
    return f"calibrated: {len(used)} of {tried} candidates in use, mean cross-fitted gain {gain:.4f} nats"
