"""The registry of populations. Each population represents one mechanism on which a method could fail."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.populations.population import Floats, Population, Sizes

TEMPERATURES = {"over-confident": 0.6, "under-confident": 1.6}  # of the truth, seen from the model
TIED_ATOMS = 8
WAVES = 60  # half waves of the oscillation over [0, 1]: four in every one of 15 bins


def binary(
    name: str, confidence: Floats | list[float], right: Floats | list[float] | float, mass: object = None
) -> Population:
    """Return a population of two classes, given top confidences and the probability that each is correct."""
    top = np.asarray(confidence, dtype=float)
    right = np.broadcast_to(np.asarray(right, dtype=float), top.shape)
    share = np.full(len(top), 1.0) if mass is None else np.asarray(mass, dtype=float)
    return Population(name, np.stack([1 - top, top], 1), np.stack([1 - right, right], 1), share / share.sum())


def events(name: str, p: Floats, truth: Floats, mass: object = None) -> Population:
    """Return a population of two classes, given the probabilities of the second class."""
    share = np.full(len(p), 1.0) if mass is None else np.asarray(mass, dtype=float)
    return Population(name, np.stack([1 - p, p], 1), np.stack([1 - truth, truth], 1), share / share.sum())


def mechanism(classes: int, accuracy: float, kind: str, *, atoms: int = 400) -> Population:
    """Return a population with a model of about this ``accuracy`` that is miscalibrated in one way.

    With two classes, one of them is rare; with 100 classes, class frequencies fall as 1/k; otherwise classes are equally frequent.
    """
    rng = np.random.default_rng([0, classes, round(1000 * accuracy)])
    atoms = TIED_ATOMS * max(1, classes // 5) if kind == "tied" else atoms
    frequency = 1 / np.arange(1, classes + 1) if classes == 100 else np.full(classes, 1.0)
    frequency = np.array([1.0, 0.0]) if classes == 2 else frequency / frequency.sum()
    noise = (0.7 if classes == 2 else 1.2) * rng.standard_normal((atoms, classes))
    winner = np.eye(classes)[rng.choice(classes, size=atoms, p=frequency)]

    def truth(margin: float) -> Floats:
        return _softmax(noise + margin * winner)

    low, high = -10.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        chosen = truth(middle)[np.arange(atoms), winner.argmax(axis=1)].mean()
        low, high = (middle, high) if chosen < accuracy else (low, middle)
    true = truth(high)
    name = f"K = {classes}, accuracy {accuracy:g}, {kind}"
    if kind == "oscillating":
        return Population(name, true, _oscillating(true), np.full(len(true), 1 / len(true)))
    heat = TEMPERATURES.get(kind, 0.8 if kind == "tied" else 1.0)
    seen = _softmax(np.log(true.clip(1e-300)) / heat)
    order = np.argsort(seen.max(axis=1), kind="stable")
    return Population(name, seen[order], true[order], np.full(len(true), 1 / len(true)))


def _oscillating(p: Floats) -> Floats:
    """Return true probabilities that oscillate around the confidence within every bin; the other classes share the rest."""
    chosen, rows = p.argmax(axis=1), np.arange(len(p))
    top = p[rows, chosen]
    sign = np.where(np.floor(top * WAVES).astype(int) % 2 == 0, 1.0, -1.0)
    moved = top + sign * 0.8 * np.minimum(1 - top, 0.25)
    truth = p * ((1 - moved) / np.maximum(1 - top, 1e-300))[:, None]
    truth[rows, chosen] = moved
    return truth


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Floats = shifted / shifted.sum(axis=1, keepdims=True)
    return result


def _shifted(source: Population, name: str, shift: Floats) -> Population:
    logits = np.log(source.p.clip(1e-300)) + shift
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return replace(source, name=name, p=raised / raised.sum(axis=1, keepdims=True))


def _spread(low: float, high: float, count: int = 200) -> Floats:
    return low + (high - low) * (np.arange(count) + 0.5) / count


def _until_full(size: Callable[[np.random.Generator], int]) -> Sizes:
    """Return group sizes, drawn by ``size`` one at a time until every row has a group."""

    def sizes(rng: np.random.Generator, n: int) -> list[int]:
        found: list[int] = []
        while sum(found) < n:
            found.append(size(rng))
        return found

    return sizes


def _lognormal(median: float, sd: float) -> Sizes:
    return _until_full(lambda rng: max(1, round(median * float(np.exp(sd * rng.standard_normal())))))


def _one_large(share: float, others: int = 1) -> Sizes:
    """Return the sizes of one group with a ``share`` of the rows, and of groups of ``others`` rows."""
    return lambda rng, n: [round(share * n)] + [others] * -(-n // others)


def _broken_stick(count: float) -> Sizes:
    """Return the sizes of groups that each take a random part of the remaining rows, equivalent to about ``count`` equal groups."""

    def sizes(rng: np.random.Generator, n: int) -> list[int]:
        parts = rng.beta(1, count, size=400)
        left = np.concatenate([[1.0], np.cumprod(1 - parts)[:-1]])
        return [max(1, round(n * part)) for part in parts * left] + [1] * n

    return sizes


def _point_masses() -> Iterator[Population]:
    yield binary("one point .9", [0.9], 0.9)
    yield binary("one point .999", [0.999], 0.999)
    for right in (0.999, 0.9999):
        yield binary(f"two points, 6 % at .51, accuracy {right}", [0.51, 0.999], right, [0.06, 0.94])
    yield binary("two points, .935 and .999, accuracy .9999", [0.935, 0.999], 0.9999)
    yield binary("three points in one bin", [0.94, 0.97, 0.999], [0.99, 0.96, 0.95])
    yield binary("few saturated wrong: 1 % at .95, right in .05", [0.95, 0.999], [0.05, 0.999], [0.01, 0.99])
    yield binary("saturated rare event: 3 % at .99, right in .3", [0.99, 0.98], [0.3, 0.985], [0.03, 0.97])


def _spreads() -> Iterator[Population]:
    yield binary("U(.5, 1), accuracy .995", _spread(0.5, 1), 0.995)
    yield binary("U(.935, .999), accuracy .999", _spread(0.935, 0.999), 0.999)
    yield binary("U(.81, .999), accuracy .995", _spread(0.81, 0.999), 0.995)
    yield binary("U(.5, 1), calibrated", _spread(0.5, 1), _spread(0.5, 1))
    yield binary("U(.5, 1), right in reverse order", _spread(0.5, 1), 1.5 - _spread(0.5, 1))
    wide = _spread(0, 1)
    yield events(
        "U-shaped events", wide, np.clip(wide + 0.1 * np.sin(8 * np.pi * wide), 0, 1), (wide * (1 - wide)) ** -0.8
    )
    yield events("rare events, one in 100", 0.05 * wide**4, 0.05 * wide**4)
    yield events("rare events, one in 1000, twice too high", 0.01 * wide**4, 0.005 * wide**4)
    votes = np.arange(1, 20) / 20
    yield events("scores of 20 trees", votes, votes + 0.6 * votes * (1 - votes) * (votes - 0.5))
    exact = np.concatenate([[0.0, 1.0], wide])
    yield events("exact zeros and ones, all right", exact, exact, [50, 50, *np.ones(200)])
    yield events("exact zeros and ones, .993 right", exact, np.clip(exact, 0.007, 0.993), [50, 50, *np.ones(200)])


def _mechanisms() -> Iterator[Population]:
    for kind in ("calibrated", "over-confident", "under-confident", "oscillating", "tied"):
        yield mechanism(10, 0.9, kind)
    for classes in (2, 3, 100):
        yield mechanism(classes, 0.8, "over-confident")
    for accuracy in (0.6, 0.99, 0.999):
        yield mechanism(10, accuracy, "over-confident")
    yield mechanism(10, 0.95, "under-confident")
    base = mechanism(10, 0.85, "calibrated")
    rng = np.random.default_rng(7)
    yield replace(base, name="labels replaced at random in 10 %", truth=0.9 * base.truth + 0.1 / 10)
    yield _shifted(base, "one class favoured", 1.5 * (np.arange(10) == 3))
    yield _shifted(base, "other priors", rng.normal(0, 1, 10))
    yield _shifted(base, "noise on every logit", rng.normal(0, 1, base.p.shape))
    hard = base.p.max(axis=1) < 0.7
    yield replace(base, name="hard rows guessed", truth=np.where(hard[:, None], 0.5 * base.truth + 0.05, base.truth))
    yield mechanism(100, 0.7, "calibrated")


def _grouped() -> Iterator[Population]:
    base = binary("", _spread(0.6, 0.95, 60), _spread(0.6, 0.95, 60) - 0.05)
    sizes: dict[str, Sizes] = {
        "equal groups of 20": _until_full(lambda rng: 20),
        "lognormal groups, sd 1": _lognormal(20, 1.0),
        "lognormal groups, sd 1.5": _lognormal(12, 1.5),
        "Pareto groups, index 1.5": _until_full(lambda rng: round(7 * (1 + float(rng.pareto(1.5))))),
        "Pareto groups, index 3": _until_full(lambda rng: round(14 * (1 + float(rng.pareto(3))))),
        "pairs and groups of 100": _until_full(lambda rng: int(rng.choice([2, 100], p=[0.8, 0.2]))),
        "one group of 5 % of the rows": _one_large(0.05),
        "one group of 20 % of the rows": _one_large(0.2),
        "one group of 30 % of the rows": _one_large(0.3),
        "a stick broken into 20": _broken_stick(20),
        "40 hospitals, sizes as 1/k": lambda rng, n: [max(1, round(n / 4.2785 / k)) for k in range(1, 41)] + [1] * 40,
    }
    for name, size in sizes.items():
        yield replace(base, name=name, group_sizes=size)
    nearly = binary("pairs beside one group of 10 %, accuracy .99", _spread(0.9, 0.999, 60), 0.99)
    yield replace(nearly, group_sizes=_one_large(0.1, 2))


def _weighted() -> Iterator[Population]:
    base = mechanism(10, 0.85, "over-confident")
    even = np.ones((len(base.p), 1))
    for low, high in ((0.8, 1.2), (0.2, 1.8), (0.05, 1.95)):
        yield replace(base, name=f"weights {low} and {high}", weight=even * [low, high])
    yield replace(base, name="hard rows weigh more", weight=(1.2 - base.p.max(axis=1))[:, None] * [1.0, 1.0])


def _by_chance() -> Iterator[Population]:
    """Yield ten random populations, whose classes, confidences, tilts and label noise are drawn."""
    rng = np.random.default_rng(20261125)
    for number in range(10):
        classes = int(rng.choice([2, 2, 3, 5, 10, 30]))
        spread = float(np.exp(rng.uniform(np.log(0.05), np.log(2))))
        p = rng.dirichlet(np.full(classes, spread), 150).clip(1e-9)
        p /= p.sum(axis=1, keepdims=True)
        truth = p ** np.exp(rng.normal(0, 0.4)) * np.exp(rng.normal(0, 0.5, classes))
        noise = rng.uniform(0, 0.3) ** 2
        truth = (1 - noise) * truth / truth.sum(axis=1, keepdims=True) + noise / classes
        yield Population(f"by chance {number}: K = {classes}", p, truth, rng.dirichlet(np.full(150, 0.5)))


def _unread() -> Iterator[Population]:
    """Yield populations that imitate deployed classifiers and were written without knowledge of the library's source."""
    rng = np.random.default_rng(404)
    rate = np.exp(np.log(0.003) + 1.2 * np.linspace(-2.5, 2.5, 80))
    bell = np.exp(-0.5 * np.linspace(-2.5, 2.5, 80) ** 2)
    hot = np.concatenate([0.99 * bell, 0.01 * bell])
    yield events(
        "clicks, 1 % of rows 20 times likelier",
        np.tile(rate, 2),
        np.concatenate([rate, (20 * rate).clip(max=0.9)]),
        hot,
    )
    score = np.append(np.geomspace(1e-5, 0.9, 60), 1e-6)
    often = np.append(score[:60] ** -0.5, 0.0)
    often[-1] = often.sum() / 999
    yield events("fraud ring: 1 in 1000 at 1e-6, all events", score, np.append(score[:60], 1.0), often)
    sure = np.repeat(np.linspace(0.9, 0.999, 30)[:, None], 5, axis=1)
    sure[:, :4] = (1 - sure[:, :4]) / 4
    p = np.concatenate([sure, np.full((1, 5), 0.2)])
    truth = np.concatenate([sure, [[0.04, 0.3, 0.3, 0.3, 0.06]]])
    yield Population("abstains: 30 % uniform over 5, seldom the first", p, truth, np.append(np.full(30, 0.7 / 30), 0.3))
    level = np.arange(128, 255)
    sign = np.where(np.ceil(level / 17) % 2 == 0, 1, -1)  # of the bin, to whose upper edge multiples of 17 belong
    at_edge = np.where(level % 17 == 0, 12.0, 1.0)
    yield binary("scores j / 255, 40 % on edges of bins", level / 255, (level / 255 + 0.06 * sign).clip(max=1), at_edge)
    easy = np.repeat((1 - np.geomspace(1e-4, 0.02, 20))[:, None], 8, axis=1)
    easy[:, 1:] = (1 - easy[:, 1:]) / 7
    hard = rng.dirichlet(np.full(8, 0.2), 40).clip(1e-4)
    hard /= hard.sum(axis=1, keepdims=True)
    fooled = 0.5 * hard + 0.5 * np.eye(8)[hard.argmin(axis=1)]
    mass = np.append(np.full(20, 0.96 / 20), np.full(40, 0.04 / 40))
    cascade = np.concatenate([easy, hard]), np.concatenate([easy, fooled])
    yield Population("cascade: 4 % hard, half of them unthinkable", *cascade, mass)
    told, held = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0], [0.45, 0.5, 0.66, 0.6, 0.8, 0.87, 0.9, 0.94]
    yield binary("judge says 1.0 in 40 %, .94 right", told, held, [1, 2, 4, 12, 15, 16, 10, 40])
    main = np.repeat((1 - np.geomspace(1e-4, 0.05, 20))[:, None], 50, axis=1)
    main[:, 1:] = (1 - main[:, 1:]) / 49
    rare = np.full((48, 50), 0.05 / 48)
    rare[np.arange(48), np.arange(48) + 1], rare[np.arange(48), (np.arange(48) ^ 1) + 1] = 0.7, 0.25
    twins = np.concatenate([main, 0.4 * rare + 0.6 * rare[np.arange(48) ^ 1]])
    zipf = 1 / np.arange(1, 49)
    mass = np.append(np.full(20, 0.97 / 20), 0.03 * zipf / zipf.sum())
    yield Population("50 classes, one in .97, rare twins swapped", np.concatenate([main, rare]), twins, mass)
    users = binary("Zipf users up to 2000 rows, accuracy .97", _spread(0.9, 0.999, 60), 0.97)
    yield replace(users, group_sizes=_until_full(lambda rng: min(2000, int(rng.zipf(1.7)))))
    audit = binary(
        "audit: .3 % errors weigh 100, 15 % weigh 1", [0.99, 0.6, 0.75, 0.9], [0.997, 0.8, 0.85, 0.9], [3, 2, 3, 2]
    )
    yield replace(audit, weight=np.array([[100.0, 100.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]))
    power = np.geomspace(0.1, 6, 120)[:, None]
    rank = rng.permuted(np.tile(np.arange(1.0, 65), (120, 1)), axis=1)
    token, drawn = rank**-power, rank ** (-0.7 * power)
    p, truth = (each / each.sum(axis=1, keepdims=True) for each in (token, drawn))
    yield Population("tokens: Zipf over 64, truth heavier", p, truth, np.full(120, 1 / 120))
    # two more, since comparisons of the audit fail: rows at exactly .5 are wrong often, which hides that the others seldom are
    yield binary("half at .5 exactly, half at .9999, right .998", [0.5, 0.9999], [0.5, 0.998])
    yield binary("95 % at .5 exactly, 5 % at .99, right .997", [0.5, 0.99], [0.5, 0.997], [95, 5])


def _tilted(source: Population, accuracy: float) -> Floats:
    """Return masses (M,) ∝ mass · exp(t confidence) for which the decision is correct with probability ``accuracy``."""
    low, high = -200.0, 200.0
    top = source.p.max(axis=1)
    for _ in range(80):
        tilt = (low + high) / 2
        mass = source.mass * np.exp(tilt * (top - (1 if tilt > 0 else 0)))
        mass /= mass.sum()
        low, high = (tilt, high) if mass @ source.right < accuracy else (low, tilt)
    return mass


def _moving() -> Iterator[Population]:
    """Yield populations in which the distribution of scores changes, but that of labels given the scores does not."""
    top = _spread(0.5, 0.999)
    curve = binary("", top, top - 0.08 * np.sin(2 * np.pi * (top - 0.5)))
    easy, hard = _tilted(curve, 0.87), _tilted(curve, 0.6)
    yield replace(curve, name="scores move, accuracy .87 to .60", mass=easy, later=hard[None])
    ten = mechanism(10, 0.77, "over-confident")
    yield replace(ten, name="scores move, accuracy .77 to .72", later=_tilted(ten, 0.72)[None])
    yield replace(curve, name="easy and hard batches in turn", mass=(easy + hard) / 2, later=np.stack([easy, hard]))
    # three decided classes: over-confident, under-confident and calibrated, in other proportions later
    level = np.tile(_spread(0.4, 0.98, 60), 3)
    decided = np.repeat(np.arange(3), 60)
    p, truth = np.repeat(((1 - level) / 2)[:, None], 3, axis=1), np.zeros((180, 3))
    p[np.arange(180), decided] = level
    right = level + np.array([-0.2, 0.15, 0.0])[decided] * (1 - level)
    truth += ((1 - right) / 2)[:, None]
    truth[np.arange(180), decided] = right
    before, after = np.array([0.6, 0.3, 0.1])[decided] / 60, np.array([0.1, 0.2, 0.7])[decided] / 60
    yield Population("decided classes in other proportions", p, truth, before, later=after[None])
    drift = np.stack([_tilted(curve, goal) for goal in np.linspace(0.8, 0.96, 20)])
    yield replace(curve, name="scores drift towards certainty", mass=drift[0], later=drift)
    region = np.where(top < 0.6, 1.0, 0.0)
    odd = binary("", top, np.where(top < 0.6, 0.38, top))
    seldom, often = (
        part * region / region.sum() + (1 - part) * (1 - region) / (1 - region).sum() for part in (0.03, 0.4)
    )
    yield replace(odd, name="guesses, 3 % of the reference, 40 % later", mass=seldom, later=often[None])
    # the confidence is as before, and what it leaves goes to one other class, or to all others alike
    sure = _spread(0.55, 0.95, 50)
    one, alike = np.zeros((50, 6)), np.repeat(((1 - sure) / 5)[:, None], 6, axis=1)
    one[:, 1], one[:, 2:] = 0.9 * (1 - sure), 0.025 * (1 - sure)[:, None]
    one[:, 0] = alike[:, 0] = sure
    both = np.concatenate([one, alike])
    held = both**0.7 / (both**0.7).sum(axis=1, keepdims=True)
    mostly, seldom = np.repeat([0.9, 0.1], 50) / 50, np.repeat([0.1, 0.9], 50) / 50
    yield Population("runner-up clear, later all others alike", both, held, mostly, later=seldom[None])
    rounded = np.arange(0.5, 1.0, 0.05)
    few = binary("", rounded, rounded**1.3)
    yield replace(
        few, name="ten rounded scores, later two of them", later=np.where(np.isin(np.arange(10), [2, 8]), 0.5, 0)[None]
    )


def _at_edges() -> Iterator[Population]:
    """Yield populations with probabilities on the edges of 15 bins, where a class and its complement fall into unlike bins."""
    yield binary("two values, .6 on an edge", [0.6, 0.62], [0.7, 0.52])
    votes = np.arange(6) / 5
    yield events("votes of five trees", votes, np.array([0.04, 0.3, 0.33, 0.68, 0.7, 0.95]))
    thirds = np.array([[0.4, 0.4, 0.2], [0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.41, 0.39, 0.2], [0.2, 0.2, 0.6]])
    seen = np.array([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.3, 0.6, 0.1], [0.3, 0.5, 0.2], [0.2, 0.3, 0.5]])
    yield Population("three classes in fifths", thirds, seen, np.full(5, 0.2))
    beside = np.array([0.2, 0.2 + 1e-6, 0.8, 0.8 + 1e-6])
    yield events("edges and values just above them", beside, np.array([0.3, 0.1, 0.9, 0.7]))


def _saturated() -> Iterator[Population]:
    """Yield populations in which few rows carry most of the variance of the log-loss."""
    wide = _spread(0, 1)
    exact = np.concatenate([[1e-15, 1 - 1e-15], wide])
    mass = [50, 50, *np.ones(200)]
    yield events("zeros and ones clipped at 1e-15, .993 right", exact, np.clip(exact, 0.007, 0.993), mass)
    ordinary = _spread(0.5, 0.95)
    sure = np.append(ordinary, 0.9999)
    yield binary("1 % at .9999, right in half", sure, np.append(ordinary, 0.5), [*np.full(200, 0.99 / 200), 0.01])
    low = np.append(ordinary, 1 - 1e-7)
    yield binary("half at 1 - 1e-7, .998 right", low, np.append(ordinary, 0.998), [*np.full(200, 1 / 400), 0.5])
    base = mechanism(10, 0.85, "calibrated")
    lost = np.full(10, 1e-6)
    lost[0] = 1 - 9e-6
    truth = np.append(np.full(9, 0.03), 0.73)
    yield Population(
        "1 % of ten classes certain of the wrong one",
        np.concatenate([base.p, lost[None]]),
        np.concatenate([base.truth, truth[None]]),
        np.append(np.full(len(base.p), 0.99 / len(base.p)), 0.01),
    )
    tail = np.exp(-np.geomspace(0.02, 30, 80))
    yield events("true classes improbable to 1e-13", 1 - tail, 1 - tail**0.55, (1 + np.arange(80.0)) ** -1.5)


def _replaced() -> Iterator[Population]:
    """Yield populations with a new model whose log-loss is worse because of a few rows."""
    top = _spread(0.5, 0.95)
    row = np.append(np.full(200, (1 - 1 / 300) / 200), 1 / 300)
    base = binary("", np.append(top, 0.7), np.append(top, 0.6), row)

    def with_top(new: Floats) -> Floats:
        return np.stack([1 - new, new], 1)

    yield replace(base, name="new model saturates on one row in 300", new=with_top(np.append(top, 1 - 1e-6)))
    logit = np.log(top / (1 - top))
    sharper = 1 / (1 + np.exp(-1.1 * logit))
    over = replace(base, truth=np.stack([1 - np.append(sharper, 0.6), np.append(sharper, 0.6)], 1))
    yield replace(over, name="new model better but for one row in 300", new=with_top(np.append(sharper, 1 - 1e-9)))
    ten = mechanism(10, 0.97, "calibrated")
    yield replace(ten, name="new model of temperature .3", new=_softmax(np.log(ten.p.clip(1e-300)) / 0.3))
    twins = mechanism(10, 0.9, "calibrated")
    swapped = twins.p.copy()
    swapped[::100] = swapped[::100][:, [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]].clip(1e-4)
    yield replace(
        twins, name="new model swaps classes in one row in 100", new=swapped / swapped.sum(axis=1, keepdims=True)
    )


def _absent() -> Iterator[Population]:
    """Yield populations whose model predicts classes that never occur, and one in which they are only rare."""
    base = mechanism(6, 0.75, "over-confident")
    never = base.truth * np.array([1, 1, 1, 1, 0, 0])
    yield replace(base, name="last two of six classes never occur", truth=never / never.sum(axis=1, keepdims=True))
    merged = base.truth.copy()
    merged[:, 4] += merged[:, 3]
    merged[:, 3] = 0
    yield replace(base, name="one class renamed to another", truth=merged)
    thirty = mechanism(30, 0.8, "calibrated")
    third = thirty.truth * (np.arange(30) % 3 > 0)
    yield replace(thirty, name="ten of thirty classes never occur", truth=third / third.sum(axis=1, keepdims=True))
    sure = base.truth.copy()
    sure[:, 5] = 1e-6
    sure /= sure.sum(axis=1, keepdims=True)
    p = np.concatenate([sure, np.tile([0.02, 0.02, 0.02, 0.02, 0.02, 0.9], (20, 1))])
    truth = np.concatenate([sure, np.tile([0.5, 0.2, 0.1, 0.1, 0.1, 0.0], (20, 1))])
    yield Population(
        "a class that never occurs, certain in 5 %",
        p,
        truth,
        np.append(np.full(400, 0.95 / 400), np.full(20, 0.05 / 20)),
    )


POPULATIONS = (
    *(*_point_masses(), *_spreads(), *_mechanisms(), *_grouped(), *_weighted(), *_by_chance(), *_unread()),
    *(*_moving(), *_at_edges(), *_saturated(), *_replaced(), *_absent()),
)
