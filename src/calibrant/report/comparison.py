"""The comparison of the models of a report that were evaluated on the same rows."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import combinations

from calibrant.data.pairs import are_events
from calibrant.errors import InputError
from calibrant.evaluate.compare import Comparison, compared
from calibrant.report.finding import Finding
from calibrant.report.model import Claims, Model
from calibrant.report.wording import listed

LEVEL = 0.95
MOST_PAIRS = 6  # of models that are compared: more than four models would fill the first screen with sentences


def pairs_of(models: Sequence[Model]) -> dict[tuple[str, str], Comparison]:
    """Return the comparison of each pair of a few models on the rows that both were evaluated on; empty where none share them.

    The keys are their names, and the level accounts for the number of pairs.

    Args:
        models: As for a report; each as it would be used: calibrated, if it has a calibrator.
    """
    used = [one.before if one.after is None else one.after for one in models]
    names = [one.name for one in models]
    names = [name if names.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(names, start=1)]
    # without true classes nothing tells whether rows are the same
    comparable = [at for at, data in enumerate(used) if are_events(data) or data.labels is not None]
    pairs, found = list(combinations(comparable, 2)), {}
    for a, b in pairs if len(pairs) <= MOST_PAIRS else ():
        with suppress(InputError):  # other rows: nothing to pair
            level = 1 - (1 - LEVEL) / len(pairs)
            found[names[a], names[b]] = compared(used[a], used[b], (names[a], names[b]), level=level)
    return found


def better_of(pairs: Mapping[tuple[str, str], Comparison], findings: Sequence[Finding]) -> list[Claims]:
    """Return what to do and the verdicts on ``pairs`` as sentences under a heading; nothing without pairs.

    Args:
        pairs: From ``pairs_of``.
        findings: Those of the same models.
    """
    if not pairs:
        return []
    lost, score = set(), ""
    for (a, b), found in pairs.items():
        # one proper score decides: it counts calibration and ranking together
        row = next(one for name in ("NLL", "Brier", "") for one in found.rows if one.metric.startswith(name))
        score = "log-loss" if row.metric.startswith("NLL") else row.metric.split("(")[0]
        lost |= {"a": {b}, "b": {a}}.get(row.winner or "", set())
    best = sorted({name for pair in pairs for name in pair} - lost)
    todo = f"{listed(best)} do not differ significantly in {score} on these rows: take the simpler, or label more rows."
    if len(best) == 1:
        then = [one.advice.headline for one in findings if one.model.name == best[0]]
        todo = " ".join([f"take {best[0]}, which has the better {score}.", *then])
    calibrated = ", each as calibrated" if any(one.calibrated for one in findings) else ""
    return [Claims("Which model" + calibrated, [f"What to do: {todo}", *(found.verdict for found in pairs.values())])]
