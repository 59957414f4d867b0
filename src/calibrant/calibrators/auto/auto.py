"""The calibrator that chooses itself, and does nothing where no gain can be shown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from calibrant import binning
from calibrant._core.check import check_count, check_flag, refuse
from calibrant._core.check import shown as described
from calibrant._core.config import build, config_of, renewed, shown
from calibrant._core.numerics import in_row_chunks, rank_in
from calibrant._objective.log_pairs import log_pair_of_top
from calibrant.calibrators.affine.bias_scaling import BiasScaling
from calibrant.calibrators.affine.kernel_scaling import KernelScaling
from calibrant.calibrators.affine.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.calibrators.affine.vector_and_matrix import MatrixScaling, VectorScaling
from calibrant.calibrators.auto.chain import Chain
from calibrant.calibrators.auto.cross_fitting import Scores, Sums, cross_fitted, held_out, quietly, undecided
from calibrant.calibrators.base.calibrator import Calibrator
from calibrant.calibrators.base.chunks import wrong_mass
from calibrant.calibrators.base.folds import sampled
from calibrant.calibrators.base.identity import Identity
from calibrant.calibrators.base.simplex import MixtureChunk, fit_mixture_weights
from calibrant.calibrators.features.boosted_scaling import BoostedScaling
from calibrant.calibrators.features.categories import check_names, feature_names, same_names
from calibrant.calibrators.features.group_scaling import GroupScaling
from calibrant.calibrators.focal.ensemble_temperature import EnsembleTemperatureScaling
from calibrant.calibrators.focal.focal_temperature import FocalTemperatureScaling
from calibrant.calibrators.focal.log_temperature import narrowed
from calibrant.calibrators.one_vs_rest.isotonic import CentredIsotonic
from calibrant.calibrators.one_vs_rest.logistic import BetaCalibration, PlattScaling
from calibrant.calibrators.one_vs_rest.scores import mean_bins, pool_ties
from calibrant.calibrators.one_vs_rest.spline import SplineCalibration
from calibrant.data.record import Features
from calibrant.errors import FitError, InputError, Remedy
from calibrant.rows import Chunk, MemoryRows, RowSource

__all__ = ["AutoCalibrator"]

# All that is set by hand. What decides quality was fixed on one half of the real sets, split by model family, and evaluated on the
# other: benchmarks/auto.py.
#
# How candidates are weighed
RATE = 0.5  # a candidate's weight is exp(RATE · its summed log-loss gain); 1 would be Bayes' rule
MIN_ERRORS = 3  # with fewer wrong rows nothing can be learned about being wrong
IDENTITY_ODDS = 5.0  # how much likelier than any other candidate doing nothing is held to be before the data
FEW_ERRORS = 60.0  # wrong rows at which that is doubled: the fewer, the less is known of what would be harmed
# with two classes that is so many times larger: all candidates bend one curve, so that chance does for all what it does for one
TWO_CLASSES = 4.0
STACKED = 1000  # rows compared from which weights are fitted, once doing nothing is out: with fewer they follow chance
LEAST = 0.01  # lighter candidates, and curves of the confidence, are left out of what is shipped
#
# Which candidates there are
PRIOR = 0.5  # standard deviation of log T
_GAMMAS = (-0.9, 5.0)  # the ends between which the focal exponent is sought
_FEW_CLASSES = 20  # up to this many, the structured matrix is cheap, and never behind the structured vector
# beyond 20 classes: with fewer rows a class, curves of few positive rows were far behind on every set
_ROWS_A_CURVE = 100
#
# How long that may take: none of these changes what a candidate is worth
_MATRIX_CLASSES = 10  # beyond this many, a matrix of raw logits takes longer than all other candidates together
# rows · K², and rows · K, up to which cross-fitting a matrix, and one curve a class, take about half a minute of one core
_MATRIX_WORK, _ISOTONIC_WORK = 5e8, 1e7
_KERNEL_WORK = 2e6  # rows · K up to which a kernel machine takes as long
_FIRST, _SELECTED, _GROWTH = 1 << 19, 1 << 23, 4  # logits of the first and the largest sample to compare candidates on
_FEWEST = 1 << 13  # rows of such a sample; up to twice as many as it holds, all rows are compared on
_NATS = 1e-4  # of log-loss: candidates nearer than that are not compared on more rows
#
# The confidence's bins, with top_label: fewer have a larger log-loss, more a larger ECE
BINS = 10
_SPAN = 100.0  # log-odds lie in [−100, 100]
_MARGIN = 1e-6  # of log-odds by which the decision stays ahead: more than float32 rounds log-probabilities by


@dataclass(frozen=True)
class Trial:
    """What was found about one candidate.

    Attributes:
        name: The candidate as it is written.
        loss: Cross-fitted mean log-loss; +inf if it could not be fitted or was not tried. That of a candidate that was
            given up early, far behind, is of the folds that it was scored on.
        gain: How much lower that is than doing nothing.
        error: Standard error of the gain, over rows.
        weight: Its share in the answer.
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

    def __str__(self) -> str:
        head = f"{self.verdict}\n{self.rows} rows, {self.wrong:g} wrong, {self.folds}-fold cross-fitted log-loss:"
        width = max(len(trial.name) for trial in self.trials)
        lines = [f"  {'candidate':{width}}  log-loss      gain  ± s.e.   weight"]
        for trial in self.trials:
            if math.isinf(trial.loss):
                lines.append(f"  {trial.name:{width}}  not tried")
            else:
                lines.append(
                    f"  {trial.name:{width}}  {trial.loss:8.4f}  {trial.gain:+8.4f}  {trial.error:.4f}  {trial.weight:7.3f}"
                )
        return "\n".join([head, *lines])


class AutoCalibrator(Calibrator):
    """A pool of calibrators, each weighted by what it was seen to gain, that abstains where nothing was seen to gain.

    Every candidate is fitted on four fifths of the rows and scored on the fifth left out, in turn. Candidate m gets the
    weight w_m ∝ π_m exp(0.5 · Σ_i gain_mi), gain_mi being how much lower its log-loss of row i is than that of doing nothing,
    and π larger for doing nothing than for any other, 5 · (1 + 60 / wrong rows) times, or 5 times where the decision is kept;
    with two classes, where all candidates bend one curve, four times that. The answer is log Σ_m w_m p_m, with the candidates
    fitted on all rows; those below 1 % are left out. With fewer than 3 wrong rows nothing is changed. From
    1,000 rows on, where doing nothing is among those left out, the weights are those of the mixture with the least log-loss on
    the fifths. Folds follow the rows' content and not their order; rows of one group share a fold. Where rows are many, a
    random sample of them is compared on, the larger the closer the candidates are; all rows fit what is used.

    Args:
        keep_argmax: Try only candidates that never change the decision.
        top_label: Then correct the decision's confidence, too, for the lowest calibration error: it becomes one of ten values
            with about equally many rows each, by the pool's answers to rows that its members were not fitted on. The
            decision stays the pool's; the other classes keep their proportions. Fitting takes up to twice as long.
        folds: How many parts, ≥ 2.
        candidates: Calibrators to try beside doing nothing, or None for the usual: ensemble temperature; focal
            temperature scaling, alone, before structured matrix scaling with a fifth of the published ridge, before bias
            scaling, and before bias and kernel scaling; vector scaling; matrix scaling with a ridge of 20 rows; centred
            isotonic, alone and before that same structured matrix scaling; beta and spline for two classes; with more than
            20 classes, focal temperature scaling before structured vector scaling. Matrices of logits are for up to 10
            classes, the structured ones up to 5·10⁸ rows · K², curves of more than 20 classes from 100 rows a class, biases
            up to 20 classes, kernels up to 20 and 2·10⁶ rows · K: about half a minute a candidate. With ``keep_argmax``
            ensemble temperature and focal temperature scaling. All temperatures have a prior of 0.5 on log T.
        features: Names of feature columns, or "all" for all that the rows have: ``GroupScaling`` (where all are categories) and
            ``BoostedScaling`` over them are tried too. None leaves features alone, for rows may
            have columns that must not decide, such as those of an audit.

    Attributes:
        evidence: What was tried, chosen, and why; ``print(calibrator.evidence)`` shows the table.
        weights: (M,) the shares of doing nothing and of the candidates, in order.
        top_edges: (B − 1,) with ``top_label``, in log-odds of the pool's confidence; empty below 3 wrong rows.
        top_values: (B,) the log-odds that each bin gets.
        floor: The log-probability that classes at −inf get before anything else, as often as they were the true one in
            the data of the fit; empty where none was, and −inf excludes a class.

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
    floor: Tensor
    top_edges: Tensor
    top_values: Tensor

    decision_on_top = True  # with top_label; without, no decision is carried either

    def __init__(
        self,
        *,
        keep_argmax: bool = False,
        top_label: bool = False,
        folds: int = 5,
        candidates: Sequence[Calibrator | Mapping[str, Any]] | None = None,
        features: Sequence[str] | Literal["all"] | None = None,
    ) -> None:
        super().__init__()
        self.keep_argmax = check_flag(keep_argmax, name="keep_argmax")
        self.top_label = check_flag(top_label, name="top_label")
        self.folds = check_count(folds, name="folds", low=2)
        named = list(candidates) if isinstance(candidates, Sequence) else [candidates]
        self.features = "all" if isinstance(features, str) and features == "all" else check_names(features)
        if self.keep_argmax and self.features is not None:
            raise refuse(
                "features without keep_argmax", "both", "a fit by features may change decisions: leave one out"
            )
        more = [] if self.features is None else by_features(None if self.features == "all" else self.features)
        pool = usual(self.keep_argmax) + more
        tried = pool if candidates is None else [as_calibrator(one) for one in named]
        if candidates is not None and not any(one.needs_features for one in tried):
            tried += more
        self._usual = [config_of(one) for one in tried] == [config_of(one) for one in pool]
        if not tried or any(one.top_label or (self.keep_argmax and not one.preserves_argmax) for one in tried):
            raise InputError(
                f"candidates that calibrate all classes{' and keep the decision' * self.keep_argmax}",
                f"{[type(one).__name__ for one in tried]}",
                "name at least one, and none that is top-label only",
            )
        self.members = nn.ModuleList([Identity(), *tried])
        self._declare("weights", "losses", "errors", "counts", "floor", "top_edges", "top_values")
        self._update_facts()

    @property
    def candidates(self) -> list[Calibrator]:
        """What is tried beside doing nothing."""
        return self._members()[1:]

    def _update_facts(self) -> None:
        # all that is in use; before fit, all that may come into use
        used = [member for member in self._members() if member.fitted or not self.fitted]
        self.preserves_argmax = all(member.preserves_argmax for member in used)
        self.needs_features = any(member.needs_features for member in used)

    @property
    def evidence(self) -> Evidence | None:
        """What was tried, chosen, and why; None before ``fit``."""
        if not self.fitted:
            return None
        losses, weights, errors = (part.tolist() for part in (self.losses, self.weights, self.errors))
        rows, wrong, folds = self.counts.tolist()
        trials = tuple(
            Trial(_name(member), loss, losses[0] - loss, error, weight)
            for member, loss, error, weight in zip(self._members(), losses, errors, weights, strict=True)
        )
        return Evidence(int(rows), wrong, int(folds), trials, _verdict(trials, wrong))

    def learned(self) -> str:
        """Return what is in use, with its share."""
        used = [f"{w:.2f} {_kind(m)}" for m, w in zip(self._members(), self.weights.tolist(), strict=True) if w > 0]
        zeros = f", zeros as {math.exp(float(self.floor)):.2g}" if self.floor.dim() == 0 else ""
        top = f", top label in {len(self.top_values)} bins" if len(self.top_values) else ""
        return "uses " + " + ".join(used) + zeros + top

    def extra_repr(self) -> str:
        """Show the settings and what is in use; candidates show themselves."""
        settings = f"keep_argmax={self.keep_argmax}, folds={self.folds}"
        settings += ", top_label=True" if self.top_label else ""
        settings += "" if self.features is None else f", features={self.features!r}"
        return f"{settings}, {self.learned()}" if self.fitted else settings

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in ("floor", "top_edges", "top_values"):  # version 0.1.0 had none
            state_dict.setdefault(prefix + name, torch.empty(0, dtype=torch.float64))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _members(self) -> list[Calibrator]:
        return [member for member in self.members if isinstance(member, Calibrator)]

    def _fit(self, rows: RowSource) -> None:
        self._check_columns(rows)
        wrong, missed, zeros = rows.total(_counted).tolist()
        self.floor = torch.empty(0, dtype=torch.float64, device=rows.device)
        if missed:
            lowest = min(missed / zeros, 0.5 / rows.classes)  # below every row's largest: the decision stays
            self.floor = torch.tensor(math.log(lowest), dtype=torch.float64, device=rows.device)
            rows = rows.prepared(_floored, self.floor)
        fresh = [renewed(member) for member in self._members()]
        enough = wrong >= MIN_ERRORS
        tried = [m == 0 or (enough and self._suits(one, rows)) for m, one in enumerate(fresh)]
        sums, scores, every = self._compared(fresh, tried, rows)
        self._weigh(sums, scores, wrong, rows.classes)
        self._correct(fresh, rows, enough)
        for m, member in enumerate(fresh):
            used = float(self.weights[m]) > 0 and (m == 0 or quietly(member, every))
            if m == 0 and used:
                member._learn(every)
            self.members[m] = member if used and member.fitted else renewed(member)
        self.counts = torch.tensor([float(rows.count), wrong, float(sums.folds)], dtype=torch.float64)

    def _check_columns(self, rows: RowSource) -> None:
        """Refuse rows without the features that were asked for; a candidate that cannot be fitted would go unnoticed."""
        if self.features is None:
            return
        got = rows.fold(feature_names, same_names)
        missing = [name for name in self.features if name not in got] if self.features != "all" else []
        if missing or not got:
            wanted = f"the feature {missing[0]!r}" if missing else "features beside the rows"
            shown_names = ", ".join(map(repr, sorted(got))) or "none"
            raise refuse(
                wanted,
                shown_names,
                Remedy(
                    "pass them in the Predictions (in a file: name the columns feature:NAME)",
                    command="name the columns feature:NAME",
                ),
            )

    def _compared(
        self, members: Sequence[Calibrator], tried: Sequence[bool], rows: RowSource
    ) -> tuple[Sums, Scores, RowSource]:
        """Return how candidates do, on the rows compared last too, and all rows, in memory where they are held there.

        Of many rows a random sample is used, and a larger one as long as candidates are undecided: those whose gain may,
        with what more rows could give their parameters, come near the best one's, and whose distance from it has a standard
        error above 1e-4 nats.
        """
        size, found = max(_FEWEST, _FIRST // rows.classes), None
        while True:
            every = rows.count <= 2 * size
            few = _held(rows if every else rows.where(sampled, size / rows.count))
            scores = cross_fitted(members, tried, few, self.folds, far=-math.log(LEAST) / RATE)
            found = scores.summed() if found is None else scores.summed().after(found)
            near = [] if every else undecided(scores, members, _NATS)
            size *= _GROWTH
            if not near or size * rows.classes > _SELECTED:
                return found, scores, few if every else rows
            tried = [m == 0 or m in near for m in range(len(members))]

    def _suits(self, member: Calibrator, rows: RowSource) -> bool:
        compared = min(rows.count, 2 * max(_FEWEST, _SELECTED // rows.classes))
        return not self._usual or suits(member, rows=rows.count, classes=rows.classes, compared=compared)

    def _correct(self, members: Sequence[Calibrator], rows: RowSource, enough: bool) -> None:
        """Set the bins of the decision's confidence, from the pool's answers out of fold to as many rows as compared first."""
        self.top_edges = self.top_values = torch.empty(0, dtype=torch.float64, device=rows.device)
        if not self.top_label or not enough:
            return
        size = max(_FEWEST, _FIRST // rows.classes)
        few = _held(rows if rows.count <= 2 * size else rows.where(sampled, size / rows.count))
        whole = few.gathered(values=4 * _SELECTED, why="AutoCalibrator(top_label=True)")
        used = [m for m, weight in enumerate(self.weights.tolist()) if weight > 0]
        answers = held_out([members[m] for m in used], self.weights[used].log(), MemoryRows.of_chunk(whole), self.folds)
        self.top_edges, self.top_values = fit_confidence(pairs_of(answers), self.folds)

    def _weigh(self, sums: Sums, scores: Scores, wrong: float, classes: int) -> None:
        """Set weights, losses and standard errors; the loss of a candidate that was given up is that of its rows."""
        mass, gain = sums.mass, sums.gain
        total, mean = mass[0], gain / mass
        base = sums.loss / total
        self.losses = torch.where(mass > 0, base - mean, math.inf)
        self.errors = torch.where(mass > 0, (sums.square - mean * gain).clamp_min(0.0).sqrt() / mass, math.inf)
        few = 0.0 if self.keep_argmax else FEW_ERRORS / max(wrong, 1.0)  # what keeps the decision hardly harms
        alike = TWO_CLASSES if classes == 2 else 1.0
        odds = math.log(IDENTITY_ODDS * alike * (1 + few))
        self.weights = exponential(sums, rate=RATE, log_odds=odds, least=LEAST)
        if not float(self.weights[0]) and len(scores.raw) >= STACKED:
            self.weights = stacked(scores, self.weights, least=LEAST)

    def _transform(self, logits: Tensor) -> Tensor:
        return self._answer(logits, None)

    def _transform_with(self, logits: Tensor, features: Features) -> Tensor:
        return self._answer(logits, features)

    def _answer(self, logits: Tensor, features: Features | None) -> Tensor:
        if not len(self.top_values):
            return self._pooled(logits, features)
        answer = self._pooled(logits.double(), features)
        corrected = in_row_chunks(partial(with_confidence, edges=self.top_edges, values=self.top_values), answer)
        return narrowed(corrected, logits.dtype)

    def _pooled(self, logits: Tensor, features: Features | None) -> Tensor:
        logits = with_floor(logits, self.floor) if self.floor.dim() == 0 else logits
        used = [(m, member) for m, member in enumerate(self._members()) if member.fitted]
        beside = [features if member.needs_features else None for _, member in used]
        if len(used) == 1:
            return torch.as_tensor(used[0][1](logits, beside[0]))
        least = torch.float64 if self.keep_argmax else torch.float32  # float32 may make ties of classes nearly equal
        wide = logits.to(torch.promote_types(logits.dtype, least))
        log_w = self.weights.to(wide.dtype).log()
        pairs = zip(used, beside, strict=True)
        parts = [torch.log_softmax(member(wide, own), dim=1) + log_w[m] for (m, member), own in pairs]
        return narrowed(torch.logsumexp(torch.stack(parts), dim=0), logits.dtype)


def _counted(chunk: Chunk) -> Tensor:
    """Return the weight of wrong rows, of rows whose true class is excluded by −inf, and of excluded classes (3,)."""
    excluded = torch.isneginf(chunk.logits)
    missed = excluded.gather(1, chunk.labels[:, None])[:, 0]
    sums = [wrong_mass(chunk), chunk.weights[missed].sum(), chunk.weights @ excluded.sum(dim=1).double()]
    return torch.stack([one.double().cpu() for one in sums])


def with_floor(logits: Tensor, floor: Tensor) -> Tensor:
    """Return ``logits`` (N, K) in which classes at −inf have the log-probability ``floor`` beside the others."""
    level = torch.logsumexp(logits.double(), dim=1, keepdim=True) + floor
    return torch.where(torch.isneginf(logits), level.to(logits.dtype), logits)


def _floored(chunk: Chunk, floor: Tensor) -> Chunk:
    return replace(chunk, logits=with_floor(chunk.logits, floor))


def _held(rows: RowSource) -> RowSource:
    """Return the rows in memory; where logits are many even so, as of a last layer over a vocabulary, as they are."""
    if isinstance(rows, MemoryRows) or rows.count * rows.classes > 4 * _SELECTED:
        return rows
    return MemoryRows.of_chunk(rows.gathered(values=4 * _SELECTED))


def _kind(member: Calibrator) -> str:
    """Return the class's name; of a chain, its stages' too."""
    if isinstance(member, Chain):
        return f"Chain({', '.join(_kind(stage) for stage in member.parts())})"
    return type(member).__name__


def _name(member: Calibrator) -> str:
    if isinstance(member, Chain):
        return f"Chain({', '.join(_name(stage) for stage in member.parts())})"
    return f"{type(member).__name__}({shown(member)})"


def _verdict(trials: Sequence[Trial], wrong: float) -> str:
    if wrong < MIN_ERRORS:
        return f"abstained: {wrong:g} wrong rows are too few to learn from (at least {MIN_ERRORS})"
    if trials[0].weight == 1:
        return "abstained: no candidate showed a gain"
    gain = sum(trial.weight * trial.gain for trial in trials if trial.weight > 0)
    used = [trial for trial in trials if trial.weight > 0]
    if all(trial.gain <= 0 for trial in used):
        return (
            f"hardly changed: no candidate showed a gain, and {len(used) - 1} within error of doing nothing share "
            f"{1 - trials[0].weight:.2f} of the weight"
        )
    return f"calibrated: {len(used)} of {len(trials)} candidates in use, mean cross-fitted gain {gain:.4f} nats"


# The candidates that an ``AutoCalibrator`` tries.


def usual(keep_argmax: bool) -> list[Calibrator]:
    """Return the candidates that did best together on the half of the real sets that fixed the constants."""

    def focal() -> Calibrator:
        return FocalTemperatureScaling(gammas=_GAMMAS, search="continuous", prior=PRIOR)

    if keep_argmax:
        return [EnsembleTemperatureScaling(prior=PRIOR), focal()]
    return [
        EnsembleTemperatureScaling(prior=PRIOR),
        focal(),
        Chain(focal(), StructuredVectorScaling(prior=PRIOR)),
        Chain(focal(), StructuredMatrixScaling(strength=0.2, prior=PRIOR)),
        Chain(focal(), BiasScaling()),
        Chain(focal(), BiasScaling(), KernelScaling()),
        VectorScaling(prior=PRIOR),
        MatrixScaling(ridge=20.0, prior=PRIOR),
        CentredIsotonic(),
        Chain(CentredIsotonic(), StructuredMatrixScaling(strength=0.2, prior=PRIOR)),
        BetaCalibration(),
        SplineCalibration(),
    ]


def as_calibrator(one: object) -> Calibrator:
    """Return the calibrator that is given, or that a configuration describes.

    Raises:
        InputError: If it is neither.
    """
    if isinstance(one, Calibrator):
        return one
    from calibrant import calibrators as family

    made = build(one, families=[family, binning]) if isinstance(one, Mapping) else one
    if not isinstance(made, Calibrator):
        raise InputError(
            "calibrators such as TemperatureScaling() as candidates",
            f"{described(one)}",
            "pass a list of instances, or of configurations such as {'type': 'TemperatureScaling'}",
        )
    return made


def by_features(columns: Sequence[str] | None) -> list[Calibrator]:
    """Return the candidates that go by feature columns; None stands for all columns."""
    return [GroupScaling(columns), BoostedScaling(columns)]


def suits(member: Calibrator, *, rows: int, classes: int, compared: int) -> bool:
    """Return whether one of the ``usual`` candidates is for so many classes, and worth its time.

    Args:
        member: The candidate.
        rows: How many there are to fit on.
        classes: K.
        compared: The most rows that candidates are compared on.
    """
    first, last = (member.parts()[0], member.parts()[-1]) if isinstance(member, Chain) else (member, member)
    if isinstance(last, BetaCalibration | SplineCalibration):
        return classes == 2
    if isinstance(last, BiasScaling):
        return classes <= _FEW_CLASSES
    if isinstance(last, KernelScaling):
        return classes <= _FEW_CLASSES and rows * classes <= _KERNEL_WORK
    if isinstance(last, MatrixScaling):
        return classes <= _MATRIX_CLASSES
    if isinstance(last, StructuredMatrixScaling) and compared * classes**2 > _MATRIX_WORK:
        return False
    if isinstance(first, CentredIsotonic) and classes > _FEW_CLASSES:
        return compared >= _ROWS_A_CURVE * classes and compared * classes <= _ISOTONIC_WORK
    return not isinstance(last, StructuredVectorScaling) or classes > _FEW_CLASSES


# The confidence of a decision in ten bins, from rows that what took the decision was not fitted on.
#
# A pool of many parameters is too sure on new rows, and on its own rows that does not show. So the curve is fitted to answers
# out of fold: the mean, weighted by cross-fitted log-loss, of doing nothing, Platt scaling, beta calibration, centred isotonic
# regression and a spline. Answering its mean in bins of equal mass is the third step of scaling-binning (Kumar et al. 2019).


def pairs_of(answers: Iterable[tuple[Chunk, Tensor]]) -> MemoryRows:
    """Return rows of two classes, wrong and right, with logits 0 and the log-odds of the decision's probability.

    Args:
        answers: Rows, and logits (n, K) for them of what was not fitted on them.
    """
    chunks = []
    for chunk, logits in answers:
        log_q, log_rest, decided = log_pair_of_top(logits.double())
        log_odds = (log_q.gather(1, decided) - log_rest).clamp(-_SPAN, _SPAN)
        two = torch.cat([torch.zeros_like(log_odds), log_odds], dim=1)
        chunks.append(Chunk(two, (decided[:, 0] == chunk.labels).long(), chunk.weight, chunk.groups))
    first = chunks[0]
    count = sum(len(chunk) for chunk in chunks)
    weighted = first.weight is not None
    return MemoryRows(chunks, classes=2, count=count, weighted=weighted, device=first.logits.device)


def fit_confidence(pairs: MemoryRows, folds: int) -> tuple[Tensor, Tensor]:
    """Return the edges (B − 1,) of bins in log-odds, ascending, and the log-odds (B,) that each bin answers.

    Args:
        pairs: As ``pairs_of`` returns them.
        folds: How many parts the curves are compared on.
    """
    curves: Sequence[Calibrator] = (
        Identity(),
        PlattScaling(ridge=1.0),
        BetaCalibration(),
        CentredIsotonic(),
        SplineCalibration(),
    )
    sums = cross_fitted(curves, [True] * len(curves), pairs, folds, far=torch.inf).summed()
    weights = exponential(sums, rate=RATE, log_odds=0.0, least=LEAST)
    whole = pairs.gathered()
    scores = pool_ties(whole.logits[:, 1], whole.labels.double(), whole.weights)
    places = torch.from_numpy(scores.places)
    logits = torch.stack([torch.zeros_like(places), places], dim=1).to(pairs.device)
    p, mass = torch.zeros_like(places), 0.0
    for curve, weight in zip(curves, weights.tolist(), strict=True):
        if weight > 0 and quietly(curve, pairs):
            p, mass = p + weight * torch.softmax(curve(logits), dim=1)[:, 1].cpu(), mass + weight
    edges, means = mean_bins(places, p / mass, torch.from_numpy(scores.mass), bins=BINS)
    return edges.to(pairs.device), torch.logit(means).clamp(-_SPAN, _SPAN).to(pairs.device)


def with_confidence(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Return log-probabilities (N, K) float64 in which the decision has its bin's probability, and stays the decision.

    The other classes keep their proportions. Where the bin's probability is less than the runner-up would get, the two are
    all but equal.
    """
    log_q, log_rest, decided = log_pair_of_top(logits.double())
    others = log_q - log_rest
    runner_up = others.scatter(1, decided, -torch.inf).amax(dim=1, keepdim=True)
    log_odds = values[rank_in(edges, (log_q.gather(1, decided) - log_rest)[:, 0])][:, None]
    log_odds = torch.maximum(log_odds, runner_up + _MARGIN)
    answer = (others + logsigmoid(-log_odds)).scatter(1, decided, logsigmoid(log_odds))
    return answer.masked_fill(torch.isneginf(logits), -torch.inf)


# The weights of a pool of candidates, from their log-losses on rows that they were not fitted on.


def exponential(sums: Sums, *, rate: float, log_odds: float, least: float) -> Tensor:
    """Return weights (M,) ∝ exp(rate · summed gain), the first times exp(log_odds); none where not all rows were scored.

    Args:
        sums: Of all candidates.
        rate: Of the weights.
        log_odds: Of doing nothing, before the data.
        least: Lighter ones are left out.
    """
    log_weights = torch.where(sums.mass == sums.mass[0], rate * sums.gain, -torch.inf)
    log_weights[0] += log_odds
    return without(torch.softmax(log_weights, dim=0), least)


def stacked(scores: Scores, otherwise: Tensor, *, least: float) -> Tensor:
    """Return the weights (M,) of the mixture of least log-loss on rows that its members were not fitted on (Wolpert 1992).

    Args:
        scores: Of the rows that candidates were last compared on; those that were not scored on all of them get none.
        otherwise: Weights to keep if the optimum is not reached.
        least: Lighter ones are left out.
    """
    known = ~torch.isnan(scores.gain).any(dim=0)
    gain = scores.gain[:, known]
    # a row's probabilities matter up to a factor, and so do those of doing nothing, which the gains are relative to
    chunk = MixtureChunk.of(torch.exp(gain - gain.amax(dim=1, keepdim=True)), scores.weight)
    members = int(known.sum())
    rows = MemoryRows([chunk], classes=members, count=len(gain), weighted=True, device=gain.device)
    try:
        found = fit_mixture_weights(rows, members=members, mass=float(scores.weight.sum()))
    except FitError:
        return otherwise
    weights = torch.zeros_like(otherwise)
    weights[known] = found
    return without(weights, least)


def without(weights: Tensor, least: float) -> Tensor:
    """Return ``weights`` (M,), Σ = 1, with those below ``least`` shared among the others."""
    kept = torch.where(weights < least, 0.0, weights)
    return kept / kept.sum()
