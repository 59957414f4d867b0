"""The result of the test of the worst gap in words, for groups of rows and for labels."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["verdict_on"]


class Part(Protocol):
    """A group or a label that was tested."""

    @property
    def confidence(self) -> float:
        """Mean probability."""

    @property
    def rate(self) -> float:
        """Frequency."""

    @property
    def gap(self) -> float:
        """The first less the second."""

    @property
    def p_adjusted(self) -> float | None:
        """The p-value among all parts."""


def verdict_on(parts: Sequence[Part], worst: str, *, unit: str, few: str, level: float, form: tuple[str, str]) -> str:
    """Return the verdict of the one test for the worst part.

    Args:
        parts: Those that were tested, the strongest evidence first; at least one.
        worst: Name of the first.
        unit: What a part is: "group" or "label".
        few: What may hide gaps: "small groups".
        level: Of the test, in (0, 1).
        form: Formats of probabilities, and of the gap.
    """
    first = parts[0]
    flagged = sum(part.p_adjusted is not None and part.p_adjusted < 1 - level for part in parts)
    if not flagged:
        return (
            f"No {unit}'s gap is larger than chance explains (worst: {worst}, adjusted p = {first.p_adjusted:.2g}); "
            f"{few} may hide gaps that these rows cannot show."
        )
    side, verb = "over" if first.gap > 0 else "under", "has a larger gap" if flagged == 1 else "have larger gaps"
    number, gap = form
    return (
        f"{flagged} of {len(parts)} {unit}s {verb} than chance explains; the clearest is {worst}: mean "
        f"probability {first.confidence:{number}}, frequency {first.rate:{number}}, {side}-confident by "
        f"{abs(first.gap):{gap}} (adjusted p = {first.p_adjusted:.2g})."
    )
