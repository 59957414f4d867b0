"""What tests of streamed rows share: files in parts, every calibrator, equality of two fits, one Ray cluster."""

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.makers import CALIBRATORS, Shrinking
from torch import Tensor

from calibrant import Predictions, calibrators, save_predictions
from calibrant.binning import EqualMass
from calibrant.calibrators import Calibrator, HistogramBinning, TemperatureScaling
from calibrant.errors import CalibrantWarning

MAKE: dict[str, Callable[[], Calibrator]] = {
    **{
        name: make for name, make in CALIBRATORS.items() if name not in ("GroupScaling", "FeatureScaling")
    },  # of columns
    "temperature by ECE": lambda: TemperatureScaling(grid="mukhoti"),
    "histogram of equal mass": lambda: HistogramBinning(EqualMass(7)),
    "one of somebody else": Shrinking,
}
# certified by the gradient where a search ends, so that only objective and probabilities are the same
SEARCHED = (
    calibrators.DirichletCalibration,
    calibrators.FocalTemperatureScaling,
    calibrators.KernelScaling,
    calibrators.MatrixScaling,
    calibrators.StructuredMatrixScaling,
    calibrators.StructuredVectorScaling,
    calibrators.VectorScaling,
)


def in_parts(data: Predictions, home: Path, *, parts: int = 3) -> Path:
    """Return the folder ``home``, made if it is not there, with the rows in files of equal size."""
    home.mkdir(exist_ok=True)
    step = -(-len(data) // parts)
    for part in range(parts):
        save_predictions(home / f"{part}.parquet", {"all": data[part * step : (part + 1) * step]})
    return home


def overconfident(rows: int, classes: int, *, seed: int = 0) -> Predictions:
    """Return over-confident predictions, a few of them sure and wrong."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=generator)
    labels = torch.softmax(logits / 1.8, 1).multinomial(1, generator=generator)[:, 0]
    noisy = torch.rand(rows, generator=generator) < 0.05
    labels[noisy] = torch.randint(0, classes, (int(noisy.sum()),), generator=generator)
    return Predictions.from_logits(logits, labels)


def learned(calibrator: Calibrator) -> dict[str, Tensor]:
    """Return what was learned, without the certificate, which is as small as can be told, not a number to compare."""
    state = calibrator.state_dict().items()
    return {name: value for name, value in state if not name.endswith(("certificate", "fit_rows"))}


def assert_same_fit(one: Calibrator, other: Calibrator, logits: Tensor) -> None:
    """Hold two fits to the same probabilities, and to the same parameters unless a search found them."""
    mine, theirs = learned(one), learned(other)
    assert mine.keys() == theirs.keys()
    logits = logits.double()  # in float32 the rounding of large log-probabilities would be compared
    torch.testing.assert_close(one(logits).softmax(1), other(logits).softmax(1), rtol=0, atol=1e-6)
    assert torch.equal(one.fit_rows, other.fit_rows)
    if not any(isinstance(part, SEARCHED) for part in one.modules()):
        for name, values in mine.items():
            torch.testing.assert_close(values, theirs[name], rtol=1e-9, atol=1e-9, msg=name)


def quietly(fit: Callable[[], Calibrator]) -> Calibrator:
    """Return the result of ``fit`` without warnings of bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        return fit()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Ray with two workers in this machine, which import what this process can."""
    module = pytest.importorskip("ray", reason="optional package 'ray' is not installed")
    root = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (root / "src", root, Path(__file__).parent)))
    module.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False, _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )  # fmt: skip
    yield module
    module.shutdown()
