"""A monitor of calibration with an anytime-valid alarm, whose small state can be saved and merged."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import check_kind, refuse, shown
from calibrant._core.constraints import Text, checked
from calibrant.data.checks import CostTable, Data
from calibrant.data.predictions import Predictions
from calibrant.errors import LeakError
from calibrant.operate.bounds import Moments, mean_ends, share_ends
from calibrant.operate.evidence import ChangeEvidence, ClassCurves, ReferenceCurve, gather, groups_in, since_change
from calibrant.operate.rows import (
    LABELLED,
    ClassScores,
    SomeCalibrator,
    cost_gaps,
    even_part,
    even_rows,
    matched_out_of_fold,
    need_source,
)
from calibrant.operate.watched import (
    Block,
    State,
    Status,
    appended,
    as_of_one_monitor,
    load_state,
    marks,
    save_state,
    show_time,
)

Floats = NDArray[np.float64]
Hashes = NDArray[np.int64]

FALSE_ALARMS = 0.05  # probability of ever raising a false alarm
_LOSS_BOUND = 0.001  # part of it for an error of the bound on the reference's log-loss
LEVEL = -math.log(FALSE_ALARMS - _LOSS_BOUND)  # the log evidence of an alarm
_FEWEST = 50  # reference rows
_FADED = "the evidence has faded since the alarm; if its cause is known and gone, start a new state"
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999, the range of datetime


class Monitor:
    """Tests sequentially, as labels arrive, whether calibration has changed since the reference, and raises an alarm if so.

    The probability that a monitor ever raises a false alarm is at most 5 %, however often it is updated and read. No change means
    that the decision of a given confidence is as often right as in the reference, whether calibrated there or not; the uncertainty of
    a reference of few rows is included. If no rows but those of the fit have labels, start with ``from_fit``.

    Args:
        reference: At least 50 labelled, calibrated predictions that the calibrator was not fitted on.
        by: Names of feature columns: each value in the reference is also monitored as a separate group.
        costs: (K, A) costs[true, action]: then what decisions cost beyond what the probabilities foresee is monitored in place of the
            log-loss.

    Examples:
        >>> from calibrant import Predictions
        >>> good = Predictions.from_binary_probs([0.9] * 1000, ([1] * 9 + [0]) * 100)
        >>> monitor = Monitor(good)
        >>> monitor.update(good[:500]).verdict
        'quiet'
        >>> monitor.update(Predictions.from_binary_probs([0.9] * 500, ([1] * 7 + [0] * 3) * 50)).verdict
        'alarm'

    References:
        Ville 1939; Ramdas, Grünwald, Vovk & Shafer 2023; Fan, Grama & Liu 2015.
    """

    @checked
    def __init__(self, reference: Data, *, by: Sequence[Text] | str = (), costs: CostTable | None = None) -> None:
        reference = LABELLED.check(even_rows(reference), "reference", "a monitor")
        try:
            if isinstance(reference, Predictions) and reference.fit_check is not None:
                reference.fit_check()
        except LeakError as error:
            got = "rows that it was fitted on, where its figures are better than on new ones"
            remedy = "start with Monitor.from_fit(calibrator, predictions), which takes the rows as fit did"
            raise refuse("a reference that the calibrator was not fitted on", got, remedy) from error
        self._begin(reference, by, costs)

    def _begin(self, reference: Data, by: Sequence[str] | str, costs: Any, values: Floats | None = None) -> None:
        """Take the state of a reference without labels since; ``values`` as in ``evidence.gather``."""
        if len(reference) < _FEWEST:
            raise refuse(f"at least {_FEWEST} reference rows", str(len(reference)), "label more")
        classes = reference.classes if isinstance(reference, Predictions) else 0
        groups = groups_in(reference, by)
        if costs is None:
            # one row may not decide: losses are capped where 1 in 100 of the reference lies; .1 where it has hardly any
            cap = max(float(np.quantile(_finite(_log_losses(reference)), 0.99)), 0.1)
        else:
            # a realised cost is as far from the foreseen at most
            cap = max(max(map(max, costs)) - min(map(min, costs)), 1e-300)
        z = Moments.of(_capped(reference, costs, cap))
        curve, curves = ReferenceCurve.of(reference, values), ClassCurves.of(reference, classes, values)
        self._state = State(
            classes=classes,
            groups=groups,
            curve=curve,
            curves=curves,
            reference=gather(reference, classes=classes, groups=groups, curve=curve, curves=curves, values=values),
            rows=len(reference),
            confidence=float(reference.confidence.mean()),
            accuracy=float(reference.correct.double().mean()),
            cap=cap,
            # what the reference's mean loss is below but for ``_LOSS_BOUND``, so that a larger mean is evidence
            limit=mean_ends(z, low=0, high=1, alpha=_LOSS_BOUND)[1],
            costs=costs,
        )

    @classmethod
    @checked
    def from_fit(
        cls,
        calibrator: SomeCalibrator,
        predictions: ClassScores,
        *,
        by: Sequence[Text] | str = (),
        costs: CostTable | None = None,
    ) -> Self:
        """Return a monitor whose reference are the rows that ``calibrator`` was fitted on.

        On these rows it is better than on new ones. So each fifth is calibrated by a fit on the others, and its rows lie in the bins of
        the calibrator's own values of the same rank. Which confidences are high is decided by the noise of each fit, so that the slope
        is not watched.

        Args:
            calibrator: Fitted on ``predictions``; ``update`` then takes rows calibrated by it.
            predictions: Labelled, as they were given to its ``fit``: not calibrated.
            by: As above.
            costs: As above.

        Examples:
            >>> from calibrant import Predictions
            >>> from calibrant.calibrators import TemperatureScaling
            >>> rows = Predictions.from_binary_probs([0.9] * 1000, ([1] * 8 + [0] * 2) * 100)
            >>> Monitor.from_fit(TemperatureScaling().fit(rows), rows)
            Monitor(0 labels, reference of 1000 rows, quiet)
        """
        LABELLED.check(even_rows(predictions), "predictions", "a monitor")
        need_source(calibrator)
        predictions.calibrated_by(calibrator, allow_fit_rows=True)  # refuses one without a fit, or of other classes
        rows, values = matched_out_of_fold(calibrator, predictions)
        kept = even_part(rows)
        monitor = cls.__new__(cls)
        monitor._begin(even_rows(rows), by, costs, values if kept is None else values[kept.cpu().numpy()])
        monitor._state.reference[1] = 0.0  # of the slope
        return monitor

    def update(
        self, predictions: Data, *, ids: Iterable[Any] | None = None, time: float | datetime | None = None
    ) -> Status:
        """Add labelled rows and return the status.

        Args:
            predictions: Labelled, calibrated as the reference, in order of time, with the features named by ``by``. Rows of a
                group that is not in the reference count for the whole only. Of rows with weights as many are kept as
                have equal weight.
            ids: (N,) names or integers of the rows, in every batch or in none; an id seen before is refused. Without ids a
                batch that was already added is refused.
            time: Time of the batch, as seconds since 1970 or a datetime with a time zone, not earlier than that of the last
                batch; in every batch or in none. Add delayed labels to a separate monitor and merge it.

        Raises:
            InputError: If an argument is not valid; the state is then unchanged.
        """
        state = self._state
        rows = LABELLED.check(even_rows(predictions), "predictions", "a monitor")
        classes = predictions.classes if isinstance(predictions, Predictions) else 0
        if classes != state.classes:
            kind = f"K = {state.classes} classes" if state.classes else "top-label pairs"
            got = f"K = {classes}" if classes else "top-label pairs"
            raise refuse(f"predictions with {kind} as in the reference", got, "watch one model a state")
        when = _seconds(time)
        last = state.blocks[-1].last if state.blocks else None
        if when is not None and last is not None and when < last:
            remedy = "put delayed labels into a monitor of their own and merge it"
            raise refuse(f"a time from {show_time(last)} on", show_time(when), remedy)
        pairs = (("a time", "time", when is None, last is None), ("ids", "ids", ids is None, len(state.ids) == 0))
        for what, name, without, before in pairs:
            if state.blocks and without != before:
                raise refuse(f"{what} with every batch or with none", "both", f"pass {name} as in the batches before")
        batch, names = marks(predictions, ids)
        if np.isin(batch, state.batches).any() or np.isin(names, state.ids).any():
            count = int(np.isin(names, state.ids).sum())
            got = f"{count} rows" if count else "a batch"
            remedy = "pass each row once" if count else "pass it once, or ids if these are other rows"
            raise refuse("new rows", f"{got} that this state has already", remedy)
        return self._taken(appended(state.blocks, self._block(rows, when)), batch, names, state.peak)

    def merge(self, other: "Monitor") -> Status:
        """Add the rows of another monitor of the same reference, in order of time, and return the status.

        Args:
            other: A monitor of another worker, or of delayed labels.

        Raises:
            InputError: If it has another reference, or rows that this one has; the state is then unchanged.
        """
        check_kind(other, Monitor, name="other", remedy="load it with Monitor.load")
        mine, theirs = self._state, other._state
        if mine.key != theirs.key:
            raise refuse("monitors of one reference", "two references", "start both from the same reference")
        if np.isin(theirs.batches, mine.batches).any() or np.isin(theirs.ids, mine.ids).any():
            raise refuse("monitors of different rows", "rows that are in both", "merge each monitor once")
        timed = {block.last is not None for block in mine.blocks + theirs.blocks}
        named = {len(state.ids) > 0 for state in (mine, theirs) if state.blocks}
        for what, kinds, name in (("ids", named, "ids"), ("a time", timed, "time")):
            if len(kinds) > 1:
                remedy = f"pass {name} to update"
                raise refuse(f"{what} in both monitors or in neither", "one with and one without", remedy)
        blocks = mine.blocks + theirs.blocks
        if timed == {True}:
            blocks = tuple(sorted(blocks, key=lambda block: (block.first or 0.0, block.last or 0.0)))
        return self._taken(as_of_one_monitor(blocks), theirs.batches, theirs.ids, theirs.peak)

    @property
    def verdict(self) -> Literal["quiet", "alarm"]:
        """ "alarm" once the evidence has exceeded the threshold, else "quiet"."""
        return "alarm" if self._state.peak >= LEVEL else "quiet"

    @property
    def alarm(self) -> bool:
        """Whether there was an alarm."""
        return self.verdict == "alarm"

    @property
    def classes(self) -> int:
        """K, or 0 for top-label pairs."""
        return self._state.classes

    @property
    def by(self) -> tuple[str, ...]:
        """Names of the columns whose groups are watched."""
        return tuple(dict.fromkeys(column for column, _ in self._state.groups))

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """Column and value of each monitored group."""
        return self._state.groups

    @property
    def timeline(self) -> tuple[Block, ...]:
        """The blocks of labels, in order."""
        return self._state.blocks

    @property
    def status(self) -> Status:
        """The current status."""
        return self._status(self._evidence())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as one safetensors file, atomically: if the process is killed, the old or the new file remains."""
        save_state(path, self._state)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a saved state.

        Raises:
            FileFormatError: If the file is not a monitor's state, or is damaged.
        """
        monitor = cls.__new__(cls)
        monitor._state = load_state(path)
        return monitor

    def watches(self, reference: "Data | Monitor") -> bool:
        """Return whether this monitor was made from ``reference``, or from that of another monitor."""
        other = reference if isinstance(reference, Monitor) else Monitor(reference, by=self.by, costs=self._state.costs)
        return other._state.key == self._state.key

    def __repr__(self) -> str:
        state = self._state
        return f"Monitor({sum(block.rows for block in state.blocks)} labels, reference of {state.rows} rows, {self.verdict})"

    def _block(self, data: Data, when: float | None) -> Block:
        state = self._state
        z = _capped(data, state.costs, state.cap)
        return Block(
            rows=len(data),
            confidence=float(data.confidence.sum()),
            right=float(data.correct.sum()),
            loss=float(z.sum()),
            squares=float((z * z).sum()),
            first=when,
            last=when,
            sums=gather(data, classes=state.classes, groups=state.groups, curve=state.curve, curves=state.curves),
        )

    def _evidence(self) -> ChangeEvidence:
        state = self._state
        if not state.blocks:
            return ChangeEvidence({}, 0.0, 0, {})
        losses = np.array([[block.rows, block.loss, block.squares] for block in state.blocks])
        weights = np.array([block.weight for block in state.blocks])
        # rounding must not make more than 1 of the prior
        weights /= max(1.0, weights.sum())
        sums = np.stack([block.sums for block in state.blocks])
        sums[:, ~state.reference.any(axis=1)] = 0.0  # what the reference says nothing of (``from_fit``)
        return since_change(
            state.reference, sums, losses, weights, classes=state.classes, groups=state.groups, limit=state.limit
        )

    def _taken(self, blocks: tuple[Block, ...], batches: Hashes, ids: Hashes, peak: float) -> Status:
        """Take the blocks with what was added, the hashes of its batches and ids, and its largest evidence."""
        state = self._state
        batches, ids = np.union1d(state.batches, batches), np.union1d(state.ids, ids)
        self._state = replace(state, blocks=blocks, batches=batches, ids=ids)
        found = self._evidence()
        seen = (*blocks[:-1], *(replace(last, evidence=found.log) for last in blocks[-1:]))
        self._state = replace(self._state, blocks=seen, peak=max(state.peak, peak, found.log))
        return self._status(found)

    def _status(self, found: ChangeEvidence) -> Status:
        state = self._state
        part = state.blocks[found.start :]
        rows = sum(block.rows for block in part)
        right, confidence = sum(block.right for block in part), sum(block.confidence for block in part)
        low, high = share_ends(right, rows, alpha=0.025) if rows else (0.0, 1.0)
        accuracy, mean = (right / rows, confidence / rows) if rows else (state.accuracy, state.confidence)
        logs = found.logs
        own = sorted((name for name, log in logs.items() if log >= LEVEL), key=lambda name: -logs[name])
        classes = tuple(int(name.removeprefix("class ")) for name in own if name.startswith("class "))
        classes = (1,) if classes and state.classes == 2 else classes
        groups = tuple(
            f"{name.removeprefix('group ')} ({'overconfident' if found.moved[name] < 0 else 'underconfident'})"
            for name in own
            if name.startswith("group ")
        )
        # beyond the gap that the reference had
        gap = (mean - accuracy) - (state.confidence - state.accuracy)
        moved = "shift" in own or "slope" in own
        # z is ½ where a decision costs what was foreseen
        dearer = (
            None if state.costs is None or not rows else state.cap * (2 * sum(block.loss for block in part) / rows - 1)
        )
        worse = "overconfident" if gap > 0 else "underconfident"
        advice = (
            (not self.alarm, "nothing to do"),
            (not own, f"nothing for now: {_FADED}"),
            (
                "loss" in own and dearer is not None,
                f"re-fit all: decisions cost {dearer or 0.0:.3g} a row more than the probabilities foresee",
            ),
            (
                "loss" in own and high < state.accuracy,
                "retrain: accuracy and log-loss are worse, which no calibrator can put right",
            ),
            (
                bool(classes) and not moved,
                "re-fit the bias: single classes are off, the confidence is not (PriorShift or VectorScaling)",
            ),
            (bool(groups) and not moved, "re-fit by group: single groups are off, the whole is not (GroupScaling)"),
            (True, "re-fit all: fit the calibrator again on labels since the change"),
        )
        return Status(
            verdict=self.verdict,
            evidence=math.exp(min(found.log, 700.0)),
            peak=math.exp(min(state.peak, 700.0)),
            rows=sum(block.rows for block in state.blocks),
            since=part[0].first if part else None,
            changed_rows=rows,
            confidence=mean,
            accuracy=accuracy,
            accuracy_low=low,
            accuracy_high=high,
            direction=worse if moved else "as confident as before",
            classes=classes,
            groups=groups,
            advice=next(text for holds, text in advice if holds),
            cost_gap=dearer,
        )


def _capped(data: Data, costs: Any, cap: float) -> Floats:
    """Return z (N,) in [0, 1]: the capped log-loss, or the realised less the foreseen cost, moved to ½ where they are equal."""
    if costs is None:
        return np.minimum(_log_losses(data), cap) / cap
    gaps, _ = cost_gaps(data, costs, what="monitored costs")
    return np.asarray((gaps / cap + 1).clip(0.0, 2.0) / 2)


def _log_losses(data: Data) -> Floats:
    """Return the log-loss (N,) of the labels, or for pairs that of the binary event "correct"."""
    if isinstance(data, Predictions):
        return np.asarray(data.nll.cpu().double().numpy())
    p = torch.where(data.correct, data.confidence, 1 - data.confidence)
    return np.asarray(-p.clamp_min(1e-300).log().cpu().numpy())


def _finite(losses: Floats) -> Floats:
    """Return ``losses`` with infinite ones replaced by the largest finite one."""
    finite = losses[np.isfinite(losses)]
    return np.minimum(losses, finite.max() if len(finite) else 0.0)


def _seconds(time: float | datetime | None) -> float | None:
    if time is None:
        return None
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise refuse("a time with a time zone", str(time), "pass for example datetime.now(UTC)")
        return time.timestamp()
    number = not isinstance(time, bool) and isinstance(time, int | float | np.integer | np.floating)
    if not number or not _FIRST_SECOND <= time <= _LAST_SECOND:
        raise refuse(
            "a time as seconds since 1970, of the years 1 to 9999, or a datetime", shown(time), "pass one of them"
        )
    return float(time)
