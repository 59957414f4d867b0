"""Every calibrator gives the same answer wherever its rows are."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.draws import drawn
from tests.scale.conftest import in_parts
from torch import Tensor

import calibrant
from calibrant import Predictions, calibrators, scale
from calibrant.binning import EqualMass
from calibrant.calibrators import (
    AutoCalibrator,
    Calibrator,
    Chain,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    FocalTemperatureScaling,
    HistogramBinning,
    KernelScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
    auto,
    one_vs_rest,
)
from calibrant.errors import CalibrantError, CalibrantWarning, InputError, LeakError
from calibrant.rows import Batch, RowSource

MAKE: dict[str, Callable[[], Calibrator]] = {
    **{name: getattr(calibrators, name) for name in calibrators.__all__ if name != "MultiLabelCalibrator"},
    "Chain": lambda: Chain(TemperatureScaling(), VectorScaling()),
    "ConfidenceBinning": lambda: calibrators.ConfidenceBinning(TemperatureScaling()),
    "KeepDecision": lambda: calibrators.KeepDecision(VectorScaling()),
    "FocalCalibration": lambda: calibrators.FocalCalibration(1.5),
    "AutoCalibrator": lambda: AutoCalibrator(
        folds=3, candidates=[EnsembleTemperatureScaling(prior=0.5), Chain(TemperatureScaling(), VectorScaling())]
    ),
    "FocalTemperatureScaling": lambda: FocalTemperatureScaling(gammas=[-0.5, 0.0, 2.0]),
    "temperature by log-loss on a grid": lambda: TemperatureScaling("nll", grid=[0.5, 1.0, 1.5, 2.0, 3.0]),
    "temperature by ECE": lambda: TemperatureScaling(grid="mukhoti"),
    "temperature by ECE of equal mass": lambda: TemperatureScaling(grid="komisarenko"),
    "temperature, ECE never 0": lambda: TemperatureScaling("ece", grid="wang-code"),
    "focal temperature by ECE": lambda: FocalTemperatureScaling("ece", gammas=[0.0, 1.0], grid="mukhoti"),
    "focal temperature, line": lambda: FocalTemperatureScaling(
        gammas=[0.0, 2.0], grid=[0.5, 1.0, 1.5, 2.0, 3.0], search="line", criterion="nll"
    ),
    "focal temperature, continuous": lambda: FocalTemperatureScaling(gammas=[-0.5, 2.0]),
    "focal temperature, prior": lambda: FocalTemperatureScaling(gammas=[-0.9, 5.0], prior=0.5),
    "histogram of equal mass": lambda: HistogramBinning(EqualMass(7)),
}
# L-BFGS is certified by its gradient, so that only objective and probabilities are the same
BY_LBFGS = (
    DirichletCalibration,
    KernelScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)


def write(
    home: Path, classes: int, *, parts: int = 3, each: int = 700, sharp: float = 1.8, noise: float = 0.05, seed: int = 0
) -> Predictions:
    """Write a folder of over-confident predictions, a few of them sure and wrong; return all rows."""
    found = []
    for part in range(parts):
        generator = torch.Generator().manual_seed(seed + part)
        logits = 3 * torch.randn(each, classes, generator=generator)
        labels = torch.softmax(logits / sharp, 1).multinomial(1, generator=generator)[:, 0]
        noisy = torch.rand(each, generator=generator) < noise
        labels[noisy] = torch.randint(0, classes, (int(noisy.sum()),), generator=generator)
        found.append(Predictions.from_logits(logits, labels))
    in_parts(whole := Predictions.cat(found), home, parts=parts)
    return whole


def learned(calibrator: Calibrator) -> dict[str, Tensor]:
    # a certificate is as small as can be told, not a number to compare
    return {
        name: value
        for name, value in calibrator.state_dict().items()
        if not name.endswith("certificate") and not name.endswith("fit_rows")
    }


def agree(one: Calibrator, other: Calibrator, logits: Tensor, *, by_lbfgs: bool | None = None) -> None:
    """Hold two fits to the same probabilities, and to the same parameters unless L-BFGS found them; None asks the class."""
    mine, theirs = learned(one), learned(other)
    assert mine.keys() == theirs.keys()
    logits = logits.double()  # in float32 the rounding of large log-probabilities would be compared
    torch.testing.assert_close(one(logits).softmax(1), other(logits).softmax(1), rtol=0, atol=1e-6)
    assert torch.equal(one.fit_rows, other.fit_rows)
    if by_lbfgs is None:
        by_lbfgs = any(isinstance(part, BY_LBFGS) for part in one.modules())
    if not by_lbfgs:
        for name, values in mine.items():
            torch.testing.assert_close(values, theirs[name], rtol=1e-9, atol=1e-9, msg=name)


def quietly(fit: Callable[[], Calibrator]) -> Calibrator:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return fit()


def random_set(home: Path, seed: int) -> Predictions:
    """Write a folder of random size, classes, sharpness and share of noise; return all rows."""
    draw = np.random.default_rng(seed)
    classes, parts = int(draw.integers(2, 7)), int(draw.integers(1, 4))
    each, sharp = int(draw.integers(40, 200)), float(draw.uniform(0.7, 3))
    return write(
        home, classes, parts=parts, each=each, sharp=sharp, noise=float(draw.uniform(0, 0.2)), seed=1000 * seed
    )


@pytest.mark.parametrize("name", MAKE)
def test_the_answer_is_that_of_memory(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "BATCH_ROWS", 60)  # several batches a row group
    data = write(tmp_path / "val", 5, each=150)
    streamed = quietly(lambda: MAKE[name]().fit(scale.batches(tmp_path / "val")))
    agree(streamed, quietly(lambda: MAKE[name]().fit(data)), data.logits)
    with pytest.raises(LeakError):
        data.calibrated_by(streamed)


def test_an_automatic_choice_on_a_sample_is_that_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_SAMPLE", 250)
    compared: list[int] = []
    original = auto.cross_fitted

    def noted(members: Any, rows: RowSource, folds: int) -> Any:
        compared.append(rows.count)
        return original(members, rows, folds)

    monkeypatch.setattr(auto, "cross_fitted", noted)
    data = write(tmp_path / "val", 4)  # 2100 rows
    make = lambda: AutoCalibrator(candidates=[TemperatureScaling(), VectorScaling(ridge=2.0)])  # noqa: E731
    streamed = quietly(lambda: make().fit(scale.batches(tmp_path / "val")))
    assert len(compared) == 1
    assert 200 < compared[0] < 320
    memory = make().fit(data)
    agree(streamed, memory, data.logits)
    torch.testing.assert_close(streamed.weights, memory.weights, rtol=0, atol=1e-6)
    used = [member for member, weight in zip(memory.members, memory.weights.tolist(), strict=True) if weight > 0]
    alone = make().candidates[list(memory.members).index(used[-1]) - 1].fit(data)
    torch.testing.assert_close(used[-1](data.logits), alone(data.logits), rtol=0, atol=1e-4)  # fitted on all rows


def test_what_needs_all_rows_at_once_says_how_many_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "val", 4, parts=1)
    monkeypatch.setattr(one_vs_rest, "_MAX_SCORES", 400)
    with pytest.raises(
        InputError, match=r"expected at most 100 rows of 4 classes for VennAbers.*got 700; fit it on a random sample"
    ):
        VennAbers().fit(scale.batches(tmp_path / "val"))
    assert VennAbers().fit(data).fitted  # rows in memory are there already


class Tilt(Calibrator):
    """A method of somebody else's, written after the guide: one bias for each class, by Newton's method on sums."""

    bias: Tensor

    def __init__(self, *, ridge: float = 1.0) -> None:
        super().__init__()
        self.ridge = ridge

    def _fit(self, rows: RowSource) -> None:
        bias = torch.zeros(rows.classes, dtype=torch.float64)
        for _ in range(20):
            gradient, hessian = rows.total(tilt_sums, bias)
            strength = torch.eye(rows.classes, dtype=torch.float64) * self.ridge
            bias = bias - torch.linalg.solve(hessian + strength, gradient + self.ridge * bias)
        self.bias = bias

    def _transform(self, logits: Tensor) -> Tensor:
        return logits + self.bias.to(logits.dtype)


def tilt_sums(chunk: Batch, bias: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(chunk.logits.double() + bias, dim=1) * chunk.row_weights[:, None]
    hits = torch.nn.functional.one_hot(chunk.labels, len(bias)) * chunk.row_weights[:, None]
    q = p / chunk.row_weights[:, None]
    return (p - hits).sum(dim=0), torch.diag(p.sum(dim=0)) - q.T @ p


def test_a_calibrator_in_one_file_streams_without_another_line(tmp_path: Path) -> None:
    data = write(tmp_path / "val", 4)
    streamed, memory = Tilt().fit(scale.batches(tmp_path / "val")), Tilt().fit(data)
    agree(streamed, memory, data.logits)
    streamed.save(tmp_path / "tilt.safetensors")
    loaded = calibrators.load(tmp_path / "tilt.safetensors", classes=[Tilt])
    assert torch.equal(loaded(data.logits), streamed(data.logits))
    assert repr(loaded) == "Tilt(ridge=1.0)"


def test_weights_of_any_size_weigh_as_much_against_a_prior_as_in_memory(tmp_path: Path) -> None:
    logits, labels = drawn(240)
    weights = 0.5 + 7 * torch.rand(240, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Predictions.from_logits(logits, labels, weights=weights)
    calibrant.save_predictions(tmp_path / "rows.parquet", {"all": data})
    for make in (lambda: TemperatureScaling(prior=0.5), lambda: MatrixScaling(ridge=20.0)):
        streamed = make().fit(scale.batches(tmp_path / "rows.parquet"))
        torch.testing.assert_close(streamed(logits), make().fit(data)(logits), rtol=1e-9, atol=1e-9)


def test_bad_rows_and_missing_labels_have_their_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    calibrant.save_predictions(path, {"all": Predictions.from_logits(np.eye(3) * 2)})
    with pytest.raises(InputError, match="a column label to fit on"):
        EnsembleTemperatureScaling().fit(scale.batches(path))
    logits = torch.tensor([[1.0, 0.0, 2.0], [-math.inf, 0.0, 1.0]])
    calibrant.save_predictions(path, {"all": Predictions.from_logits(logits, [0, 0])})
    for make in (TemperatureScaling, EnsembleTemperatureScaling, FocalTemperatureScaling):
        with pytest.raises(
            CalibrantError, match="row group 0: expected a finite logit for every label, got −inf for a label"
        ):
            make().fit(scale.batches(path))
