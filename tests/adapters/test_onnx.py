"""ONNX models of calibrators, answered by onnxruntime."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from calibrant import calibrators
from calibrant.calibrators import Calibrator, TemperatureScaling  # type: ignore[attr-defined]
from calibrant.errors import CalibrantWarning, InputError, NotFittedError

ONE_CLASS = [name for name in calibrators.__all__ if issubclass(getattr(calibrators, name), calibrators.Calibrator)]


@pytest.fixture(autouse=True)
def needs_onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"optional package '{package}' is not installed")


def sample(rows: int = 300, classes: int = 4, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=generator)
    return logits, torch.multinomial((logits / 2).softmax(dim=1), 1, generator=generator)[:, 0]


def answer(path: Path, inputs: Tensor) -> Tensor:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["logits"], {"input": inputs.numpy()})[0])


def fitted(name: str) -> Calibrator:
    made = {
        "Chain": lambda: calibrators.Chain(calibrators.Identity(), TemperatureScaling()),
        "FocalCalibration": lambda: calibrators.FocalCalibration(2.0),
    }.get(name, getattr(calibrators, name))()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return made.fit(*sample())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in ("TemperatureScaling", "FocalTemperatureScaling") else pytest.mark.slow)
        for n in ONE_CLASS
    ],
)
def test_every_calibrator_answers_the_same_in_onnxruntime(name: str, tmp_path: Path) -> None:
    from calibrant.adapters.onnx import export

    calibrator = fitted(name)
    export(calibrator, tmp_path / "c.onnx")
    logits = torch.cat([sample(20, seed=1)[0] * scale for scale in (0.01, 1, 5, 20)])
    expected = calibrator(logits).softmax(dim=1)
    got = answer(tmp_path / "c.onnx", logits)
    assert got.dtype == torch.float32
    assert float((got.softmax(dim=1) - expected).abs().max()) < 1e-6
    assert float((answer(tmp_path / "c.onnx", logits[:1]).softmax(dim=1) - expected[:1]).abs().max()) < 1e-6


@pytest.mark.parametrize("name", ONE_CLASS)
def test_every_calibrator_traces(name: str) -> None:
    calibrator = fitted(name)
    logits = sample(30, seed=1)[0]
    traced = torch.export.export(calibrator, (logits[:2],), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert float((traced.module()(logits).softmax(dim=1) - calibrator(logits).softmax(dim=1)).abs().max()) < 1e-6


def test_a_calibrated_model_is_one_file(tmp_path: Path) -> None:
    from calibrant.adapters.onnx import export

    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
    inputs = torch.randn(50, 6, generator=generator)
    whole = torch.nn.Sequential(model, fitted("TemperatureScaling"))
    export(whole, tmp_path / "model.onnx", example=inputs[:1])
    assert whole.training  # put back
    with torch.no_grad():
        expected = whole.eval()(inputs).softmax(dim=1)
    assert float((answer(tmp_path / "model.onnx", inputs).softmax(dim=1) - expected).abs().max()) < 1e-6


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    from calibrant.adapters.onnx import export

    with pytest.raises(NotFittedError):
        export(TemperatureScaling(), tmp_path / "c.onnx")
    with pytest.raises(InputError, match=r"ends in \.onnx"):
        export(fitted("Identity"), tmp_path / "c.pt")
    with pytest.raises(InputError, match="example"):
        export(torch.nn.Linear(2, 2), tmp_path / "c.onnx")
    assert list(tmp_path.iterdir()) == []
