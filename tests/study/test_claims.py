"""Verdicts need two seeds and a difference beyond chance; index, page and figures are what the records give, computed twice."""

import html
import json
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from tests.plot.test_pictures import SIMULATED, apart
from typer.testing import CliRunner

from benchmarks import results
from calibrant import Predictions
from calibrant.cli import main
from calibrant.cli.study import study_in_short, verdict_sentences
from calibrant.errors import FileFormatError
from calibrant.losses import ProperFocalLoss
from calibrant.scores import FocalScore
from calibrant.study import Claim, load_study
from calibrant.study.claims import (
    ClaimLine,
    benjamini_hochberg,
    claim_index,
    detectable,
    equivalence_p,
    focal_gains,
    focal_threshold,
    paired_p,
    paper_claims,
    places,
    read_records,
    sign_change_p,
)
from calibrant.study.claims._index import UNFAITHFUL
from calibrant.study.measures import MEASURES, FoldFits
from calibrant.study.tables import Summary, verdict_on_claim
from calibrant.theory import calibration_map

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
    assert verdict_on_claim(CLAIM, "digits", [first, last]).outcome == outcome


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        ({0: 0.0135}, {0: 0.0097}, "Not told apart: b is lower than a .*one seed tells nothing apart"),
        ({0: 0.1, 1: 0.12, 2: 0.11}, {0: 0.05, 1: 0.06, 2: 0.07}, r"Shows: .*over 3 seeds.*p = 0\.0"),
        ({0: 0.2, 1: 0.2}, {0: 0.1, 1: 0.1}, "Not told apart: .*equal differences"),
    ],
)
def test_a_verdict_is_said_in_a_sentence(first: dict[int, float], last: dict[int, float], said: str) -> None:
    (sentence,) = verdict_sentences([verdict_on_claim(CLAIM, "digits", [first, last])])
    assert re.match(said, sentence), sentence


def test_steps_in_another_order_show_a_claim_in_part() -> None:
    claim = Claim("falls", "a paper", "ece", ("a", "b", "c"))
    seeds = [{0: 0.30, 1: 0.31, 2: 0.32}, {0: 0.40, 1: 0.41, 2: 0.42}, {0: 0.10, 1: 0.12, 2: 0.11}]
    assert verdict_on_claim(claim, "digits", seeds).outcome == "shows in part"


def record(setting: str, *, base: float, focal: float, temperature: float, seeds: int = 3) -> dict[str, Any]:
    rows = []
    for seed in range(seeds):
        noise = 0.001 * seed
        for label, ece in (("Cross-entropy", base + noise), ("Focal 3", focal + 2 * noise)):
            rows.append(
                {"setting": setting, "objective": label, "seed": seed, "ece": ece, "ece_by_ece": 0.01 + noise,
                 "temperature": temperature, "error": 0.1, "seconds": 1.0}
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
    chosen = [
        line
        for line in claim_index(records)
        if line.claim == "focal loss γ = 3 leaves a lower raw ECE than cross-entropy"
    ]
    lines = {line.data: line for line in chosen}
    assert lines["digits, MLP"].verdict == "shows"
    assert lines["CIFAR-10, 10,000 images, 12 epochs"].verdict == "shows the opposite"
    assert lines["20 Newsgroups, 1D-CNN"].verdict == "not run"


def test_features_that_rank_objectives_as_no_network_does_say_so() -> None:
    records = {}
    for name, setting, order in (
        ("features-20news", "features-20news", (1, 2, 3)),
        ("wang-20news", "wang-20news", (3, 1, 2)),
    ):
        records[name] = record(setting, base=0.1, focal=0.1, temperature=2.0)
        for row in [*records[name]["figures"]]:
            records[name]["figures"].append({**row, "objective": "Brier"})
        for row in records[name]["figures"]:
            row["ece"] = row["temperature"] = float(
                order[["Cross-entropy", "Focal 3", "Brier"].index(row["objective"])]
            )
    said = {line.note for line in claim_index(records) if line.data == "20 Newsgroups, frozen features"}
    assert said == {f"{UNFAITHFUL} 20 Newsgroups, 1D-CNN"}
    records["wang-20news"]["figures"] = [
        {**row, "setting": "wang-20news"} for row in records["features-20news"]["figures"]
    ]
    assert not any(line.note for line in claim_index(records) if line.data == "20 Newsgroups, frozen features")


def test_too_few_data_sets_give_no_threshold() -> None:
    assert math.isnan(focal_threshold([]).temperature)


def test_the_pages_of_results_are_what_the_records_give() -> None:
    folder = ROOT / "docs" / "results"
    page, table = results.page_of(folder), results.claims_page(folder)
    assert page == (folder / "index.md").read_text(encoding="utf-8"), "python -m benchmarks.results docs/results"
    assert table == (folder / results.CLAIMS).read_text(encoding="utf-8"), "python -m benchmarks.results docs/results"
    assert f"({results.CLAIMS})" in page
    assert "```" not in page
    assert page.count("\n") < 160
    sections = {part.partition("</h2>")[0].lower(): part for part in table.split("<h2>")[1:]}
    for claim in paper_claims():  # no claim without its rows, under its paper
        begin = html.escape(f"{claim.text} ({claim.place}")
        assert re.search(rf"colspan=7>\d+\. {re.escape(begin)}", sections[html.escape(claim.paper.lower())])
    lines = claim_index(read_records(folder))
    assert table.count("<tr><td>") == sum(line.data != "theory" for line in lines)
    assert all(f"<td>{line.verdict}<td>" in table for line in lines if line.data != "theory")
    numbers = [int(number) for number in re.findall(r"colspan=7>(\d+)\.", table)]
    tops = re.findall(r"^- \*\*.*\[(\d+)\]", page, re.M)
    assert len(set(tops)) == results.LEADING
    assert numbers == list(range(1, len(numbers) + 1))
    loss = re.search(r"<tr><td>Focal 3<td>(FocalLoss\(gamma=3.0\))<td>([\d.]+)<td>([\d.]+)±", page)
    rows = json.loads((folder / "features-cifar10.json").read_text(encoding="utf-8"))["figures"]
    mine = [row for row in rows if row["objective"] == "Focal 3" and row["seed"] <= 20]  # the seeds of every objective
    assert loss is not None
    assert [loss[2], loss[3]] == [f"{100 * np.mean([row[m] for row in mine]):.2f}" for m in ("error", "ece")]


def test_what_was_not_run_has_its_command_and_cost() -> None:
    missing = [line for line in claim_index() if line.verdict == "not run"]
    assert len(missing) <= 0.1 * len(claim_index())
    for line in missing:
        name, *options = shlex.split(line.command.removeprefix("calibrant study run "))
        assert line.cost, line
        scale = options[options.index("--scale") + 1] if "--scale" in options else "cpu"
        study = load_study(name, scale=scale)
        given = {key: [b for a, b in pairwise(options) if a == key] for key in ("--setting", "--only")}
        assert set(given["--setting"]) <= {setting.label for setting in study.settings}
        assert set(given["--only"]) <= {objective.label for objective in study.objectives}
    costs = {place.cost for place in places() if "ResNet-50" in place.name}
    page = " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())
    assert [cost.startswith("an H200, 51 minutes a training") for cost in costs] == [True]
    assert "at 51 minutes a training" in page


def test_a_dry_run_says_what_the_claims_say_of_its_cost() -> None:
    options = ["mukhoti-table1", "--scale", "paper", "--seeds", "3", "--setting", "CIFAR-10 ResNet-50", "--dry-run"]
    found = CliRunner().invoke(main, ["study", "run", *options, "--only", "FLSD-53", "--only", "Brier"]).stdout
    assert "6 trainings, 0 of them finished" in found
    assert next(place.cost for place in places() if place.name == "CIFAR-10, ResNet-50, 350 epochs") in found
    assert "CIFAR-100" not in found
    refused = CliRunner().invoke(main, ["study", "run", "sst", "--setting", "SST", "--dry-run"])
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)


def test_measures_of_a_training_and_of_other_images_by_hand() -> None:
    known = Predictions.from_logits([[4.0, 0.0], [0.0, 3.0]], [0, 1])
    unsure = Predictions.from_logits([[0.1, 0.0], [5.0, 0.0]])  # one of two has a higher entropy than both known rows

    def entry(nll: float, ece: float, wrong: float | None) -> dict[str, Any]:
        return {"test": {"nll": nll, "ece": ece, "entropy_correct": 0.5 * nll, "entropy_wrong": wrong}}

    entries = [entry(2.0, 0.1, 0.9), entry(1.0, 0.05, 0.6), entry(1.5, 0.2, None)]
    fits = FoldFits([known], [known], [entries], ood=[{"noise": unsure}])
    assert fits.value("ood_auroc") == 0.5
    assert [fits.value(name) for name in ("ece_at_least_nll", "ece_late")] == [0.05, 0.2]
    assert [fits.value(f"entropy_correct_{when}") for when in ("early", "late")] == [1.0, 0.75]
    assert fits.value("entropy_wrong_early") == 0.9
    assert math.isnan(fits.value("entropy_wrong_late"))  # no wrong samples at the end
    assert math.isnan(FoldFits([known], [known], [entries]).value("ood_auroc"))


def test_groups_of_places_are_the_places_in_them() -> None:
    claims = {(claim.text, claim.paper): claim for claim in paper_claims()}
    heads = claims["MMCE keeps the test error of cross-entropy", "Mukhoti et al. 2020"].data
    assert heads == tuple(place.name for place in places())[:4]
    lines = claim_index({})
    assert {line.verdict for line in lines if line.data != "theory"} == {"not run"}
    strength = [line for line in lines if line.data == "digits, every strength"]
    assert strength
    assert {line.paper for line in strength} == {"Wang et al. 2021"}  # by name: no claim on all data is tested there


def test_lines_of_the_published_pictures_have_points_and_are_told_apart_by_the_colour_blind() -> None:
    several = 0
    for path in sorted((ROOT / "docs" / "results" / "figures").glob("*.svg")):
        line = r'<path d="([^"]*)"[^>]*style="(fill: none;[^"]*stroke-width: 1.5\b[^"]*)"'
        lines = re.findall(line, path.read_text(encoding="utf-8"))
        assert all("L" in drawn for drawn, _ in lines), path.name
        looks = {
            (re.findall(r"stroke: (#\w+)", look)[0], *re.findall(r"dasharray: ([\d.,]+)", look)) for _, look in lines
        }
        for (one, *dash), (other, *its) in combinations(looks, 2):
            assert dash != its or min(apart(one, other, seen) for seen in SIMULATED.values()) > 10, (
                path.name,
                one,
                other,
            )
            several += 1
    assert several > 100


def test_the_package_has_the_figures_of_the_published_records() -> None:
    made = results.copied(ROOT / "docs" / "results")
    assert results.TARGET.read_text(encoding="utf-8") == made, "python -m benchmarks.results docs/results"


def test_claims_name_known_measures_places_and_objectives() -> None:
    names = {place.name for place in places()}
    for claim in paper_claims():
        assert {*claim.data, *claim.but} <= names, claim
        assert set(claim.measures) <= set(MEASURES), claim
        assert bool(claim.verdict) != (len(claim.falls) >= 2 and claim.margin > 0), claim
        if "ece" in claim.measures[-1:]:
            assert claim.margin <= 0.01, claim


# Sentences of the pages with their figures: record, setting, objective and measure, in the order of the sentence.
CE = "Cross-entropy"
SAID = [
    ("studies.md", r"over-confident cross-entropy \(T = (\S+) and (\S+)\)",
     [("interpolation", setting, CE, "temperature") for setting in ("CIFAR-10", "CIFAR-100")]),
    ("results/notes.toml", r"best temperature is (\S+) on CIFAR-10 and (\S+) on CIFAR-100",
     [("interpolation", setting, CE, "temperature") for setting in ("CIFAR-10", "CIFAR-100")]),
    ("results/notes.toml", r"Brier has an error of (\S+) % on CIFAR-100", [("interpolation", "CIFAR-100", "Brier", "error")]),
    ("results/notes.toml", r"epochs with augmentation \(T = (\S+)\)", [("cifar10", "cifar10", CE, "temperature")]),
    ("results/notes.toml", r"on training data \((\S+) to (\S+)\)",
     [("komisarenko-table1", "CIFAR-10", label, "temperature_train") for label in (CE, "Focal 3")]),
    ("results/notes.toml", r"smoothing of −.05 and −.01 gives errors of (\S+) and (\S+) %",
     [("wang-sweep", "digits", f"Label smoothing −{part} of all", "error") for part in (".05", ".01")]),
    ("results/notes.toml", r"makes an error of (\S+) %, without it (\S+) %",
     [("wang-sweep", "digits", label, "error") for label in ("L1 −.001", CE)]),
]  # fmt: skip
# Numbers with a point or a percent sign that are no measurements: levels, guards, versions of a recipe, figures of the papers.
GIVEN = {
    "choose-a-loss.md": {"1.6"},  # has its own test, as has the next
    "results/notes.toml": {".05", ".8", "65 %", "13.7", "95 %", ".2", ".19", "1.1", ".001"},
}


@pytest.mark.parametrize(("page", "sentence", "figures"), SAID)
def test_the_numbers_of_the_pages_are_those_of_the_records(
    page: str, sentence: str, figures: list[tuple[str, str, str, str]]
) -> None:
    (found,) = re.finditer(sentence, (ROOT / "docs" / page).read_text(encoding="utf-8"))
    for text, (name, setting, objective, measure) in zip(found.groups(), figures, strict=True):
        rows = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))["figures"]
        values = [row[measure] for row in rows if (row["setting"], row["objective"]) == (setting, objective)]
        mean = float(np.mean(values)) * (100 if MEASURES[measure].percent else 1)
        digits = len(text.partition(".")[2])
        assert text in (shown := f"{mean:.{digits}f}", shown.removeprefix("0")), (sentence, mean)


@pytest.mark.parametrize("page", ["choose-a-loss.md", "studies.md", "study-file.md", "results/notes.toml"])
def test_no_number_of_a_sentence_is_without_a_record(page: str) -> None:
    text = re.sub(
        r"```.*?```|`[^`]*`|^\|.*?$|§[\d.]+", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.S | re.M
    )
    for of, sentence, _ in SAID:
        text = re.sub(sentence, "", text) if of == page else text
    assert set(re.findall(r"(?<![\w.])(?:\d*\.\d+|\d+ %)", text)) <= GIVEN.get(page, set())


def test_the_page_on_losses_says_what_the_records_show() -> None:
    found = focal_threshold(focal_gains(read_records(ROOT / "docs" / "results")))
    page = (ROOT / "docs" / "choose-a-loss.md").read_text(encoding="utf-8")
    assert f"T of cross-entropy above {found.high:.0f} " in page
    assert f"T below {found.low:.1f} " in page
    shown = {(line.claim, line.data) for line in claim_index() if line.verdict == "shows"}
    assert not any("beats cross-entropy also after temperature scaling" in claim for claim, _ in shown)
    for data in ("digits, MLP", "CIFAR-10, frozen features"):
        for loss in ("focal loss γ = 3", "Brier loss", "the L1 norm", "label smoothing"):
            assert (f"{loss} leaves a lower raw ECE than cross-entropy", data) in shown
    for data in ("SST, Tree-LSTM", "CIFAR-10, 10,000 images, 12 epochs"):  # T of 1.7 and 1.2
        for loss in ("the L1 norm", "label smoothing"):
            assert (f"{loss} leaves a lower raw ECE than cross-entropy", data) in shown


@pytest.mark.parametrize(
    "name", ["emotion", *(pytest.param(one, marks=pytest.mark.slow) for one in ("cifar10-densenet190", "mnist"))]
)
def test_figures_of_saved_logits_are_those_of_another_implementation(name: str, data: Path) -> None:
    """Raw ECE, T by log-loss and by ECE, and histogram binning once more, in NumPy, from the logits themselves."""
    record = json.loads((ROOT / "docs" / "results" / "posthoc.json").read_text(encoding="utf-8"))
    row = next(row for row in record["sets"] if row["set"].startswith(name))
    with np.load(data / "logits" / f"{row['set']}.npz") as file:
        (z, y), (z_test, y_test) = ((file[f"{s}_logits"].astype(float), file[f"{s}_labels"]) for s in ("val", "test"))

    def top(z: np.ndarray, y: np.ndarray, t: float = 1.0) -> tuple[np.ndarray, np.ndarray, float]:
        scaled = (z - z.max(1, keepdims=True)) / t
        log_p = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
        return np.exp(log_p.max(1)), z.argmax(1) == y, float(-log_p[np.arange(len(y)), y].mean())

    def ece(p: np.ndarray, right: np.ndarray) -> float:
        bins = np.clip(np.ceil(p * 15 - 1e-12).astype(int) - 1, 0, 14)
        return float(sum(abs((p - right)[bins == b].sum()) for b in range(15)) / len(p))

    assert row["ece"] == pytest.approx(ece(*top(z_test, y_test)[:2]), abs=1e-7)
    grid = np.arange(1, 1001) / 100
    chosen = grid[int(np.argmin([ece(*top(z, y, t)[:2]) for t in grid]))]
    assert row["ece_by_ece"] == pytest.approx(ece(*top(z_test, y_test, chosen)[:2]), abs=1e-7)
    best = minimize_scalar(lambda t: top(z, y, t)[2], bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9}).x
    assert row["nll_at_t"] == pytest.approx(top(z_test, y_test, best)[2], abs=1e-7)


def independent_p(differences: np.ndarray, exact: bool, shift: float = 0.0, one_sided: bool = False) -> float:
    """The tests once more, from scipy: a permutation test of signs, and the t-test from its statistic."""
    x = differences - shift
    n = len(x)
    if not exact and np.ptp(differences) == 0:  # of equal differences, or one: the test of their sign
        side = "greater" if one_sided else "two-sided"
        return float(stats.binomtest(int((x > 0).sum()), n, alternative=side).pvalue) if x.any() else 1.0
    if exact:
        patterns = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        means = (patterns * x).mean(axis=1)
        tail = means if one_sided else np.abs(means)
        seen = x.mean() if one_sided else abs(x.mean())
        return float((tail >= seen - 1e-12).mean())
    statistic = x.mean() / (x.std(ddof=1) / math.sqrt(n))
    return float(stats.t.sf(statistic, n - 1) if one_sided else 2 * stats.t.sf(abs(statistic), n - 1))


def differences_of(line: ClaimLine, record: Mapping[str, Any], setting: str) -> np.ndarray:
    """First minus last of a line, per seed or per cluster, read from the record itself."""
    measures = line.measure.split(" → ")
    if "sets" in record:
        groups = defaultdict(list)
        for row in record["sets"]:
            groups[row["set"].split("-")[0]].append(row[measures[0]] - row[measures[-1]])
        return np.array([np.mean(values) for values in groups.values()])
    first, last = line.values[0][0], line.values[-1][0]
    table = {
        (row["objective"], row["seed"], measure): row[measure]
        for row in record["figures"]
        for measure in measures
        if row["setting"] == setting and measure in row
    }
    labels = [label for label, _ in line.values]
    common = [seed for _, seed, _ in table if all(any((label, seed, m) in table for m in measures) for label in labels)]
    return np.array([table[first, s, measures[0]] - table[last, s, measures[-1]] for s in sorted(set(common))])


def test_verdicts_are_those_of_another_implementation() -> None:
    records = read_records(ROOT / "docs" / "results")
    where = {place.name: place for place in places()}
    lines = [line for line in claim_index(records) if line.p_adjusted is not None]
    assert len(lines) > 100
    same = {(claim.text, claim.paper): claim.same for claim in paper_claims()}
    p_values: dict[Any, float] = {}
    within: dict[Any, float] = {}
    keys = []
    for line in lines:
        place = where[line.data]
        found = differences_of(line, records[place.record], place.setting)
        objectives = [
            label if "sets" not in records[place.record] else "" for label in (line.values[0][0], line.values[-1][0])
        ]
        measures = [line.measure.split(" → ")[0], line.measure.split(" → ")[-1]]
        key = (line.data, frozenset(zip(objectives, measures, strict=True)), line.seeds)
        keys.append(key)
        p_values[key] = independent_p(found, place.exact)
        assert line.p == pytest.approx(p_values[key], rel=1e-9)
        p_values[key] = min(1.0, place.looks * p_values[key])
        low = independent_p(found, place.exact, -line.margin, one_sided=True)
        high = independent_p(-found, place.exact, -line.margin, one_sided=True)
        within[key, line.margin] = min(1.0, place.looks * max(low, high))
        assert line.effect == pytest.approx(found.mean(), abs=1e-12)
    adjusted = dict(zip(p_values, stats.false_discovery_control(list(p_values.values())), strict=True))
    equivalent = dict(zip(within, stats.false_discovery_control(list(within.values())), strict=True))
    for line, key in zip(lines, keys, strict=True):
        assert line.p_adjusted == pytest.approx(adjusted[key], rel=1e-9), line
        none = equivalent[key, line.margin] < 0.05
        if same[line.claim, line.paper]:
            beyond = adjusted[key] < 0.05 and abs(line.effect) > line.margin
            expected = {"shows"} if none else {"shows the opposite"} if beyond else {"not told apart"}
        elif adjusted[key] < 0.05:
            expected = {"shows", "shows in part"} if line.effect > 0 else {"shows the opposite"}
        else:
            expected = {"no effect above the margin"} if none else {"not told apart"}
        assert line.verdict in expected, line


def test_a_record_without_figures_and_a_folder_without_records_are_said(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="expected records of studies"):
        read_records(tmp_path)
    (tmp_path / "digits-all.json").write_text('{"objectives": []}')
    with pytest.raises(FileFormatError, match="expected figures in"):
        read_records(tmp_path)


def test_a_difference_inside_the_margin_is_no_opposite_of_the_same() -> None:
    same = {(claim.text, claim.paper) for claim in paper_claims() if claim.same}
    lines = [line for line in claim_index() if (line.claim, line.paper) in same and line.effect is not None]
    assert lines
    assert all(abs(line.effect or 0) > line.margin for line in lines if line.verdict == "shows the opposite")


def test_one_comparison_counts_once() -> None:
    lines = [line for line in claim_index() if line.p_adjusted is not None]
    by_comparison = defaultdict(set)
    for line in lines:
        by_comparison[line.comparison].add((line.p, line.p_adjusted))
    assert all(len(found) == 1 for found in by_comparison.values())
    assert len(by_comparison) < len(lines)


def test_differences_within_a_committed_margin_are_no_effect() -> None:
    tight = record("digits-all", base=0.05, focal=0.05, temperature=2.0, seeds=12)
    for row in tight["figures"]:
        row["ece"] = 0.05 + 1e-5 * (-1) ** row["seed"] * (row["objective"] == "Focal 3")
    lines = [line for line in claim_index({"digits-all": tight}) if line.measure == "ece" and line.seeds]
    assert {line.verdict for line in lines} == {"no effect above the margin"}


def test_pairs_with_other_test_errors_are_not_comparable() -> None:
    apart = record("digits-all", base=0.09, focal=0.02, temperature=2.0)
    for row in apart["figures"]:
        row["error"] = 0.1 if row["objective"] == "Cross-entropy" else 0.2
    lines = [
        line
        for line in claim_index({"digits-all": apart})
        if line.claim == "focal loss γ = 3 leaves a lower raw ECE than cross-entropy"
    ]
    assert [line.verdict for line in lines if line.seeds] == ["not comparable"]
    assert lines[0].note == "test errors 10.0% apart, above 5%"


def test_tests_by_hand() -> None:
    assert sign_change_p([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_change_p([1.0, 2.0, -3.0]) == 1.0
    assert sign_change_p([1.0, 2.0, 3.0], above=-1.0) == 1 / 8
    assert paired_p([0.1]) == 1.0
    assert paired_p([0.1, 0.1, 0.1]) == 0.25  # equal differences: no t-statistic
    assert paired_p([0.0] * 60) == 1.0  # and as many as there are seeds
    assert paired_p([0.1] * 60, above=-0.1) == 0.5**60
    assert benjamini_hochberg([0.005, 0.5, 0.01, 0.04]) == pytest.approx([0.02, 0.5, 0.02, 0.16 / 3])
    assert equivalence_p([0.001, -0.001, 0.0], margin=0.01, exact=False) < 0.01
    assert equivalence_p([0.02, 0.021, 0.019], margin=0.01, exact=False) > 0.9
    assert detectable([0.1]) is None
    # Two-sided t-test at .05 with power .8 and n = 10: effect / sd = 0.996 (G*Power).
    values = [1.0, -1.0] * 5
    assert detectable(values) == pytest.approx(0.996 * np.std(values, ddof=1), rel=2e-3)


def test_the_command_prints_the_index() -> None:
    found = json.loads(CliRunner().invoke(main, ["study", "claims", "--json"]).stdout)
    fields = {
        "claim", "paper", "place", "data", "measure", "verdict", "p", "p_adjusted", "effect", "detectable", "decidable", "seeds",
    }  # fmt: skip
    assert all(fields <= set(line) for line in found["claims"])
    assert sum(found["verdicts"].values()) == len(found["claims"])
    assert {line["data"] for line in found["claims"] if line["p"] is None} == {"theory"}
    assert all(line["p"] == 1 for line in found["claims"] if line["verdict"] in ("not run", "not comparable"))
    said = CliRunner().invoke(main, ["study", "claims"]).stdout
    assert said.count("\n") < 60  # counts alone: of papers and of data
    assert "Benjamini" in said
    pairs = [int(count) for count in re.findall(r"^(?:Muk|Kom|Wang|the rep|Ghosh).*? +(\d+)(?: +\d+){6}$", said, re.M)]
    assert sum(pairs) == len(found["claims"])
    refused = CliRunner().invoke(main, ["study", "claims", "--records", "nowhere"])
    assert refused.exit_code == 2


def test_claims_are_chosen_by_paper_data_and_verdict() -> None:
    def lines(*options: str) -> list[dict[str, Any]]:
        return json.loads(CliRunner().invoke(main, ["study", "claims", "--json", *options]).stdout)["claims"]

    every = lines()
    mine = lines("--paper", "wang", "--paper", "ghosh", "--data", "digits, MLP", "--verdict", "shows")
    assert mine == [
        line
        for line in every
        if line["paper"].split()[0] in ("Wang", "Ghosh") and (line["data"], line["verdict"]) == ("digits, MLP", "shows")
    ]
    assert {line["data"] for line in lines("--data", "digits")} > {"digits, MLP"}  # a part, of several names
    said = CliRunner().invoke(main, ["study", "claims", "--paper", "ghosh", "--verdict", "not run"]).stdout
    assert "calibrant study run cifar10 --scale gpu" in " ".join(said.split())
    for options in (["--verdict", " "], ["--paper", "ghosh", "--data", "theory"]):
        refused = CliRunner().invoke(main, ["study", "claims", *options])
        assert refused.exit_code == 2
        assert refused.stderr.count("\n") == 1, refused.stderr


def _convex() -> bool:
    p = np.linspace(1e-4, 1 - 1e-4, 2001)
    losses = [-((1 - p) ** gamma) * np.log(p) for gamma in (0.1, 0.5, 1, 2, 5)]
    return all(bool((np.diff(loss, 2) > 0).all()) for loss in losses)


def _map(gamma: float, p: Any) -> np.ndarray:
    mapped = calibration_map(FocalScore(gamma), torch.log(torch.as_tensor(p, dtype=torch.float64)))
    return mapped.exp().numpy()


def _printed_bounds() -> bool:
    s = np.linspace(0.1, 8, 50)
    both = np.stack([1 / (1 + np.exp(-s)), 1 / (1 + np.exp(s))], axis=1)
    seen = _map(3.0, both)[:, 0]
    return bool((seen < 1 / (1 + np.exp(-s / 4))).all())  # as printed: above σ(s / (γ + 1 − …)), below σ(s / (γ + 1))


def _never_lower() -> bool:
    p = [[0.33, 0.33, 0.33, 0.01]]
    return bool(_map(0.5, p).max() >= 0.33)


def _line() -> bool:
    s = np.linspace(-20, 20, 801)
    both = np.stack([1 / (1 + np.exp(-s)), 1 / (1 + np.exp(s))], axis=1)
    inverse = np.arange(0.8, 7, 0.01)
    for gamma in (1.0, 2.0, 3.0, 5.0):
        seen = _map(gamma, both)[:, 0]
        apart = [np.abs(1 / (1 + np.exp(-slope * s)) - seen).max() for slope in inverse]
        if abs(inverse[int(np.argmin(apart))] - (0.95 * gamma + 0.85)) > 0.1:
            return False
    return True


def _entropy_bound() -> bool:
    p = np.linspace(1e-3, 1 - 1e-3, 999)
    entropy = -p * np.log(p) - (1 - p) * np.log1p(-p)
    return all(bool((-((1 - p) ** g) * np.log(p) >= -np.log(p) - g * entropy).all()) for g in (0.5, 1, 2, 5))


def _scaled() -> bool:
    z = torch.randn(500, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return bool(((1.7 * z).softmax(1).amax(1) >= z.softmax(1).amax(1)).all())


def _more_entropic() -> bool:
    q = np.linspace(1e-4, 1 - 1e-4, 20001)
    for truth in (0.55, 0.7, 0.9, 0.99):
        for gamma in (0.5, 1, 3, 5):
            risk = -truth * (1 - q) ** gamma * np.log(q) - (1 - truth) * q**gamma * np.log1p(-q)
            if not 0.5 < q[int(np.argmin(risk))] < truth:
                return False
    return True


def _proper() -> bool:
    steps = np.arange(0.05, 1, 0.05)
    for truth in (np.array([0.8, 0.2]), np.array([0.55, 0.3, 0.15])):
        axes = np.meshgrid(*[steps] * (len(truth) - 1), indexing="ij")
        p = np.stack([axis.ravel() for axis in axes], axis=1)
        p = p[p.sum(axis=1) < 0.999]
        p = np.concatenate([p, 1 - p.sum(axis=1, keepdims=True)], axis=1)
        logits = torch.from_numpy(p).log()
        for gamma in (1.0, 3.0):
            loss = ProperFocalLoss(gamma, reduction="none")
            losses = [loss(logits, torch.full((len(p),), label)).numpy() for label in range(len(truth))]
            if np.abs(p[int(np.argmin(truth @ np.stack(losses)))] - truth).max() > 1e-9:
                return False
    return True


def _nearest(classes: int, gamma: float, *, step: float) -> tuple[float, float]:
    """The best 1 / T and its error, on a grid of logits up to 10 apart (20 for two classes): a lower bound of the error."""
    far = 20 if classes == 2 else 10
    axes = np.meshgrid(*[np.arange(-far, far + step / 2, step)] * (classes - 1), indexing="ij")
    z = torch.from_numpy(np.stack([*(axis.ravel() for axis in axes), np.zeros(axes[0].size)], axis=1))
    z = z[z.amax(1) - z.amin(1) <= far]
    seen = calibration_map(FocalScore(gamma), z.log_softmax(1)).exp()
    best = minimize_scalar(
        lambda inverse: float(((inverse * z).softmax(1) - seen).abs().max()), bounds=(0.5, 12), method="bounded"
    )
    return float(best.x), float(best.fun)


def _near() -> bool:
    errors = {gamma: _nearest(2, gamma, step=0.02)[1] for gamma in (0.45, 1.0, 2.0)}
    assert 0.0011 < errors[0.45] < 0.0013
    assert max(errors[1.0], errors[2.0]) < 0.001
    return errors[0.45] < 0.001


def _tight_bounds() -> bool:
    s = np.linspace(0.01, 20, 4000)
    log_p = calibration_map(FocalScore(4.0), torch.from_numpy(np.stack([s, 0 * s], axis=1)).log_softmax(1)).numpy()
    temperatures = s / (log_p[:, 0] - log_p[:, 1])
    low, high = (round(float(end), 3) for end in (temperatures.min(), temperatures.max()))
    assert (low, high) == (0.203, 0.218)
    return low == 0.206


def _line_of_three() -> bool:
    found = {gamma: _nearest(3, gamma, step=0.25) for gamma in (1.0, 2.0, 3.0, 5.0, 9.0)}
    near = all(abs(inverse - (0.64 * gamma + 0.91)) < 0.1 for gamma, (inverse, _) in found.items())
    return near and 0.07 < found[9.0][1] < 0.08


def _line_of_four() -> bool:
    found = {gamma: _nearest(4, gamma, step=0.5) for gamma in (1.0, 5.0)}
    return all(
        abs(inverse - (0.47 * gamma + 0.85)) < 0.1 and error < 0.085 for gamma, (inverse, error) in found.items()
    )


def _inner_points() -> torch.Tensor:
    """Points (19,701, 3) of the open simplex, .005 apart."""
    return torch.tensor([(i, j, 200 - i - j) for i in range(1, 199) for j in range(1, 200 - i)]).double() / 200


def _outward() -> bool:
    p = _inner_points()
    top = p.amax(1)
    for gamma in (0.5, 1.0, 2.0, 3.0, 5.0):
        found = torch.from_numpy(_map(gamma, p.numpy()))
        if not bool((((found - p) * (p - 1 / 3)).sum(1) >= 0).all() and (found.amax(1) >= top - 1e-12).all()):
            return False
        top = found.amax(1)  # of the smaller γ, which the next must exceed
    return True


def _most_near_corners() -> bool:
    p = _inner_points()
    near = p.amax(1) > 0.95
    found = []
    for gamma, temperature, most, corner in ((0.5, 0.8, 0.022, 0.006), (2.0, 0.46, 0.050, 0.001)):
        scaled = (p.log() / temperature).softmax(1)
        apart = (torch.from_numpy(_map(gamma, p.numpy())) - scaled).abs().amax(1)
        assert (round(float(apart.max()), 3), round(float(apart[near].max()), 3)) == (most, corner)
        assert p[apart.argmax()].median() > 0.41
        found.append(bool(near[apart.argmax()]))
    return all(found)


THEORY: dict[str, Callable[[], bool]] = {
    "§3.3 and Figure 5": _outward,
    "§3.3 and Figure 7": _most_near_corners,
    "Figure A.1": _more_entropic,
    "Propositions 2 and 4, Figure 4": _proper,
    "§3.2 and Figure 2": _near,
    "§3.2 and Figure 3": _tight_bounds,
    "§3.3 and Figure 6": _line_of_three,
    "§3.3, last paragraph": _line_of_four,
    "Proposition 1": _convex,
    "Proposition 3, as printed": _printed_bounds,
    "Proposition 5": _never_lower,
    "§4.2": _line,
    "§3 and Appendix A": _entropy_bound,
    "Theorem 1": _scaled,
}


@pytest.mark.parametrize("place", THEORY)
def test_mathematical_claims_hold_as_the_index_says(place: str) -> None:
    (claim,) = (claim for claim in paper_claims() if claim.verdict and claim.place == place)
    assert claim.verdict == ("shows" if THEORY[place]() else "shows the opposite")


def test_a_study_opens_with_what_is_wrong_how_sure_and_what_to_do() -> None:
    def line(name: str, ece: float, temperature: float, loss: float) -> Summary:
        mean = {"ece": ece, "temperature": temperature, "nll_at_t": loss, "ece_at_t": 0.02}
        return Summary("digits", name, 3, mean, {"ece": 0.01, "nll_at_t": 0.05}, 0.015, 0.03, 1797)

    wrong, sure, do = study_in_short([line("Cross-entropy", 0.09, 2.4, 0.5), line("Focal 3", 0.02, 0.9, 0.6)])
    assert (
        wrong
        == "What is wrong: Cross-entropy is over-confident, ECE 9.0 ± 1.0 %, best temperature 2.40 (1 needs no correction)."
    )
    assert sure.startswith("How sure: 3 seeds of 1,797 test rows; at its temperature the ECE is 2.0 %, below the 3.0 %")
    assert "then Cross-entropy has the lowest log-loss (0.500)" in do
    do = study_in_short([line("Cross-entropy", 0.09, 2.4, 0.5), line("Focal 3", 0.02, 0.9, 0.54)])[2]
    assert "(0.500; 1 more within its spread over seeds)" in do
