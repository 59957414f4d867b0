"""The index of the papers' claims is what the records give, and mathematical claims hold as it says."""

import csv
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late
from torch import Tensor

from calibrant.scores import FocalScore
from calibrant.theory import calibration_map, inverse_calibration_map, proper_part

stats, index = late("scipy.stats"), late("papers.index")


def record(*, base: float, focal: float, error: float = 0.1, seeds: int = 12) -> dict[str, Any]:
    """Return a record of digits whose ECE differs by base − focal, with a noise of each seed's own."""
    noise = np.random.default_rng(0).normal(0, 1e-4, size=(seeds, 2))
    objectives = (("Cross-entropy", base, 0.1), ("Focal 3", focal, error))
    return {
        "figures": [
            {"setting": "digits-all", "objective": label, "seed": seed, "ece": ece + noise[seed, place], "error": its}
            for seed in range(seeds)
            for place, (label, ece, its) in enumerate(objectives)
        ]
    }


def line_of(records: dict[str, Any]) -> Any:
    """Return the line of focal loss against cross-entropy on the digits."""
    wanted = "focal loss with γ = 3 gives a lower raw ECE than cross-entropy"
    lines = next(lines for claim, lines in index.index(records) if claim.text == wanted)
    return next(line for line in lines if line.data == "digits, MLP")


def test_the_index_and_the_page_are_what_the_records_give() -> None:
    made = index.text_of(index.read_records())
    assert made == (index.FOLDER / "index.json").read_text(encoding="utf-8"), "python -m papers.index"
    kinds = {kind for kinds in index.VERDICTS.values() for kind in kinds}
    for claim in json.loads(made)["claims"]:
        assert claim["lines"], f"claim {claim['number']} has no place, not even one that was not run"
        assert {line["verdict"] for line in claim["lines"]} <= kinds
    page = (index.FOLDER.parent / "docs" / "papers.md").read_text(encoding="utf-8")
    for row in json.loads(made)["counts"]:
        assert f"| {' | '.join(row)} |" in page


def test_every_claim_was_read_against_its_paper_and_found_fair() -> None:
    with (index.FOLDER / "reading.csv").open(encoding="utf-8", newline="") as file:
        read = [(row["number"], row["paper"], row["place"], row["verdict"]) for row in csv.DictReader(file)]
    assert read == [
        (str(number), claim.paper, claim.place, "fair") for number, claim in enumerate(index.claims(), start=1)
    ]


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"base": 0.09, "focal": 0.02}, "shows"),
        ({"base": 0.02, "focal": 0.09}, "shows the opposite"),
        ({"base": 0.05, "focal": 0.05}, "no effect above the margin"),
        ({"base": 0.09, "focal": 0.02, "seeds": 1}, "unclear"),
        ({"base": 0.09, "focal": 0.02, "error": 0.2}, "not comparable"),
    ],
)
def test_a_verdict_needs_seeds_and_errors_alike_and_an_effect(given: dict[str, Any], verdict: str) -> None:
    assert line_of({"digits-all": record(**given)}).verdict == verdict
    assert line_of({}).verdict == "not run"


def test_tests_are_those_of_scipy_or_by_hand() -> None:
    differences = [0.05, 0.06, 0.04, 0.01]
    assert index.paired_p(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)
    one_sided = stats.ttest_1samp(differences, 0.02, alternative="greater").pvalue
    assert index.paired_p(differences, above=0.02) == pytest.approx(one_sided)
    assert index.paired_p([0.1, 0.1, 0.1]) == 0.25  # equal differences: no t-statistic, so the signs decide
    assert index.sign_change_p([1.0, 2.0, 3.0]) == 2 / 8
    assert index.sign_change_p([1.0, 2.0, -3.0]) == 1.0
    assert index.sign_change_p([1.0, 2.0, 3.0], above=-1.0) == 1 / 8
    # two-sided t-test at .05 with power .8 and n = 10: effect / sd = 0.996 (G*Power)
    values = [1.0, -1.0] * 5
    assert index.detectable(values, rows=0.0) == pytest.approx(0.996 * np.std(values, ddof=1), rel=2e-3)


def two(p: Any) -> Tensor:
    """Return log-probabilities (N, 2) of the first class's probabilities."""
    p = torch.as_tensor(p, dtype=torch.float64).reshape(-1)
    return torch.stack([p, 1 - p], dim=1).log()


def minimiser(gamma: float, truth: float) -> float:
    return float(inverse_calibration_map(FocalScore(gamma), two(truth)).exp()[0, 0])


def mapped(gamma: float, log_p: Tensor) -> Tensor:
    return calibration_map(FocalScore(gamma), log_p).exp()


def below_and_above_half() -> bool:
    p = torch.linspace(0.01, 0.99, 98, dtype=torch.float64)
    parts = [(proper_part(FocalScore(gamma), two(p))[:, 0], -((1 - p) ** gamma) * p.log()) for gamma in (0.5, 3.0)]
    return all(torch.equal(proper < focal, p < 0.5) for proper, focal in parts)


def raises_or_lowers() -> bool:
    p = torch.linspace(0.51, 0.99, 49, dtype=torch.float64)
    changes = {gamma: mapped(gamma, two(p))[:, 0] - p for gamma in (-0.5, 0.5, 3.0)}
    return all(bool((gamma * change > 0).all()) for gamma, change in changes.items())


def keeps_decisions() -> bool:
    z = torch.randn(2000, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    scaled = [(z / t).log_softmax(1) for t in (0.3, 1.0, 3.0)]
    gammas = (-0.5, -0.25, 0.05, 0.37, 1.0, 5.0)
    return all(torch.equal(mapped(gamma, rows).argmax(1), z.argmax(1)) for gamma in gammas for rows in scaled)


def steeper() -> bool:
    p = np.linspace(0.8, 1 - 1e-6, 1001)
    slopes = [np.gradient((1 + p) ** gamma * np.log(p), p) for gamma in (0, 1, 2, 3)]
    return all(bool((more > less).all()) for less, more in pairwise(slopes))


def inner_points() -> Tensor:
    """Points (19,701, 3) of the open simplex, .005 apart."""
    return torch.tensor([(i, j, 200 - i - j) for i in range(1, 199) for j in range(1, 200 - i)]).double() / 200


def outward() -> bool:
    p = inner_points()
    top = p.amax(1)
    for gamma in (0.5, 1.0, 2.0, 3.0, 5.0):
        found = mapped(gamma, p.log())
        if not bool((((found - p) * (p - 1 / 3)).sum(1) >= 0).all() and (found.amax(1) >= top - 1e-12).all()):
            return False
        top = found.amax(1)  # of the smaller γ, which the next must exceed
    return True


def most_near_corners() -> bool:
    p = inner_points()
    near, found = p.amax(1) > 0.95, []
    for gamma, temperature, most, corner in ((0.5, 0.8, 0.022, 0.006), (2.0, 0.46, 0.050, 0.001)):
        apart = (mapped(gamma, p.log()) - (p.log() / temperature).softmax(1)).abs().amax(1)
        assert (round(float(apart.max()), 3), round(float(apart[near].max()), 3)) == (most, corner)
        assert p[apart.argmax()].median() > 0.41
        found.append(bool(near[apart.argmax()]))
    return all(found)


THEORY: dict[str, Callable[[], bool]] = {
    "§3.1": lambda: abs(minimiser(2.0, 0.8) - 0.62) < 0.01,
    "Figure 1, left": below_and_above_half,
    "Figure 1, right": raises_or_lowers,
    "§6, accuracy": keeps_decisions,
    "Figure 6(a)": steeper,
    "§3.3 and Figure 5": outward,
    "§3.3 and Figure 7": most_near_corners,
    "Figure A.1": lambda: all(0.5 < minimiser(g, t) < t for g in (0.5, 1, 3, 5) for t in (0.55, 0.7, 0.9, 0.99)),
}


# What tests/theory and tests/losses hold: theorems, bounds and nearest temperatures that are as printed, or are not.
ELSEWHERE = {
    "shows": {
        "Equation 1", "Equation 2", "Theorem 1", "Theorem 2", "§3 and Appendix A", "Proposition 1", "§3.2 and Figure 2, left",
        "§3.3 and Figure 6", "§3.2 and Figure 3, theoretical bounds", "Propositions 2 and 4, Figure 4",
    },
    "shows the opposite": {
        "Proposition 3, its inequality as printed", "Proposition 5", "§3.2 and Figure 2", "§3.2 and Figure 3", "§3.3, last paragraph",
        "Figure 2, right", "Figure 5, caption",
    },
}  # fmt: skip


def test_no_mathematical_claim_is_without_its_computation() -> None:
    known = {claim.place: claim.verdict for claim in index.claims() if claim.verdict}
    elsewhere = {place: verdict for verdict, places in ELSEWHERE.items() for place in places}
    assert known == elsewhere | {place: known.get(place) for place in THEORY}


@pytest.mark.parametrize("place", THEORY)
def test_mathematical_claims_hold_as_the_index_says(place: str) -> None:
    (claim,) = (claim for claim in index.claims() if claim.verdict and claim.place == place)
    assert claim.verdict == ("shows" if THEORY[place]() else "shows the opposite")
