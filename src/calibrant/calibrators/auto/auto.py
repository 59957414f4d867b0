"""The calibrator that chooses itself, and does nothing where no gain can be shown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from calibrant import binning
from calibrant._core.check import shown as described
from calibrant._core.config import build, config_of, renewed, shown
from calibrant._core.constraints import Integer
from calibrant._core.notebook import to_html
from calibrant._core.numerics import in_row_chunks, increasing_root, rank_in
from calibrant._core.warn import warn_user
from calibrant._objective.log_pairs import log_pair_of_top
from calibrant.calibrators.affine.bias_scaling import BiasScaling
from calibrant.calibrators.affine.fit import (
    LOWEST,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from calibrant.calibrators.affine.kernel_scaling import KernelScaling
from calibrant.calibrators.affine.prior_shift import label_mass
from calibrant.calibrators.auto.chain import Chain
from calibrant.calibrators.auto.cross_fitting import HeldOutScores, Sums, cross_fitted, held_out, quietly
from calibrant.calibrators.auto.projection import Keep, project
from calibrant.calibrators.base.calibrator import Calibrator, Identity
from calibrant.calibrators.base.chunks import break_ties, narrowed, with_logits, wrong_mass
from calibrant.calibrators.base.folds import in_random_sample
from calibrant.calibrators.base.simplex import MixtureChunk, fit_mixture_weights
from calibrant.calibrators.focal.focal_temperature import FocalTemperatureScaling
from calibrant.calibrators.focal.temperature import fit_log_temperature
from calibrant.calibrators.focal.temperature_mixture import EnsembleTemperatureScaling
from calibrant.calibrators.one_vs_rest.isotonic import CentredIsotonic
from calibrant.calibrators.one_vs_rest.maps import (
    BetaCalibration,
    PlattScaling,
    SplineCalibration,
    mean_bins,
    pool_ties,
)
from calibrant.errors import FitError, InputError, UsageWarning
from calibrant.rows import Chunk, MemoryRows, RowSource


@dataclass(frozen=True)
class Constants:
    """All that is set by hand.

    Those of the first two parts decide quality: they were fixed on one half of the real sets, split by model family, and evaluated on
    the other (``benchmarks.auto``). Those of
    the last part say how long a fit may take, and change no candidate's worth.

    Args:
        rate: A candidate's weight is exp(rate · its summed log-loss gain); 1 would be Bayes' rule, ½ allows for a wrong model.
        errors: With fewer wrong rows nothing can be learned about being wrong.
        identity_odds: How much likelier than any other candidate doing nothing is held to be before the data.
        few_errors: Wrong rows at which that is doubled: the fewer, the less is known of what would be harmed.
        two_classes: With two classes it is so many times larger: all candidates bend one curve, so that chance does for all what it
            does for one.
        stacked: Rows compared from which weights are fitted, once doing nothing is out: with fewer they follow chance.
        least: Lighter candidates, and curves of the confidence, are left out of what is shipped.
        prior: Standard deviation of log T, in every candidate.
        matrix_strength: Of the structured matrix's ridge, relative to the published one.
        matrix_ridge: Of the matrix of raw logits, in rows.
        by_chance: Rows of a class that the model expects, below which its having none says nothing: 1 is missed once in three times,
            but whether such classes occur is said by the decisions for all without rows together.
        occurring: Classes with rows, from which on the decisions for them in rows of others say what a class that occurs gets: one more
            would be below them all, or two more both outside their range, once in five times.
        apart: How far beyond the range of those, as a factor, a class must lie to be none that occurs; 1 to 1.4 were tried.
        depths: Nats by which the classes beside an exact one may lie below where the largest confidence below 1 leaves them.
        blurs: What may be added to all probabilities where some are exactly 0: a producer that rounds says little of what is small.
        tail: Standard deviation of the shift of the log-odds of classes at probability 0.
        bins: Of the decision's confidence: fewer have a larger log-loss, more a larger ECE.
        first: Logits of the first sample on which candidates are compared.
        selected: Logits of the largest.
        growth: Of the sample, while candidates are undecided.
        fewest: Rows of such a sample; up to twice as many as it holds, all rows are compared on.
        nats: Of log-loss: candidates nearer than that are not compared on more rows.
    """

    rate: float = 0.5
    errors: float = 3
    identity_odds: float = 5.0
    few_errors: float = 60.0
    two_classes: float = 4.0
    stacked: int = 1000
    least: float = 0.01
    prior: float = 0.5
    matrix_strength: float = 0.2
    matrix_ridge: float = 20.0
    by_chance: float = 1.0
    occurring: int = 4
    apart: float = 1.3
    depths: tuple[float, ...] = (3.0, 6.0, 9.0, 13.0, 18.0)
    blurs: tuple[float, ...] = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    tail: float = 2.0
    bins: int = 10
    first: int = 1 << 19
    selected: int = 1 << 23
    growth: int = 4
    fewest: int = 1 << 13
    nats: float = 1e-4


CONSTANTS = Constants()
_NAMED = 10  # absent classes that a warning names
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

    _repr_html_ = to_html

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
    and π larger for doing nothing than for any other, 5 · (1 + 60 / wrong rows) times; with two classes, where all candidates
    bend one curve, four times that. The answer is log Σ_m w_m p_m, with the candidates
    fitted on all rows; those below 1 % are left out. With fewer than 3 wrong rows nothing is changed. From
    1,000 rows on, where doing nothing is among those left out, the weights are those of the mixture with the least log-loss on
    the fifths. Folds follow the rows' content and not their order; rows of one group share a fold. Where rows are many, a
    random sample of them is compared on, the larger the closer the candidates are; all rows fit what is used.

    Exact zeros are intervals, not values: they lie just below the least probability that the rows show beside them, or, where a row
    has a one, as far above the largest confidence below 1 as gives a cross-fitted fit the least log-loss; a constant is added to all
    probabilities if it lowers that further; the log-odds of all zeros together are then shifted to what the rows show. In rows
    with several classes above 0, one at 0 that was never the true one stays there.

    Classes without a row in the fit keep the odds that they have after one temperature, and what the pool learns is how the
    others share the rest: rows to come may hold them, as when a sample was drawn by class. They become as rare as the rows say
    where the model's decisions say that they do not occur, such as letters of answers that no question offers: beside four classes
    with rows or more, wrong decisions for them (or the squares of their probabilities in rows of others) are on average rarer than
    for any of those, or for each of several rarer or more frequent, by a factor of 1.3 in either case. Those of which it expects
    less than one row keep their odds even then. A warning names them all.

    Args:
        keep: "argmax": the decision is the model's in every row; "order": the whole ranking is. The pool's answer p is replaced by
            the q of least KL(p ‖ q) that keeps it, with ties broken in the answer's own precision. A decision that is kept
            where the data speak against it cannot be calibrated: it gets as much as the class that is likelier.
        top_label: Then correct the decision's confidence, too, for the lowest calibration error: it becomes one of ten values
            with about equally many rows each, by the pool's answers to rows that its members were not fitted on, if these show with
            the same certainty as a candidate needs that it is off. The decision stays the pool's; the other classes keep their
            proportions. Fitting takes up to twice as long.
        folds: How many parts, ≥ 2.
        candidates: Calibrators to try beside doing nothing, or None for the usual: ensemble temperature; focal
            temperature scaling, alone, before structured matrix scaling with a fifth of the published ridge, before bias
            scaling, and before bias and kernel scaling; vector scaling; matrix scaling with a ridge of 20 rows; centred
            isotonic, alone and before that same structured matrix scaling; beta and spline for two classes; with more than
            20 classes, focal temperature scaling before structured vector scaling. Matrices of logits are for up to 10
            classes, the structured ones up to 5·10⁸ rows · K², curves of more than 20 classes from 100 rows a class, biases
            up to 20 classes, kernels up to 20 and 2·10⁶ rows · K: about half a minute a candidate. All
            temperatures have a prior of 0.5 on log T.
        absent_classes: "auto", as above; "keep": all keep their odds; "learn": all that chance does not explain become rare.

    Attributes:
        evidence: What was tried, chosen, and why; ``print(calibrator.evidence)`` shows the table.
        weights: (M,) the shares of doing nothing and of the candidates, in order.
        top_edges: (B − 1,) with ``top_label``, in log-odds of the pool's confidence; empty below 3 wrong rows.
        top_values: (B,) the log-odds that each bin gets.
        floor: (3,) the log-probability that each class at −inf gets before anything else, in rows with one other class and in rows
            with several, −inf leaves it out; and what is then added to all; empty where no class was at −inf.
        tails: (2,) by how much the log-odds of these classes together are shifted after the pool.
        absent: (K,) which classes keep their odds; empty where none does.
        absent_log_temperature: log T, by which these keep their odds.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> z = 5 * torch.randn(400, 3, generator=generator)
        >>> y = torch.multinomial(torch.softmax(z / 3, dim=1), 1, generator=generator)[:, 0]
        >>> fitted = AutoCalibrator().fit(z, y)
        >>> fitted.evidence.verdict.split(":")[0]
        'calibrated'

    References:
        Juditsky, Rigollet, Tsybakov 2008, Learning by mirror averaging (exponential weights); Yang 2004, Aggregating
        regression procedures to improve performance; Wolpert 1992, Stacked generalization. Csiszár 1975, I-divergence geometry
        (the nearest distribution under constraints).
    """

    weights: Tensor
    losses: Tensor
    errors: Tensor
    counts: Tensor
    floor: Tensor
    tails: Tensor
    absent: Tensor
    absent_log_temperature: Tensor
    top_edges: Tensor
    top_values: Tensor

    decision_on_top = True  # with top_label; without, no decision is carried either

    def __init__(
        self,
        *,
        keep: Keep | None = None,
        top_label: bool = False,
        folds: Annotated[int, Integer(2)] = 5,
        candidates: Sequence[Calibrator | Mapping[str, Any]] | None = None,
        absent_classes: Literal["auto", "keep", "learn"] = "auto",
    ) -> None:
        super().__init__()
        self.keep = keep
        self.absent_classes = absent_classes
        self.top_label = top_label
        self.folds = folds
        named = list(candidates) if isinstance(candidates, Sequence) else [candidates]
        self._table = usual()
        pool = [one.calibrator for one in self._table]
        tried = pool if candidates is None else [as_calibrator(one) for one in named]
        self._usual = [config_of(one) for one in tried] == [config_of(one) for one in pool]
        if not tried or any(one.top_label or one.needs_features for one in tried):
            raise InputError(
                "candidates that calibrate all classes by the logits alone",
                f"{[type(one).__name__ for one in tried]}",
                "name at least one, and none that is top-label only or goes by features",
            )
        self.members = nn.ModuleList([Identity(), *tried])
        self._update_facts()

    @property
    def candidates(self) -> list[Calibrator]:
        """What is tried beside doing nothing."""
        return self._members()[1:]

    def _update_facts(self) -> None:
        # all that is in use; before fit, all that may come into use
        used = [member for member in self._members() if member.fitted or not self.fitted]
        self.preserves_argmax = self.keep is not None or all(member.preserves_argmax for member in used)

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
        return Evidence(int(rows), wrong, int(folds), trials, _verdict(trials, wrong, of_all=not len(self.absent)))

    def learned(self) -> str:
        """Return what is in use, with its share."""
        used = [
            f"{w:.2f} {_name(m, settings=False)}"
            for m, w in zip(self._members(), self.weights.tolist(), strict=True)
            if w > 0
        ]
        levels = [f"{math.exp(level):.2g}" for level in self.floor.view(-1)[:2].tolist() if math.isfinite(level)]
        zeros = f", zeros as {' and '.join(levels)}" if levels else ""
        zeros += f", {int(self.absent.sum())} classes without rows by one temperature" if len(self.absent) else ""
        top = f", top label in {len(self.top_values)} bins" if len(self.top_values) else ""
        return "uses " + " + ".join(used) + zeros + top

    def extra_repr(self) -> str:
        """Show the settings and what is in use; candidates show themselves."""
        settings = f"keep={self.keep!r}, folds={self.folds}"
        settings += ", top_label=True" if self.top_label else ""
        return f"{settings}, {self.learned()}" if self.fitted else settings

    def _members(self) -> list[Calibrator]:
        return [member for member in self.members if isinstance(member, Calibrator)]

    def _fit(self, rows: RowSource) -> None:
        with_zeros, rows = rows, self._level(rows)
        rows = self._leave_out_absent(rows)
        wrong = float(rows.total(wrong_mass))
        fresh = [renewed(member) for member in self._members()]
        enough = wrong >= CONSTANTS.errors
        tried = [m == 0 or (enough and self._suits(m, rows)) for m in range(len(fresh))]
        sums, scores, every = self._compared(fresh, tried, rows)
        self._weigh(sums, scores, wrong, rows.classes)
        self._correct(fresh, rows, wrong)
        for m, member in enumerate(fresh):
            used = float(self.weights[m]) > 0 and quietly(member, every)
            self.members[m] = member if used else renewed(member)
        self.counts = torch.tensor([float(rows.count), wrong, float(sums.folds)], dtype=torch.float64)
        self.tails = torch.zeros_like(self.floor[:2])
        if len(self.floor):
            answers = with_zeros.prepared(_tail_of, self)
            self.tails = torch.tensor(
                [_shift(answers, kind) for kind in (0, 1)], dtype=torch.float64, device=rows.device
            )

    def _level(self, rows: RowSource) -> RowSource:
        """Set the levels of exact zeros, and return the rows with them."""
        zeros, missed = rows.total(_zeros).tolist()
        self.floor = torch.empty(0, dtype=torch.float64, device=rows.device)
        if not zeros:
            return rows
        ones, several = rows.largest(_depths).tolist()
        # without a row below 1 to be above of, half a row's worth
        ones = -ones if math.isfinite(ones) else math.log(0.5 / (rows.mass + 1) / rows.classes)
        several = -several if missed else -math.inf

        def level(depth: float, blur: float) -> Tensor:
            return torch.tensor([ones - depth, several, blur], dtype=torch.float64, device=rows.device)

        def least(tried: list[Tensor]) -> Tensor:
            return min(tried, key=lambda level: self._loss_at(rows, level))

        best = least([level(depth, -math.inf) for depth in CONSTANTS.depths])
        depth = ones - float(best[0])
        self.floor = least([best, *(level(depth, math.log(blur)) for blur in CONSTANTS.blurs)])
        return rows.prepared(with_logits, with_levels, self.floor)

    def _loss_at(self, rows: RowSource, levels: Tensor) -> float:
        """Return the cross-fitted log-loss of focal temperature scaling with exact zeros at these levels, on a sample of many rows."""
        few = _held(rows, _first_sample(rows)).prepared(with_logits, with_levels, levels)
        probe = [Identity(), usual()[1].calibrator]  # two parameters: quick, and it bends to where the ones lie
        sums = cross_fitted(probe, [True, True], few, self.folds, far=math.inf).summed()
        return sums.loss - float(sums.gain[1] if sums.mass[1] == sums.mass[0] else 0.0)

    def _leave_out_absent(self, rows: RowSource) -> RowSource:
        """Set which classes keep their odds, and their temperature; return the rows without them."""
        mass = rows.total(label_mass, rows.classes)
        missing = mass == 0
        self.absent = torch.empty(0, dtype=torch.float64, device=rows.device)
        self.absent_log_temperature = torch.zeros((), dtype=torch.float64, device=rows.device)
        if not bool(missing.any()):
            return rows
        if float(rows.total(wrong_mass)) >= CONSTANTS.errors:
            self.absent_log_temperature += fit_log_temperature(rows, prior=CONSTANTS.prior).x
        expected = rows.total(_expected, self.absent_log_temperature)
        keep = self.absent_classes == "keep" or (
            self.absent_classes == "auto" and _may_occur(mass, rows, self.absent_log_temperature)
        )
        kept = missing & ((expected < CONSTANTS.by_chance) | keep)
        names = (torch.nonzero(some)[:, 0].tolist() for some in (missing, missing & ~kept))
        _warn_absent(*names, asked=self.absent_classes != "auto")
        if not bool(kept.any()):
            return rows
        self.absent = kept.double()
        return rows.prepared(with_logits, without_absent, self.absent)

    def _compared(
        self, members: Sequence[Calibrator], tried: Sequence[bool], rows: RowSource
    ) -> tuple[Sums, HeldOutScores, RowSource]:
        """Return how candidates do, on the rows compared last too, and all rows, in memory where they are held there.

        Of many rows a random sample is used, and a larger one as long as candidates are undecided: those whose gain may,
        with what more rows could give their parameters, come near the best one's, and whose distance from it has a standard
        error above 1e-4 nats.
        """
        size, found = _first_sample(rows), None
        # exp(rate · gain) of a candidate that is this far behind is a weight below the least
        far = -math.log(CONSTANTS.least) / CONSTANTS.rate
        while True:
            every = rows.count <= 2 * size
            few = _held(rows, size)
            scores = cross_fitted(members, tried, few, self.folds, far=far)
            found = scores.summed() if found is None else scores.summed().after(found)
            near = [] if every else scores.undecided(members, CONSTANTS.nats)
            size *= CONSTANTS.growth
            if not near or size * rows.classes > CONSTANTS.selected:
                return found, scores, few if every else rows
            tried = [m == 0 or m in near for m in range(len(members))]

    def _suits(self, m: int, rows: RowSource) -> bool:
        """Return whether member m is for so many classes, and worth its time; what was asked for always is."""
        if not self._usual or m > len(self._table):
            return True
        compared = min(rows.count, 2 * max(CONSTANTS.fewest, CONSTANTS.selected // rows.classes))
        return self._table[m - 1].suits(rows.classes, rows.count, compared)

    def _correct(self, members: Sequence[Calibrator], rows: RowSource, wrong: float) -> None:
        """Set the bins of the decision's confidence, from the pool's answers out of fold to as many rows as compared first."""
        self.top_edges = self.top_values = torch.empty(0, dtype=torch.float64, device=rows.device)
        if not self.top_label or wrong < CONSTANTS.errors:
            return
        whole = _held(rows, _first_sample(rows)).gathered(
            values=4 * CONSTANTS.selected, why="AutoCalibrator(top_label=True)"
        )
        used = [m for m, weight in enumerate(self.weights.tolist()) if weight > 0]
        answers = held_out([members[m] for m in used], self.weights[used].log(), MemoryRows.of_chunk(whole), self.folds)
        kept = (
            (chunk, answer if self.keep is None else project(answer, chunk.logits, self.keep))
            for chunk, answer in answers
        )
        self.top_edges, self.top_values = fit_confidence(pairs_of(kept), self.folds, log_odds=prior_log_odds(wrong, 2))

    def _weigh(self, sums: Sums, scores: HeldOutScores, wrong: float, classes: int) -> None:
        """Set weights, losses and standard errors; the loss of a candidate that was given up is that of its rows."""
        mass, gain = sums.mass, sums.gain
        total, mean = mass[0], gain / mass
        base = sums.loss / total
        if not math.isfinite(base):
            raise FitError("a finite log-loss of the logits as they are", f"{base:g}", "check the logits' range")
        self.losses = torch.where(mass > 0, base - mean, math.inf)
        self.errors = torch.where(mass > 0, (sums.square - mean * gain).clamp_min(0.0).sqrt() / mass, math.inf)
        self.weights = exponential_weights(sums, log_odds=prior_log_odds(wrong, classes))
        if not float(self.weights[0]) and len(scores.raw) >= CONSTANTS.stacked:
            self.weights = stacked(scores, self.weights)

    def _transform(self, logits: Tensor) -> Tensor:
        """Return the pool's answer; with all classes, the decision and its confidence as they are to be."""
        plain = self.keep is None and not len(self.top_values) and not len(self.absent)
        if plain:
            return self._pooled(logits)
        full = with_levels(
            logits.double(), self.floor.view(-1)[:2]
        )  # what is added to all would round small differences away
        inputs = without_absent(full, self.absent) if len(self.absent) else full
        answer = torch.log_softmax(self._pooled(logits.double()), dim=1)
        if self.keep is not None:
            answer = project(answer, inputs, self.keep)
        if len(self.top_values):
            answer = in_row_chunks(partial(with_confidence, edges=self.top_edges, values=self.top_values), answer)
        if len(self.absent):
            answer = with_absent(answer, full, self.absent, self.absent_log_temperature)
            answer = answer if self.keep is None else project(answer, full, self.keep)
        narrow = narrowed(answer, logits.dtype)
        return narrow if self.keep is None else break_ties(narrow, logits.argmax(dim=1, keepdim=True))

    def _pooled(self, logits: Tensor) -> Tensor:
        """Return the mixture's answer, with exact zeros at their level and then shifted, and without absent classes."""
        inputs = with_levels(logits, self.floor)
        inputs = without_absent(inputs, self.absent) if len(self.absent) else inputs
        used = [(m, member) for m, member in enumerate(self._members()) if member.fitted]
        if len(used) == 1:
            answer = torch.as_tensor(used[0][1](inputs))
        else:
            log_w = self.weights.to(inputs.dtype).log()
            parts = [torch.log_softmax(member(inputs), dim=1) + log_w[m] for m, member in used]
            answer = torch.logsumexp(torch.stack(parts), dim=0)
        if self.tails.numel():
            answer = with_tails(answer.double(), logits, self.tails)
        return narrowed(answer, logits.dtype)


# Classes at probability 0, and classes without rows.


def one_left(excluded: Tensor) -> Tensor:
    """Return in which rows (N, 1) all classes but one are excluded, of a mask (N, K)."""
    return excluded.sum(dim=1, keepdim=True) >= excluded.shape[1] - 1


def with_levels(logits: Tensor, levels: Tensor) -> Tensor:
    """Return ``logits`` (N, K) in which classes at −inf have the log-probability of their kind of row beside the others.

    Args:
        logits: (N, K).
        levels: (3,) of rows with one class above 0, of rows with several, and of what is added to all; the last is absent and the first
            two may be one in files of earlier versions; or none.
    """
    if not levels.numel():
        return logits
    ones, several, *blur = levels.expand(2) if levels.numel() == 1 else levels
    excluded = torch.isneginf(logits)
    total = torch.logsumexp(logits.double(), dim=1, keepdim=True)
    filled = torch.where(excluded, total + torch.where(one_left(excluded), ones, several), logits.double())
    for level in blur:  # a sum and not a maximum: the order of small probabilities stays
        filled = torch.where(torch.isneginf(filled), filled, torch.logaddexp(filled, total + level))
    return filled.to(logits.dtype)


def with_tails(answer: Tensor, logits: Tensor, shifts: Tensor) -> Tensor:
    """Return ``answer`` (N, K) in which classes at −inf in ``logits`` have their log-odds, all together, shifted by that of their kind."""
    excluded = torch.isneginf(logits)
    shift = torch.where(one_left(excluded), shifts[0], shifts[1])
    return torch.where(excluded, answer + shift, answer)


def without_absent(logits: Tensor, absent: Tensor) -> Tensor:
    """Return ``logits`` (N, K) with absent classes at −inf, but for rows that have no other."""
    missing = absent > 0
    others = (torch.isfinite(logits) & ~missing).any(dim=1, keepdim=True)
    return torch.where(missing & others, -torch.inf, logits)


def with_absent(answer: Tensor, logits: Tensor, absent: Tensor, log_temperature: Tensor) -> Tensor:
    """Return log-probabilities (N, K): absent classes as ``logits`` over one temperature have them, the rest shared as in ``answer``."""
    missing = absent > 0
    tempered = torch.log_softmax(logits * torch.exp(-log_temperature), dim=1)
    others = (torch.isfinite(logits) & ~missing).any(dim=1, keepdim=True)
    rest = torch.logsumexp(tempered.masked_fill(missing, -torch.inf), dim=1, keepdim=True)
    return torch.where(missing | ~others, tempered, torch.log_softmax(answer, dim=1) + rest)


def _zeros(chunk: Chunk) -> Tensor:
    """Return the weight of zeros, and of those under a true class in rows with several others (2,)."""
    excluded = torch.isneginf(chunk.logits)
    missed = excluded.gather(1, chunk.labels[:, None])[:, 0] & ~one_left(excluded)[:, 0]
    return torch.stack([chunk.weights @ excluded.sum(dim=1).double(), chunk.weights[missed].sum()]).cpu()


def _depths(chunk: Chunk) -> Tensor:
    """Return minus the log of the least share that a class has of what the decision leaves, in rows below 1, and of the least
    probability above 0 (2,)."""
    log_p = torch.log_softmax(chunk.logits.double(), dim=1)
    excluded = torch.isneginf(chunk.logits)
    below = ~one_left(excluded)[:, 0]
    if not bool(below.any()):
        return torch.full((2,), -torch.inf, dtype=torch.float64)
    log_rest = log_pair_of_top(log_p[below])[1]
    least = log_p[below].masked_fill(excluded[below], torch.inf).amin()
    return torch.stack([math.log(log_p.shape[1] - 1) - log_rest.amin(), -least]).cpu()


def _may_occur(mass: Tensor, rows: RowSource, log_temperature: Tensor) -> bool:
    """Return whether classes without a row have, in rows of others, about as many decisions as those with rows, and Σ p².

    Of few rows few decide wrongly, and chance makes some class the least with none; Σ p² counts the near ones, too.
    """
    seen, missing = mass > 0, mass == 0
    if int(seen.sum()) < CONSTANTS.occurring:
        return True
    for rate in rows.total(_of_others, rows.classes, log_temperature) / (mass.sum() - mass):
        least, most = rate[seen].amin() / CONSTANTS.apart, rate[seen].amax() * CONSTANTS.apart
        outside = (rate[missing] < least) | (rate[missing] > most)
        if (int(missing.sum()) > 1 and bool(outside.all())) or float(rate[missing].mean()) < least:
            return False
    return True


def _of_others(chunk: Chunk, classes: int, log_temperature: Tensor) -> Tensor:
    """Return the weight of the rows that are decided for each class and are another's, and their Σ p²: (2, K)."""
    decided, label = chunk.logits.argmax(dim=1), chunk.labels[:, None]
    wrong = torch.bincount(decided, chunk.weights * (decided != chunk.labels), minlength=classes)
    p = torch.softmax(chunk.logits.double() * torch.exp(-log_temperature), dim=1)
    return torch.stack([wrong, chunk.weights @ p.square().scatter(1, label, 0.0)])


def _expected(chunk: Chunk, log_temperature: Tensor) -> Tensor:
    return chunk.weights @ torch.softmax(chunk.logits.double() * torch.exp(-log_temperature), dim=1)


def _warn_absent(missing: Sequence[int], learned: Sequence[int], *, asked: bool) -> None:
    every, some = (
        ", ".join(map(str, one[:_NAMED])) + f" and {len(one) - _NAMED} more" * (len(one) > _NAMED)
        for one in (missing, learned)
    )
    rarer = [f"{some} become as rare as the rows say"] if learned else []
    kept = [f"{'the others' if learned else 'they'} keep the model's odds"] if len(missing) > len(learned) else []
    other = (['"keep" if rows to come hold them'] if learned else []) + (['"learn" if none does'] if kept else [])
    known = "" if asked else f", or set absent_classes to {', '.join(other)}"
    warn_user(
        f"expected a row of every class, got none of {every}: {'; '.join(rarer + kept)}; add rows of them{known}",
        UsageWarning,
    )


@dataclass(frozen=True)
class _Tail:
    """Of rows with zeros: the log-odds of these classes together, whether one was true, the weight, the kind of row; all (n,)."""

    log_odds: Tensor
    hit: Tensor
    weight: Tensor
    several: Tensor

    def slope(self, kind: int, shift: float) -> Tensor:
        """Return first and second derivative of the summed log-loss by the shift (2,); rows without log-odds say nothing."""
        weight = self.weight * (self.several == kind) * torch.isfinite(self.log_odds)
        p = torch.sigmoid(torch.nan_to_num(self.log_odds, neginf=0.0) + shift)
        return torch.stack([weight @ (p - self.hit), weight @ (p * (1 - p))]).cpu()


def _tail_of(chunk: Chunk, pool: AutoCalibrator) -> _Tail | None:
    excluded = torch.isneginf(chunk.logits)
    some = excluded.any(dim=1)
    if not bool(some.any()):
        return None
    rows, excluded = chunk.where(some), excluded[some]
    answer = pool._pooled(rows.logits.double())
    inside, outside = (torch.logsumexp(answer.masked_fill(mask, -torch.inf), dim=1) for mask in (~excluded, excluded))
    hit = excluded.gather(1, rows.labels[:, None])[:, 0].double()
    return _Tail(inside - outside, hit, rows.weights, (~one_left(excluded)[:, 0]).double())


def _shift(answers: RowSource, kind: int) -> float:
    """Return the shift of least log-loss, under a normal prior about 0, for rows of one kind."""

    def slope(shift: float) -> tuple[float, float]:
        first, second = answers.total(_Tail.slope, kind, shift).tolist()
        return first + shift / CONSTANTS.tail**2, second + 1 / CONSTANTS.tail**2

    return increasing_root(slope, low=LOWEST, high=-LOWEST, start=0.0, tolerance=1e-9).x


def _first_sample(rows: RowSource) -> int:
    """Return how many rows are compared on first."""
    return max(CONSTANTS.fewest, CONSTANTS.first // rows.classes)


def _held(rows: RowSource, size: int) -> RowSource:
    """Return the rows, of more than 2 · ``size`` about ``size`` at random, in memory; where their logits are many even so, as
    of a last layer over a vocabulary, as they are.
    """
    rows = rows if rows.count <= 2 * size else rows.where(in_random_sample, size / rows.count)
    if isinstance(rows, MemoryRows) or rows.count * rows.classes > 4 * CONSTANTS.selected:
        return rows
    return MemoryRows.of_chunk(rows.gathered(values=4 * CONSTANTS.selected))


def _name(member: Calibrator, *, settings: bool = True) -> str:
    """Return the class's name, of a chain its stages', with or without settings."""
    if isinstance(member, Chain):
        return f"Chain({', '.join(_name(stage, settings=settings) for stage in member.parts())})"
    return f"{type(member).__name__}({shown(member)})" if settings else type(member).__name__


def _verdict(trials: Sequence[Trial], wrong: float, *, of_all: bool) -> str:
    if wrong < CONSTANTS.errors:
        some = "wrong rows" if of_all else "rows wrong among the classes that have any"
        return f"abstained: {wrong:g} {some} are too few to learn from (at least {CONSTANTS.errors:g})"
    if trials[0].weight == 1:
        return "abstained: no candidate showed a gain"
    gain = sum(trial.weight * trial.gain for trial in trials if trial.weight > 0)
    used = [trial for trial in trials if trial.weight > 0]
    if all(trial.gain <= 0 for trial in used):
        return (
            f"hardly changed: no candidate showed a gain, and {len(used) - 1} within error of doing nothing share "
            f"{1 - trials[0].weight:.2f} of the weight"
        )
    tried = sum(math.isfinite(trial.loss) for trial in trials)  # not those that the data rule out
    return f"calibrated: {len(used)} of {tried} candidates in use, mean cross-fitted gain {gain:.4f} nats"


# The candidates that an ``AutoCalibrator`` tries.


@dataclass(frozen=True)
class Candidate:
    """A calibrator to try, and for which data: one rule for all.

    It is tried with up to ``classes`` classes while rows · K^power is at most ``work``, about half a minute of one core; rows are
    those compared, or with ``whole`` all. Beyond 20 classes one with ``a_class`` needs so many rows for each.
    """

    calibrator: Calibrator
    least: int = 2
    classes: float = math.inf
    work: float = math.inf
    power: int = 1
    whole: bool = False
    a_class: int = 0

    def suits(self, classes: int, rows: int, compared: int) -> bool:
        """Return whether it is tried on so many classes and rows, of which ``compared`` are compared on."""
        small = classes <= _FEW_CLASSES and self.a_class > 0
        fits = (rows if self.whole else compared) * classes**self.power <= self.work
        return self.least <= classes <= self.classes and (small or (fits and compared >= self.a_class * classes))


_FEW_CLASSES = 20  # up to this many, the structured matrix is cheap, and never behind the structured vector


def usual() -> list[Candidate]:
    """Return the candidates that did best together on the half of the real sets that fixed the constants."""
    prior = CONSTANTS.prior

    def focal() -> Calibrator:
        return FocalTemperatureScaling(gammas=(-0.9, 5.0), search="continuous", prior=prior)

    def matrix() -> Calibrator:
        return StructuredMatrixScaling(strength=CONSTANTS.matrix_strength, prior=prior)

    return [
        Candidate(EnsembleTemperatureScaling(prior=prior)),
        Candidate(focal()),
        Candidate(Chain(focal(), StructuredVectorScaling(prior=prior)), least=_FEW_CLASSES + 1),
        Candidate(Chain(focal(), matrix()), work=5e8, power=2),
        Candidate(Chain(focal(), BiasScaling()), classes=_FEW_CLASSES),
        Candidate(Chain(focal(), BiasScaling(), KernelScaling()), classes=_FEW_CLASSES, work=2e6, whole=True),
        Candidate(VectorScaling(prior=prior)),
        # beyond ten classes a matrix of raw logits takes longer than all other candidates together
        Candidate(MatrixScaling(ridge=CONSTANTS.matrix_ridge, prior=prior), classes=10),
        # with fewer than 100 rows a class, curves of few positive rows were far behind on every set
        Candidate(CentredIsotonic(), work=1e7, a_class=100),
        Candidate(Chain(CentredIsotonic(), matrix()), work=1e7, a_class=100),
        Candidate(BetaCalibration(), classes=2),
        Candidate(SplineCalibration(), classes=2),
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
        log_odds = (log_q.gather(1, decided) - log_rest).clamp(LOWEST, -LOWEST)
        two = torch.cat([torch.zeros_like(log_odds), log_odds], dim=1)
        chunks.append(replace(chunk, logits=two, labels=(decided[:, 0] == chunk.labels).long(), features={}))
    first = chunks[0]
    count = sum(len(chunk) for chunk in chunks)
    weighted = first.weight is not None
    return MemoryRows(chunks, classes=2, count=count, weighted=weighted, device=first.logits.device)


def fit_confidence(pairs: MemoryRows, folds: int, *, log_odds: float) -> tuple[Tensor, Tensor]:
    """Return the edges (B − 1,) of bins in log-odds, ascending, and the log-odds (B,) that each bin answers; none if nothing is off.

    Args:
        pairs: As ``pairs_of`` returns them.
        folds: How many parts the curves are compared on.
        log_odds: Of the confidences being right as they are, before the data.
    """
    curves: Sequence[Calibrator] = (
        Identity(),
        PlattScaling(ridge=1.0),
        BetaCalibration(),
        CentredIsotonic(),
        SplineCalibration(),
    )
    sums = cross_fitted(curves, [True] * len(curves), pairs, folds, far=torch.inf).summed()
    guard = exponential_weights(sums, log_odds=log_odds)
    if float(guard[0]) > 0.5:  # likelier than not nothing is off: ten values in place of many would lose for nothing
        none = torch.empty(0, dtype=torch.float64, device=pairs.device)
        return none, none
    weights = exponential_weights(sums, log_odds=0.0)
    whole = pairs.gathered()
    scores = pool_ties(whole.logits[:, 1], whole.labels.double(), whole.weights)
    places = torch.from_numpy(scores.places)
    logits = torch.stack([torch.zeros_like(places), places], dim=1).to(pairs.device)
    p, mass = torch.zeros_like(places), 0.0
    for curve, weight in zip(curves, weights.tolist(), strict=True):
        if weight > 0 and quietly(curve, pairs):
            p, mass = p + weight * torch.softmax(curve(logits), dim=1)[:, 1].cpu(), mass + weight
    edges, means = mean_bins(places, p / mass, torch.from_numpy(scores.mass), bins=CONSTANTS.bins)
    return edges.to(pairs.device), torch.logit(means).clamp(LOWEST, -LOWEST).to(pairs.device)


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


def prior_log_odds(wrong: float, classes: int) -> float:
    """Return the log-odds of doing nothing against any other candidate, before the data."""
    alike = CONSTANTS.two_classes if classes == 2 else 1.0
    return math.log(CONSTANTS.identity_odds * alike * (1 + CONSTANTS.few_errors / max(wrong, 1.0)))


def exponential_weights(sums: Sums, *, log_odds: float) -> Tensor:
    """Return weights (M,) ∝ exp(rate · summed gain), the first times exp(log_odds); none where not all rows were scored.

    Args:
        sums: Of all candidates.
        log_odds: Of doing nothing, before the data.
    """
    log_weights = torch.where(sums.mass == sums.mass[0], CONSTANTS.rate * sums.gain, -torch.inf)
    log_weights[0] += log_odds
    return without_light(torch.softmax(log_weights, dim=0))


def stacked(scores: HeldOutScores, otherwise: Tensor) -> Tensor:
    """Return the weights (M,) of the mixture of least log-loss on rows that its members were not fitted on (Wolpert 1992).

    Args:
        scores: Of the rows that candidates were last compared on; those that were not scored on all of them get none.
        otherwise: Weights to keep if the optimum is not reached.
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
    return without_light(weights)


def without_light(weights: Tensor) -> Tensor:
    """Return ``weights`` (M,), Σ = 1, with the light ones shared among the others."""
    kept = torch.where(weights < CONSTANTS.least, 0.0, weights)
    return kept / kept.sum()
