"""Formats numbers and names for the sentences and tables of a report.

Fractions are shown in percent, and differences of fractions in percentage points.
"""

from collections.abc import Sequence


def percent(value: float | None, digits: int = 2) -> str:
    """Return a fraction as text in percent, or "" for None."""
    return "" if value is None else f"{100 * value:.{digits}f} %"


def points(value: float) -> str:
    """Return a fraction as percentage points."""
    # tenths of a point, or hundredths if tenths would read 0.0
    shown = f"{100 * value:.1f}" if value >= 0.001 else f"{100 * value:.2f}"
    return f"{shown} point{'' if shown == '1.0' else 's'}"


def too_high_or_low(gap: float) -> str:
    """Return direction and size of a mean gap of probabilities in words."""
    return f"too {'high' if gap > 0 else 'low'} by {points(abs(gap))}"


def signed(value: float, form: str = "+.2f") -> str:
    """Return a number with a sign; minus is the wide character, and a number that rounds to 0 has no sign."""
    text = f"{value:{form}}".replace("-", "−")
    return text if text.strip("+−0.") else text.lstrip("+−")


def lower_first(sentence: str) -> str:
    """Return a sentence with a lower-case first letter, to follow a colon or semicolon."""
    return sentence[:1].lower() + sentence[1:]


def listed(names: Sequence[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
