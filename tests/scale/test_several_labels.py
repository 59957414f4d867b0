"""Folders of predictions with several labels a row: the figures and intervals of all rows in memory."""

from pathlib import Path

import pytest
import torch
from tests.evaluate.test_multilabel import KINDS, assert_alike, beside, sample

from calibrant import MultiLabelPredictions, read_multilabel, save_multilabel
from calibrant.calibrators import MultiLabelCalibrator, PlattScaling, TemperatureScaling
from calibrant.errors import CalibrantError, InputError, LeakError
from calibrant.evaluate import multilabel_panel
from calibrant.scale import evaluate_multilabel_streamed


def folder(home: Path, *parts: MultiLabelPredictions) -> Path:
    """Return a folder with a file of each of the parts."""
    path = home / "parts"
    path.mkdir()
    for number, part in enumerate(parts):
        save_multilabel(path / f"{number:03d}.parquet", {"all": part})
    return path


@pytest.mark.parametrize("calibrated", [False, True], ids=["raw", "calibrated"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_has_the_intervals_of_all_rows(kind: str, calibrated: bool, tmp_path: Path) -> None:
    data = sample(missing=0.3, **beside(kind, 400))
    labels = data.labels.clone()  # type: ignore[union-attr]
    labels[:150] = -1  # whole files without a known label
    data = MultiLabelPredictions.from_logits(data.logits.half(), labels, names=data.names, **beside(kind, 400))  # type: ignore[arg-type]
    if data.weights is not None:
        data.weights[300:] = 0  # and others without a row that counts
    path = folder(tmp_path, *(data[at : at + 90] for at in range(0, 400, 90)))
    calibrator = MultiLabelCalibrator(PlattScaling()).fit(sample(seed=1)) if calibrated else None
    streamed = evaluate_multilabel_streamed(path, calibrator=calibrator, draws=50)
    data = read_multilabel(path)  # half precision is written as single
    expected = data if calibrator is None else data.calibrated_by(calibrator)
    memory = multilabel_panel(expected, draws=50)
    assert sum(row.low is not None for row in memory) == 7
    assert_alike(streamed, memory)
    assert {row.low for row in evaluate_multilabel_streamed(path, draws=0)} == {None}


def test_probabilities_of_a_table_are_read_in_pieces(tmp_path: Path) -> None:
    data = sample()
    data = MultiLabelPredictions.from_probs(data.probs, data.labels, names=data.names)
    file = tmp_path / "a.csv"
    save_multilabel(file, {"all": data})
    assert_alike(evaluate_multilabel_streamed(file, draws=50), multilabel_panel(data, draws=50))


def test_a_file_that_looks_like_another_kind_by_chance_is_read_and_one_that_all_do_is_refused(tmp_path: Path) -> None:
    data = sample()
    logits = data.logits.clone()
    logits[:3] = 0.5
    data = MultiLabelPredictions.from_logits(logits, data.labels, names=data.names)
    path = folder(tmp_path, MultiLabelPredictions.from_logits(logits[:3], data.labels[:3], names=data.names, unchecked_kind=True), data[3:])  # type: ignore[index]  # fmt: skip
    assert_alike(evaluate_multilabel_streamed(path, draws=50), multilabel_panel(data, draws=50))
    (tmp_path / "bad").mkdir()
    bad = MultiLabelPredictions.from_logits(data.probs, data.labels, names=data.names, unchecked_kind=True)
    with pytest.raises(InputError, match=r"000\.parquet: expected logits, got numbers that all lie in \[0, 1\]"):
        evaluate_multilabel_streamed(folder(tmp_path / "bad", bad[:100], bad[100:]))
    (tmp_path / "sums").mkdir()
    p = torch.softmax(data.logits, dim=1)
    bad = MultiLabelPredictions.from_probs(p, data.labels, names=data.names, unchecked_kind=True)
    with pytest.raises(InputError, match="rows that all sum to 1"):
        evaluate_multilabel_streamed(folder(tmp_path / "sums", bad[:399], bad[399:]))


def test_what_cannot_be_summed_is_refused(tmp_path: Path) -> None:
    def refused(text: str, *parts: MultiLabelPredictions, **options: object) -> None:
        home = tmp_path / text[:8]
        home.mkdir()
        with pytest.raises(CalibrantError, match=text):
            evaluate_multilabel_streamed(folder(home, *parts), **options)  # type: ignore[arg-type]

    data, weighted = sample(), sample(**beside("weights", 400))
    refused("no weights as in the first file, got weights in .*001", data, weighted)
    refused("weights as in the first file, got no", weighted, data)
    refused("the same labels in every file", data, data.select(["often", "rare"]))
    lacking = data.labels.clone()  # type: ignore[union-attr]
    lacking[:, 1] = -1
    few = MultiLabelPredictions.from_logits(data.logits, lacking, names=data.names)
    refused("'some' missing .* in all; leave it out", few[:200], few[200:])
    refused("a MultiLabelCalibrator, got TemperatureScaling", data, calibrator=TemperatureScaling())
    fitted = MultiLabelCalibrator(PlattScaling()).fit(data)
    home = tmp_path / "leak"
    home.mkdir()
    with pytest.raises(LeakError):
        evaluate_multilabel_streamed(folder(home, data[:200], data[200:]), calibrator=fitted)
    path = tmp_path / "leak" / "parts"
    found = evaluate_multilabel_streamed(path, calibrator=fitted, allow_fit_rows=True, draws=50)
    assert_alike(found, multilabel_panel(data.calibrated_by(fitted, allow_fit_rows=True), draws=50))
