"""``calibrant estimate``: the figures of the function, in words and as JSON, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cli.conftest import Run, save_rows

from calibrant import load_predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import Deployed, abstain, estimate, thresholds


@pytest.fixture
def folder(home: Path) -> Path:
    """The working directory, with a reference, new rows without labels and a calibrator."""
    reference = save_rows(home / "reference.npz", rows=1000, seed=0, sharp=2)
    new = save_rows(home / "new.npz", rows=400, seed=1, sharp=2)
    np.savez(new, logits=np.load(new)["logits"])
    data = load_predictions(reference)
    TemperatureScaling().fit(data.logits, data.labels).save(home / "c.safetensors")  # type: ignore[union-attr]
    return home


def test_it_prints_what_the_function_finds(folder: Path, run: Run) -> None:
    line = "estimate new.npz --reference reference.npz -c c.safetensors"
    shown = json.loads(run(line, "--json", code=0).stdout)
    reference = load_predictions("reference.npz")
    calibrator = TemperatureScaling().fit(reference.logits, reference.labels)  # type: ignore[union-attr]
    found = estimate(load_predictions("new.npz"), calibrator, reference=reference)  # type: ignore[arg-type]
    assert shown["accuracy"]["low"] == found.accuracy.low
    assert (shown["rows"], shown["reference_rows"], shown["scores"]) == (400, 1000, "as before")
    assert np.array(shown["confusion"]).shape == (3, 3)
    text = " ".join(run(line).stdout.split())
    assert f"accuracy {100 * found.accuracy.estimate:.2f} %" in text
    assert "cannot be seen without labels" in text
    alone = " ".join(run("estimate new.npz").stdout.split())
    assert "Without a reference the probabilities are taken to be right" in alone


def test_a_stated_change_is_a_second_interval(folder: Path, run: Run) -> None:
    line = "estimate new.npz --reference reference.npz"
    plain, wide = (json.loads(run(line + more, "--json").stdout) for more in ("", " --sensitivity 0.05"))
    new, reference = (load_predictions(name) for name in ("new.npz", "reference.npz"))
    found = estimate(new, reference=reference, sensitivity=0.05)  # type: ignore[arg-type]
    assert wide == json.loads(json.dumps(found.plain()))
    assert set(wide["changed"]) == {"most", "accuracy", "gap", "nll", "confusion_low", "confusion_high"}
    assert set(wide["moved"]) == {"p_value", "distance", "confidence", "beyond", "hardness_p"}
    assert 0 <= wide["moved"]["hardness_p"] <= 1
    assert plain == {**wide, "changed": None}
    text = " ".join(run(line, "--sensitivity", "0.05").stdout.split())
    assert "If equal scores are right up to 5 points more or less often than before:" in text
    assert f"[{100 * wide['changed']['accuracy']['low']:.2f}, {100 * wide['changed']['accuracy']['high']:.2f}]" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "expected a FILE"),
        ("new.npz --reference-split test", "--reference-split for a call without --reference"),
        ("new.npz --reference new.npz", "expected labelled predictions"),
        ("new.npz --reference four.npz", "of 3 classes"),
        ("new.npz --reference few.npz", "at least 50 reference rows"),
        ("new.npz -c new.npz", "expected"),
        ("new.npz --sensitivity 1.5", "sensitivity"),
        ("new.npz --sensitivity -0.1", "sensitivity"),
    ],
)
def test_what_it_cannot_use_is_one_sentence(folder: Path, run: Run, arguments: str, message: str) -> None:
    save_rows(folder / "four.npz", rows=90, seed=2, classes=4)
    save_rows(folder / "few.npz", rows=20, seed=2)
    run(f"estimate {arguments}", code=2, says=message)


@pytest.fixture
def file(home: Path) -> Path:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(3000, 3)) * 3
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    logits = (2 * true).astype(np.float32)
    path = home / "p.npz"
    parts = {"val_logits": logits[:1000], "val_labels": labels[:1000]}
    np.savez(path, **parts, test_logits=logits[1000:], test_labels=labels[1000:])
    TemperatureScaling().fit(load_predictions(path, "val")).save(home / "c.safetensors")
    return path


def test_it_finds_and_saves_what_the_function_finds(file: Path, run: Run) -> None:
    done = run("decide p.npz --error .1 -c c.safetensors -o d.safetensors --json", code=0)
    test = load_predictions(file, "test")
    fitted = TemperatureScaling().fit(load_predictions(file, "val"))
    rule = abstain(test.calibrated_by(fitted), error=0.1)  # type: ignore[union-attr]
    assert json.loads(done.stdout)["parts"][0]["threshold"] == rule.threshold
    z = torch.randn(50, 3)
    assert torch.equal(Deployed.load("d.safetensors")(z), rule(fitted(z)))
    assert "answer from confidence" in run("decide p.npz --coverage .8 --by class").stdout


def test_where_nothing_qualifies_nothing_is_written(file: Path, run: Run) -> None:
    done = run("decide p.npz --error .00001 -o d.safetensors", code=3)
    assert not Path("d.safetensors").exists()
    assert "no threshold has an error of at most 1e-05" in " ".join(done.stdout.split())
    for arguments, message in (
        ("", "expected --error, --coverage or --costs, got neither; add one of them"),
        ("--error 2", "expected --error in (0, 1)"),
        ("--error .1 -o d.bin", "ends in .safetensors"),
        ("--error .1 -c c.safetensors --split val", "fitted"),
    ):
        run(f"decide p.npz {arguments}", code=2, says=message)


@pytest.fixture
def two(home: Path) -> Path:
    rng = np.random.default_rng(0)
    p = 1 / (1 + np.exp(-2 * rng.normal(size=2000)))
    path = home / "two.npz"
    np.savez(path, probs=np.stack([1 - p, p], axis=1), labels=(rng.random(2000) < p).astype(int))
    return path


COSTS = ",wait,treat\nhealthy,0,1\nill,5,0.5\n"


def test_costs_are_weighed_drawn_and_saved(two: Path, run: Run) -> None:
    Path("costs.csv").write_text(COSTS)
    done = run("decide two.npz --costs costs.csv --json -o rule.safetensors", code=0)
    rule, data = thresholds([[0, 1], [5, 0.5]]), load_predictions(two)
    shown = json.loads(done.stdout)
    interval = rule.expected_cost(data)  # type: ignore[arg-type]
    assert (shown["expected_cost"]["low"], shown["expected_cost"]["high"]) == (interval.low, interval.high)
    assert shown["threshold"] == rule.threshold == pytest.approx(1 / 5.5)
    assert sum(shown["shares"].values()) == pytest.approx(1)
    labels = data.labels.double()  # type: ignore[union-attr]
    always = min(float(5 * labels.mean()), float(1 - labels.mean() + 0.5 * labels.mean()))
    assert (shown["fixed_action"], shown["fixed_cost"]) == ("treat", pytest.approx(always))
    assert torch.equal(Deployed.load("rule.safetensors")(data.logits), rule.decide(data))  # type: ignore[union-attr,arg-type]
    text = " ".join(run("decide two.npz --costs costs.csv --reject .2").stdout.split())
    assert "abstain" in text
    assert "threshold" not in text


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("a,b\n1,x\n2,3\n", "", "expected numbers as costs"),
        ("1,2\n3\n", "", "got 2, 1"),
        ("", "", "got no line"),
        ("0,1,1\n1,0,1\n1,1,0\n", "", "expected predictions of 3 classes"),
        ("0,nan\n1,0\n", "", "finite costs"),
        (",go,go\na,0,1\nb,1,0\n", "", "different names of actions"),
        (COSTS, "--error .1", "got --error"),
        (None, "--reject .1 --error .1", "got --reject for a call without --costs"),
    ],
)
def test_costs_that_cannot_be_used_are_one_sentence(
    two: Path, run: Run, content: str | None, arguments: str, message: str
) -> None:
    if content is not None:
        Path("costs.csv").write_text(content)
        arguments += " --costs costs.csv"
    run(f"decide two.npz {arguments} -o o.safetensors", code=2, says=message)
    assert not Path("o.safetensors").exists()


def test_lines_of_costs_are_in_the_order_of_the_classes(two: Path, run: Run) -> None:
    line, costs = "decide two.npz --costs costs.csv", Path("costs.csv")
    Path("names.txt").write_text("cat\ndog\n")
    costs.write_text("0,1\n5,0\n")
    expected = json.loads(run(line, "--json").stdout)["expected_cost"]
    for right in ("class,a,b\n0,0,1\n1,5,0\n", ",a,b\ncat,0,1\ndog,5,0\n"):
        costs.write_text(right)
        done = json.loads(run(line, "--json").stdout)
        assert (done["expected_cost"], list(done["shares"])) == (expected, ["a", "b"])
    for content, more in (("class,a,b\n1,5,0\n0,0,1\n", ""), (",a,b\ndog,5,0\ncat,0,1\n", " --class-names names.txt")):
        costs.write_text(content)
        run(line + more, code=2, says="expected a line of costs for each class in their order")
    costs.write_text("1e308,1e308\n-1e308,1e308\n")
    run(line, code=2, says="expected costs of at most 1e+100")


def test_rows_of_today_may_lack_the_column_of_labels_that_the_reference_has(tmp_path: Path, run: Run) -> None:
    rng = np.random.default_rng(0)
    score = rng.random(400).round(4)
    known = np.where(rng.random(400) < score, "yes", "no")
    for name, rows in (
        ("old.csv", [*zip(score[:300], known[:300], strict=True)]),
        ("today.csv", [(x,) for x in score[300:]]),
    ):
        header = ["score", "churned"][: len(rows[0])]
        (tmp_path / name).write_text("\n".join(",".join(map(str, row)) for row in [header, *rows]))
    how = ["--columns", "score", "--kind", "probs", "--label", "churned", "--positive", "yes", "--json"]
    found = run("estimate", tmp_path / "today.csv", "--reference", tmp_path / "old.csv", *how, code=0)
    assert json.loads(found.stdout)["reference_rows"] == 300


def test_class_names_are_those_of_the_reference(folder: Path, run: Run) -> None:
    words, (reference, new) = np.array(["lo", "me", "hi"]), (folder / "labelled.csv", folder / "new.csv")
    (folder / "names.txt").write_text("\n".join(words))
    lines = {}
    for place, name in ((reference, "reference.npz"), (new, "new.npz")):
        data = load_predictions(folder / name)
        lines[place] = [",".join(f"{p:.3f}" for p in row) for row in data.probs.tolist()]  # type: ignore[union-attr]
        place.write_text("\n".join(["low,medium,high", *lines[place]]))
    labels = np.load(folder / "reference.npz")["labels"]

    def write_labels(values: np.ndarray) -> None:
        rows = [f"{row},{one}" for row, one in zip(lines[reference], values, strict=True)]
        reference.write_text("\n".join(["low,medium,high,outcome", *rows]))

    options = ["--normalize", "--columns", "low,medium,high", "--kind", "probs"]
    command = ["estimate", new, "--reference", reference, *options, "--label", "outcome", "--json"]
    write_labels(labels)
    expected = json.loads(run(*command, code=0).stdout)
    run(*command, "--class-names", folder / "names.txt", code=2, says="leave it out")
    write_labels(words[labels])
    assert json.loads(run(*command, "--class-names", folder / "names.txt", code=0).stdout) == expected
    alone = ["estimate", new, *options, "--class-names", folder / "names.txt"]
    run(*alone, code=2, says="leave it out")
