"""Fits on rows on disk give the in-memory answer, whoever does the work, and go on where they were stopped."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant import Predictions
from calibrant.binning import EqualWidth
from calibrant.calibrators import (
    EnsembleTemperatureScaling,
    FocalCalibration,
    FocalTemperatureScaling,
    PlattScaling,
    TemperatureMixture,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibrators._base import Calibrator
from calibrant.errors import CalibrantError, FileFormatError, InputError
from calibrant.scale import fit_streamed, processes, rows

GRID = [round(0.2 + 0.05 * i, 2) for i in range(80)]
WIDE: dict[str, Callable[[], Calibrator]] = {
    "temperature": TemperatureScaling,
    "temperature, grid by log-loss": lambda: TemperatureScaling("nll", grid=GRID),
    "temperature, grid by ECE": lambda: TemperatureScaling(grid="mukhoti"),
    "temperature, ECE never 0": lambda: TemperatureScaling("ece", grid="wang-code"),
    "mixture, laplace": TemperatureMixture,
    "mixture, prior": lambda: TemperatureMixture(0.01, prior=0.5),
    "mixture, both": lambda: TemperatureMixture("fit"),
    "mixture, both with a prior": lambda: TemperatureMixture("fit", prior=0.1),
    "ensemble": EnsembleTemperatureScaling,
    "focal temperature, full": lambda: FocalTemperatureScaling(grid=GRID),
    "focal temperature, line": lambda: FocalTemperatureScaling(grid=GRID, gammas=[-0.5, 0.0, 2.0], search="line"),
    "focal temperature, ECE": lambda: FocalTemperatureScaling(
        "ece", grid=GRID[::4], gammas=[0.0, 1.0], binning=EqualWidth(10)
    ),
    "focal map": lambda: FocalCalibration(1.5),
}


def write(home: Path, classes: int, *, parts: int = 3, each: int = 700) -> Predictions:
    """Write a folder of over-confident predictions, a few of them sure and wrong; return all rows."""
    home.mkdir()
    found = []
    for seed in range(parts):
        generator = torch.Generator().manual_seed(seed)
        logits = 3 * torch.randn(each, classes, generator=generator)
        labels = torch.softmax(logits / 1.8, 1).multinomial(1, generator=generator)[:, 0]
        noisy = torch.rand(each, generator=generator) < 0.05
        labels[noisy] = torch.randint(0, classes, (int(noisy.sum()),), generator=generator)
        data = Predictions.from_logits(logits, labels)
        calibrant.save_predictions(home / f"{seed}.parquet", {"all": data})
        found.append(data)
    return Predictions.cat(found)


def learned(calibrator: Calibrator) -> dict[str, list[float]]:
    names = ("certificate", "classes")  # a certificate is as small as can be told, not a number to compare
    state = {name: value for name, value in calibrator.state_dict().items() if name not in names}
    return {name: value.double().reshape(-1).tolist() for name, value in state.items()}


def agree(streamed: Calibrator, memory: Calibrator) -> None:
    mine, theirs = learned(streamed), learned(memory)
    assert mine.keys() == theirs.keys()
    for name, values in mine.items():
        assert values == pytest.approx(theirs[name], rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("name", WIDE)
def test_the_answer_is_that_of_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PIECE_BYTES", 300 * 5 * 4)  # several pieces a shard
    data = write(tmp_path / "val", 5)
    passes: list[int] = []
    streamed = fit_streamed(WIDE[name](), tmp_path / "val", progress=lambda begun, done, total: passes.append(begun))
    memory = WIDE[name]().fit(data.logits, data.need_labels())
    agree(streamed, memory)
    assert streamed.fitted
    assert streamed(data.logits[:3]) == pytest.approx(memory(data.logits[:3]).numpy(), rel=1e-6)
    assert max(passes, default=0) <= 60
    if isinstance(streamed, TemperatureScaling) and streamed.grid is None:
        assert abs(streamed.gradient) < 1e-6


@pytest.mark.parametrize("ridge", [1e-3, 5.0])
def test_platt_scaling_of_two_classes(ridge: float, tmp_path: Path) -> None:
    data = write(tmp_path / "val", 2)
    streamed = fit_streamed(PlattScaling(ridge=ridge), tmp_path / "val")
    agree(streamed, PlattScaling(ridge=ridge).fit(data.logits, data.need_labels()))
    slope, bias = streamed.coefficients[0].tolist()
    odds = (data.logits[:, 1] - data.logits[:, 0]).double()
    hits = float(data.need_labels().sum())
    target = torch.where(data.need_labels() > 0, (hits + 1) / (hits + 2), 1 / (len(data) - hits + 2))
    gap = torch.sigmoid(slope * odds + bias) - target
    off = 2 * ridge / len(data) * torch.tensor([slope - 1, bias])
    assert abs(float((gap * odds).mean()) + float(off[0])) < 1e-6  # the gradient, by hand
    assert abs(float(gap.mean()) + float(off[1])) < 1e-6


def test_a_fit_that_is_stopped_again_and_again_ends_in_the_same_bits(tmp_path: Path) -> None:
    write(tmp_path / "val", 5)
    journal, stops = tmp_path / "j.json", 0
    rng = np.random.default_rng(0)
    whole: list[int] = []
    expected = fit_streamed(
        EnsembleTemperatureScaling(), tmp_path / "val", progress=lambda begun, done, total: whole.append(done)
    )
    seen: list[int] = []
    while True:
        left = int(rng.integers(1, 9))

        def stop(begun: int, done: int, total: int, left: int = left) -> None:
            seen.append(done)
            if len(seen) % 10 == left:
                raise KeyboardInterrupt

        try:
            fitted = fit_streamed(EnsembleTemperatureScaling(), tmp_path / "val", checkpoint=journal, progress=stop)
            break
        except KeyboardInterrupt:
            stops += 1
            assert stops < 100
    assert stops > 3
    assert learned(fitted) == learned(expected)
    assert (
        len(seen) < len(whole) + 3 * stops
    )  # no sum was made twice: at most the shard in flight, and where it goes on
    assert not journal.exists()


def test_the_journal_of_another_fit_or_of_nothing_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "val", 3, parts=2)
    journal = tmp_path / "j.json"

    def stop(begun: int, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_streamed(TemperatureScaling(), tmp_path / "val", checkpoint=journal, progress=stop)
    with pytest.raises(FileFormatError, match="got another in"):
        fit_streamed(TemperatureMixture(), tmp_path / "val", checkpoint=journal)
    for text in ("{", "[]", "3", '{"identity": 1, "answers": 2, "open": 3}'):
        journal.write_text(text)
        with pytest.raises(FileFormatError, match="expected a checkpoint"):
            fit_streamed(TemperatureScaling(), tmp_path / "val", checkpoint=journal)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (VectorScaling, r"fitted by a few sums \(TemperatureScaling, .*FocalCalibration, or PlattScaling for two"),
        (PlattScaling, "got PlattScaling for 3 classes"),
        (lambda: FocalTemperatureScaling(search="continuous"), "expected search='full' or 'line' for a folder"),
        (lambda: FocalTemperatureScaling("ece"), r"expected bins of equal width for a folder, got EqualMass"),
    ],
)
def test_what_no_sum_can_fit_is_refused(make: Callable[[], Calibrator], text: str, tmp_path: Path) -> None:
    write(tmp_path / "val", 3, parts=1)
    with pytest.raises(InputError, match=text):
        fit_streamed(make(), tmp_path / "val")


def test_bad_rows_and_missing_labels_have_their_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    calibrant.save_predictions(path, {"all": Predictions.from_logits(np.eye(3) * 2)})
    with pytest.raises(InputError, match="a column label to fit on"):
        fit_streamed(EnsembleTemperatureScaling(), path)
    logits = torch.tensor([[1.0, 0.0, 2.0], [-math.inf, 0.0, 1.0]])
    calibrant.save_predictions(path, {"all": Predictions.from_logits(logits, [0, 0])})
    for make in (TemperatureScaling, EnsembleTemperatureScaling, FocalTemperatureScaling):
        with pytest.raises(CalibrantError, match="expected a finite logit for every label, got −inf in row 1"):
            fit_streamed(make(), path)


@pytest.mark.slow
def test_processes_fit_the_same_bits(tmp_path: Path) -> None:
    write(tmp_path / "val", 4)
    crew = processes(2)
    for make in (EnsembleTemperatureScaling, lambda: TemperatureScaling(grid="mukhoti")):
        alone, together = (fit_streamed(make(), tmp_path / "val", executor=by) for by in (map, crew))
        assert learned(alone) == learned(together)
    crew.close()
