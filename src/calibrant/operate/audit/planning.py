"""How many labels an audit needs, before any is there: labels drawn from the scores themselves stand for those of people."""

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np

from calibrant._core.check import refuse
from calibrant._core.constraints import Integer, NonNegative, Number, Seed, checked
from calibrant.operate.audit.design import draw, inclusion_probabilities, order_of, scores_of
from calibrant.operate.audit.figures import MEANS, Outlook, Pool, figure_of
from calibrant.operate.audit.sample import need_pool
from calibrant.statistics.labelled import Drawn, Floats, interval_of, terms_of

_LEVEL = 0.95
_FEWEST, _MOST = 50, 20_000  # labels on the curve


@dataclass(frozen=True)
class AuditPlanPoint:
    """What a number of labels gives.

    Args:
        labels: Rows that people label.
        half_width: Expected half-width of the 95 % interval, with rows chosen and corrected by the scores.
        even: The same of simple random rows, without the scores.
        money: Price of the labels; None without one.
    """

    labels: int
    half_width: float
    even: float
    money: float | None


@dataclass(frozen=True)
class AuditPlan:
    """Labels against half-widths.

    Args:
        aim: The figure.
        curve: Points in ascending order of labels.
        half_width: The half-width that is wanted, or None.
        labels: Labels that reach it with the scores' help; None if no half-width is wanted, or 20,000 labels do not reach it.
        labels_even: Labels that reach it with simple random rows.
        limit: √(1 − ρ²), with ρ the correlation of a row's value and its expectation: what part of the half-width of simple random
            rows a prediction alone leaves; choosing the rows gains beyond it.
        price: Of a label, or None.
    """

    aim: str
    curve: tuple[AuditPlanPoint, ...]
    half_width: float | None
    labels: int | None
    labels_even: int | None
    limit: float
    price: float | None

    def plain(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return asdict(self)

    def __str__(self) -> str:
        priced = ["price"] if self.price is not None else []
        table = [["labels", "half-width", "without the scores", *priced]]
        for point in self.curve:
            money = [] if point.money is None else [f"{point.money:,.2f}"]
            table.append([f"{point.labels:,}", f"± {point.half_width:.4g}", f"± {point.even:.4g}", *money])
        lines = [
            "  ".join(f"{cell:>{max(10, len(head))}}" for cell, head in zip(row, table[0], strict=True))
            for row in table
        ]
        lines.append(
            f"If the scores are calibrated: their prediction alone leaves {self.limit:.0%} of the half-width (√(1 − ρ²)); the rest is "
            "gained by the choice of rows."
        )
        if self.half_width is not None:
            told, even = (
                f"more than {_MOST:,}" if count is None else f"{count:,}" for count in (self.labels, self.labels_even)
            )
            cost = "" if self.price is None or self.labels is None else f", {self.labels * self.price:,.2f} in money"
            lines.append(f"{self.aim} ± {self.half_width:g}: {told} labels{cost}; {even} without the scores")
        return "\n".join(lines)


@checked
def plan_audit(
    pool: Any,
    *,
    aim: str = "accuracy",
    half_width: Annotated[float, Number(0, open_low=True)] | None = None,
    price: NonNegative | None = None,
    other: Any = None,
    costs: Any = None,
    draws: Annotated[int, Integer(2, 10_000)] = 20,
    seed: Seed = 0,
) -> AuditPlan:
    """Return what half-width to expect of ``audit`` for numbers of labels, with and without the scores' help, by simulation.

    It takes the scores at their word: labels are drawn from their probabilities. Calibrate them first, and expect wider intervals
    where they are wrong.

    Args:
        pool: As in ``sample``.
        aim: "accuracy", "error", "nll", "brier", "cost" or "aurc".
        half_width: The half-width that is wanted; None gives the curve alone.
        price: Of one label, in any currency.
        other: As in ``sample``.
        costs: As in ``sample``.
        draws: Simulated audits for each number of labels.
        seed: Same seed, same plan.

    Raises:
        InputError: If the figure cannot be computed from the pool, or is no mean of rows.

    Examples:
        >>> import torch
        >>> from calibrant import Predictions
        >>> pool = Predictions.from_binary_probs(torch.linspace(0.01, 0.99, 5000))
        >>> found = plan_audit(pool, half_width=0.04)
        >>> found.labels < found.labels_even
        True
    """
    figure = figure_of(aim, argument="aim")
    if figure not in MEANS:
        remedy = "plan(ece=…) plans a limit on the ECE"
        raise refuse(f"aim as one of {', '.join(MEANS)}", figure, remedy, argument="aim")
    source = need_pool(pool, other=other, costs=costs)
    source.means(figure)
    source = source.ranked() if figure == "aurc" else source
    outlook = source.outlook(figure, design=True)
    # Var f = E s² + Var m: the prediction explains the second part, ρ² of the whole.
    within, between = float((outlook.spread**2).mean()), float(outlook.mean.var())
    limit = math.sqrt(within / (within + between)) if within + between > 0 else 0.0
    score = scores_of(outlook)
    rng = np.random.default_rng(seed)
    curve: list[AuditPlanPoint] = []
    labels = float(_FEWEST)
    while True:
        count = min(round(labels), len(source))
        audits = [_half_widths(source, figure, outlook, score, count, rng) for _ in range(draws)]
        helped, even = (float(np.mean(one)) for one in zip(*audits, strict=True))
        curve.append(AuditPlanPoint(count, helped, even, None if price is None else count * price))
        enough = half_width is not None and max(helped, even) <= half_width
        if enough or count == len(source) or labels * math.sqrt(2) > _MOST:
            break
        labels *= math.sqrt(2)
    found, without = (
        None if half_width is None else _labels_for_half_width(curve, half_width, name)
        for name in ("half_width", "even")
    )
    return AuditPlan(figure, tuple(curve), half_width, found, without, limit, price)


def _half_widths(
    pool: Pool, figure: str, outlook: Outlook, score: Floats, count: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the half-widths of one simulated audit of ``count`` labels, and of as many simple random rows alone."""
    inclusion = inclusion_probabilities(score, count)
    chosen = draw(inclusion, order_of(outlook, count), rng)
    random = np.sort(rng.choice(len(pool), count, replace=False))
    widths = []
    # Both audits see labels from the same probabilities; the even one knows nothing of them, and predicts 0 of every row.
    for rows, chance, helped in ((chosen, inclusion[chosen], True), (random, np.full(count, count / len(pool)), False)):
        seen = pool.simulated(figure, rows, rng)
        drawn = Drawn(np.zeros(count, np.int64), chance, len(pool))
        expected = outlook.mean[rows] if helped else np.zeros(count)
        mean = float(outlook.mean.mean()) if helped else 0.0
        low, high = interval_of(terms_of(seen, expected, pool.bounds(figure, rows), drawn, mean), alpha=1 - _LEVEL)
        widths.append((high - low) / 2)
    return widths[0], widths[1]


def _labels_for_half_width(curve: list[AuditPlanPoint], half_width: float, name: str) -> int | None:
    """Return the fewest labels that reach a half-width, which falls as a power of their number between two points; None if none does."""
    labels, wider = 0, math.inf
    for point in curve:
        width: float = getattr(point, name)
        if width <= half_width:
            if not labels:  # before the first point as 1 / √labels
                return max(_FEWEST, math.ceil(point.labels * (width / half_width) ** 2))
            share = math.log(wider / half_width) / math.log(wider / width) if width else 1.0
            return math.ceil(labels * math.pow(point.labels / labels, share))
        labels, wider = point.labels, width
    return None
