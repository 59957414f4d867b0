"""A monitor of calibration with an anytime-valid alarm, whose state is one small file."""

import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.notebook import to_html
from calibrant._files import as_path, error_boundary, read_arrays, read_metadata, shown, write_arrays
from calibrant.calibrators import Calibrator
from calibrant.data.checks import Data
from calibrant.data.predictions import Predictions
from calibrant.errors import FileFormatError, InputError, LeakError
from calibrant.operate.bounds import Moments, mean_ends, share_ends
from calibrant.operate.evidence import (
    NODES,
    ChangeEvidence,
    ClassCurves,
    ReferenceCurve,
    gather,
    quantity_names,
    since_change,
)
from calibrant.operate.rows import LABELLED, matched_out_of_fold, need_source

Floats = NDArray[np.float64]

FALSE_ALARMS = 0.05  # probability of ever raising a false alarm
_LOSS_BOUND = 0.001  # part of it for an error of the bound on the reference's log-loss
LEVEL = -math.log(FALSE_ALARMS - _LOSS_BOUND)  # the log evidence of an alarm
_FEWEST = 50  # reference rows
FORMAT = "calibrant-monitor"
_AT_ONCE = 0.9  # prior probability that a change, if any, precedes the first row
_TYPICAL = 5000.0  # prior median of the number of rows before a later change
_OPEN = 100  # batches are added to a block while it then has at most this many rows
_MOST = 200  # largest number of blocks; beyond, neighbours are merged


_COLUMNS = ("rows", "confidence", "right", "loss", "squares", "weight")  # of the table of blocks
_WEIGHT = _COLUMNS.index("weight")
_FACTS = ("classes", "rows", "confidence", "accuracy", "cap", "limit")  # of the reference, beside its arrays


@dataclass(frozen=True)
class Reference:
    """What is known of the reference rows.

    Args:
        classes: K, or 0 for top-label pairs.
        rows: Their number.
        confidence: Their mean confidence.
        accuracy: Their accuracy.
        cap: Largest log-loss of a row; larger ones are capped.
        limit: Upper bound of their mean capped log-loss, in units of ``cap``.
        sums: (F, 16) log-likelihoods, from ``evidence.gather``.
        curve: How far their bins of confidence are off.
        curves: How frequent each class is in bins of its probability.
    """

    classes: int
    rows: int
    confidence: float
    accuracy: float
    cap: float
    limit: float
    sums: Floats
    curve: ReferenceCurve
    curves: ClassCurves

    @classmethod
    def of(cls, data: Data, values: Floats | None = None) -> "Reference":
        """Return the reference of labelled rows; ``values`` as in ``evidence.gather``."""
        if len(data) < _FEWEST:
            raise InputError(f"a monitor needs at least {_FEWEST} reference rows, not {len(data)}")
        classes = data.classes if isinstance(data, Predictions) else 0
        losses = _log_losses(data)
        finite = losses[np.isfinite(losses)]
        # one row may not decide: losses are capped where 1 in 100 of the reference lies; .1 where it has hardly any
        cap = max(float(np.quantile(np.minimum(losses, finite.max() if len(finite) else 0.0), 0.99)), 0.1)
        curve, curves = ReferenceCurve.of(data, values), ClassCurves.of(data, classes, values)
        return cls(
            classes=classes,
            rows=len(data),
            confidence=float(data.confidence.mean()),
            accuracy=float(data.correct.double().mean()),
            cap=cap,
            # what the reference's mean loss is below but for ``_LOSS_BOUND``, so that a larger mean is evidence
            limit=mean_ends(Moments.of(np.minimum(losses, cap) / cap), low=0, high=1, alpha=_LOSS_BOUND)[1],
            sums=gather(data, classes=classes, curve=curve, curves=curves, values=values),
            curve=curve,
            curves=curves,
        )


@dataclass(frozen=True)
class Blocks:
    """Sums over blocks of consecutive labels, in order of time.

    Args:
        table: (T, 6) of ``_COLUMNS``: number of labels, sum of the confidences, number of correct decisions, sums of the capped
            log-losses z in [0, 1] and of their squares, and the prior probability that a change began with the block.
        sums: (T, F, 16) log-likelihoods, from ``evidence.gather``.
    """

    table: Floats
    sums: Floats

    @property
    def rows(self) -> NDArray[np.int64]:
        """The number of labels (T,) of each block."""
        return self.table[:, 0].astype(np.int64)

    def appended(self, row: Sequence[float], sums: Floats) -> "Blocks":
        """Return the blocks with new labels added to the last one if that is small, else as one more with its prior probability."""
        table, count = self.table.copy(), row[0]
        if len(table) and table[-1, 0] + count <= _OPEN:
            table[-1, :_WEIGHT] += row
            return Blocks(table, np.concatenate([self.sums[:-1], self.sums[-1:] + sums]))
        weight = _AT_ONCE
        if len(table):
            before, spent = float(table[:, 0].sum()), float(table[:, _WEIGHT].sum())
            # P(no change within r rows) = m / (m + r), whose median is m: the hazard falls as 1 / r, for changes on every scale
            later = _TYPICAL / (_TYPICAL + before), _TYPICAL / (_TYPICAL + before + max(count, _OPEN))
            weight = (1 - spent) * (1 - later[1] / later[0])
        found = Blocks(np.vstack([table, [*row, weight]]), np.concatenate([self.sums, sums[None]]))
        return found if len(found.table) <= _MOST else found._halved()

    def _halved(self) -> "Blocks":
        """Return the blocks with the older half in pairs, within which no change can begin."""
        end = len(self.table) // 4 * 2
        pairs = self.table[:end].reshape(-1, 2, len(_COLUMNS))
        table = pairs.sum(axis=1)
        table[:, _WEIGHT] = pairs[:, 0, _WEIGHT]
        sums = self.sums[:end].reshape(-1, 2, *self.sums.shape[1:]).sum(axis=1)
        return Blocks(np.vstack([table, self.table[end:]]), np.concatenate([sums, self.sums[end:]]))


@dataclass(frozen=True)
class Status:
    """The status of a monitor.

    Args:
        verdict: "quiet" or "alarm".
        evidence: Likelihood ratio of a change against no change; the alarm threshold is 1 / 0.049 = 20.4.
        peak: The largest evidence so far.
        rows: Number of labels so far.
        since: Number of the first label after the most likely change, counted from 1; None before the first label.
        changed_rows: Number of labels since then.
        confidence: Mean confidence since then.
        accuracy: Accuracy since then.
        accuracy_low: Lower 97.5 % bound of the accuracy.
        accuracy_high: Upper 97.5 % bound of the accuracy.
        direction: "overconfident", "underconfident" or "as confident as before" since then, relative to the reference.
        classes: Classes whose own evidence exceeds the threshold; class 1 alone of two, whose probabilities say the same.
        advice: What to do: nothing, re-fit the bias, re-fit all, or retrain.
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
            return f"quiet: {self.rows:,} labels, evidence of a change {self.peak:.3g} at most, an alarm from 20.4 on"
        classes = ", ".join(names[one] if names else f"{one} (counted from 0)" for one in self.classes)
        which = f", most in class {classes}" if classes else ""
        return (
            f"alarm: {self.direction} since label {self.since:,}{which}: mean confidence {self.confidence:.3f}, accuracy "
            f"{self.accuracy:.3f} (between {self.accuracy_low:.3f} and {self.accuracy_high:.3f}) on {self.changed_rows:,} "
            f"labels; {self.advice}"
        )


class Monitor:
    """Tests sequentially, as labels arrive, whether calibration has changed since the reference, and raises an alarm if so.

    The probability that a monitor ever raises a false alarm is at most 5 %, however often it is updated and read. No change means
    that the decision of a given confidence is as often right as in the reference, whether calibrated there or not; the uncertainty of
    a reference of few rows is included. If no rows but those of the fit have labels, start with ``from_fit``.

    Args:
        reference: At least 50 labelled, calibrated predictions that the calibrator was not fitted on.

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

    def __init__(self, reference: Data) -> None:
        reference = LABELLED.check(reference, "reference", "a monitor")
        try:
            if isinstance(reference, Predictions) and reference.fit_check is not None:
                reference.fit_check()
        except LeakError as error:
            raise InputError(
                "the calibrator was fitted on the reference's rows, where its figures are better than on new ones; "
                "start with Monitor.from_fit(calibrator, predictions), which takes the rows as fit did"
            ) from error
        self._start(Reference.of(reference))

    def _start(self, reference: Reference) -> None:
        self._reference = reference
        self._blocks = Blocks(np.empty((0, len(_COLUMNS))), np.empty((0, *reference.sums.shape)))
        self._batches: tuple[str, ...] = ()
        self._peak = 0.0  # the largest log evidence seen

    @classmethod
    def from_fit(cls, calibrator: Calibrator, predictions: Predictions) -> Self:
        """Return a monitor whose reference are the rows that ``calibrator`` was fitted on.

        On these rows it is better than on new ones. So each fifth is calibrated by a fit on the others, and its rows lie in the bins of
        the calibrator's own values of the same rank. Which confidences are high is decided by the noise of each fit, so that the slope
        is not watched.

        Args:
            calibrator: Fitted on ``predictions``; ``update`` then takes rows calibrated by it.
            predictions: Labelled, as they were given to its ``fit``: not calibrated.

        Examples:
            >>> from calibrant import Predictions
            >>> from calibrant.calibrators import TemperatureScaling
            >>> rows = Predictions.from_binary_probs([0.9] * 1000, ([1] * 8 + [0] * 2) * 100)
            >>> Monitor.from_fit(TemperatureScaling().fit(rows), rows)
            Monitor(0 labels, reference of 1000 rows, quiet)
        """
        LABELLED.check(predictions, "predictions", "a monitor")
        need_source(calibrator)
        predictions.calibrated_by(calibrator, allow_fit_rows=True)  # refuses one without a fit, or of other classes
        reference = Reference.of(*matched_out_of_fold(calibrator, predictions))
        reference.sums[1] = 0.0  # of the slope
        monitor = cls.__new__(cls)
        monitor._start(reference)
        return monitor

    def update(self, predictions: Data) -> Status:
        """Add labelled rows and return the status.

        Args:
            predictions: Labelled, calibrated as the reference, in order of time. A batch that was already added is refused.

        Raises:
            InputError: If the rows do not fit the reference; the state is then unchanged.
        """
        reference, rows = self._reference, LABELLED.check(predictions, "predictions", "a monitor")
        classes = predictions.classes if isinstance(predictions, Predictions) else 0
        if classes != reference.classes:
            kinds = [f"K = {one} classes" if one else "top-label pairs" for one in (reference.classes, classes)]
            raise InputError(f"the reference holds predictions with {kinds[0]}, these rows {kinds[1]}")
        batch = _hash(predictions)
        if batch in self._batches:
            raise InputError("this batch was added to the state before; pass each batch once")
        z = np.minimum(_log_losses(rows), reference.cap) / reference.cap
        row = (len(rows), float(rows.confidence.sum()), float(rows.correct.sum()), float(z.sum()), float((z * z).sum()))
        sums = gather(rows, classes=classes, curve=reference.curve, curves=reference.curves)
        self._blocks, self._batches = self._blocks.appended(row, sums), (*self._batches, batch)
        found = self._evidence()
        self._peak = max(self._peak, found.log)
        return self._status(found)

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
        if as_path(path).suffix != ".safetensors":
            raise InputError(f"{shown(path)}: the name of a monitor's state must end in .safetensors")
        reference = self._reference
        arrays = {
            "reference": reference.sums,
            "edges": reference.curve.edges,
            "offsets": reference.curve.offsets,
            "class_edges": reference.curves.edges,
            "class_log_odds": reference.curves.log_odds,
            "blocks": self._blocks.table,
            "sums": self._blocks.sums,
        }
        facts = {
            "reference": {name: getattr(reference, name) for name in _FACTS},
            "batches": self._batches,
            "peak": self._peak,
        }
        write_arrays(path, arrays, metadata={"format": FORMAT, "state": json.dumps(facts, sort_keys=True)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a saved state.

        Raises:
            FileFormatError: If the file is not a monitor's state, or is damaged.
        """
        if as_path(path).suffix != ".safetensors" or read_metadata(path).get("format") != FORMAT:
            raise FileFormatError(f"{shown(path)}: not the state of a monitor")
        with error_boundary("a whole state", f"a broken one in {shown(path)}", "restore it from a copy"):
            facts, arrays = json.loads(read_metadata(path)["state"]), read_arrays(path)
            sums, lines = arrays["sums"], len(quantity_names(facts["reference"]["classes"]))
            if arrays["reference"].shape != (lines, NODES) or sums.shape != (len(arrays["blocks"]), lines, NODES):
                raise ValueError("its sums are not those of its classes")
            curve = ReferenceCurve(arrays["edges"], arrays["offsets"])
            curves = ClassCurves(arrays["class_edges"], arrays["class_log_odds"])
            monitor = cls.__new__(cls)
            monitor._start(Reference(**facts["reference"], sums=arrays["reference"], curve=curve, curves=curves))
            monitor._blocks = Blocks(arrays["blocks"], sums)
            monitor._batches, monitor._peak = tuple(facts["batches"]), facts["peak"]
        return monitor

    def watches(self, other: "Monitor") -> bool:
        """Return whether both monitors were started from the same reference."""
        mine, theirs = self._reference, other._reference
        return mine.rows == theirs.rows and np.array_equal(mine.sums, theirs.sums)

    def __repr__(self) -> str:
        labels, verdict = int(self._blocks.rows.sum()), "alarm" if self.alarm else "quiet"
        return f"Monitor({labels} labels, reference of {self._reference.rows} rows, {verdict})"

    def _evidence(self) -> ChangeEvidence:
        reference, table = self._reference, self._blocks.table
        if not len(table):
            return ChangeEvidence({}, 0.0, 0, {})
        # rounding must not make more than 1 of the prior
        weights = table[:, _WEIGHT] / max(1.0, table[:, _WEIGHT].sum())
        # what the reference says nothing of (``from_fit``)
        sums = np.where(np.any(reference.sums != 0, axis=1, keepdims=True), self._blocks.sums, 0.0)
        losses = table[:, [_COLUMNS.index(name) for name in ("rows", "loss", "squares")]]
        return since_change(reference.sums, sums, losses, weights, classes=reference.classes, limit=reference.limit)

    def _status(self, found: ChangeEvidence) -> Status:
        reference, counts = self._reference, self._blocks.rows
        rows = int(counts[found.start :].sum())
        confidence, right = self._blocks.table[found.start :, 1:3].sum(axis=0).tolist()
        low, high = share_ends(right, rows, alpha=0.025) if rows else (0.0, 1.0)
        accuracy, mean = (right / rows, confidence / rows) if rows else (reference.accuracy, reference.confidence)
        logs = found.logs
        own = sorted((name for name, log in logs.items() if log >= LEVEL), key=lambda name: -logs[name])
        classes = tuple(int(name.removeprefix("class ")) for name in own if name.startswith("class "))
        # beyond the gap that the reference had
        gap = (mean - accuracy) - (reference.confidence - reference.accuracy)
        moved = "shift" in own or "slope" in own
        if not self.alarm:
            advice = "nothing to do"
        elif not own:
            advice = "nothing for now: the evidence has faded since the alarm; if its cause is known and gone, start a new state"
        elif "loss" in own and high < reference.accuracy:
            advice = "retrain: accuracy and log-loss are worse, which no calibrator can put right"
        elif classes and not moved:
            advice = "re-fit the bias: single classes are off, the confidence is not (PriorShift or VectorScaling)"
        else:
            advice = "re-fit all: fit the calibrator again on labels since the change"
        return Status(
            verdict="alarm" if self.alarm else "quiet",
            evidence=math.exp(min(found.log, 700.0)),
            peak=math.exp(min(self._peak, 700.0)),
            rows=int(counts.sum()),
            since=1 + int(counts[: found.start].sum()) if rows else None,
            changed_rows=rows,
            confidence=mean,
            accuracy=accuracy,
            accuracy_low=low,
            accuracy_high=high,
            direction=("overconfident" if gap > 0 else "underconfident") if moved else "as confident as before",
            classes=(1,) if classes and reference.classes == 2 else classes,
            advice=advice,
        )


def _log_losses(data: Data) -> Floats:
    """Return the log-loss (N,) of the labels, or for pairs that of the binary event "correct"."""
    if isinstance(data, Predictions):
        return np.asarray(data.nll.cpu().double().numpy())
    p = torch.where(data.correct, data.confidence, 1 - data.confidence)
    return np.asarray(-p.clamp_min(1e-300).log().cpu().numpy())


def _hash(data: Data) -> str:
    """Return a hash of a batch's scores and labels."""
    content = hashlib.blake2b(digest_size=8)
    for values in (data.logits if isinstance(data, Predictions) else data.p, data.labels, data.correct):
        if values is not None:
            content.update(np.ascontiguousarray(values.detach().cpu().float().numpy()).tobytes())
    return content.hexdigest()
