"""Every calibrator gives the same answer wherever its rows are, whoever does the work, and goes on where it was stopped."""

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.draws import drawn
from tests.scale.conftest import in_parts
from torch import Tensor

import calibrant
from calibrant import Predictions, calibrators
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
)
from calibrant.calibrators.auto import auto
from calibrant.errors import CalibrantError, CalibrantWarning, FileFormatError, InputError, LeakError
from calibrant.rows import Chunk, RowSource
from calibrant.scale import apply_streamed, fit_streamed, rows

MAKE: dict[str, Callable[[], Calibrator]] = {
    **{name: getattr(calibrators, name) for name in calibrators.__all__ if name != "MultiLabelCalibrator"},
    "Chain": lambda: Chain(TemperatureScaling(), VectorScaling()),
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
    "focal temperature, continuous": lambda: FocalTemperatureScaling(gammas=[-0.5, 2.0], search="continuous"),
    "focal temperature, prior": lambda: FocalTemperatureScaling(gammas=[-0.9, 5.0], search="continuous", prior=0.5),
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
    monkeypatch.setattr(rows, "PIECE_BYTES", 60 * 5 * 4)  # several pieces a shard
    data = write(tmp_path / "val", 5, each=150)
    passes: list[int] = []
    streamed = quietly(
        lambda: fit_streamed(MAKE[name](), tmp_path / "val", progress=lambda begun, done, total: passes.append(begun))
    )
    agree(streamed, quietly(lambda: MAKE[name]().fit(data)), data.logits)
    with pytest.raises(LeakError):
        data.calibrated_by(streamed)
    if "focal temperature by ECE" in name or name == "temperature by ECE":
        assert max(passes) <= 12


def with_features(home: Path, seed: int) -> Predictions:
    """Write a folder of rows with a number and a name beside each, by which their temperature differs; return all rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(750, 4, generator=generator)
    age = torch.rand(750, generator=generator, dtype=torch.float64) * 60
    region = np.array(["EU", "US", "APAC"])[torch.randint(3, (750,), generator=generator).numpy()]
    sharp = (1 + age / 30 + torch.from_numpy((region == "EU").astype(float)))[:, None]
    labels = torch.softmax(logits / sharp, 1).multinomial(1, generator=generator)[:, 0]
    data = Predictions.from_logits(logits, labels, features={"age": age, "region": region})
    in_parts(data, home)
    return data


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: calibrators.GroupScaling(["region"]),
        lambda: calibrators.FeatureScaling(["age"]),
    ],
    ids=["groups", "numbers"],
)
def test_fits_by_features_agree(make: Callable[[], Calibrator], seed: int, tmp_path: Path) -> None:
    data = with_features(tmp_path / "val", seed)
    streamed, memory = quietly(lambda: fit_streamed(make(), tmp_path / "val")), quietly(lambda: make().fit(data))
    mine, theirs = learned(memory), learned(streamed)
    for name, values in mine.items():
        torch.testing.assert_close(theirs[name], values, rtol=1e-9, atol=1e-9, msg=name)
    raw = data.calibrated_by(memory, allow_fit_rows=True).logits
    torch.testing.assert_close(data.calibrated_by(streamed, allow_fit_rows=True).logits, raw, rtol=0, atol=1e-6)
    apply_streamed(streamed, tmp_path / "val", tmp_path / "out")
    written = [
        torch.from_numpy(np.stack(pq.read_table(file)["logits"].to_numpy()))
        for file in sorted((tmp_path / "out").iterdir())
    ]
    torch.testing.assert_close(torch.cat(written).double(), raw.double(), rtol=0, atol=1e-5)


def test_several_labels_are_refused_with_what_to_do(tmp_path: Path) -> None:
    several = calibrators.MultiLabelCalibrator(calibrators.PlattScaling())
    with pytest.raises(
        InputError, match=r"one class a row, got a value of type MultiLabelCalibrator; .*read the tables"
    ):
        fit_streamed(several, tmp_path)  # type: ignore[type-var]


def test_an_automatic_choice_on_a_sample_is_that_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "CONSTANTS", replace(auto.CONSTANTS, first=1000, fewest=200, selected=4000))
    compared: list[int] = []
    original = auto.cross_fitted

    def noted(members: Any, tried: Any, rows: RowSource, folds: int, **options: Any) -> Any:
        compared.append(rows.count)
        return original(members, tried, rows, folds, **options)

    monkeypatch.setattr(auto, "cross_fitted", noted)
    data = write(tmp_path / "val", 4)  # 2100 rows
    make = lambda: AutoCalibrator(candidates=[TemperatureScaling(), VectorScaling(ridge=2.0)])  # noqa: E731
    streamed = quietly(lambda: fit_streamed(make(), tmp_path / "val"))
    assert len(compared) == 2  # the first sample leaves the two undecided
    assert 200 < compared[0] < 300
    assert 900 < compared[1] < 1100
    memory = make().fit(data)
    agree(streamed, memory, data.logits)
    torch.testing.assert_close(streamed.weights, memory.weights, rtol=0, atol=1e-6)
    used = [member for member, weight in zip(memory.members, memory.weights.tolist(), strict=True) if weight > 0]
    alone = make().candidates[list(memory.members).index(used[-1]) - 1].fit(data)
    torch.testing.assert_close(used[-1](data.logits), alone(data.logits), rtol=0, atol=1e-4)  # fitted on all rows


def test_a_fit_that_is_stopped_again_and_again_ends_in_the_same_bits(tmp_path: Path) -> None:
    write(tmp_path / "val", 5)
    journal, rng = tmp_path / "j.json", np.random.default_rng(0)
    whole: list[int] = []
    expected = fit_streamed(
        EnsembleTemperatureScaling(), tmp_path / "val", progress=lambda begun, done, total: whole.append(done)
    )
    runs: list[list[tuple[int, int]]] = []  # (passes begun, rows done) of each run
    fitted = None
    while fitted is None:
        left = int(rng.integers(1, 9))

        def stop(begun: int, done: int, total: int, left: int = left) -> None:
            runs[-1].append((begun, done))
            if sum(map(len, runs)) % 10 == left:
                raise KeyboardInterrupt

        runs.append([])
        with suppress(KeyboardInterrupt):
            fitted = fit_streamed(EnsembleTemperatureScaling(), tmp_path / "val", checkpoint=journal, progress=stop)
        assert len(runs) < 100
    assert len(runs) > 4
    assert all(torch.equal(value, learned(expected)[name]) for name, value in learned(fitted).items())
    # no sum was made twice: each run goes on where the one before was stopped; before a pass, at the end of the last
    for (*_, (begun, done)), (first, *_) in pairwise(runs):
        assert first == ((begun, done) if done or begun == 1 else (begun - 1, 2100))
    assert sum(map(len, runs)) < len(whole) + 3 * len(runs)
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
        fit_streamed(EnsembleTemperatureScaling(), tmp_path / "val", checkpoint=journal)
    for text in ("{", "[]", "3", '{"identity": 1, "results": 2, "open": 3}'):
        journal.write_text(text)
        with pytest.raises(FileFormatError, match="expected a checkpoint"):
            fit_streamed(TemperatureScaling(), tmp_path / "val", checkpoint=journal)


def test_what_needs_all_rows_at_once_says_how_many_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write(tmp_path / "val", 4, parts=1)
    monkeypatch.setattr(calibrators.one_vs_rest.venn_abers, "_MOST_SCORES", 400)
    with pytest.raises(
        InputError, match=r"expected at most 100 rows of 4 classes for VennAbers.*got 700; fit it on a random sample"
    ):
        fit_streamed(VennAbers(), tmp_path / "val")
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


def tilt_sums(chunk: Chunk, bias: Tensor) -> tuple[Tensor, Tensor]:
    p = torch.softmax(chunk.logits.double() + bias, dim=1) * chunk.weights[:, None]
    hits = torch.nn.functional.one_hot(chunk.labels, len(bias)) * chunk.weights[:, None]
    q = p / chunk.weights[:, None]
    return (p - hits).sum(dim=0), torch.diag(p.sum(dim=0)) - q.T @ p


def test_a_calibrator_in_one_file_streams_without_another_line(tmp_path: Path) -> None:
    data = write(tmp_path / "val", 4)
    streamed, memory = fit_streamed(Tilt(), tmp_path / "val"), Tilt().fit(data)
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
        streamed = fit_streamed(make(), tmp_path / "rows.parquet")
        torch.testing.assert_close(streamed(logits), make().fit(data)(logits), rtol=1e-9, atol=1e-9)


def test_bad_rows_and_missing_labels_have_their_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    calibrant.save_predictions(path, {"all": Predictions.from_logits(np.eye(3) * 2)})
    with pytest.raises(InputError, match="a column label to fit on"):
        fit_streamed(EnsembleTemperatureScaling(), path)
    logits = torch.tensor([[1.0, 0.0, 2.0], [-math.inf, 0.0, 1.0]])
    calibrant.save_predictions(path, {"all": Predictions.from_logits(logits, [0, 0])})
    for make in (TemperatureScaling, EnsembleTemperatureScaling, FocalTemperatureScaling):
        with pytest.raises(
            CalibrantError, match="row group 0: expected a finite logit for every label, got −inf in row 1"
        ):
            fit_streamed(make(), path)


@pytest.mark.parametrize("name", ["CentredIsotonic", "SplineCalibration", "HistogramBinning"])
def test_a_pass_whose_result_is_a_record_does_not_disturb_the_journal(name: str, tmp_path: Path) -> None:
    z, y = drawn(300, 3, dtype=torch.float32)
    calibrant.save_predictions(tmp_path / "rows.parquet", {"all": Predictions.from_logits(z, y)})
    make, journal = getattr(calibrators, name), tmp_path / "journal.json"
    kept = fit_streamed(make(), tmp_path / "rows.parquet", checkpoint=journal)
    plain = fit_streamed(make(), tmp_path / "rows.parquet")
    assert torch.equal(kept(z), plain(z))
    assert not journal.exists()
