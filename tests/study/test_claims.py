"""Verdicts need two seeds and a difference beyond chance; the index and the regime figure are what the records give."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from calibrant.cli._study import verdict_sentences
from calibrant.study import Claim
from calibrant.study.claims import claim_index, focal_gains, focal_threshold
from calibrant.study.tables import verdict_of

ROOT = Path(__file__).parents[2]
CLAIM = Claim("b is lower than a", "a paper", "ece", ("a", "b"))


@pytest.mark.parametrize(
    ("first", "last", "outcome"),
    [
        ({0: 0.1, 1: 0.12, 2: 0.11}, {0: 0.05, 1: 0.06, 2: 0.07}, "shows"),
        ({0: 0.05, 1: 0.06, 2: 0.07}, {0: 0.1, 1: 0.12, 2: 0.11}, "shows the opposite"),
        ({0: 0.1, 1: 0.12, 2: 0.11}, {0: 0.12, 1: 0.09, 2: 0.10}, "not told apart"),
        ({0: 0.0135}, {0: 0.0097}, "not told apart"),
        ({0: 0.1, 1: 0.2}, {2: 0.05, 3: 0.06}, "not told apart"),  # no seed in common
        ({}, {0: 0.1}, "not run"),
        ({0: math.nan, 1: 0.1}, {0: 0.1, 1: 0.1}, "not run"),
    ],
)
def test_a_verdict_needs_two_seeds_and_a_difference_beyond_chance(
    first: dict[int, float], last: dict[int, float], outcome: str
) -> None:
    assert verdict_of(CLAIM, "digits", [first, last]).outcome == outcome


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        ({0: 0.0135}, {0: 0.0097}, "Not told apart: b is lower than a .*one seed tells nothing apart"),
        ({0: 0.1, 1: 0.12, 2: 0.11}, {0: 0.05, 1: 0.06, 2: 0.07}, r"Shows: .*over 3 seeds.*p = 0\.0"),
        ({0: 0.2, 1: 0.2}, {0: 0.1, 1: 0.1}, "Not told apart: .*equal differences"),
    ],
)
def test_a_verdict_is_said_in_a_sentence(first: dict[int, float], last: dict[int, float], said: str) -> None:
    (sentence,) = verdict_sentences([verdict_of(CLAIM, "digits", [first, last])])
    assert re.match(said, sentence), sentence


def test_steps_in_another_order_show_a_claim_in_part() -> None:
    claim = Claim("falls", "a paper", "ece", ("a", "b", "c"))
    seeds = [{0: 0.30, 1: 0.31, 2: 0.32}, {0: 0.40, 1: 0.41, 2: 0.42}, {0: 0.10, 1: 0.12, 2: 0.11}]
    assert verdict_of(claim, "digits", seeds).outcome == "shows in part"


def record(setting: str, *, base: float, focal: float, temperature: float, seeds: int = 3) -> dict[str, Any]:
    rows = []
    for seed in range(seeds):
        noise = 0.001 * seed
        for label, ece in (("Cross-entropy", base + noise), ("Focal 3", focal + 2 * noise)):
            rows.append(
                {"setting": setting, "objective": label, "seed": seed, "ece": ece, "ece_at_t": 0.01 + noise,
                 "temperature": temperature}
            )  # fmt: skip
    losses = [("Cross-entropy", {"type": "CrossEntropyLoss"}), ("Focal 3", {"type": "FocalLoss", "gamma": 3.0})]
    return {"figures": rows, "objectives": [{"label": label, "loss": loss} for label, loss in losses]}


def test_the_regime_is_read_from_the_records() -> None:
    records = {
        "digits-all": record("digits-all", base=0.09, focal=0.02, temperature=math.exp(0.9)),
        "sst": record("sst", base=0.05, focal=0.05, temperature=math.exp(0.5)),
        "cifar10": record("cifar10", base=0.05, focal=0.12, temperature=math.exp(0.1)),
    }
    gains = focal_gains(records)
    assert [round(gain.raw[0], 3) for gain in gains] == [0.069, -0.001, -0.071]
    assert all(gain.raw[1] < gain.raw[0] < gain.raw[2] for gain in gains)
    found = focal_threshold(gains)
    assert found.sets == 3
    assert found.temperature == pytest.approx(math.exp(0.5 + 0.001 * 0.4 / 0.07), rel=1e-3)
    assert found.low <= found.temperature <= found.high
    lines = {(line.data, line.measure): line for line in claim_index(records) if "γ = 3 leaves a lower" in line.claim}
    assert lines["digits, MLP", "ece"].outcome == "shows"
    assert lines["CIFAR-10, 10,000 images, 12 epochs", "ece"].outcome == "shows the opposite"
    assert lines["20 Newsgroups, 1D-CNN", "ece"].outcome == "not run"


def test_too_few_data_sets_give_no_threshold() -> None:
    assert math.isnan(focal_threshold([]).temperature)


def test_the_page_of_results_is_what_the_records_give() -> None:
    folder = ROOT / "docs" / "results"
    page = results.page_of(folder)
    assert page == (folder / "index.md").read_text(encoding="utf-8"), "python -m benchmarks.results docs/results"
    for outcome in ("Shows", "Not told apart", "not run"):
        assert outcome in page
    assert "```" not in page
