"""ONNX models of calibrators, answered by onnxruntime."""

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import late
from tests.draws import drawn
from torch import Tensor

from calibrant import MultiLabel, Predictions, calibrators
from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.errors import CalibrantWarning, InputError, NotFittedError

onnxruntime, adapter = late("onnxruntime"), late("calibrant.adapters.onnx")

ONE_CLASS = [name for name in calibrators.__all__ if issubclass(getattr(calibrators, name), calibrators.Calibrator)]


@pytest.fixture(autouse=True)
def needs_onnx() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason=f"optional package '{package}' is not installed")
    torch.compiler.reset()  # PyTorch 2.7 traces one function for eight modules of a process, and refuses the ninth


def sample(rows: int = 1000, classes: int = 4, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits in tenths, so that new rows lie on the knots of maps, and their labels."""
    logits, labels = drawn(rows, classes, seed=seed, dtype=torch.float32)
    return (10 * logits).round() / 10, labels


def grid(ends: float, dtype: torch.dtype) -> Tensor:
    """Return rows whose first logit runs through a grid of 10⁴ numbers of a dtype."""
    return torch.nn.functional.pad(torch.linspace(-ends, ends, 10_000).to(dtype).float()[:, None], (0, 3))


# Rows of the fit, on the knots and between them; saturated ones; ties; excluded classes; the smallest and largest numbers.
ROWS = torch.cat([
    *(one * sample()[0] for one in (1, 5, 1e4)), sample()[0] + 0.05, sample(100, seed=1)[0], grid(20, torch.float16),
    grid(7, torch.float32), torch.zeros(1, 4), torch.tensor([[1.0, -torch.inf, 0.5, 0.2], [0.1, 0.2, -torch.inf, 3.0]]),
    torch.tensor([[1e-40, 0, 0, 0], [0, -1e-45, 1e-38, 0], [3e38, -3e38, 0, 1], [-3e38, -1e38, -2e38, -3e38]]),
])  # fmt: skip


def opened(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def answer(path: Path, inputs: Tensor) -> Tensor:
    return torch.from_numpy(opened(path).run(["logits"], {"input": inputs.numpy()})[0])


def fitted(name: str) -> Calibrator:
    made = {
        "Chain": lambda: calibrators.Chain(calibrators.Identity(), TemperatureScaling()),
        "ConfidenceBinning": lambda: calibrators.ConfidenceBinning(TemperatureScaling()),
        "KeepDecision": lambda: calibrators.KeepDecision(calibrators.VectorScaling()),
        "FocalCalibration": lambda: calibrators.FocalCalibration(2.0),
    }.get(name, getattr(calibrators, name))()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return made.fit(*sample())


def difference(path: Path, calibrator: Any, inputs: Tensor) -> float:
    """Return the largest difference of a probability between the ONNX model and PyTorch."""
    with torch.no_grad():
        expected = calibrator(inputs).double().softmax(dim=1)
    return float((answer(path, inputs).double().softmax(dim=1) - expected).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_CLASS)
def test_every_calibrator_answers_the_same_in_onnxruntime(name: str, tmp_path: Path) -> None:
    calibrator = fitted(name)
    adapter.export(calibrator, tmp_path / "c.onnx")
    assert answer(tmp_path / "c.onnx", ROWS).dtype == torch.float32
    assert difference(tmp_path / "c.onnx", calibrator, ROWS) < 1e-6
    assert difference(tmp_path / "c.onnx", calibrator, ROWS[:1]) < 1e-6


@pytest.mark.slow
def test_a_calibrated_model_is_one_file(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Identity())
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))
        model[0].bias.zero_()
    whole = torch.nn.Sequential(model, fitted("IsotonicCalibration"))
    model.eval()
    adapter.export(whole, tmp_path / "model.onnx", example=ROWS[:1])
    assert whole.training
    assert not model.training  # each part is as it was
    finite = ROWS[ROWS.isfinite().all(dim=1)]  # 0 · ∞ is NaN in the linear layer
    assert difference(tmp_path / "model.onnx", whole.eval(), finite) < 1e-6


SERVICE = """
import sys
sys.modules["torch"] = None  # an import of it raises
import json, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = session.get_modelmeta().custom_metadata_map
found = session.run(None, {session.get_inputs()[0].name: numpy.array(json.loads(sys.argv[2]), numpy.float32)})
assert not [name for name in sys.modules if name.split(".")[0] == "calibrant"]
print(json.dumps([json.loads(facts["class_names"]), [one.tolist() for one in found]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_a_service_answers_the_same_without_torch(kind: str, tmp_path: Path) -> None:
    names, new = ["ant", "bee", "cow", "dog"], sample(20, seed=1)[0]
    calibrator, given_names = fitted("TemperatureScaling"), names
    if kind == "probs":  # one that knows the names
        known = Predictions.from_logits(*sample(400, seed=3), class_names=names)
        calibrator, given_names = TemperatureScaling().fit(known), None
    adapter.export_served(calibrator, tmp_path / "c.onnx", kind=kind, class_names=given_names)
    given = new if kind == "logits" else new.softmax(dim=1)
    command = [sys.executable, "-c", SERVICE, str(tmp_path / "c.onnx"), json.dumps(given.tolist())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    served, (probs,) = json.loads(done.stdout)
    assert served == names
    assert abs(torch.tensor(probs) - torch.tensor(calibrator.predict_proba(new))).max() < 1e-6


@pytest.mark.slow
def test_several_labels_a_row_are_served_each_with_its_probability(tmp_path: Path) -> None:
    logits, _ = sample(300, 3)
    labels = torch.bernoulli(torch.sigmoid(logits / 2), generator=torch.Generator().manual_seed(1)).long()
    several = calibrators.MultiLabelCalibrator(calibrators.PlattScaling())
    several.fit(MultiLabel.from_logits(logits, labels, names=["ant", "bee", "cow"]))
    adapter.export_served(several, tmp_path / "c.onnx", kind="probs")
    session = opened(tmp_path / "c.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map["class_names"]) == ["ant", "bee", "cow"]
    new, name = sample(20, 3, seed=1)[0], session.get_inputs()[0].name
    for rows in (new, new[:0]):
        [probs] = session.run(["probs"], {name: torch.sigmoid(rows).numpy()})
        torch.testing.assert_close(torch.from_numpy(probs), torch.sigmoid(several(rows)), rtol=0, atol=1e-6)


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    logits, labels = sample(200)
    rows = Predictions.from_logits(logits, labels, features={"site": np.arange(200) % 2})
    with pytest.raises(InputError, match="GroupScaling needs feature columns"):
        adapter.export_served(calibrators.GroupScaling(["site"], strength=1.0).fit(rows), tmp_path / "c.onnx")
    with pytest.raises(NotFittedError):
        adapter.export(TemperatureScaling(), tmp_path / "c.onnx")
    assert list(tmp_path.iterdir()) == []
