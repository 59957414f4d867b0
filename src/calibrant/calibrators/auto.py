"""The calibrator that chooses itself, and does nothing where no gain can be shown.

Every candidate is fitted on four fifths of the rows and scored on the fifth left out, in turn; candidates and doing nothing are then mixed
by the log-loss that they saved. What the rows say is believed: a class that has none becomes rare.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant import binning
from calibrant._core.check import check_count
from calibrant._core.check import shown as described
from calibrant._core.config import build, config_of, renewed, shown
from calibrant._core.notebook import to_html
from calibrant._core.warn import report_progress
from calibrant.calibrators.affine.bias_scaling import BiasScaling
from calibrant.calibrators.affine.fit import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.calibrators.affine.kernel_scaling import KernelScaling
from calibrant.calibrators.base import Calibrator, Identity
from calibrant.calibrators.chain import Chain
from calibrant.calibrators.chunks import narrowed, through, with_logits, wrong_mass
from calibrant.calibrators.ensemble import EnsembleTemperatureScaling
from calibrant.calibrators.focal import FocalTemperatureScaling
from calibrant.calibrators.folds import fold_by_scores, fold_of, in_random_sample, tied
from calibrant.calibrators.one_vs_rest.isotonic import CentredIsotonic
from calibrant.calibrators.one_vs_rest.maps import BetaCalibration, SplineCalibration
from calibrant.calibrators.simplex import MixtureChunk, fit_mixture_weights
from calibrant.calibrators.temperature import TemperatureScaling, mix_with_uniform
from calibrant.errors import CalibrantError, CalibrantWarning, FitError, InputError
from calibrant.rows import Batch, MemoryRows, RowSource

# Chosen on half of 44 real sets, split by model family, and evaluated on the other half.
_RATE = 0.5  # of exponential weights: 1 would be Bayes' rule, ½ allows for a model that is wrong
MIN_ERRORS = 3  # wrong rows, below which nothing can be learned about being wrong
_NOTHING = 5.0  # how much likelier than any other candidate doing nothing is before the data,
_FEW_ERRORS = 60.0  # doubled at so many wrong rows: the fewer, the less is known of what would be harmed,
_TWO_CLASSES = 4.0  # and so many times larger with two classes, where all candidates bend one curve by the same chance
_STACKED = 1000  # rows, from which weights are those of the best mixture, once doing nothing is out: with fewer they follow chance
_LIGHT = 0.01  # candidates of less weight cost time and change nothing
_MIXED = tuple(10.0**power for power in range(-7, -1))  # ε of exact zeros
_FEW_CLASSES = 20  # beyond, matrices and kernels take longer than all others together and gain little
_ROWS_A_CLASS = 100  # beyond few classes, below which curves of single classes were far behind on every set
_KERNEL = 2e6  # logits, beyond which a kernel takes over half a minute
_PRIOR = 0.5  # standard deviation of log T, so that a set that is all right does not drive T to its bound
_SAMPLE, _FEWEST = 1 << 19, 1 << 13  # logits, and rows at least, that candidates are compared on


@dataclass(frozen=True)
class Trial:
    """What was found about one candidate.

    Attributes:
        name: The candidate as it is written.
        loss: Cross-fitted mean log-loss; +inf if it could not be fitted or was not tried.
        gain: How much lower that is than doing nothing.
        error: Standard error of the gain, over rows.
        weight: Its weight in the answer.
    """

    name: str
    loss: float
    gain: float
    error: float
    weight: float


@dataclass(frozen=True)
class Evidence:
    """Why an ``AutoCalibrator`` answers as it does.

    Attributes:
        rows: Validation rows, N.
        wrong: Rows, counted by weight, whose decision was wrong.
        folds: How many parts cross-fitting used.
        trials: One for each candidate.
        verdict: What was decided, in a sentence.
    """

    rows: int
    wrong: float
    folds: int
    trials: tuple[Trial, ...]
    verdict: str

    _repr_html_ = to_html

    def __str__(self) -> str:
        head = f"{self.verdict}\n{self.rows} rows, {self.wrong:g} wrong, {self.folds}-fold cross-fitted log-loss:"
        width = max(len(trial.name) for trial in self.trials)
        lines = [f"  {'candidate':{width}}  log-loss      gain  ± s.e.   weight"]
        for one in self.trials:
            numbers = f"{one.loss:8.4f}  {one.gain:+8.4f}  {one.error:.4f}  {one.weight:7.3f}"
            lines.append(f"  {one.name:{width}}  {'not tried' if math.isinf(one.loss) else numbers}")
        return "\n".join([head, *lines])


class AutoCalibrator(Calibrator):
    """A mixture of calibrators, each weighted by what it was seen to gain, that abstains where nothing was seen to gain.

    Every candidate is fitted without each of five folds in turn and scored on it. Candidate m gets the weight w_m ∝ π_m
    exp(0.5 · Σ_i gain_mi), gain_mi being how much lower its log-loss of row i is than that of doing nothing, and π larger for
    doing nothing than for any other, 5 · (1 + 60 / wrong rows) times, with two classes four times that. The answer is log Σ_m
    w_m p_m, with the candidates fitted on all rows; those below 1 % are left out. With fewer than 3 wrong rows nothing is
    changed. From 1,000 rows on, where doing nothing is among those left out, the weights are those of the mixture with the
    least log-loss on the folds. Folds follow the rows' content and not their order; rows of one group share a fold. Of many
    rows a random sample is compared on, and all fit what is used.

    A class without a row of which the model expects many becomes rare, as the rows say. Exact zeros are mixed away first,
    (1 − ε) p + ε / K, with the ε of six whose temperature has the least cross-fitted log-loss; in rows with several classes
    above 0, zeros that were never the true class stay.

    Args:
        folds: How many parts, ≥ 2.
        candidates: Calibrators to try beside doing nothing, or None for the usual: ensemble temperature; focal temperature scaling, alone
            and before structured matrix scaling with a fifth of the published ridge (beyond 20 classes structured vector scaling) and
            before bias and kernel scaling (up to 20 classes); centred isotonic, alone and before such a structured scaling (beyond 20
            classes from 100 rows a class on); beta and spline for two classes.

    Attributes:
        evidence: What was tried, chosen, and why; ``print(calibrator.evidence)`` shows the table.
        weights: (M,) those of doing nothing and of the candidates, in order.
        epsilon: ε; 0 where zeros stay or there is none.

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

    def __init__(self, *, folds: int = 5, candidates: Sequence[Calibrator | Mapping[str, Any]] | None = None) -> None:
        super().__init__()
        named = candidates if candidates is None or isinstance(candidates, Sequence) else [candidates]
        pool = usual_candidates() if named is None else [as_calibrator(one) for one in named]
        if not pool or any(one.top_label or one.needs_features for one in pool):
            names = f"{[type(one).__name__ for one in pool]}"
            raise InputError("candidates that calibrate all classes by the logits alone", names, "name at least one")
        self.folds = check_count(folds, name="folds", low=2)
        self.members = nn.ModuleList([Identity(), *pool])
        self._usual = named is None
        self._update_facts()

    @property
    def candidates(self) -> list[Calibrator]:
        """What is tried beside doing nothing."""
        return self._members()[1:]

    @property
    def evidence(self) -> Evidence | None:
        """What was tried, chosen, and why; None before ``fit``."""
        if not self.fitted:
            return None
        losses, weights, errors = (part.tolist() for part in (self.losses, self.weights, self.errors))
        found = zip(self._members(), losses, errors, weights, strict=True)
        trials = tuple(Trial(_name(m), loss, losses[0] - loss, error, weight) for m, loss, error, weight in found)
        rows, wrong, folds = self.counts.tolist()
        return Evidence(int(rows), wrong, int(folds), trials, _verdict(trials, wrong))

    def learned(self) -> str:
        """Return what is in use, with its weight."""
        pairs = zip(self._members(), self.weights.tolist(), strict=True)
        used = " + ".join(f"{weight:.2f} {_name(one, settings=False)}" for one, weight in pairs if weight > 0)
        return f"uses {used}" + (f", zeros mixed by {float(self.epsilon):g}" if float(self.epsilon) else "")

    def extra_repr(self) -> str:
        """Show the settings and what is in use; candidates show themselves."""
        return f"folds={self.folds}" + (f", {self.learned()}" if self.fitted else "")

    def _members(self) -> list[Calibrator]:
        return [member for member in self.members if isinstance(member, Calibrator)]

    def _update_facts(self) -> None:
        # all that is in use; before fit, all that may come into use
        used = [member for member in self._members() if member.fitted or not self.fitted]
        self.preserves_argmax = all(member.preserves_argmax for member in used)
        # plain numbers, so that a traced forward pass does not depend on a value
        self._weights, self._epsilon = self.weights.tolist(), float(self.epsilon) if self.epsilon.numel() else 0.0

    def _fit(self, rows: RowSource) -> None:
        few = _sample_of(rows)
        epsilon = _mixing(few, self.folds)
        if epsilon:
            few, rows = few.map(with_logits, _mix_zeros, epsilon), rows.map(with_logits, _mix_zeros, epsilon)
        wrong = float(few.total(wrong_mass))
        fresh = [renewed(member) for member in self._members()]
        tried = [one for one in fresh[1:] if wrong >= MIN_ERRORS and (not self._usual or _suits(one, rows))]
        weight, losses = cross_fitted([fresh[0], *tried], few, self.folds)
        if not math.isfinite(float(weight @ losses[:, 0])):
            raise FitError("a finite log-loss of the logits as they are", "inf", "check the logits' range")
        gain = losses[:, :1] - losses
        among = torch.tensor([0, *(1 + at for at, one in enumerate(fresh[1:]) if any(one is other for other in tried))])
        weights = mixing_weights(gain, weight, wrong=wrong, classes=rows.classes)
        self.weights = torch.zeros(len(fresh), dtype=torch.float64).index_copy(0, among, weights)
        mean = weight @ losses / weight.sum()
        spread = (weight @ (gain - weight @ gain / weight.sum()).square()).sqrt() / weight.sum()
        spread = spread.nan_to_num(nan=math.inf)  # of a candidate without a finite loss
        endless = torch.full_like(self.weights, math.inf)
        self.losses, self.errors = (endless.index_copy(0, among, one) for one in (mean, spread))
        for m, member in enumerate(fresh):
            used = float(self.weights[m]) > 0 and try_fit(member, rows)
            self.members[m] = member if used else renewed(member)
        self.epsilon = torch.tensor(epsilon, dtype=torch.float64)
        self.counts = torch.tensor([rows.count, wrong, self.folds], dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        inputs = _mix_zeros(logits, self._epsilon) if self._epsilon else logits
        used = [(self._weights[m], member) for m, member in enumerate(self._members()) if member.fitted]
        if len(used) == 1:
            answer = torch.as_tensor(used[0][1](inputs))
        else:
            parts = [torch.log_softmax(member(inputs), dim=1) + math.log(weight) for weight, member in used]
            answer = torch.logsumexp(torch.stack(parts), dim=0)
        return narrowed(answer, logits.dtype)


def usual_candidates() -> list[Calibrator]:
    """Return what is tried unless it is said otherwise; ``_suits`` says for how many classes and rows."""

    def focal() -> Calibrator:
        return FocalTemperatureScaling(gammas=(-0.9, 5.0), search="continuous", prior=_PRIOR)

    def matrix() -> Calibrator:
        return StructuredMatrixScaling(strength=0.2, prior=_PRIOR)

    def vector() -> Calibrator:
        return StructuredVectorScaling(prior=_PRIOR)

    return [
        EnsembleTemperatureScaling(prior=_PRIOR),
        focal(),
        Chain(focal(), matrix()),
        Chain(focal(), vector()),
        Chain(focal(), BiasScaling(), KernelScaling()),
        CentredIsotonic(),
        Chain(CentredIsotonic(), matrix()),
        Chain(CentredIsotonic(), vector()),
        BetaCalibration(),
        SplineCalibration(),
    ]


def _suits(member: Calibrator, rows: RowSource) -> bool:
    kinds = {type(stage) for stage in (member.parts() if isinstance(member, Chain) else [member])}
    if kinds & {BetaCalibration, SplineCalibration}:
        return rows.classes == 2
    if rows.classes <= _FEW_CLASSES:
        large = KernelScaling in kinds and rows.count * rows.classes > _KERNEL
        return StructuredVectorScaling not in kinds and not large
    enough = CentredIsotonic not in kinds or rows.count >= _ROWS_A_CLASS * rows.classes
    return enough and not kinds & {StructuredMatrixScaling, KernelScaling}


def as_calibrator(one: object) -> Calibrator:
    """Return the calibrator that is given, or that a configuration describes.

    Raises:
        InputError: If it is neither.
    """
    from calibrant import calibrators as family

    made = build(one, families=[family, binning]) if isinstance(one, Mapping) else one
    if not isinstance(made, Calibrator):
        remedy = "pass a list of instances, or of configurations such as {'type': 'TemperatureScaling'}"
        raise InputError("calibrators such as TemperatureScaling() as candidates", f"{described(one)}", remedy)
    return made


# Exact zeros.


def _mix_zeros(logits: Tensor, epsilon: float) -> Tensor:
    """Return log((1 − ε) p + ε / K) (N, K) of ``logits``."""
    return mix_with_uniform(torch.log_softmax(logits.double(), dim=1), epsilon)


def _mixing(rows: MemoryRows, folds: int) -> float:
    """Return the ε of exact zeros, 0 where there is none or all are masks: never true, in rows with several classes above 0."""
    if not bool(rows.total(_telling_zeros)):
        return 0.0
    temperature, found = TemperatureScaling(prior=_PRIOR), []
    for epsilon in _MIXED:
        mixed = rows.map(with_logits, _mix_zeros, epsilon)
        weight, losses = cross_fitted([Identity(), temperature], mixed, folds)
        found.append(float(weight @ losses[:, -1]))
    return _MIXED[min(range(len(found)), key=found.__getitem__)]


def _telling_zeros(chunk: Batch) -> Tensor:
    zero = torch.isneginf(chunk.logits)
    alone = zero.sum(dim=1) == zero.shape[1] - 1
    return (zero.gather(1, chunk.labels[:, None])[:, 0] | alone).sum()


# Log-losses of rows under candidates that were not fitted on them, and the weights that these give.


def _sample_of(rows: RowSource) -> MemoryRows:
    """Return about as many rows as candidates are compared on, at random, in memory."""
    size = max(_FEWEST, _SAMPLE // rows.classes)
    if rows.count > 2 * size:
        return MemoryRows.of_batch(Batch.cat(rows.collected(_sampled, size / rows.count)))
    return rows if isinstance(rows, MemoryRows) else MemoryRows.of_batch(rows.gathered(values=4 * _SAMPLE))


def _sampled(chunk: Batch, rate: float) -> Batch:
    return chunk.selected(in_random_sample(chunk, rate))


def cross_fitted(members: Sequence[Calibrator], rows: MemoryRows, folds: int) -> tuple[Tensor, Tensor]:
    """Return weights (N,) and log-losses (N, M) of rows under members that were fitted without the row's fold; inf where they cannot be.

    Args:
        members: Calibrators, of which the first does nothing; they are fitted, and a fold starts from the fit without the one before.
        rows: The data.
        folds: How many parts, by the rows' content.
    """
    answers = [(chunk, log_p) for chunk, log_p in held_out(members, rows, folds)]
    losses = [
        F.nll_loss(log_p.flatten(0, 1), chunk.labels.repeat(len(log_p)), reduction="none") for chunk, log_p in answers
    ]
    weight = torch.cat([chunk.row_weights for chunk, _ in answers]).cpu()
    return weight, torch.cat([one.view(len(members), -1) for one in losses], dim=1).T.cpu()


def held_out(members: Sequence[Calibrator], rows: MemoryRows, folds: int) -> Any:
    """Yield each fold's rows, and log-probabilities (M, n, K) of them under members fitted on the other folds; −inf where they cannot be.

    Chains with the same first stages share them.
    """
    whole = rows.gathered()
    fold = fold_by_scores(whole, folds) if tied(rows) else fold_of(whole, folds)
    for k in range(folds):
        held, rest = whole.selected(fold == k), whole.selected(fold != k)
        if not len(held):
            continue
        known: dict[str, tuple[MemoryRows, Batch] | None] = {}
        if len(rest):
            known[""] = MemoryRows.of_batch(rest), with_logits(held, Tensor.double)
        found = []
        for at, member in enumerate(members):
            if at:
                report_progress(
                    f"candidate {at} of {len(members) - 1} ({type(member).__name__}), fold {k + 1} of {folds}"
                )
            answer = held if at == 0 else _answer(member, known)
            log_p = torch.full_like(held.logits, -math.inf) if answer is None else answer.logits
            found.append(log_p.double() if answer is None else torch.log_softmax(log_p.double(), dim=1))
        yield held, torch.stack(found)


def _answer(member: Calibrator, known: dict[str, Any]) -> Batch | None:
    """Return the held rows with the logits that ``member`` answers, fitted stage by stage; stages with a known key are not fitted again."""
    key = ""
    for stage in member.parts() if isinstance(member, Chain) else [member]:
        before, key = key, key + f"{type(stage).__qualname__} {json.dumps(config_of(stage))};"
        if key not in known:
            inputs, known[key] = known.get(before), None
            if inputs is not None and try_fit(stage, inputs[0]):
                known[key] = inputs[0].map(through, stage), through(inputs[1], stage)
    found = known[key]
    return None if found is None else found[1]


def try_fit(member: Calibrator, rows: RowSource) -> bool:
    """Fit ``member`` and return whether that worked; bounds and the like show in its score, not in warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            member._learn(rows)
        except CalibrantError:
            return False
    return True


def mixing_weights(gain: Tensor, weight: Tensor, *, wrong: float, classes: int) -> Tensor:
    """Return the weights (M,) of a mixture; the first member does nothing.

    Args:
        gain: (N, M) in log-loss, of rows held out.
        weight: (N,) of the rows.
        wrong: Weight of the rows whose decision is wrong.
        classes: K.
    """
    odds = _NOTHING * (_TWO_CLASSES if classes == 2 else 1.0) * (1 + _FEW_ERRORS / max(wrong, 1.0))
    log_weights = _RATE * torch.nan_to_num(weight @ gain, neginf=-math.inf)
    log_weights[0] += math.log(odds)
    weights = _without_light(torch.softmax(log_weights, dim=0))
    if float(weights[0]) or len(gain) < _STACKED:
        return weights
    known = torch.isfinite(gain).all(dim=0)
    # a row's probabilities matter up to a factor, and so do those of doing nothing, which the gains are relative to
    part = MixtureChunk.of(torch.exp(gain[:, known] - gain[:, known].amax(dim=1, keepdim=True)), weight)
    count = int(known.sum())
    rows = MemoryRows([part], classes=count, count=len(gain), mass=float(weight.sum()), device=gain.device)
    try:
        stacked = fit_mixture_weights(rows, members=count, mass=rows.mass)
    except FitError:
        return weights
    return _without_light(torch.zeros_like(weights).index_copy(0, torch.nonzero(known)[:, 0], stacked))


def _without_light(weights: Tensor) -> Tensor:
    kept = torch.where(weights < _LIGHT, 0.0, weights)
    return kept / kept.sum()


def _name(member: Calibrator, *, settings: bool = True) -> str:
    """Return the class's name, of a chain its stages', with or without settings."""
    if isinstance(member, Chain):
        return f"Chain({', '.join(_name(stage, settings=settings) for stage in member.parts())})"
    return f"{type(member).__name__}({shown(member)})" if settings else type(member).__name__


def _verdict(trials: Sequence[Trial], wrong: float) -> str:
    if wrong < MIN_ERRORS:
        return f"abstained: {wrong:g} wrong rows are too few to learn from (at least {MIN_ERRORS})"
    if trials[0].weight == 1:
        return "abstained: no candidate showed a gain"
    used = [trial for trial in trials if trial.weight > 0]
    if all(trial.gain <= 0 for trial in used):
        near = f"{len(used) - 1} within error of doing nothing have {1 - trials[0].weight:.2f} of the weight"
        return f"hardly changed: no candidate showed a gain, and {near}"
    tried = sum(math.isfinite(trial.loss) for trial in trials)  # not those that the data rule out
    gain = sum(trial.weight * trial.gain for trial in used)
    return f"calibrated: {len(used)} of {tried} candidates in use, mean cross-fitted gain {gain:.4f} nats"
