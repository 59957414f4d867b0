"""Races of the calibrators: every library fits the same float32 logits.

If a fit minimises the log-loss, its error is its log-loss on the fitted rows minus ours; otherwise, it is its Brier score minus
ours.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.race import Race, Setup
from benchmarks.race.data import overconfident, two_classes
from benchmarks.race.peers import (
    optional,
    present,
    probmetrics_fit,
    probmetrics_probs,
    sklearn_temperature,
    torch_uncertainty_fit,
)
from calibrant import calibrators

EXCESS = "log-loss above ours"
BRIER = "Brier score above ours"
DISTANCE = "largest distance to the float64 probability"
TOO_SLOW = "about 65 times ours, 30 s a fit"


def log_loss_at(logits: Tensor, labels: Tensor) -> Callable[[float], float]:
    """Return the mean log-loss of softmax(z / T) as a function of T, in float64."""
    return lambda temperature: float(F.cross_entropy(logits.double() / temperature, labels))


def temperature(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    loss = log_loss_at(z, y)
    least = loss(calibrators.TemperatureScaling().fit(z, y).temperature)

    def probmetrics() -> float:
        from probmetrics.calibrators import TemperatureScalingCalibrator

        return float(1 / probmetrics_fit(TemperatureScalingCalibrator(), z, y).invtemp_)

    calls = {
        "calibrant": lambda: calibrators.TemperatureScaling().fit(z, y).temperature,
        "scikit-learn": lambda: float(1 / sklearn_temperature(z, y).calibrated_classifiers_[0].calibrators[0].beta_),
        "probmetrics": probmetrics,
        "torch-uncertainty": lambda: (
            1 / float(torch_uncertainty_fit("temperature_scaler", "TemperatureScaler", z, y).inv_temperature[0])
        ),
    }
    left_out = {}
    if classes > 100:
        del calls["torch-uncertainty"]
        left_out["torch-uncertainty"] = TOO_SLOW
    return Setup(present(calls), lambda found: loss(found) - least, left_out=left_out)


def log_loss_of(probabilities: Tensor, labels: Tensor) -> float:
    return float(-probabilities.double().gather(1, labels[:, None]).clamp_min(1e-300).log().mean())


def brier_of(probabilities: Tensor, labels: Tensor) -> float:
    return float((probabilities.double() - F.one_hot(labels, probabilities.shape[1])).square().sum(dim=1).mean())


def affine(
    ours: str,
    named: Callable[[Tensor, Tensor], dict[str, Callable[[], Tensor]]],
    rows: int,
    classes: int,
    **extra: Any,
) -> Setup:
    """Return the race of our calibrator ``ours`` with those ``named``, which return probabilities."""
    z, y = overconfident(rows, classes)
    calls = {"calibrant": lambda: getattr(calibrators, ours)().fit(z, y)(z).softmax(dim=1)} | named(z, y)
    least = log_loss_of(calls["calibrant"](), y)
    return Setup(present(calls), lambda p: log_loss_of(p.detach(), y) - least, **extra)


def of_probmetrics(name: str, z: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return the call of probmetrics' calibrator of this name, with its defaults."""

    def call() -> Tensor:
        from probmetrics.calibrators import get_calibrator

        made = get_calibrator(name, svs_print_init_info=False, sms_print_init_info=False)
        return probmetrics_probs(probmetrics_fit(made, z, y), z)

    return {"probmetrics": call}


def of_torch_uncertainty(module: str, name: str, z: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return the call of torch-uncertainty's scaler of this name."""
    classes = z.shape[1]
    return {
        "torch-uncertainty": lambda: torch_uncertainty_fit(module, name, z, y, num_classes=classes)(z).softmax(dim=1)
    }


def vector(z: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    def probmetrics() -> Tensor:
        from probmetrics.calibrators.logistic import VectorScalingCalibrator

        return probmetrics_probs(probmetrics_fit(VectorScalingCalibrator(), z, y), z)

    return of_torch_uncertainty("vector_scaler", "VectorScaler", z, y) | {"probmetrics": probmetrics}


def one_vs_rest(method: Callable[[], Any], module: str, name: str, rows: int, classes: int) -> Setup:
    """Return the race of ``method`` against torch-uncertainty's ``name`` and the corresponding class in netcal."""
    z, y = overconfident(rows, classes)

    def ours() -> Tensor:
        return method().fit(z, y)(z).softmax(dim=1)  # type: ignore[no-any-return]

    base = brier_of(ours(), y)

    def netcal() -> Tensor:
        p = torch.softmax(z, dim=1).numpy()
        binning = optional("netcal.binning")
        fitted = binning.IsotonicRegression() if module == "isotonic_regression" else binning.HistogramBinning(15)
        return torch.from_numpy(fitted.fit_transform(p, y.numpy()))

    def sklearn() -> Tensor:
        from sklearn.isotonic import IsotonicRegression

        p = torch.softmax(z, dim=1).numpy()
        maps = [IsotonicRegression(out_of_bounds="clip") for _ in range(classes)]
        columns = [one.fit_transform(p[:, k], (y == k).numpy()) for k, one in enumerate(maps)]
        found = torch.from_numpy(np.stack(columns, axis=1))
        return found / found.sum(dim=1, keepdim=True)

    calls: dict[str, Callable[[], Any]] = {"calibrant": ours}
    if module == "isotonic_regression":
        calls["scikit-learn, a class at a time"] = sklearn
    calls["netcal"] = netcal
    calls["torch-uncertainty"] = lambda: torch_uncertainty_fit(module, name, z, y)(z).softmax(dim=1)
    notes = {}
    if module == "histogram_binning":
        notes = {"calibrant": "of the decided class", "netcal": "of every class", "torch-uncertainty": "of every class"}
    return Setup(present(calls), lambda p: brier_of(p.detach(), y) - base, notes=notes)


def binary(method: str, theirs: str, rows: int, classes: int) -> Setup:
    """Return the race of a two-class method against that of probcal, fitted and applied."""
    p, y = two_classes(rows)
    logit = torch.logit(p)
    z = torch.stack([torch.zeros_like(logit), logit], dim=1)

    def ours() -> Tensor:
        return getattr(calibrators, method)().fit(z, y)(z).softmax(dim=1)[:, 1]  # type: ignore[no-any-return]

    def probcal() -> Tensor:
        found = getattr(optional("probcal"), theirs)().fit(p.numpy(), y.numpy()).predict_proba(p.numpy())
        return torch.from_numpy(found if found.ndim == 1 else found[:, 1])

    def loss(found: Tensor) -> float:
        return float(F.binary_cross_entropy(found.double(), y.double()))

    least = loss(ours())
    return Setup(present({"calibrant": ours, "probcal": probcal}), lambda found: loss(found) - least)


def apply(rows: int, classes: int) -> Setup:
    z, y = overconfident(rows, classes)
    some = slice(0, 5000)
    ours = calibrators.TemperatureScaling().fit(z[some], y[some])
    exact = (z[some].double() / ours.temperature).softmax(dim=1)
    calls: dict[str, Callable[[], Any]] = {"calibrant": lambda: ours(z).softmax(dim=1)}
    if optional("sklearn"):
        fitted = sklearn_temperature(z[some], y[some])
        calls["scikit-learn"] = lambda: torch.from_numpy(fitted.predict_proba(z.numpy()))
    if optional("probmetrics"):
        from probmetrics.calibrators import TemperatureScalingCalibrator

        theirs = probmetrics_fit(TemperatureScalingCalibrator(), z[some], y[some])
        calls["probmetrics"] = lambda: probmetrics_probs(theirs, z)
    calls["torch, z / T"] = lambda: (z / ours.temperature).softmax(dim=1)
    return Setup(present(calls), lambda p: float((p[some].double() - exact).abs().max()))


RACES = [
    Race("temperature", "Temperature scaling, fitted", 1_000_000, 10, EXCESS, temperature),
    Race("temperature", "Temperature scaling, fitted", 50_000, 100, EXCESS, temperature),
    Race("temperature", "Temperature scaling, fitted", 50_000, 1000, EXCESS, temperature),
    Race("apply", "Temperature scaling, applied, to probabilities", 100_000, 100, DISTANCE, apply),
    Race("vector", "Vector scaling, fitted and applied", 20_000, 10, EXCESS, partial(affine, "VectorScaling", vector)),
    Race(
        "structured-vector",
        "Structured vector scaling, fitted and applied",
        8_000,
        60,
        EXCESS,
        partial(affine, "StructuredVectorScaling", partial(of_probmetrics, "svs")),
    ),
    Race(
        "structured-matrix",
        "Structured matrix scaling, fitted and applied",
        5_000,
        10,
        EXCESS,
        partial(affine, "StructuredMatrixScaling", partial(of_probmetrics, "sms")),
    ),
    Race(
        "dirichlet",
        "Dirichlet calibration, fitted and applied",
        5_000,
        30,
        EXCESS,
        partial(
            affine,
            "DirichletCalibration",
            partial(of_torch_uncertainty, "dirichlet_scaler", "DirichletScaler"),
            notes={"torch-uncertainty": "without penalties"},
        ),
    ),
    *(
        Race(
            "auto",
            "AutoCalibrator, fitted and applied, beside probmetrics' default",
            5_000,
            classes,
            EXCESS,
            partial(affine, "AutoCalibrator", partial(of_probmetrics, "logistic")),
        )
        for classes in (10, 100)
    ),
    Race(
        "histogram",
        "Histogram binning, fitted and applied",
        100_000,
        10,
        BRIER,
        partial(one_vs_rest, calibrators.HistogramBinning, "histogram_binning", "HistogramBinningScaler"),
    ),
    Race(
        "isotonic",
        "Isotonic regression, fitted and applied",
        100_000,
        10,
        BRIER,
        partial(one_vs_rest, calibrators.IsotonicCalibration, "isotonic_regression", "IsotonicRegressionScaler"),
    ),
    Race(
        "platt",
        "Platt scaling, fitted and applied",
        100_000,
        2,
        EXCESS,
        partial(binary, "PlattScaling", "PlattCalibrator"),
    ),
    Race(
        "beta",
        "Beta calibration, fitted and applied",
        100_000,
        2,
        EXCESS,
        partial(binary, "BetaCalibration", "BetaCalibrator"),
    ),
]
