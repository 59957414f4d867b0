"""A calibration monitor with an anytime-valid alarm, whose state is one small file.

The state contains curves fitted to a reference, and sums over the labels that have arrived since, in blocks of time. The monitor
raises an alarm if there is enough evidence that P(outcome | scores) has changed since the reference, even if the distribution of
scores has changed as well.

The monitored events are "the decision is correct" and, for up to 50 classes, "class k is true". Each event has a probability p, to
which a temperature fitted on the reference is applied. The log-odds of the event are modelled as a + c ℓ(p) + v_b in bins b of p,
where ℓ(p) are the log-odds of p; π_b is the posterior of v_b given the reference.

Without a change, the rows in a bin have the likelihood ∫ π_b L. Neither errors in the reference's probabilities nor scores that move
to other bins therefore count as evidence. With a change, all v_b move by u (a shift) or by u d_b (a slope) at some time. Later rows
have the likelihood with π_b moved, averaged over a prior on u. The likelihood ratio, averaged over the time of change with fixed
weights, is a martingale if nothing has changed, in any order of the rows. The probability that it ever exceeds 1/α is therefore at
most α (Ville 1939), and this includes the uncertainty of the reference.

log L is a sum over rows, stored at 16 Chebyshev nodes: sums over parts can be added, and interpolation is accurate to 1e-8 per row.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.notebook import to_html
from calibrant._files import check_suffix, error_boundary, read_arrays, read_metadata, shown, write_arrays
from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions, check_class_order
from calibrant.errors import FileFormatError, InputError, LeakError
from calibrant.operate.bounds import share_ends
from calibrant.operate.rows import (
    columns_of,
    matched_out_of_fold,
    names_of,
    require_source,
    require_window,
    stratum_edges,
    temperature_of,
)

Floats = NDArray[np.float64]

FALSE_ALARMS = 0.05  # probability of ever raising a false alarm
LEVEL = -math.log(FALSE_ALARMS)  # log evidence from which on there is an alarm
_FEWEST = 50  # smallest number of reference rows
FORMAT = "calibrant-monitor"
_AT_ONCE = 0.9  # prior probability that a change, if any, precedes the first row
_TYPICAL = 5000.0  # prior median of the number of rows before a later change
_OPEN = 100  # a batch is added to the last block if the block then has at most this many rows
_MAX_BLOCKS = 64  # with more blocks, neighbours are merged
# parts of the state that are not arrays
_FACTS = ("classes", "names", "rows", "accuracy", "temperature", "batches", "peak", "calibrator")
_ROWS, _CONFIDENCE, _EXPECTED, _RIGHT, _WEIGHT = range(5)  # columns of the table of blocks
CLASSES = 50  # with more classes, single classes are not monitored
NODES, REACH = 16, 2.0  # number of nodes; largest |v|, in log-odds
_A_BIN, _MAX_BINS, _STEPS = 50, 10, 40  # rows per bin; most bins; Newton steps for an offset
_HALF = 0.5  # half an event is added, so that a bin without events has finite log-odds
_LARGEST = 12.0  # log-odds are clipped at ± this value, so that a single row cannot decide
_STEP = 0.025
_GRID = np.arange(-80, 81) * _STEP  # of v
_MOVES = np.arange(-24, 25) * 2  # of u, in steps of the grid: ±1.2
_JUMP, _SPREAD = 0.4, 0.25  # mean, in either direction, and standard deviation of u
_OVERCONFIDENT = 0.7  # prior probability that a change is towards overconfidence, the common case
_SHIFT, _SLOPE, _OF_CLASSES = 0.42, 0.21, 0.37  # prior weights of the kinds of change
# maps values at the nodes to values on the grid (16, G); at the zeros of T₁₆, interpolation is nearly the best polynomial
_UNIT = np.cos((2 * np.arange(NODES) + 1) * np.pi / (2 * NODES))
_AT_NODES = np.polynomial.chebyshev.chebvander(_UNIT, NODES - 1)
_TO_GRID = np.linalg.solve(_AT_NODES.T, np.polynomial.chebyshev.chebvander(_GRID / REACH, NODES - 1).T)


@dataclass(frozen=True)
class Status:
    """The status of a monitor.

    Args:
        verdict: "quiet" or "alarm".
        evidence: Likelihood ratio of a change to no change; the alarm threshold is 1 / 0.05 = 20.
        peak: The largest evidence so far.
        rows: Number of labels so far.
        since: Position of the first label after the most likely change, counted from 1; None before the first label.
        changed_rows: Number of labels since the most likely change.
        confidence: Mean confidence since the most likely change.
        accuracy: Accuracy since the most likely change.
        accuracy_low: Lower 97.5 % bound on the accuracy.
        accuracy_high: Upper 97.5 % bound on the accuracy.
        direction: "overconfident", "underconfident" or "as confident as before" since the most likely change, relative to the
            reference at the same scores.
        classes: Classes whose own evidence exceeds the threshold. With two classes, only class 1 is listed, because both have the
            same evidence.
        advice: What to do: nothing, refit the bias, or refit everything.
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
        """Return the status in words.

        Args:
            names: Class names to use; without names, classes are given by their numbers.

        Returns:
            One sentence.
        """
        if self.verdict == "quiet":
            return f"quiet: {self.rows:,} labels, evidence of a change at most {self.peak:.3g} (an alarm starts at 20)"
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
    that decisions with a given confidence are correct as often as in the reference, and that classes with a given probability occur
    as often, whether or not the reference is calibrated. The distribution of scores may change. The uncertainty of a small
    reference is included. If only the fitting rows of the calibrator have labels, start with ``from_fit``.

    Args:
        reference: At least 50 labelled, calibrated predictions for rows on which the calibrator was not fitted.

    Raises:
        InputError: If the reference is too small, its rows are dependent or weighted, or the calibrator was fitted on it.

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
                "the calibrator was fitted on the rows of the reference, on which it performs better than on new rows; "
                "start with Monitor.from_fit(calibrator, predictions), which takes the same rows as fit"
            ) from error
        self._start(reference)

    def _start(self, reference: Data, probs: Floats | None = None) -> None:
        """Initialise from the labelled reference. If ``probs`` (N, K + 1) are given, they replace its probabilities at T = 1."""
        if len(reference) < _FEWEST:
            raise InputError(f"a monitor needs at least {_FEWEST} reference rows, not {len(reference)}")
        temperature = temperature_of(reference) if probs is None else 1.0
        p, happened = events_of(reference, temperature=temperature)
        self._classes, self._rows, self._temperature = _classes_of(reference), len(reference), temperature
        self._names = names_of(reference)
        self._accuracy = float(reference.correct.double().mean())
        self._curves = Curves.of(p if probs is None else probs[:, : p.shape[1]], happened)
        self._table, self._sums = np.empty((0, _WEIGHT + 1)), np.empty((0, *self._curves.sums.shape))
        self._batches: tuple[str, ...] = (_hash(reference),)  # hashes of the rows that cannot be a new batch
        self._peak = 0.0  # the largest log evidence seen
        self._calibrator: str | None = None  # hash of the calibrator of the rows, "" for none; None if unknown

    @classmethod
    def from_fit(cls, calibrator: Calibrator, predictions: Predictions) -> Self:
        """Return a monitor whose reference is the data that ``calibrator`` was fitted on.

        A calibrator performs better on these rows than on new ones. Each fifth is therefore calibrated by a fit on the other rows, and
        its rows are binned by the calibrator's own values with the same ranks. The noise of these fits affects the order of the
        confidences, so changes of slope are not monitored.

        Args:
            calibrator: A calibrator fitted on ``predictions``; ``update`` then expects rows that it has calibrated.
            predictions: The labelled, uncalibrated predictions that were passed to ``fit``.

        Returns:
            The monitor.

        Raises:
            InputError: If the rows are fewer than 50, dependent or weighted, or have other classes than the calibrator.

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
        monitor.record_calibrator(calibrator)
        return monitor

    def update(self, predictions: Data) -> Status:
        """Add labelled rows and return the status.

        Args:
            predictions: Labelled predictions in order of time, calibrated in the same way as the reference. A batch that was
                already added, or that is the reference, raises an error.

        Returns:
            The status after the update.

        Raises:
            InputError: If the rows are not of the same kind as the reference or have its classes in another order; the
                state then stays unchanged.
        """
        rows = require_window(predictions, what="a monitor")
        if _classes_of(rows) != self._classes:
            kinds = [f"K = {one} classes" if one else "top-label pairs" for one in (self._classes, _classes_of(rows))]
            raise InputError(f"the reference has {kinds[0]}, but these rows have {kinds[1]}")
        check_class_order(names_of(rows), self._names, of="of the reference")
        batch = _hash(predictions)
        if batch in self._batches:
            raise InputError("this batch has already been added to the state, or is its reference; pass only new rows")
        p, happened = events_of(rows, temperature=self._temperature)
        confidence, right = float(rows.confidence.sum()), float(rows.correct.sum())
        self._append([len(rows), confidence, self._curves.expected(p), right], self._curves.gather(p, happened))
        self._batches = (*self._batches, batch)
        found = self._evidence()
        self._peak = max(self._peak, found.log)
        return self._status(found)

    def _append(self, row: Sequence[float], sums: Floats) -> None:
        """Add sums to the last block if that stays small, and otherwise as a new block with its prior probability."""
        table, count = self._table, row[_ROWS]
        if len(table) and table[-1, _ROWS] + count <= _OPEN:
            table[-1, :_WEIGHT] += row
            self._sums[-1] += sums
            return
        weight = _AT_ONCE
        if len(table):
            before, spent = float(table[:, _ROWS].sum()), float(table[:, _WEIGHT].sum())
            # P(no change within r rows) = m / (m + r) has median m; its hazard decreases as 1 / r, to allow for every time scale
            later = _TYPICAL / (_TYPICAL + before), _TYPICAL / (_TYPICAL + before + max(count, _OPEN))
            weight = (1 - spent) * (1 - later[1] / later[0])
        self._table, self._sums = np.vstack([table, [*row, weight]]), np.concatenate([self._sums, sums[None]])
        if len(self._table) > _MAX_BLOCKS:
            # merge the older half in pairs; a change can then no longer start inside a pair
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
        """Save the state as one safetensors file, written atomically.

        If the process is killed, either the old or the new file remains.

        Args:
            path: A path that ends in .safetensors.

        Raises:
            InputError: If ``path`` has another suffix.
        """
        check_suffix(path, (".safetensors",), what="a monitor's state")
        facts = {name: getattr(self, f"_{name}") for name in _FACTS}
        arrays = {**vars(self._curves), "table": self._table, "blocks": self._sums}
        write_arrays(path, arrays, metadata={"format": FORMAT, "state": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a saved monitor.

        Args:
            path: A file written by ``save``.

        Returns:
            The monitor.

        Raises:
            FileFormatError: If the file is damaged or does not contain a monitor.
        """
        if read_metadata(path).get("format") != FORMAT:
            raise FileFormatError(f"{shown(path)} is not the state of a monitor")
        with error_boundary("a whole state", f"a broken one in {shown(path)}", "restore it from a copy"):
            facts, arrays = json.loads(read_metadata(path)["state"]), read_arrays(path)
            monitor = cls.__new__(cls)
            sequences = {f"_{name}": tuple(facts[name]) for name in ("names", "batches")}
            vars(monitor).update({f"_{name}": facts[name] for name in _FACTS}, **sequences)
            curves = Curves(*(arrays[name] for name in ("edges", "lines", "offsets", "slope", "sums")))
            monitor._curves, monitor._table, monitor._sums = curves, arrays["table"], arrays["blocks"]
            if monitor._sums.shape != (len(monitor._table), *curves.offsets.shape, curves.sums.shape[-1]):
                raise ValueError("the sums do not match the classes")
        return monitor

    def watches(self, other: Monitor) -> bool:
        """Return whether both monitors were started from the same reference."""
        return self._rows == other._rows and np.array_equal(self._curves.sums, other._curves.sums)

    def record_calibrator(self, calibrator: Calibrator | None) -> None:
        """Record which calibrator is applied to all rows, for ``require_calibrator``; ``from_fit`` records its own.

        Args:
            calibrator: The calibrator that was applied to the reference, or None.
        """
        self._calibrator = "" if calibrator is None else _hash_of_calibrator(calibrator)

    def require_calibrator(self, calibrator: Calibrator | None) -> None:
        """Check that ``calibrator`` is the recorded one. Without a record, every calibrator is accepted.

        Args:
            calibrator: The calibrator that is applied to the rows before ``update``, or None.

        Raises:
            InputError: If another calibrator was recorded.
        """
        given = "" if calibrator is None else _hash_of_calibrator(calibrator)
        if self._calibrator in (None, given):
            return
        started, remedy = "with another calibrator", "apply that one to the rows (--calibrator), or start a new one"
        if not self._calibrator:
            started, remedy = (
                "without a calibrator",
                "apply none to the rows (leave --calibrator out), or start a new one",
            )
        elif not given:
            started, remedy = "with a calibrator", "apply it to the rows (--calibrator)"
        raise InputError(f"the monitor was started {started}; {remedy}")

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
            advice = "nothing to do for now: the evidence has faded since the alarm; if its cause is known and gone, start a new state"
        elif classes and not moved:
            advice = (
                "refit the bias: single classes are off, but the confidence is not (use PriorShift or VectorScaling)"
            )
        else:
            advice = "refit everything: fit the calibrator again on labels since the change"
            if high < min(expected / share, self._accuracy):
                advice += "; the accuracy has decreased as well, which only retraining the model can restore"
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
    """Return K, or 0 for pairs."""
    return data.classes if isinstance(data, Predictions) else 0


def _hash(data: Data) -> str:
    """Return a hash of a batch's scores and labels."""
    content = hashlib.blake2b(digest_size=8)
    for values in (data.logits if isinstance(data, Predictions) else data.p, data.labels, data.correct):
        if values is not None:
            content.update(np.ascontiguousarray(values.detach().cpu().float().numpy()).tobytes())
    return content.hexdigest()


def _hash_of_calibrator(calibrator: Calibrator) -> str:
    """Return a hash of the class and of the learned state."""
    content = hashlib.blake2b(type(calibrator).__name__.encode(), digest_size=8)
    for name, value in sorted(calibrator.state_dict().items()):
        content.update(name.encode())
        content.update(value.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()


def events_of(data: Data, *, temperature: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the probabilities of the monitored events (N, E) at this temperature, and whether each event happened (N, E)."""
    right = data.correct.cpu().numpy()[:, None]
    if not isinstance(data, Predictions):
        return data.p.cpu().double().numpy()[:, None], right
    if data.classes > CLASSES:
        return columns_of(data, temperature)[:, :1], right
    labels = torch.nn.functional.one_hot(data.require_labels().cpu(), data.classes).bool().numpy()
    return columns_of(data, temperature), np.concatenate([right, labels], axis=1)


@dataclass(frozen=True, eq=False)
class Curves:
    """The log-odds of each event in the reference: a linear function of the log-odds of p, plus an offset in each bin.

    Args:
        edges: Edges between the bins (E, B − 1); infinite after the last bin if an event has fewer bins.
        lines: a and c (E, 2).
        offsets: v_b (E, B).
        slope: d_b (B,), half the log-odds in each confidence bin, by which a change of slope moves the bin.
        sums: log L(v) − log L(v_b) of the reference at the nodes v − v_b (E, B, 16).
    """

    edges: Floats
    lines: Floats
    offsets: Floats
    slope: Floats
    sums: Floats

    @classmethod
    def of(cls, p: Floats, happened: NDArray[np.bool_]) -> Curves:
        """Return the curves for the reference, from the probabilities and outcomes of its events, each (N, E)."""
        rows, events = p.shape
        bins = int(np.clip(rows // _A_BIN, 1, _MAX_BINS))
        edges, lines, offsets = np.full((events, bins - 1), np.inf), np.zeros((events, 2)), np.zeros((events, bins))
        log_odds = _log_odds_of_events(p)
        for e in range(events):
            # bins are based on row counts and variances in equal parts, because most rows clearly belong to another class
            variance = p[:, e] * (1 - p[:, e])
            own = stratum_edges(log_odds[:, e], bins=bins, weight=1 / rows + variance / max(variance.sum(), 1e-300))
            edges[e, : len(own)] = own
            lines[e] = _fitted_line(log_odds[:, e], happened[:, e])
            own = lines[e, 0] + lines[e, 1] * log_odds[:, e]
            offsets[e] = _offsets(np.searchsorted(edges[e], log_odds[:, e]), own, happened[:, e], bins)
        found = cls(edges, lines, offsets, np.zeros(bins), np.empty(0))
        index, at = found.at(0, log_odds[:, 0])
        centre = np.bincount(index, at, bins) / np.maximum(np.bincount(index, minlength=bins), 1)
        return replace(found, slope=centre / 2, sums=found.gather(p, happened))

    def at(self, e: int, log_odds: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return the bin (N,) for each row's log-odds (N,) of event ``e``, and the log-odds (N,) that the reference implies."""
        index = np.searchsorted(self.edges[e], log_odds)
        return index, self.lines[e, 0] + self.lines[e, 1] * log_odds + self.offsets[e, index]

    def gather(self, p: Floats, happened: NDArray[np.bool_]) -> Floats:
        """Return log L(v) − log L(v_b) (E, B, 16), summed over the rows (N, E) in each bin."""
        sums, log_odds = np.zeros((*self.offsets.shape, NODES)), _log_odds_of_events(p)
        for e in range(p.shape[1]):
            index, at = self.at(e, log_odds[:, e])
            sign = np.where(happened[:, e], 1.0, -1.0)
            # log σ(x) = −log(1 + e^−x)
            terms = np.logaddexp(0, -sign * at)[:, None] - np.logaddexp(
                0, -sign[:, None] * (at[:, None] + REACH * _UNIT)
            )
            sums[e] = np.eye(sums.shape[1])[index].T @ terms
        return sums

    def expected(self, p: Floats) -> float:
        """Return the expected number of correct decisions according to the reference."""
        return float((1 / (1 + np.exp(-self.at(0, _log_odds_of_events(p[:, 0]))[1]))).sum())


def _fitted_line(log_odds: Floats, happened: NDArray[np.bool_]) -> Floats:
    """Return a and c of the logistic regression on the log-odds (N,), with standard normal priors on a and c − 1."""
    design, line = np.stack([np.ones_like(log_odds), log_odds], axis=1), np.array([0.0, 1.0])
    for _ in range(_STEPS):  # Newton's method with limited steps, as below
        q = 1 / (1 + np.exp(-(design @ line)))
        gradient = design.T @ (happened - q) - (line - [0.0, 1.0])
        step = np.linalg.solve((design * (q * (1 - q))[:, None]).T @ design + np.eye(2), gradient)
        line = line + step / max(1.0, float(np.abs(step).max()))
    return line


def _offsets(index: NDArray[np.int64], log_odds: Floats, happened: NDArray[np.bool_], bins: int) -> Floats:
    """Return the v_b (B,) for which Σ σ(ℓ + v_b) equals the number of events, after adding half an event of either kind."""
    count, hits, total = (np.bincount(index, each, bins) for each in (None, happened, 1 / (1 + np.exp(-log_odds))))
    # add at most the number of events that the probabilities predict, so that a bin without data keeps its rate
    more, less = np.minimum(_HALF, total), np.minimum(_HALF, count - total)
    wanted, v = count * (hits + more) / np.maximum(count + more + less, 1e-300), np.zeros(bins)
    for _ in range(_STEPS):  # the likelihood is concave, and a step of at most 1 cannot overshoot far
        q = 1 / (1 + np.exp(-(log_odds + v[index])))
        value, bend = np.bincount(index, q, bins), np.bincount(index, q * (1 - q), bins)
        v += np.clip((wanted - value) / np.maximum(bend, 1e-300), -1, 1)
    return v


def _log_odds_of_events(p: Floats) -> Floats:
    clipped = np.clip(p, 1e-12, 1 - 1e-12)
    return np.asarray(np.clip(np.log(clipped) - np.log1p(-clipped), -_LARGEST, _LARGEST))


@dataclass(frozen=True)
class ChangeEvidence:
    """Evidence for a change in each event.

    Args:
        logs: Log evidence for "shift", "slope", "class 0" ….
        log: Logarithm of the weighted mean of all evidence, which decides.
        start: Index of the block at which the change most likely started.
    """

    logs: dict[str, float]
    log: float
    start: int


def since_change(curves: Curves, blocks: Floats, weights: Floats) -> ChangeEvidence:
    """Return the evidence that something changed at the start of a block.

    Args:
        curves: The curves of the reference.
        blocks: Sums of ``gather`` over each block (T, E, B, 16), in order of time.
        weights: Prior probability that the change started with each block (T,); they sum to at most 1.

    Returns:
        The evidence.
    """
    after = np.cumsum(blocks[::-1], axis=0)[::-1]  # sums from each block on; the rest of the total precedes the block
    posterior = np.exp(_normal(curves.sums @ _TO_GRID))  # (E, B, G)
    classes, still = len(posterior) - 1, np.zeros_like(curves.slope)
    down = np.array([_OVERCONFIDENT] + [0.5] * classes)  # a class is as likely to become rarer as more frequent
    unmoved = _averaged(np.concatenate([after[:1] - after, after[:1]]), posterior, still, down)
    unchanged = unmoved[:-1] - unmoved[-1]
    shifted = unchanged + _averaged(after, posterior, np.ones_like(still), down)  # (T, E)
    turned = unchanged[:, :1] + _averaged(after[:, :1], posterior[:1], curves.slope, down[:1])
    ratios = np.concatenate([shifted[:, :1], turned, shifted[:, 1:]], axis=1)
    prior = np.array([_SHIFT, _SLOPE, *[_OF_CLASSES / max(classes, 1)] * classes])
    prior /= prior.sum()
    weighted = ratios + np.log(weights)[:, None]
    # the likelihood ratio of no change yet is 1
    logs = np.logaddexp(np.logaddexp.reduce(weighted, axis=0), math.log(max(1e-300, 1 - weights.sum())))
    names = ["shift", "slope", *(f"class {k}" for k in range(classes))]
    start = int(np.unravel_index(np.argmax(weighted + np.log(prior)), weighted.shape)[0])
    log = float(np.logaddexp.reduce(logs + np.log(prior)))
    return ChangeEvidence(dict(zip(names, logs.tolist(), strict=True)), log, start)


def _averaged(sums: Floats, posterior: Floats, direction: Floats, down: Floats) -> Floats:
    """Return log ∫ L (T, E) for sums (T, E, B, 16) whose bins moved by u in ``direction`` (B,), averaged over u.

    ``down`` (E,) is the prior probability that u is negative.
    """
    u = _MOVES * _STEP
    # two normal distributions, with means −_JUMP and _JUMP
    sides = [-((u + jump) ** 2) / (2 * _SPREAD**2) for jump in (_JUMP, -_JUMP)]
    prior = _normal(np.logaddexp(np.log(down)[:, None] + sides[0], np.log(1 - down)[:, None] + sides[1]))
    moves = (
        np.rint(_MOVES[:, None] * direction).astype(np.int64) if direction.any() else np.zeros((1, len(direction)), int)
    )
    marginal = _marginal(sums, posterior, moves)
    return np.asarray(np.logaddexp.reduce(marginal + prior, axis=-1) if len(moves) > 1 else marginal[..., 0])


def _marginal(sums: Floats, posterior: Floats, moves: NDArray[np.int64]) -> Floats:
    """Return Σ_b log ∫ π_b(v − u_b) L_b(v) dv (T, E, U) for bins that moved by ``moves`` (U, B) grid steps."""
    logs = np.moveaxis(sums @ _TO_GRID, 0, 2)  # (E, B, T, G)
    top = logs.max(axis=-1, keepdims=True)
    at = np.arange(len(_GRID))[:, None] - moves.T[:, None, :]  # (B, G, U)
    inside = (at >= 0) & (at < len(_GRID))
    bins = np.arange(posterior.shape[1])[:, None, None]
    prior = np.where(inside, posterior[:, bins, at.clip(0, len(_GRID) - 1)], 0.0)  # (E, B, G, U)
    prior /= np.maximum(prior.sum(axis=2, keepdims=True), 1e-300)
    found = np.log(np.maximum(np.exp(logs - top) @ prior, 1e-300)) + top
    return np.asarray(np.moveaxis(found.sum(axis=1), 1, 0))


def _normal(logs: Floats) -> Floats:
    return np.asarray(logs - np.logaddexp.reduce(logs, axis=-1)[..., None])
