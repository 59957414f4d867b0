"""The range of each option, as the mathematics asks for: the ends that belong to it work, the nearest values beyond are refused."""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.draws import drawn

from calibrant import Predictions, binning, calibrators, evaluate, losses, metrics, operate, scores, statistics, theory
from calibrant.errors import InputError

DATA = Predictions.from_logits(*drawn(300, 3))
ROWS = torch.tensor([[0.5, 0.3, 0.2]]).log()
NAN = math.nan

# What is called with the option, values that are refused, and values at the end of the range.
RANGES: dict[str, tuple[Callable[[Any], Any], list[Any], list[Any]]] = {
    "AutoCalibrator folds ≥ 2": (lambda x: calibrators.AutoCalibrator(folds=x), [1, 2.5], [2]),
    "BiasScaling prior_rows > 0": (lambda x: calibrators.BiasScaling(prior_rows=x), [0.0, math.inf], [1e-9]),
    "FeatureScaling ridge > 0": (lambda x: calibrators.FeatureScaling(ridge=x), [0.0, NAN], [1e-9]),
    "FocalCalibration γ > −1": (calibrators.FocalCalibration, [-1.0, "abc", True], [-0.999, 0.0]),
    "FocalTemperatureScaling γ > −1": (lambda x: calibrators.FocalTemperatureScaling(gammas=[x]), [-1.0], [-0.999]),
    "GroupScaling strength > 0": (lambda x: calibrators.GroupScaling(strength=x), [0.0], [1e-9]),
    "HistogramBinning floor in [0, ½]": (lambda x: calibrators.HistogramBinning(floor=x), [-1e-9, 0.51], [0.0, 0.5]),
    "IsotonicCalibration floor in [0, 1)": (lambda x: calibrators.IsotonicCalibration(floor=x), [-1e-9, 1.0], [0.0]),
    "KernelScaling waves ≥ 1": (lambda x: calibrators.KernelScaling(waves=x), [0], [1]),
    "KernelScaling ridge > 0": (lambda x: calibrators.KernelScaling(ridge=x), [0.0], [1e-9]),
    "PriorShift priors in [0, 1]": (lambda x: calibrators.PriorShift([x, 1 - x]), [-0.1, 1.1], [0.0, 1.0]),
    "PriorShift rates in (0, 1]": (lambda x: calibrators.PriorShift(rates=[x, 1.0]), [0.0, 1.1], [1.0]),
    "SplineCalibration knots ≥ 3": (calibrators.SplineCalibration, [2], [3]),
    "StructuredMatrixScaling strength ≥ 0": (lambda x: calibrators.StructuredMatrixScaling(strength=x), [-1e-9], [0.0]),
    "TemperatureScaling prior > 0": (lambda x: calibrators.TemperatureScaling(prior=x), [0.0], [1e-9]),
    "VectorScaling ridge ≥ 0": (lambda x: calibrators.VectorScaling(ridge=x), [-1e-9], [0.0]),
    "bins ≥ 1": (binning.EqualWidth, [0, 1.5, NAN], [1]),
    "ECE bins ≥ 1": (metrics.ECE, [0, 1.5, True, "15"], [1]),
    "Entropy where": (metrics.Entropy, ["right"], ["all", "correct", "wrong"]),
    "FocalLoss γ ≥ 0": (losses.FocalLoss, [-1e-9, NAN, math.inf, None, "2"], [0.0]),
    "InverseFocalLoss γ ≥ 0": (losses.InverseFocalLoss, [-1e-9], [0.0]),
    "FocalCalibrationLoss λ ≥ 0": (lambda x: losses.FocalCalibrationLoss(2.0, x), [-1e-9], [0.0]),
    "DualFocalLoss γ ≥ 0": (losses.DualFocalLoss, [-1e-9], [0.0]),
    "BinaryFocalLoss α in [0, 1]": (lambda x: losses.BinaryFocalLoss(2.0, alpha=x), [-1e-9, 1.1], [0.0, 1.0]),
    "LpNormLoss p ≥ 1": (lambda x: losses.LpNormLoss(0.1, x), [0.99], [1.0]),
    "a penalty's λ ≥ 0": (losses.EntropyRegularizedLoss, [-1e-9], [0.0]),
    "AURCLoss τ in (0, 1)": (losses.AURCLoss, [0.0, 1.0], [1e-9]),
    "AURCLoss width > 0": (lambda x: losses.AURCLoss(width=x), [0.0], [1e-9]),
    "LabelSmoothingLoss α in (−1, 1)": (losses.LabelSmoothingLoss, [-1.0, 1.0], [0.0, 0.99]),
    "BinaryLabelSmoothingLoss α in [0, 1)": (losses.BinaryLabelSmoothingLoss, [-1e-9, 1.0], [0.0]),
    "ACLSLoss margin ≥ 0": (lambda x: losses.ACLSLoss(0.1, margin=x), [-1e-9], [0.0]),
    "MMCELoss kernel_width ≥ .01": (lambda x: losses.MMCELoss(kernel_width=x), [0.009], [0.01]),
    "SoftBinnedECELoss temperature > 0": (lambda x: losses.SoftBinnedECELoss(temperature=x), [0.0], [1e-9]),
    "AdaFocalLoss γ_min < 0": (lambda x: losses.AdaFocalLoss(gamma_min=x, switch=0.0), [0.0], [-1e-9]),
    "AdaFocalLoss γ_max > 0": (lambda x: losses.AdaFocalLoss(gamma_max=x, switch=0.0), [0.0], [1e-9]),
    "BSCELoss norm ≥ 1": (lambda x: losses.BSCELoss(norm=x), [0.99], [1.0]),
    "weights of classes ≥ 0": (lambda x: losses.FocalLoss(2.0, weight=torch.tensor([1.0, x])), [-1.0, NAN], [0.0]),
    "reduction": (lambda x: losses.FocalLoss(2.0, reduction=x), ["average"], ["mean", "sum", "none"]),
    "FocalScore γ > −1": (scores.FocalScore, [-1.0], [-0.999]),
    "InverseFocalScore γ ≥ 0": (scores.InverseFocalScore, [-1e-9], [0.0]),
    "focal_map γ > −1": (lambda x: theory.focal_map(ROWS, x), [-1.0], [-0.999]),
    "focal_map logits (…, K)": (lambda z: theory.focal_map(z, 1.0), [ROWS[0, 0], ROWS[:, :1]], [ROWS[0], ROWS]),
    "scaling_change t ≥ 1": (lambda x: theory.scaling_change(ROWS, x), [0.999], [1.0]),
    "entropy_bound γ ≥ 0": (lambda x: theory.entropy_bound(ROWS, torch.tensor([0]), x), [-1e-9], [0.0]),
    "focal_curvature γ ≥ 0": (lambda x: theory.focal_curvature(torch.tensor([0.5]), x), [-1e-9], [0.0]),
    "focal_curvature p in (0, 1)": (lambda x: theory.focal_curvature(torch.tensor([x]), 2.0), [0.0, 1.0], [1e-9]),
    "temperature_bounds γ ≥ 0": (theory.temperature_bounds, [-1e-9], [0.0]),
    "nearest_temperature classes 2 to 4": (lambda x: theory.nearest_temperature(x, 1.0), [1, 5], [2]),
    "gamma_from_threshold p₀ in (0, ½)": (theory.gamma_from_threshold, [0.0, 0.5], [0.499]),
    "tight bounds γ ≤ 5.6354": (lambda x: theory.temperature_bounds(x, tight=True), [5.64], [5.63]),
    "interval level in (0, 1)": (lambda x: statistics.interval(metrics.NLL(), DATA, level=x), [0.0, 1.0], [0.5]),
    "bootstrap draws ≥ 1": (lambda x: statistics.bootstrap(metrics.NLL(), DATA, draws=x), [0], [1]),
    "null_band draws ≥ 1": (lambda x: statistics.null_band(metrics.ECE(), DATA, draws=x), [0], [1]),
    "refinement folds ≥ 2": (lambda x: evaluate.refinement(DATA, folds=x), [1], [2]),
    "abstain error in (0, 1)": (lambda x: operate.abstain(DATA, error=x), [0.0, 1.0], [0.5]),
    "abstain coverage in (0, 1)": (lambda x: operate.abstain(DATA, coverage=x), [0.0, 1.0], [0.5]),
    "class_index in [0, K)": (DATA.one_vs_rest, [-1, 3], [0, 2]),
}


@pytest.mark.parametrize("option", RANGES)
def test_the_ends_of_a_range_work_and_values_beyond_are_refused(option: str) -> None:
    call, refused, accepted = RANGES[option]
    for value in refused:
        with pytest.raises(InputError) as caught:
            call(value)
        assert str(caught.value).startswith("expected ")
        assert "\n" not in str(caught.value)
    for value in accepted:
        call(value)


# What a name means by default, everywhere; and the functions that mean something else, with the reason in their docstrings.
DEFAULTS = {"level": 0.95, "seed": 0, "draws": 1000, "bins": 15, "folds": 5}
OTHERS = ("subgroups", "rows_needed", "paired_square_test", "_checked")


@pytest.mark.parametrize(
    "package", ["binning", "metrics", "statistics", "evaluate", "calibrators", "functional", "operate"]
)
def test_an_option_has_one_default_everywhere(package: str) -> None:
    root = importlib.import_module(f"calibrant.{package}")
    names = [f"{root.__name__}.{one.name}" for one in pkgutil.iter_modules(getattr(root, "__path__", []))]
    for module in [root, *map(importlib.import_module, names)]:
        own = [member for member in vars(module).values() if getattr(member, "__module__", "") == module.__name__]
        methods = [method for member in own if inspect.isclass(member) for method in vars(member).values()]
        for function in filter(inspect.isfunction, [*own, *methods]):
            for name, parameter in inspect.signature(function).parameters.items():
                if name in DEFAULTS and parameter.default is not parameter.empty and function.__name__ not in OTHERS:
                    assert parameter.default == DEFAULTS[name], f"{function.__qualname__}({name}={parameter.default})"
