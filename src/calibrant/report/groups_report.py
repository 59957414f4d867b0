"""Calibration by group: the gap of every group of rows, by the columns that name the groups, and one test for the worst."""

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
from calibrant.plot.diagrams import event_pairs, isotonic, pair_columns
from calibrant.report.advice import CHANCE, MARGIN, Advice, Verdict, commands_of
from calibrant.report.model import Model
from calibrant.report.wording import counted, listed, lower_first, percent, signed, too_high_or_low

FIRST = 8  # groups in the picture
MOST = 20  # groups in the table; JSON has all
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
        return last.verdict if last is not None and last.rows and last.p_value < 1 - last.level else None

    def verdict(self, average: Verdict) -> Verdict:
        """Return the verdict of the first screen: the clearest group's where one is off before calibration, else that on all rows.

        Args:
            average: The verdict on all rows together, which groups with opposite errors can pass.
        """
        worst = max(off_in(self.before), key=lambda row: abs(row.gap), default=None)
        alike = self.after is None and not self.off_by  # groups that err as all do are no news
        if worst is None or alike or abs(worst.gap) < MARGIN:
            return average
        clear = f"Probabilities are {too_high_or_low(worst.gap)} for {worst.group}"
        if average.state in ("calibrated", "unclear", "small"):
            return Verdict("large", f"{clear}, though not far off on average", f"Overall: {average.detail}")
        return Verdict(average.state, f"{clear}; overall {lower_first(average.headline)}", average.detail)

    def advice(self, average: Advice, model: Model, *, event: bool = False) -> Advice:
        """Return the recommendation: to calibrate by group where groups are still off after calibration, or were not calibrated.

        Args:
            average: The recommendation for all rows together.
            model: The model.
            event: Whether the page is of an event's probability.
        """
        if not self.off_by and off_in(self.before) and self.after is None and average.commands:
            reason = f"One correction for all suffices for the groups of {', '.join(self.columns)}, as far as these rows tell."
            return replace(average, reasons=[*average.reasons, reason])
        if not self.off_by or isinstance(model.calibrator, GroupScaling | FeatureScaling):
            return average
        method, columns = correction_by(self.off_by, model.features)
        headline = f"Calibrate by {listed(columns)}: one correction for all leaves some groups wrong."
        # one recommendation a page
        reasons = [reason for reason in average.reasons if not reason.startswith(CHANCE)]
        return Advice(
            headline, reasons, commands_of(model, margin=MARGIN, method=method, features=columns, event=event)
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
        said = [f"Looked at: {', '.join(self.columns)}."] if self.columns else []
        if (last := self.last) is not None:
            small = last.left_out
            left = f", {small:,} with fewer than {MINIMUM} rows or 5 expected events left out" if small else ""
            is_that = "that " if last.event.startswith("the ") else ""
            said += [f"The event is {is_that}{last.event}.", f"{counted(len(last.rows), 'group')} tested{left}."]
            off = "A group whose interval contains 0 and whose p is small is off in single ranges, which cancel in its gap."
            said += [off] if last.rows else []
        if self.unread:
            said.append(f"Left out for more than {MOST_NAMES} categories: {', '.join(self.unread)}.")
        return " ".join(said)

    @property
    def header(self) -> list[str]:
        """The names of the columns of ``lines``."""
        gap = ["gap before", "gap after"] if self.after is not None else ["gap"]
        return ["group", "rows", *gap, "95 %, all groups at once", "ECE", "p, all groups"]

    @property
    def lines(self) -> list[list[str]]:
        """The cells of each group under ``header``, the strongest evidence first."""
        if self.last is None or self.before is None:
            return []
        # groups are tested before and after on the same rows, and may be ranked differently
        first, lines = {row.columns: row for row in self.before.rows}, []
        for row in self.last.rows[:MOST]:
            low, gap, high = (f"{signed(100 * value)} %" for value in (row.all_low, row.gap, row.all_high))
            old = first.get(row.columns)
            before = [] if self.after is None else [f"{signed(100 * old.gap)} %" if old else ""]
            p = "< 0.0001" if row.p_adjusted < 1e-4 else f"{row.p_adjusted:.2g}"
            lines.append([row.group, f"{row.n:,}", *before, gap, f"{low} to {high}", percent(row.ece), p])
        return lines


def correction_by(columns: Sequence[str], features: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the name of the calibrator that corrects groups of ``columns``, and the columns that it goes by.

    Args:
        columns: Names of columns whose groups are off.
        features: Name → column (N,).
    """
    # numbers that are not all whole are no categories
    arrays = {name: np.asarray(features[name]) for name in columns}
    whole = [name for name, x in arrays.items() if x.dtype.kind != "f" or bool((x == np.rint(x)).all())]
    return ("GroupScaling", whole) if whole else ("FeatureScaling", list(columns))


def audit_of(model: Model) -> Audit | None:
    """Return the groups of a model's rows by ``model.by``, or by all features of its predictions; None if there are none.

    Args:
        model: The model.

    Raises:
        InputError: For columns named in ``model.by`` that are missing, of another length, or of too many categories.
    """
    named = model.by is not None
    columns: Any = model.by if named else dict(model.before.features or {})
    return audit(model.before, model.after, columns, named=named) if len(columns) else None


def audit(before: Data, after: Data | None, columns: Any, *, named: bool = False) -> Audit:
    """Return the groups of rows by ``columns``.

    Args:
        before: The rows.
        after: The same rows after calibration, or None.
        columns: Names of features, or name → column (N,).
        named: Whether someone named these columns, whose errors are then raised; others are left out if they are text of more
            than 200 categories, and what is wrong with them is the reason why there is no test.

    Raises:
        InputError: For columns that were named and are missing, of another length, or of too many categories.
    """
    left: tuple[str, ...] = ()
    if not named:  # a column of text with a name for each row is an identifier, not a group
        text = {name: values for name, values in columns.items() if not isinstance(values, Tensor)}
        left = tuple(name for name, values in text.items() if len(np.unique(values)) > MOST_NAMES)
        columns = {name: values for name, values in columns.items() if name not in left}
        if not columns:
            return Audit(
                (), None, unread=left, reason="No column of few categories or of numbers lies beside the rows."
            )
    names = tuple(map(str, columns))
    try:
        first, *rest = (subgroups(data, columns, minimum=MINIMUM) for data in (before, after) if data is not None)
        second = rest[0] if rest else None
        if second is None and off_in(first):
            rest = [subgroups(_corrected(before), columns, minimum=MINIMUM)]
    except (NoIntervalError, InputError) as error:
        if named and isinstance(error, InputError):
            raise
        return Audit(names, None, unread=left, reason=f"Groups are not tested: {error}.")
    off_by = dict.fromkeys(name for row in off_in(rest[0] if rest else None) for name, _ in row.columns)
    return Audit(names, first, second, left, off_by=tuple(off_by))


def _corrected(data: Data) -> Pairs:
    """Return the rows at the frequencies that isotonic regression gives them: what the best increasing correction for all leaves."""
    # all rows, those of weight 0 too: the columns have an entry for each
    pairs = event_pairs(data)
    p, y, weight = pair_columns(pairs)
    at = np.unique(p, return_inverse=True)[1]
    count = np.maximum(np.bincount(at, weight), 1e-12)
    fitted = isotonic(np.bincount(at, weight * y) / count, count)
    return replace(pairs, p=torch.from_numpy(fitted[at]).to(pairs.p.device))
