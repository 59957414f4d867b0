"""The one result of this family: a figure with its bounds, the limit it is compared with, and the verdict."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A figure with bounds.

    Args:
        name: What it is, such as "ece ≤ 0.03" or "accuracy".
        value: Its value on these rows, or its estimate.
        low: Lower bound.
        high: Upper bound.
        n: Number of rows.
        limit: What it is compared with; None if with nothing.
        verdict: What the bounds say of the limit; empty without one.
        metric: The name of the metric alone, where it is limited.
        kind: The kind of limit: "maximum", "minimum" or "no_worse".
        more_rows: About how many more rows would decide with probability .8, given what these rows say; None if it is decided, or
            if no number of rows would decide.
        note: A remark for the reader.
    """

    name: str
    value: float
    low: float
    high: float
    n: int
    limit: float | None = None
    verdict: str = ""
    metric: str = ""
    kind: str = ""
    more_rows: int | None = None
    note: str = ""

    def __str__(self) -> str:
        verdict = f"{self.verdict} " if self.verdict else ""
        text = f"{self.name}: {verdict}({self.value:.4f}, between {self.low:.4f} and {self.high:.4f}, n = {self.n:,})"
        return "; ".join(part for part in (text, self.more, self.note) if part)

    @property
    def more(self) -> str:
        """How many more rows would decide, to two digits; empty where nothing is open."""
        if self.verdict != "not enough evidence":
            return ""
        if self.more_rows is None:
            return "the value is too close to the limit for any number of rows to decide"
        return f"about {float(f'{self.more_rows:.2g}'):,.0f} more rows would decide"
