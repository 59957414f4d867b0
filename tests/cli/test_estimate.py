"""``calibrant estimate``: the figures of the function, in words and as JSON, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import load_predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import estimate


def save(path: Path, *, rows: int, seed: int, classes: int = 3, labelled: bool = True) -> Path:
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * 2
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    np.savez(path, logits=(2 * true).astype(np.float32), **({"labels": labels} if labelled else {}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reference = save(tmp_path / "reference.npz", rows=1000, seed=0)
    save(tmp_path / "new.npz", rows=400, seed=1, labelled=False)
    data = load_predictions(reference)
    TemperatureScaling().fit(data.logits, data.labels).save(tmp_path / "c.safetensors")  # type: ignore[union-attr]
    return tmp_path


def test_it_prints_what_the_function_finds(folder: Path, run: Any) -> None:
    arguments = [
        "estimate",
        folder / "new.npz",
        "--reference",
        folder / "reference.npz",
        "-c",
        folder / "c.safetensors",
    ]
    done = run(*arguments, "--json", code=0)
    shown = json.loads(done.stdout)
    reference = load_predictions(folder / "reference.npz")
    calibrator = TemperatureScaling().fit(reference.logits, reference.labels)  # type: ignore[union-attr]
    found = estimate(load_predictions(folder / "new.npz"), calibrator, reference=reference)  # type: ignore[arg-type]
    assert shown["accuracy"]["low"] == found.accuracy.low
    assert (shown["rows"], shown["reference_rows"], shown["scores"]) == (400, 1000, "as before")
    assert np.array(shown["confusion"]).shape == (3, 3)
    text = " ".join(run(*arguments).stdout.split())
    assert f"accuracy {100 * found.accuracy.estimate:.2f} %" in text
    assert "cannot be seen without labels" in text
    alone = " ".join(run("estimate", folder / "new.npz").stdout.split())
    assert "Without a reference the probabilities are taken to be right" in alone


def test_a_stated_change_is_a_second_interval(folder: Path, run: Any) -> None:
    arguments = ["estimate", folder / "new.npz", "--reference", folder / "reference.npz"]
    plain, wide = (json.loads(run(*arguments, *more, "--json").stdout) for more in ([], ["--sensitivity", "0.05"]))
    found = estimate(
        load_predictions(folder / "new.npz"),  # type: ignore[arg-type]
        reference=load_predictions(folder / "reference.npz"),  # type: ignore[arg-type]
        sensitivity=0.05,
    )
    assert wide == json.loads(json.dumps(found.plain()))
    assert set(wide["changed"]) == {"most", "accuracy", "gap", "nll", "confusion_low", "confusion_high"}
    assert set(wide["moved"]) == {"p_value", "distance", "confidence", "beyond", "hardness_p"}
    assert 0 <= wide["moved"]["hardness_p"] <= 1
    assert plain == {**wide, "changed": None}
    text = " ".join(run(*arguments, "--sensitivity", "0.05").stdout.split())
    assert "If equal scores are right up to 5 points more or less often than before:" in text
    assert f"[{100 * wide['changed']['accuracy']['low']:.2f}, {100 * wide['changed']['accuracy']['high']:.2f}]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda f: [], "expected a FILE"),
        (lambda f: [f / "new.npz", "--reference-split", "test"], "--reference-split for a call without --reference"),
        (lambda f: [f / "new.npz", "--reference", f / "new.npz"], "expected labelled predictions"),
        (lambda f: [f / "new.npz", "--reference", save(f / "four.npz", rows=90, seed=2, classes=4)], "of 3 classes"),
        (lambda f: [f / "new.npz", "--reference", save(f / "few.npz", rows=20, seed=2)], "at least 50 reference rows"),
        (lambda f: [f / "new.npz", "-c", f / "new.npz"], "expected"),
        (lambda f: [f / "new.npz", "--sensitivity", "1.5"], "sensitivity"),
        (lambda f: [f / "new.npz", "--sensitivity", "-0.1"], "sensitivity"),
    ],
)
def test_what_it_cannot_use_is_one_sentence(
    folder: Path, run: Any, arguments: Callable[[Path], list[Any]], message: str
) -> None:
    done = run("estimate", *arguments(folder), code=2, says=message)
    assert done.stderr.count("\n") == 1
