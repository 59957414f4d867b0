"""Calibration by group: the gap of every group of rows, and one test for the worst."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators import FeatureScaling, GroupScaling
from calibrant.data.checks import Data
from calibrant.data.pairs import Pairs
from calibrant.errors import InputError, NoIntervalError
from calibrant.evaluate import subgroups
from calibrant.evaluate.subgroups import Subgroup, Subgroups
from calibrant.plot.diagrams import event_pairs, isotonic
from calibrant.report.advice import CHANCE, MARGIN, Advice, Verdict, commands_of, signed, too_high_or_low
from calibrant.report.model import Model

FIRST = 8  # groups shown at once; the others are folded
MOST = 100  # groups in the page; JSON has all
MINIMUM = 100  # fewest rows of a group
MOST_NAMES = 200  # categories of a column of text, beyond which nobody asked for it: names, addresses
PROMISE = (
    "A finding holds at 95 % for all groups at once; no finding is no proof: read the intervals, and columns that nobody named "
    "are not looked at. Calibration in groups makes neither error rates equal nor decisions fair."
)


def off_in(found: Subgroups | None) -> list[Subgroup]:
    """Return the groups that are further off than chance explains, by the test that accounts for their number."""
    return [] if found is None else [row for row in found.rows if row.p_adjusted < 1 - found.level]


@dataclass(frozen=True)
class Audit:
    """The groups of a model's rows, before and after calibration.

    Args:
        columns: Names of the columns looked at.
        before: The groups before calibration, or None if there was no test.
        after: The same after calibration, or None.
        unread: Columns left out for their many categories.
        reason: Why there was no test, or "".
        off_by: The columns of groups that one correction for all rows leaves off: the calibrator, or without one the best that
            increases.
    """

    columns: tuple[str, ...]
    before: Subgroups | None
    after: Subgroups | None = None
    unread: tuple[str, ...] = ()
    reason: str = ""
    off_by: tuple[str, ...] = ()

    @property
    def last(self) -> Subgroups | None:
        """The groups after calibration, or before it without a calibrator."""
        return self.after or self.before

    @property
    def finding(self) -> str | None:
        """The verdict if the worst group is significant, else None."""
        last = self.last
        found = last is not None and bool(last.rows) and last.p_value < 1 - last.level
        return last.verdict if found and last is not None else None

    def verdict(self, average: Verdict) -> Verdict:
        """Return the verdict of the first screen: the clearest group's where one is off before calibration, else that on all rows.

        Args:
            average: The verdict on all rows together, which groups with opposite errors can pass.
        """
        off = off_in(self.before)
        if not off or (self.after is None and not self.off_by):  # groups that err as all do are no news
            return average
        worst = max(off, key=lambda row: abs(row.gap))
        if abs(worst.gap) < MARGIN:
            return average
        assert self.before is not None
        clear = f"{too_high_or_low(worst.gap)} for {worst.group}"
        if average.state in ("calibrated", "unclear", "small"):
            headline = f"Probabilities are {clear}, though not far off on average"
            return Verdict("large", headline, f"Overall: {average.detail}")
        overall = f"overall {average.headline[:1].lower()}{average.headline[1:]}"
        return Verdict(average.state, f"Probabilities are {clear}; {overall}", average.detail)

    def advice(self, average: Advice, model: Model, *, event: bool = False) -> Advice:
        """Return the recommendation: to calibrate by group where groups are still off after calibration, or were not calibrated.

        Args:
            average: The recommendation for all rows together.
            model: The model.
            event: Whether the page is of an event's probability.
        """
        columns = list(self.off_by)
        if not columns and off_in(self.before) and self.after is None and average.commands:
            reason = f"One correction for all suffices for the groups of {', '.join(self.columns)}, as far as these rows tell."
            return replace(average, reasons=[*average.reasons, reason])
        if not columns or isinstance(model.calibrator, GroupScaling | FeatureScaling):
            return average
        method, columns = correction_by(columns, model.features)
        worst = _decidable_limit(model, columns, max(abs(row.gap) for row in off_in(self.last)))
        commands = commands_of(model, margin=MARGIN, method=method, features=columns, worst=worst, event=event)
        return Advice(
            f"Calibrate by {' and '.join(columns)}: one correction for all leaves some groups wrong.",
            [reason for reason in average.reasons if not reason.startswith(CHANCE)],  # one recommendation a page
            commands,
        )

    @property
    def verdicts(self) -> list[str]:
        """The results of the test before and after calibration, or the reason why there was none."""
        if self.before is None:
            return [self.reason]
        if self.after is None:
            return [self.before.verdict]
        return [f"Before calibration: {self.before.verdict}", f"After it: {self.after.verdict}"]

    @property
    def scope(self) -> str:
        """The number of groups tested, and of those left out as too small."""
        last = self.last
        said = [f"Looked at: {', '.join(self.columns)}." if self.columns else ""]
        if last is not None:
            count, small = len(last.rows), last.left_out
            said.append(
                f"The event is that {last.event}." if last.event.startswith("the ") else f"The event is {last.event}."
            )
            said.append(f"{count:,} group{'' if count == 1 else 's'} tested")
            said[-1] += f", {small:,} with fewer than {MINIMUM} rows or 5 expected events left out." if small else "."
        if last is not None and last.rows:
            said.append(
                "A group whose interval contains 0 and whose p is small is off in single ranges, which cancel in its gap."
            )
        if self.unread:
            said.append(f"Left out for more than {MOST_NAMES} categories: {', '.join(self.unread)}.")
        return " ".join(filter(None, said))

    @property
    def lines(self) -> list[list[str]]:
        """The cells of each group under ``header``, the strongest evidence first."""
        last, first = self.last, self.before
        if last is None or first is None:
            return []
        # groups are tested before and after on the same rows, and may be ranked differently
        old = {row.columns: row for row in first.rows}
        return [_cells(row, old.get(row.columns), compared=self.after is not None) for row in last.rows[:MOST]]

    @property
    def header(self) -> list[str]:
        """The names of the columns of ``lines``."""
        gap = ["gap before", "gap after"] if self.after is not None else ["gap"]
        return ["group", "rows", *gap, "95 %, all groups at once", "ECE", "p, all groups"]


def _decidable_limit(model: Model, columns: list[str], gap: float) -> float | None:
    """Return an ECE that the worst of calibrated groups passes with as many rows; None where it would let ``gap`` pass, or is not known.

    With n rows in the smallest of 3 to 30 calibrated groups the upper bound of ``check`` was 2 / √n to 3.3 / √n (simulated).
    """
    named = [model.features.get(name) for name in columns]
    if any(values is None or isinstance(values, Tensor) for values in named):  # `check` takes each number for a group
        return None
    smallest = min(int(np.unique(np.asarray(values), return_counts=True)[1].min()) for values in named)
    limit = math.ceil(100 * 3 / math.sqrt(smallest)) / 100
    return limit if limit < gap else None


def correction_by(columns: Sequence[str], features: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the name of the calibrator that corrects groups of ``columns``, and the columns that it goes by.

    Args:
        columns: Names of columns whose groups are off.
        features: Name → column (N,).
    """
    whole = [name for name in columns if not _is_real(features[name])]
    return ("GroupScaling", whole) if whole else ("FeatureScaling", list(columns))


def _is_real(values: Any) -> bool:
    """Return whether a column holds numbers that are not all whole, which are no categories."""
    numbers = np.asarray(values)
    return numbers.dtype.kind == "f" and bool((numbers != np.rint(numbers)).any())


def audit_of(model: Model) -> Audit | None:
    """Return the groups of a model's rows by ``model.by``, or by all features of its predictions; None if there are none.

    A column of text with more than 200 categories is left out unless it is named.

    Args:
        model: The model.

    Raises:
        InputError: For columns named in ``model.by`` that are missing, of another length, or of too many categories.
    """
    named = model.by is not None
    columns: Any = model.by if named else dict(model.before.features or {})
    return audit(model.before, model.after, columns, named=named) if columns else None


def audit(before: Data, after: Data | None, columns: Any, *, named: bool = False) -> Audit:
    """Return the groups of rows by ``columns``.

    Args:
        before: The rows.
        after: The same rows after calibration, or None.
        columns: Names of features, or name → column (N,).
        named: Whether someone named these columns, whose errors are then raised; others are left out if they have too many
            categories, and what is wrong with them is the reason why there is no test.

    Raises:
        InputError: For columns that were named and are missing, of another length, or of too many categories.
    """
    # a column that nobody named and that has a name for each row is an identifier, not a group
    left = () if named else tuple(name for name, values in columns.items() if unread(values))
    columns = columns if named else {name: values for name, values in columns.items() if name not in left}
    if not columns:
        return Audit((), None, unread=left, reason="No column of few categories or of numbers lies beside the rows.")
    names = tuple(map(str, columns))
    try:
        first = subgroups(before, columns, minimum=MINIMUM)
        second = None if after is None else subgroups(after, columns, minimum=MINIMUM)
        alone = after is None and bool(off_in(first))
        pooled = subgroups(_corrected(before), columns, minimum=MINIMUM) if alone else None
    except (NoIntervalError, InputError) as error:
        if named and isinstance(error, InputError):
            raise
        return Audit(names, None, unread=left, reason=f"Groups are not tested: {error}.")
    off_by = dict.fromkeys(name for row in off_in(second or pooled) for name, _ in row.columns)
    return Audit(names, first, second, left, off_by=tuple(off_by))


def _corrected(data: Data) -> Pairs:
    """Return the rows at the frequencies that isotonic regression gives them: what the best increasing correction for all leaves."""
    # all rows, those of weight 0 too: the columns have an entry for each
    pairs = event_pairs(data)
    p, y = pairs.p.cpu().numpy(), pairs.y.cpu().numpy()
    weight = np.ones(len(p)) if pairs.weights is None else pairs.weights.cpu().numpy()
    at = np.unique(p, return_inverse=True)[1]
    count = np.maximum(np.bincount(at, weight), 1e-12)  # rows of weight 0 have a place of their own
    fitted = isotonic(np.bincount(at, weight * y) / count, count)
    return replace(pairs, p=torch.from_numpy(fitted[at]).to(pairs.p.device))


def unread(values: Any) -> bool:
    """Return whether a column is of text with more categories than are looked at without being named."""
    return not isinstance(values, Tensor) and len(np.unique(values)) > MOST_NAMES


def _cells(row: Subgroup, old: Subgroup | None, *, compared: bool) -> list[str]:
    gaps = [_signed_percent(row.gap)]
    if compared:
        gaps = ["" if old is None else _signed_percent(old.gap), *gaps]
    ends = f"{_signed_percent(row.all_low)} to {_signed_percent(row.all_high)}"
    p = "< 0.0001" if row.p_adjusted < 1e-4 else f"{row.p_adjusted:.2g}"
    return [row.group, f"{row.n:,}", *gaps, ends, f"{100 * row.ece:.2f} %", p]


def _signed_percent(value: float) -> str:
    shown = f"{signed(100 * value)} %"
    return "0.00 %" if shown[1:] == "0.00 %" else shown
