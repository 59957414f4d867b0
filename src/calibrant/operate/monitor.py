"""A monitor of calibration with an anytime-valid alarm, whose state is one small file.

It holds the reference's curves and the sums of the labels that have arrived since, in blocks of time.
"""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from calibrant._core.notebook import to_html
from calibrant._files import check_suffix, error_boundary, read_arrays, read_metadata, shown, write_arrays
from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError, InputError, LeakError
from calibrant.operate.bounds import share_ends
from calibrant.operate.evidence import ChangeEvidence, Curves, events_of, since_change
from calibrant.operate.rows import matched_out_of_fold, require_source, require_window, temperature_of

Floats = NDArray[np.float64]

FALSE_ALARMS = 0.05  # probability of ever raising a false alarm
LEVEL = -math.log(FALSE_ALARMS)  # the log evidence of an alarm
_FEWEST = 50  # reference rows
FORMAT = "calibrant-monitor"
_AT_ONCE = 0.9  # prior probability that a change, if any, precedes the first row
_TYPICAL = 5000.0  # prior median of the number of rows before a later change
_OPEN = 100  # batches are added to a block while it then has at most this many rows
_MAX_BLOCKS = 64  # beyond, neighbours are merged
_FACTS = ("classes", "rows", "accuracy", "temperature", "batches", "peak")  # of the state that are no arrays
_ROWS, _CONFIDENCE, _EXPECTED, _RIGHT, _WEIGHT = range(5)  # columns of the table of blocks


@dataclass(frozen=True)
class Status:
    """The status of a monitor.

    Args:
        verdict: "quiet" or "alarm".
        evidence: Likelihood ratio of a change against no change; the alarm threshold is 1 / 0.05 = 20.
        peak: The largest evidence so far.
        rows: Number of labels so far.
        since: Number of the first label after the most likely change, counted from 1; None before the first label.
        changed_rows: Number of labels since then.
        confidence: Mean confidence since then.
        accuracy: Accuracy since then.
        accuracy_low: Lower 97.5 % bound of the accuracy.
        accuracy_high: Upper 97.5 % bound of the accuracy.
        direction: "overconfident", "underconfident" or "as confident as before" since then, relative to what the reference says of
            these scores.
        classes: Classes whose own evidence exceeds the threshold; class 1 alone of two, whose probabilities say the same.
        advice: What to do: nothing, re-fit the bias, or re-fit all.
    """

    verdict: Literal["quiet", "alarm"]
    evidence: float
    peak: float
    rows: int
    since: int | None
    changed_rows: int
    confidence: float
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    direction: str
    classes: tuple[int, ...]
    advice: str

    _repr_html_ = to_html

    def plain(self) -> dict[str, Any]:
        """Return the status as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, names: Sequence[str] = ()) -> str:
        """Return the status in words; classes are called by their ``names``, or by their numbers without any."""
        if self.verdict == "quiet":
            return f"quiet: {self.rows:,} labels, evidence of a change {self.peak:.3g} at most, an alarm from 20 on"
        classes = ", ".join(names[one] if names else f"{one} (counted from 0)" for one in self.classes)
        which = f", most in class {classes}" if classes else ""
        return (
            f"alarm: {self.direction} since label {self.since:,}{which}: mean confidence {self.confidence:.3f}, accuracy "
            f"{self.accuracy:.3f} (between {self.accuracy_low:.3f} and {self.accuracy_high:.3f}) on {self.changed_rows:,} "
            f"labels; {self.advice}"
        )


class Monitor:
    """Tests sequentially, as labels arrive, whether calibration has changed since a reference, and raises an alarm if it has.

    The probability that a monitor ever raises a false alarm is at most 5 %, however often it is updated and read. "No change" means
    that decisions with a given confidence are correct as often as in the reference, and classes with a given probability occur as
    often, whether or not the reference is calibrated. The distribution of scores may change. The uncertainty of a small reference
    is included. If only the rows of the fit have labels, start with ``from_fit``.

    Args:
        reference: At least 50 labelled, calibrated predictions for rows on which the calibrator was not fitted.

    Examples:
        >>> from calibrant import Predictions
        >>> good = Predictions.from_binary_probs([0.9] * 1000, ([1] * 9 + [0]) * 100)
        >>> monitor = Monitor(good)
        >>> monitor.update(good[:500]).verdict
        'quiet'
        >>> monitor.update(Predictions.from_binary_probs([0.9] * 500, ([1] * 7 + [0] * 3) * 50)).verdict
        'alarm'

    References:
        Ville 1939; Ramdas, Grünwald, Vovk & Shafer 2023.
    """

    def __init__(self, reference: Data) -> None:
        reference = require_window(reference, what="a monitor")
        try:
            if isinstance(reference, Predictions) and reference.fit_check is not None:
                reference.fit_check()
        except LeakError as error:
            raise InputError(
                "the calibrator was fitted on the reference's rows, where its figures are better than on new ones; "
                "start with Monitor.from_fit(calibrator, predictions), which takes the rows as fit did"
            ) from error
        self._start(reference)

    def _start(self, reference: Data, probs: Floats | None = None) -> None:
        """Initialise from the labelled reference; ``probs`` (N, K + 1), if given, replace its probabilities, with temperature 1."""
        if len(reference) < _FEWEST:
            raise InputError(f"a monitor needs at least {_FEWEST} reference rows, not {len(reference)}")
        temperature = temperature_of(reference) if probs is None else 1.0
        p, happened = events_of(reference, temperature=temperature)
        self._classes, self._rows, self._temperature = _classes_of(reference), len(reference), temperature
        self._accuracy = float(reference.correct.double().mean())
        self._curves = Curves.of(p if probs is None else probs[:, : p.shape[1]], happened)
        self._table, self._sums = np.empty((0, _WEIGHT + 1)), np.empty((0, *self._curves.sums.shape))
        self._batches: tuple[str, ...] = ()
        self._peak = 0.0  # the largest log evidence seen

    @classmethod
    def from_fit(cls, calibrator: Calibrator, predictions: Predictions) -> Self:
        """Return a monitor whose reference is the data that ``calibrator`` was fitted on.

        A calibrator performs better on these rows than on new ones. So each fifth is calibrated by a fit on the other rows, and its
        rows are binned by the values of equal rank of the calibrator itself. The noise of these fits affects the order of confidences,
        so a change of slope is not monitored.

        Args:
            calibrator: A calibrator fitted on ``predictions``; ``update`` then expects rows calibrated by it.
            predictions: The labelled, uncalibrated predictions that were passed to ``fit``.

        Examples:
            >>> from calibrant import Predictions
            >>> from calibrant.calibrators import TemperatureScaling
            >>> rows = Predictions.from_binary_probs([0.9] * 1000, ([1] * 8 + [0] * 2) * 100)
            >>> Monitor.from_fit(TemperatureScaling().fit(rows), rows)
            Monitor(0 labels, reference of 1000 rows, quiet)
        """
        require_window(predictions, what="a monitor")
        require_source(calibrator)
        predictions.calibrated_by(calibrator, allow_fit_rows=True)  # raises if it is unfitted or has other classes
        monitor = cls.__new__(cls)
        monitor._start(*matched_out_of_fold(calibrator, predictions))
        monitor._curves = replace(monitor._curves, slope=np.zeros_like(monitor._curves.slope))
        return monitor

    def update(self, predictions: Data) -> Status:
        """Add labelled rows and return the status.

        Args:
            predictions: Labelled predictions, calibrated like the reference and in order of time. A batch that was already added
                raises an error.

        Raises:
            InputError: If the rows do not fit the reference; the state is then unchanged.
        """
        rows = require_window(predictions, what="a monitor")
        if _classes_of(rows) != self._classes:
            kinds = [f"K = {one} classes" if one else "top-label pairs" for one in (self._classes, _classes_of(rows))]
            raise InputError(f"the reference holds predictions with {kinds[0]}, these rows {kinds[1]}")
        batch = _hash(predictions)
        if batch in self._batches:
            raise InputError("this batch was added to the state before; pass each batch once")
        p, happened = events_of(rows, temperature=self._temperature)
        confidence, right = float(rows.confidence.sum()), float(rows.correct.sum())
        self._append([len(rows), confidence, self._curves.expected(p), right], self._curves.gather(p, happened))
        self._batches = (*self._batches, batch)
        found = self._evidence()
        self._peak = max(self._peak, found.log)
        return self._status(found)

    def _append(self, row: Sequence[float], sums: Floats) -> None:
        """Add sums to the last block if it is small, else as one more with its prior probability."""
        table, count = self._table, row[_ROWS]
        if len(table) and table[-1, _ROWS] + count <= _OPEN:
            table[-1, :_WEIGHT] += row
            self._sums[-1] += sums
            return
        weight = _AT_ONCE
        if len(table):
            before, spent = float(table[:, _ROWS].sum()), float(table[:, _WEIGHT].sum())
            # P(no change within r rows) = m / (m + r) has median m; the hazard falls as 1 / r, for changes on every time scale
            later = _TYPICAL / (_TYPICAL + before), _TYPICAL / (_TYPICAL + before + max(count, _OPEN))
            weight = (1 - spent) * (1 - later[1] / later[0])
        self._table, self._sums = np.vstack([table, [*row, weight]]), np.concatenate([self._sums, sums[None]])
        if len(self._table) > _MAX_BLOCKS:
            # merge the older half in pairs; a change can no longer begin inside a pair
            end = len(table) // 4 * 2
            old, parts = self._table[:end].reshape(-1, 2, _WEIGHT + 1), self._sums[:end]
            merged = old.sum(axis=1)
            merged[:, _WEIGHT] = old[:, 0, _WEIGHT]
            self._table = np.vstack([merged, self._table[end:]])
            self._sums = np.concatenate([parts.reshape(-1, 2, *parts.shape[1:]).sum(axis=1), self._sums[end:]])

    @property
    def alarm(self) -> bool:
        """Whether the evidence has ever exceeded the threshold."""
        return self._peak >= LEVEL

    @property
    def status(self) -> Status:
        """The current status."""
        return self._status(self._evidence())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the state as one safetensors file, atomically: if the process is killed, the old or the new file remains."""
        check_suffix(path, (".safetensors",), what="a monitor's state")
        facts = {name: getattr(self, f"_{name}") for name in _FACTS}
        arrays = {**vars(self._curves), "table": self._table, "blocks": self._sums}
        write_arrays(path, arrays, metadata={"format": FORMAT, "state": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a saved state.

        Raises:
            FileFormatError: If the file is not a monitor's state, or is damaged.
        """
        if read_metadata(path).get("format") != FORMAT:
            raise FileFormatError(f"{shown(path)}: not the state of a monitor")
        with error_boundary("a whole state", f"a broken one in {shown(path)}", "restore it from a copy"):
            facts, arrays = json.loads(read_metadata(path)["state"]), read_arrays(path)
            monitor = cls.__new__(cls)
            vars(monitor).update({f"_{name}": facts[name] for name in _FACTS}, _batches=tuple(facts["batches"]))
            curves = Curves(*(arrays[name] for name in ("edges", "lines", "offsets", "slope", "sums")))
            monitor._curves, monitor._table, monitor._sums = curves, arrays["table"], arrays["blocks"]
            if monitor._sums.shape != (len(monitor._table), *curves.offsets.shape, curves.sums.shape[-1]):
                raise ValueError("its sums are not those of its classes")
        return monitor

    def watches(self, other: "Monitor") -> bool:
        """Return whether both monitors were started from the same reference."""
        return self._rows == other._rows and np.array_equal(self._curves.sums, other._curves.sums)

    def __repr__(self) -> str:
        labels, verdict = int(self._table[:, _ROWS].sum()), "alarm" if self.alarm else "quiet"
        return f"Monitor({labels} labels, reference of {self._rows} rows, {verdict})"

    def _evidence(self) -> ChangeEvidence:
        if not len(self._table):
            return ChangeEvidence({}, 0.0, 0)
        # rounding must not make the prior exceed 1
        weights = self._table[:, _WEIGHT] / max(1.0, self._table[:, _WEIGHT].sum())
        return since_change(self._curves, self._sums, weights)

    def _status(self, found: ChangeEvidence) -> Status:
        total, before = self._table.sum(axis=0), self._table[: found.start].sum(axis=0)
        rows, confidence, expected, right = (total - before)[:_WEIGHT].tolist()
        low, high = share_ends(right, rows, alpha=0.025) if rows else (0.0, 1.0)
        share = max(rows, 1)
        own = sorted((name for name, log in found.logs.items() if log >= LEVEL), key=lambda name: -found.logs[name])
        classes = tuple(int(name.removeprefix("class ")) for name in own if name.startswith("class "))
        moved = "shift" in own or "slope" in own
        if not self.alarm:
            advice = "nothing to do"
        elif not own:
            advice = "nothing for now: the evidence has faded since the alarm; if its cause is known and gone, start a new state"
        elif classes and not moved:
            advice = "re-fit the bias: single classes are off, the confidence is not (PriorShift or VectorScaling)"
        else:
            advice = "re-fit all: fit the calibrator again on labels since the change"
            if high < min(expected / share, self._accuracy):
                advice += "; accuracy has fallen as well, which only a new training can restore"
        return Status(
            verdict="alarm" if self.alarm else "quiet",
            evidence=math.exp(min(found.log, 700.0)),
            peak=math.exp(min(self._peak, 700.0)),
            rows=int(total[_ROWS]),
            since=1 + int(before[_ROWS]) if rows else None,
            changed_rows=int(rows),
            confidence=confidence / share,
            accuracy=right / share if rows else self._accuracy,
            accuracy_low=low,
            accuracy_high=high,
            direction=("overconfident" if expected > right else "underconfident")
            if moved
            else "as confident as before",
            classes=(1,) if classes and self._classes == 2 else classes,
            advice=advice,
        )


def _classes_of(data: Data) -> int:
    """Return K, or 0 of pairs."""
    return data.classes if isinstance(data, Predictions) else 0


def _hash(data: Data) -> str:
    """Return a hash of the scores and labels of a batch."""
    content = hashlib.blake2b(digest_size=8)
    for values in (data.logits if isinstance(data, Predictions) else data.p, data.labels, data.correct):
        if values is not None:
            content.update(np.ascontiguousarray(values.detach().cpu().float().numpy()).tobytes())
    return content.hexdigest()
