"""The benchmark of deployed classifiers: its splits, what it does where a package fails, and its page."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from benchmarks.wild import __main__ as wild
from benchmarks.wild import packages
from benchmarks.wild.labelled import own, write_labelled
from benchmarks.wild.measure import AUTO, HISTOGRAM, TOP, measured
from benchmarks.wild.packages import PACKAGES, SCORERS, Environment, Package
from benchmarks.wild.pages import details, overview, top_label
from benchmarks.wild.scores import split
from tests.quick import few_candidates

from calibrant.metrics import NLL

ROOT = Path(__file__).parent.parent


def answers(rows: int = 1200) -> dict[str, np.ndarray]:
    """Return over-confident probabilities of three languages with exact zeros, each message in two translations."""
    g = torch.Generator().manual_seed(0)
    truth = torch.softmax(2 * torch.randn(rows, 3, generator=g), 1)
    label = torch.multinomial(truth, 1, generator=g)[:, 0].numpy()
    p = (truth**2 / (truth**2).sum(1, keepdim=True)).numpy()
    p = np.where(p < 0.01, 0.0, p)
    names = np.array(["aa", "bb", "no"])
    message = np.array([hashlib.sha256(str(row // 2).encode()).hexdigest() for row in range(rows)])
    return {
        "probs": p / p.sum(1, keepdims=True),
        "names": names,
        "label": np.where(names[label] == "no", "nb", names[label]),
        "message": message,
    }


def test_translations_stay_together_and_aliases_and_unknown_labels_are_told() -> None:
    arrays = answers()
    arrays["label"][:10] = "zz"
    found = split(arrays)
    assert (found.classes, found.left_out, found.top_only) == (3, 10, False)
    assert len(found.val) + len(found.test) == 1190
    assert not set(found.val.groups.tolist()) & set(found.test.groups.tolist())
    assert 2 in found.val.need_labels().tolist()  # nb is no
    arrays["probs"][20] = 0
    with pytest.raises(RuntimeError, match="got 1 rows without one"):
        split(arrays)


def test_a_package_that_gives_its_first_answer_alone_is_right_or_wrong() -> None:
    arrays = answers()
    first = arrays["probs"].argmax(1)
    top = {"conf": arrays["probs"].max(1), "name": arrays["names"][first]}
    found = split(top | {name: arrays[name] for name in ("label", "message")})
    whole = split(arrays)
    assert found.top_only
    assert found.val.logits.shape[1] == 2
    assert float(found.test.need_labels().double().mean()) == float(whole.test.correct.double().mean())


def test_zeros_are_floored_for_all_and_the_automatic_choice_is_compared_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few_candidates(monkeypatch)
    found, after = measured(split(answers()))
    assert NLL()(after) == found["methods"][AUTO]["log_loss"]
    assert found["zeros_at_label"] > 0
    assert not found["leak_warning"]
    methods = found["methods"]
    assert methods["none"]["log_loss"] is None
    assert methods[AUTO]["versus"] is None
    assert methods["TemperatureScaling"]["log_loss"] - methods[AUTO]["log_loss"] == pytest.approx(
        methods["TemperatureScaling"]["versus"], abs=1e-9
    )
    assert methods[AUTO]["ece"] < methods["none"]["ece"]
    difference, low, high = methods[HISTOGRAM]["ece_versus"]
    assert low < high
    assert difference == pytest.approx(methods[HISTOGRAM]["ece"] - methods[TOP]["ece"], abs=1e-9)
    [line] = top_label({"sets": {"p": found}}).splitlines()[2:]
    assert f"{methods[TOP]['ece']:.2%}" in line
    found |= {"pins": "p==1", "methods": {AUTO: methods[AUTO]}}
    wild.kept_methods(found, {**found, "methods": {"none": methods["none"]}})
    assert list(found["methods"]) == ["none", AUTO]


def test_a_package_that_cannot_be_run_is_skipped_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Environment, "made_in", lambda self, home: Path(sys.executable).parent.parent)
    broken = Package("broken", "MIT", "nothing", "files", Environment("broken", (), "none.py"))
    monkeypatch.setattr(wild, "PACKAGES", (broken,))
    monkeypatch.setattr(wild, "RECORD", tmp_path / "wild.json")
    monkeypatch.setattr(sys, "argv", ["wild", "--home", str(tmp_path)])
    monkeypatch.setattr(wild, "versions", lambda: dict.fromkeys(("python", "calibrant", "torch"), ""))
    wild.main()
    shown = capsys.readouterr().out
    assert shown.startswith("broken: skipped, could not run none.py: ")
    assert not (tmp_path / "wild.json").exists()


def test_a_package_that_takes_too_long_is_skipped_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_MINUTES", 0.001)
    with pytest.raises(RuntimeError, match=r"could not wait: not done after 0\.001 minutes"):
        packages._run([sys.executable, "-c", "import time; time.sleep(10)"], "wait")


def test_scripts_exist_and_do_not_hide_the_package_they_import() -> None:
    for package in PACKAGES:
        script = SCORERS / package.environment.script
        assert script.exists()
        assert f"import {script.stem}" not in script.read_text()
        assert all("==" in pin or "@" in pin[1:] for pin in package.environment.pins)
        assert "==" in package.environment.measured or "@" in package.environment.measured[1:]


def test_reviews_are_the_sentences_that_are_not_neutral(tmp_path: Path) -> None:
    (tmp_path / "sst").mkdir()
    trees = ("(4 (2 A) (3 joy))", "(2 (2 Plain) (2 talk))", "(0 (1 -LRB-) (0 dull))")
    for name in ("dev", "test"):
        (tmp_path / "sst" / f"{name}.txt").write_text("\n".join(trees[:2] if name == "dev" else trees[2:]))
    write_labelled("reviews", tmp_path, tmp_path / "reviews.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "reviews.jsonl").read_text().splitlines()]
    assert sorted((row["text"], row["label"]) for row in rows) == [("( dull", "negative"), ("A joy", "positive")]
    assert {row["message"] for row in rows} == {hashlib.sha256(row["text"].encode()).hexdigest() for row in rows}


def test_a_post_that_is_scored_trains_no_head(tmp_path: Path) -> None:
    (tmp_path / "20news").mkdir()
    same, other = ("words of a post " * 10).strip(), ("more words " * 20).strip()
    assert own(f"From: someone\n> said before\n{same}\n") == same
    for name, texts in (("train", [f"Subject: x\n\n{same}", other, "short"]), ("test", [same])):
        table = pa.table({"text": texts, "label": list(range(len(texts)))})
        pq.write_table(table, tmp_path / "20news" / f"{name}.parquet")
    write_labelled("posts", tmp_path, tmp_path / "posts.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "posts.jsonl").read_text().splitlines()]
    assert [(row["part"], row["text"], row["label"]) for row in rows] == [("train", other, "1"), ("test", same, "0")]
    for kind in ("reviews", "posts"):
        with pytest.raises(RuntimeError, match=f"could not read {kind} in .*--data"):
            write_labelled(kind, tmp_path / "none", tmp_path / "none.jsonl")


def test_the_tables_hold_every_package_of_the_record() -> None:
    record: dict[str, Any] = json.loads((ROOT / "docs" / "results" / "wild.json").read_text())
    assert len(details(record).split("### ")) == len(record["sets"]) + 1
    assert len(overview(record).splitlines()) == len(top_label(record).splitlines()) == len(record["sets"]) + 2
