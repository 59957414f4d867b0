"""Log-losses of calibrators on rows they were not fitted on."""

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from calibrant._plain import config_of
from calibrant.calibrators._base import Calibrator
from calibrant.calibrators._chunks import through
from calibrant.calibrators._folds import inside, outside
from calibrant.calibrators.chain import Chain
from calibrant.errors import CalibrantError, CalibrantWarning, InputError
from calibrant.rows import Chunk, RowSource

_SURE = 3.0  # standard errors by which a candidate must be behind to be given up before all folds are seen


@dataclass(frozen=True)
class Scores:
    """Log-losses of N rows under M candidates, each fitted without the row's fold; the first does nothing.

    Args:
        raw: (N,) of doing nothing.
        gain: (N, M) how much lower it is; NaN where a candidate was given up, all NaN of one that cannot be fitted.
        weight: (N,).
        folds: How many folds held rows.
    """

    raw: Tensor
    gain: Tensor
    weight: Tensor
    folds: int

    @property
    def mass(self) -> Tensor:
        """(M,) weight of the rows on which a candidate was scored."""
        return self.weight @ (~torch.isnan(self.gain)).double()

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return Σ w gain and Σ w gain² (M,) over the rows on which a candidate was scored."""
        known = torch.nan_to_num(self.gain, nan=0.0)
        return self.weight @ known, self.weight @ known**2

    def behind(self, best: int) -> tuple[Tensor, Tensor]:
        """Return the mean (M,) by which the candidates' gain is below that of ``best``, and its standard error (M,)."""
        gap = self.gain[:, best : best + 1] - self.gain
        known = ~torch.isnan(gap)
        gap = torch.where(known, gap, 0.0)
        mass = (self.weight @ known.double()).clamp_min(1e-300)
        mean = self.weight @ gap / mass
        spread = (self.weight @ gap**2 / mass - mean**2).clamp_min(0.0)
        return mean, (spread / mass).sqrt()


def cross_fitted(
    members: Sequence[Calibrator], tried: Sequence[bool], rows: RowSource, folds: int, *, far: float
) -> Scores:
    """Return how candidates do on rows they were not fitted on.

    In every fold candidates are fitted roughly, chains that begin alike share their first stages, and a search starts at
    the answer of the fold before. A candidate is given up when it is so far behind that its summed gain over all rows
    will, within 3 standard errors, end ``far`` below the best one's.

    Args:
        members: Candidates; the first does nothing. They are fitted, and left so.
        tried: Which are to be tried.
        rows: The data.
        folds: How many parts.
        far: Nats.
    """
    alive = [m for m, yes in enumerate(tried) if yes and m > 0]
    failed: set[int] = set()
    found = Scores(torch.empty(0).double(), torch.empty(0, len(members)).double(), torch.empty(0).double(), 0)
    for fold in range(folds):
        try:
            held = rows.where(inside, fold, folds)
        except InputError:  # no row belongs to this fold
            continue
        raw, weight = held.fold(_raw_losses, _both)
        gain = torch.full((len(raw), len(members)), math.nan, dtype=torch.float64)
        gain[:, 0] = 0.0
        stages = _Stages(_without(rows, fold, folds), held)
        for m in alive:
            losses = stages.losses(members[m])
            if losses is None:
                failed.add(m)
            else:
                gain[:, m] = raw - losses
        joined = (
            torch.cat(pair) for pair in zip((found.raw, found.gain, found.weight), (raw, gain, weight), strict=True)
        )
        found = Scores(*joined, found.folds + 1)
        alive = [m for m in alive if m not in failed]
        alive = [m for m in alive if m not in _hopeless(found, alive, (fold + 1) / folds, far)]
    found.gain[:, sorted(failed)] = math.nan
    return found


def _hopeless(found: Scores, alive: Sequence[int], part: float, far: float) -> set[int]:
    """Return the candidates whose summed gain will end ``far`` below the best one's, after this ``part`` of all folds."""
    if not alive or part >= 1:
        return set()
    sums, _ = found.sums()
    best = max([0, *alive], key=lambda m: float(sums[m]))
    mean, error = found.behind(best)
    mass = float(found.weight.sum())
    least = mass / part * (mean - _SURE * error / math.sqrt(part))  # Σ over all rows; what is to come has an error, too
    return {m for m in alive if float(least[m]) > far}


def _without(rows: RowSource, fold: int, folds: int) -> RowSource | None:
    try:
        rest = rows.where(outside, fold, folds)
    except InputError:  # all rows belong to this fold
        return None
    rest.rough = True
    return rest


class _Stages:
    """Fits on the rows of all folds but one, and their losses on that one; equal first stages of chains are fitted once."""

    def __init__(self, rest: RowSource | None, held: RowSource) -> None:
        self._sources = {"": (rest, held.prepared(_wide))}
        self._fitted: dict[str, Calibrator | None] = {}

    def losses(self, member: Calibrator) -> Tensor | None:
        """Fit ``member`` and return the held rows' losses (n,); None if it cannot be fitted, or one is not finite."""
        stages = member.parts() if isinstance(member, Chain) else [member]
        key, last = "", stages[-1]
        for stage in stages:
            before, key = key, key + f"{type(stage).__name__} {json.dumps(config_of(stage))};"
            rest, held = self._sources[before]
            if rest is None or not self._fit(stage, key, rest):
                return None
            if stage is last:
                losses: Tensor = held.fold(_losses_through, _one, stage)
                break
            if key not in self._sources:
                self._sources[key] = (rest.prepared(through, stage), held.prepared(through, stage))
        if isinstance(member, Chain):
            member._note(rest)
        return losses if bool(torch.isfinite(losses).all()) else None

    def _fit(self, stage: Calibrator, key: str, rest: RowSource) -> bool:
        if key not in self._fitted:
            self._fitted[key] = stage if quietly(stage, rest) else None
        made = self._fitted[key]
        if made is not None and made is not stage:
            stage.load_state_dict(made.state_dict())
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


def _wide(chunk: Chunk) -> Chunk:
    return replace(chunk, logits=chunk.logits.double())


def _raw_losses(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Return the log-losses (n,) and the weights (n,) of a chunk."""
    return F.cross_entropy(chunk.logits.double(), chunk.labels, reduction="none").cpu(), chunk.weights.cpu()


def _losses_through(chunk: Chunk, member: Calibrator) -> Tensor:
    return F.cross_entropy(member(chunk.logits), chunk.labels, reduction="none").cpu()


def _one(left: Tensor, right: Tensor) -> Tensor:
    return torch.cat([left, right])


def _both(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.cat([left[0], right[0]]), torch.cat([left[1], right[1]])
