"""Log-losses of calibrators on rows they were not fitted on."""

import json
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._core.config import config_of
from calibrant._core.warn import report_progress
from calibrant.calibrators.auto.chain import Chain
from calibrant.calibrators.base.calibrator import Calibrator
from calibrant.calibrators.base.chunks import through, with_logits
from calibrant.calibrators.base.folds import inside, outside, tied
from calibrant.errors import CalibrantError, CalibrantWarning, InputError
from calibrant.rows import Chunk, RowSource

_YIELD = 5e-4  # nats that more rows may give a candidate's parameters without a reason to take them
# losses of doing nothing, below which equal rows decide whole folds and a standard error says too little
_DIFFERENT = 50
_SURE = 3.0  # standard errors by which a candidate must be behind to be given up before all folds are seen


@dataclass(frozen=True)
class HeldOutScores:
    """Log-losses of N rows under M candidates, each fitted without the row's fold; the first does nothing.

    Args:
        raw: (N,) of doing nothing.
        gain: (N, M) how much lower it is; NaN where a candidate was given up, all NaN of one that cannot be fitted.
        weight: (N,).
        fold: (N,) of each row.
    """

    raw: Tensor
    gain: Tensor
    weight: Tensor
    fold: Tensor

    @property
    def folds(self) -> int:
        """How many folds held rows."""
        return len(self.fold.unique())

    def joined(self, later: "HeldOutScores") -> "HeldOutScores":
        """Return the rows of both."""
        return HeldOutScores(*(torch.cat([getattr(self, one.name), getattr(later, one.name)]) for one in fields(self)))

    def summed(self) -> "Sums":
        """Return the sums over the rows on which a candidate was scored."""
        known = torch.nan_to_num(self.gain, nan=0.0)
        mass = self.weight @ (~torch.isnan(self.gain)).double()
        return Sums(float(self.weight @ self.raw), mass, self.weight @ known, self.weight @ known**2, self.folds)

    def behind(self, best: int) -> tuple[Tensor, Tensor]:
        """Return the mean (M,) by which the candidates' gain is below that of ``best``, and its standard error (M,)."""
        gap = self.gain[:, best : best + 1] - self.gain
        known = ~torch.isnan(gap)
        gap = torch.where(known, gap, 0.0)
        mass = (self.weight @ known.double()).clamp_min(1e-300)
        mean = self.weight @ gap / mass
        spread = (self.weight @ gap**2 / mass - mean**2).clamp_min(0.0)
        return mean, (spread / mass).sqrt()

    def hopeless(self, alive: Sequence[int], part: float, far: float) -> set[int]:
        """Return the candidates whose summed gain will end ``far`` below the best one's, after this ``part`` of all folds."""
        if not alive or part >= 1 or torch.unique(self.raw).shape[0] < _DIFFERENT:
            return set()
        gain = self.summed().gain
        best = max([0, *alive], key=lambda m: float(gain[m]))
        mean, error = self.behind(best)
        mass = float(self.weight.sum())
        # Σ over all rows; what is to come has an error, too
        least = mass / part * (mean - _SURE * error / math.sqrt(part))
        return {m for m in alive if float(least[m]) > far}

    def undecided(self, members: Sequence[Calibrator], nats: float) -> list[int]:
        """Return the candidates to compare again on more rows than these, a sample's; none where the best is known to ``nats``.

        One is near whose mean gain, plus 3 standard errors and what more rows could still give, comes within ``nats`` of the
        best one's. P parameters fitted on n rows lose about P / 2n to their best (Akaike 1974), which is that allowance.

        Args:
            members: Candidates, as fitted on all folds of it but one.
            nats: Standard error, and distance, that do not matter.
        """
        sums = self.summed()
        total = float(sums.mass[0])
        complete = torch.where(sums.mass == total, sums.gain, -torch.inf)
        best = int(complete.argmax())
        mean, error = self.behind(best)
        fitted = total * (1 - 1 / max(2, self.folds))
        learned = [sum(part.numel() for part in member.buffers() if part.is_floating_point()) for member in members]
        allowance = torch.tensor(learned, dtype=torch.float64) / (2 * fitted)
        near = (sums.mass > 0) & (mean - _SURE * error - allowance <= nats)
        doubtful = near & ((error > nats) | (allowance > _YIELD))
        doubtful[[0, best]] = False
        return [m for m in range(1, len(members)) if bool(near[m])] if bool(doubtful.any()) else []


@dataclass(frozen=True)
class Sums:
    """What the scores come to.

    Args:
        loss: Σ w loss of doing nothing.
        mass: (M,) Σ w over the rows on which a candidate was scored; that of the first is of all rows.
        gain: (M,) Σ w gain over them.
        square: (M,) Σ w gain² over them.
        folds: How many folds held rows.
    """

    loss: float
    mass: Tensor
    gain: Tensor
    square: Tensor
    folds: int

    def after(self, before: "Sums") -> "Sums":
        """Return these sums, and those of ``before``, on fewer rows, for candidates that were no longer tried."""
        tried = self.mass > 0
        mass, gain, square = (
            torch.where(tried, getattr(self, name), getattr(before, name)) for name in ("mass", "gain", "square")
        )
        return Sums(self.loss, mass, gain, square, self.folds)


def cross_fitted(
    members: Sequence[Calibrator],
    tried: Sequence[bool],
    rows: RowSource,
    folds: int,
    *,
    far: float,
) -> HeldOutScores:
    """Return the candidates' gains in log-loss on rows that they were not fitted on.

    In every fold candidates are fitted at low precision, chains with the same first stages share them, and a search starts at
    the solution of the previous fold. A candidate is dropped when its predicted summed gain over all rows is, by more than 3
    standard errors, ``far`` below that of the best one.

    Args:
        members: Candidates; the first does nothing. They are fitted, and left so.
        tried: Which are to be tried.
        rows: The data.
        folds: How many parts.
        far: Nats.
    """
    alive = [m for m, yes in enumerate(tried) if yes and m > 0]
    failed: set[int] = set()
    found: HeldOutScores | None = None
    for fold, held, stages in _fold_by_fold(rows, folds):
        raw, weight = (torch.cat(part) for part in zip(*held.collected(_raw_scores), strict=True))
        answers = torch.full((len(raw), len(members)), math.nan, dtype=torch.float64)
        answers[:, 0] = raw
        for place, m in enumerate(alive):
            report_progress(
                f"candidate {place + 1} of {len(alive)} ({type(members[m]).__name__}), fold {fold + 1} of {folds}"
            )
            scored = stages.answered(members[m], _scores_through)
            if scored is None or not bool(torch.isfinite(scored).all()):
                failed.add(m)
            else:
                answers[:, m] = scored
        here = HeldOutScores(raw, raw[:, None] - answers, weight, torch.full_like(weight, fold))
        found = here if found is None else found.joined(here)
        alive = [m for m in alive if m not in failed]
        alive = [m for m in alive if m not in found.hopeless(alive, (fold + 1) / folds, far)]
    assert found is not None  # some fold holds rows
    found.gain[:, sorted(failed)] = math.nan
    return found


def held_out(
    members: Sequence[Calibrator], log_weights: Tensor, rows: RowSource, folds: int
) -> Iterator[tuple[Chunk, Tensor]]:
    """Yield each fold's rows with the mixture's log-probabilities (n, K), its members fitted on the other folds.

    Args:
        members: Calibrators; they are fitted, and left so. One that cannot be fitted without a fold is left out there.
        log_weights: (M,) of the mixture.
        rows: In memory.
        folds: How many parts; those without rows are left out.
    """
    for _, held, stages in _fold_by_fold(rows, folds):
        parts = [
            answer + log_w
            for member, log_w in zip(members, log_weights, strict=True)
            if (answer := stages.answered(member, _log_probs_through)) is not None
        ]
        if parts:
            yield held.gathered(), torch.logsumexp(torch.stack(parts), dim=0)


def _fold_by_fold(rows: RowSource, folds: int) -> Iterator[tuple[int, RowSource, "_Stages"]]:
    """Yield each fold that has rows, these rows, and the fits on those of the other folds."""
    by_scores = tied(rows)
    for fold in range(folds):
        held, rest = (_rows_where(rows, select, fold, folds, by_scores) for select in (inside, outside))
        if rest is not None:
            rest.rough = True
        if held is not None:
            yield fold, held, _Stages(rest, held)


def _rows_where(rows: RowSource, select: Callable[..., Tensor], *parameters: int) -> RowSource | None:
    try:
        return rows.where(select, *parameters)
    except InputError:  # none is
        return None


class _Stages:
    """Fits on the rows of all folds but one, and their losses on that one; equal first stages of chains are fitted once."""

    def __init__(self, rest: RowSource | None, held: RowSource) -> None:
        self._sources = {"": (rest, held.prepared(with_logits, _as_float64))}
        self._fitted: dict[str, Calibrator | None] = {}

    def answered(self, member: Calibrator, work: Callable[..., Tensor], *parameters: Tensor) -> Tensor | None:
        """Fit ``member``, return ``work(chunk, its last stage, *parameters)`` of the held rows, joined; None if it cannot be fitted."""
        stages = member.parts() if isinstance(member, Chain) else [member]
        key, last = "", stages[-1]
        for stage in stages:
            before, key = key, key + f"{type(stage).__name__} {json.dumps(config_of(stage))};"
            rest, held = self._sources[before]
            if rest is None or not self._fit(stage, key, rest):
                return None
            if stage is last:
                found = torch.cat(held.collected(work, stage, *parameters))
                break
            if key not in self._sources:
                self._sources[key] = (rest.prepared(through, stage), held.prepared(through, stage))
        if isinstance(member, Chain) and rest is not None:
            member._note(rest)
        return found

    def _fit(self, stage: Calibrator, key: str, rest: RowSource) -> bool:
        if key not in self._fitted:
            self._fitted[key] = stage if quietly(stage, rest) else None
        made = self._fitted[key]
        if made is not None and made is not stage:
            stage.to(rest.device).load_state_dict(made.state_dict())
        return made is not None


def quietly(member: Calibrator, rows: RowSource) -> bool:
    """Fit ``member`` and return whether that worked; bounds and the like show in its score, not in warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        try:
            member._learn(rows)
        except CalibrantError:
            return False
    return True


def _as_float64(logits: Tensor) -> Tensor:
    return logits.double()


def _raw_scores(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Return log-losses (n,) and weights (n,) of a chunk's rows as they are."""
    log_p = torch.log_softmax(chunk.logits.double(), dim=1)
    return F.nll_loss(log_p, chunk.labels, reduction="none").cpu(), chunk.weights.cpu()


def _scores_through(chunk: Chunk, member: Calibrator) -> Tensor:
    return F.nll_loss(_log_probs_through(chunk, member), chunk.labels, reduction="none").cpu()


def _log_probs_through(chunk: Chunk, member: Calibrator) -> Tensor:
    return torch.log_softmax(through(chunk, member).logits, dim=1)
