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
    def ece(self) -> float:
        """Its calibration error in bins."""

    @property
    def evidence(self) -> str:
        """What ``p_adjusted`` is of: "gap", or "shape" for the gaps of its bins."""

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
            f"No {unit}'s gap or calibration error is larger than chance explains (worst: {worst}, adjusted p = "
            f"{first.p_adjusted:.2g}); {few} may hide gaps that these rows cannot show."
        )
    number, gap = form
    means = f"mean probability {first.confidence:{number}}, frequency {first.rate:{number}}"
    if first.evidence == "shape":
        said = f"calibration error {first.ece:{gap}} ({means})"
    else:
        said = f"{means}, {'over' if first.gap > 0 else 'under'}-confident by {abs(first.gap):{gap}}"
    verb = "is" if flagged == 1 else "are"
    return (
        f"{flagged} of {len(parts)} {unit}s {verb} further off than chance explains; the clearest is {worst}: {said} "
        f"(adjusted p = {first.p_adjusted:.2g})."
    )
