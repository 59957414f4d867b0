"""``--multilabel``: fit, apply, evaluate and report on predictions of several labels a row."""

import json
import re
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Run

from calibrant import MultiLabel, load, read, save_predictions
from calibrant.evaluate import multilabel_panel


def made(rows: int, seed: int) -> MultiLabel:
    generator = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(rows, 3, generator=generator) - torch.tensor([0.0, 1.0, 3.0])
    y = (torch.rand(rows, 3, generator=generator) < torch.sigmoid(z)).long()
    y[torch.rand(rows, 3, generator=generator) < 0.05] = -1
    return MultiLabel.from_logits(2 * z, y, names=["cat", "dog", "owl <b>"])


@pytest.fixture
def saved(home: Path, run: Run) -> Path:
    """A calibrator of several labels that is fitted on ``labels.npz``."""
    save_predictions("labels.npz", {"val": made(300, 1), "test": made(250, 2)})
    done = run("fit labels.npz --multilabel -o several.safetensors", code=0)
    assert "3 labels through PlattScaling" in done.output
    return home / "several.safetensors"


def test_fit_evaluate_apply_and_report(saved: Path, run: Run) -> None:
    line = "evaluate labels.npz --multilabel --split test -c several.safetensors --draws 50"
    assert "owl <b>" in run(line, code=0).stdout
    shown = json.loads(run(line, "--json", code=0).stdout)
    before = [(row["metric"], row["average"], row["value"]) for row in shown["rows"] if row["calibrator"] is None]
    assert before == [(one.metric, one.average, one.value) for one in multilabel_panel(made(250, 2), draws=50)]
    assert {row["label"] for row in shown["labels"]} == {"cat", "dog", "owl <b>"}
    assert shown["fitted"]["type"] == "MultiLabelCalibrator"

    save_predictions("test.csv", made(250, 2))
    run("apply several.safetensors test.csv --multilabel --replace -o after.csv", code=0)
    after, found = made(250, 2).calibrated_by(load(saved)), read("after.csv", multilabel=True)
    assert torch.allclose(found.logits, after.logits.double(), rtol=1e-4, atol=1e-5)
    assert torch.equal(found.labels, after.labels)

    for suffix in ("json", "html"):
        run(f"report labels.npz --multilabel -o report.{suffix} --title Owls", code=0)
        page = Path(f"report.{suffix}").read_text()
        assert "owl <b>" not in page or suffix == "json"
        for text in ("Owls", "PlattScaling a label", "which the calibrator was not fitted on"):
            assert text in page
    captions = re.findall(r"<figcaption>([^:<]+)", page)
    assert [caption.partition(", ")[2] for caption in captions[:2]] == ["before calibration", "after calibration"]
    assert captions[0].partition(",")[0] == captions[1].partition(",")[0] in ("cat", "dog", "owl &lt;b&gt;")
    assert sum(caption.startswith("All labels pooled") for caption in captions) == 2


def write_with_splits(file: Path, **parts: MultiLabel) -> tuple[str, ...]:
    """Write the rows of each split to one table with a column ``split``; return the options that read it."""
    lines = [
        ",".join(map(str, [*p, *y, name]))
        for name, data in parts.items()
        for p, y in zip(data.probs.tolist(), data.labels.tolist(), strict=True)
    ]
    file.write_text("\n".join(["p_cat,p_dog,p_owl,y_cat,y_dog,y_owl,split", *lines]) + "\n")
    return ("--multilabel", "--columns", "p_*", "--label", "y_*", "--kind", "probs")


def test_a_table_has_the_splits_of_its_column(run: Run, tmp_path: Path) -> None:
    file, parts = tmp_path / "tags.csv", {"val": made(300, 1), "test": made(250, 2)}
    options = write_with_splits(file, **parts)
    command = ["evaluate", file, *options, "--draws", 0, "--json"]
    expected = {name: multilabel_panel(data, draws=0)[0].value for name, data in parts.items()}
    for asked in (["val"], ["test"], []):
        rows = json.loads(run(*command, *(word for one in asked for word in ("--split", one)), code=0).stdout)["rows"]
        assert dict.fromkeys(row["split"] for row in rows) == dict.fromkeys(asked or parts)
        for name in asked or parts:
            first = next(row for row in rows if row["split"] == name)
            assert first["n"] == len(parts[name])
            assert first["value"] == pytest.approx(expected[name], abs=1e-6)
    run(*command, "--split", "nope", code=2, says="'nope'")
    run("fit", file, *options, "-o", tmp_path / "c.safetensors", code=0)
    for number, more in enumerate([(), ("--calibrator", tmp_path / "c.safetensors"), ("--split", "val")]):
        page = tmp_path / f"{number}.html"
        run("report", file, *options, *more, "-o", page, code=0)
        text = page.read_text()
        assert ("300" if "val" in more else "250") in text
        assert "550" not in text
        assert ("After calibration" in text) == ("val" not in more), (
            "fitted on val, never on the rows that are evaluated"
        )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("evaluate labels.npz", "or --multilabel"),
        ("evaluate good.npz --multilabel", "without --multilabel"),
        ("evaluate good.npz -c several.safetensors", "add --multilabel"),
        ("fit labels.npz --multilabel --method HistogramBinning -o out.safetensors", "event's probability"),
        ("evaluate a.csv --multilabel", "cannot tell which columns hold the labels. Columns: p_a, z_a. Say --columns"),
    ],
)
def test_wrong_use_is_one_sentence_and_writes_nothing(
    line: str, said: str, saved: Path, fitted: Path, run: Run
) -> None:
    Path("a.csv").write_text("p_a,z_a\n0.5,1\n0.2,0\n")
    assert run(line, code=2, says=said).stderr.count("\n") == 1
    assert not list(Path().glob("out*"))
