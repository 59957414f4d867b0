"""Every calibrator on every set of real logits, and the temperature fit against other libraries.

    python -m benchmarks.calibrators --sets             # test log-loss and ECE of every method, paired intervals, summary
    python -m benchmarks.calibrators --sets --only cifar10-resnet110
    python -m benchmarks.calibrators --speed            # scikit-learn and probmetrics beside, interleaved rounds

Methods are fitted on the validation split and judged on the test split of each set. ``benchmarks.beside_probmetrics`` runs the
calibrators of probmetrics on the same sets.
"""

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from calibrant import Predictions, calibrators
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import Calibrator
from calibrant.errors import CalibrantError, CalibrantWarning
from calibrant.evaluate import compare
from calibrant.metrics import ECE, NLL

METRICS = (NLL(), ECE(EqualWidth(15)), ECE(EqualMass(15)))

# Beyond each method with its defaults: what the papers' claims compare.
VARIANTS: dict[str, Callable[[], Calibrator]] = {
    "TemperatureScaling, ECE": lambda: calibrators.TemperatureScaling("ece", grid="komisarenko"),
    "FocalTemperatureScaling, ECE": lambda: calibrators.FocalTemperatureScaling("ece"),
    "FocalTemperatureScaling, published nine": lambda: calibrators.FocalTemperatureScaling(
        gammas=calibrators.FocalTemperatureScaling.published
    ),
    "FocalTemperatureScaling, line": lambda: calibrators.FocalTemperatureScaling(search="line"),
    "FocalTemperatureScaling, ECE, line": lambda: calibrators.FocalTemperatureScaling("ece", search="line"),
    "FocalTemperatureScaling, continuous": lambda: calibrators.FocalTemperatureScaling(search="continuous"),
    "HistogramBinning, equal mass": lambda: calibrators.HistogramBinning(EqualMass(15)),
}
# no default, nothing to fit, several labels a row (benchmarks.label_coverage), or features, which these sets have not
# (benchmarks.multicalibration)
SKIPPED = (
    "Chain",
    "FocalCalibration",
    "Identity",
    "MultiLabelCalibrator",
    "GroupScaling",
    "BoostedScaling",
    "FeatureScaling",
)


@dataclass(frozen=True)
class Result:
    """One method on one set: values, differences to no calibration with their intervals, seconds, accuracy change."""

    values: tuple[float, ...]
    differences: tuple[str, ...]
    seconds: float
    accuracy: float


def folder() -> Path:
    """Return the folder of logit sets: ``$CALIBRANT_DATA/logits``, else ``../shared/data/logits``."""
    root = os.environ.get("CALIBRANT_DATA")
    return (Path(root) if root else Path(__file__).parent.parent.parent / "shared" / "data") / "logits"


def load_set(name: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return {"val": (logits, labels), "test": …} of one set."""
    with np.load(folder() / f"{name}.npz") as file:
        return {
            split: (torch.from_numpy(file[f"{split}_logits"]), torch.from_numpy(file[f"{split}_labels"]))
            for split in ("val", "test")
        }


def methods(names: list[str]) -> dict[str, Callable[[], Calibrator]]:
    """Return every method of ``calibrators.__all__`` with its defaults, and the variants; or those named."""
    every: dict[str, Callable[[], Calibrator]] = {
        name: getattr(calibrators, name) for name in calibrators.__all__ if name not in SKIPPED
    }
    every |= VARIANTS
    return {name: every[name] for name in names} if names else every


def judge(make: Callable[[], Calibrator], val: tuple[Tensor, Tensor], test: Predictions) -> tuple[Predictions, float]:
    """Return the calibrated test predictions and the CPU seconds of the fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        start = time.process_time()
        calibrator = make().fit(*val)
        spent = time.process_time() - start
        return test.calibrated_by(calibrator), spent


def run_set(name: str, chosen: dict[str, Callable[[], Calibrator]], *, intervals: bool) -> dict[str, Result]:
    """Print and return every method's figures on one set; without ``intervals`` the values alone."""
    splits = load_set(name)
    before = Predictions.from_logits(*splits["test"])
    base = tuple(metric(before) for metric in METRICS)
    results = {"none": Result(base, ("",) * 3, 0.0, 0.0)}
    print(f"\n{name}: none NLL {base[0]:.4f}  ECE {base[1]:.2%}  equal-mass ECE {base[2]:.2%}", flush=True)
    for label, make in chosen.items():
        try:
            after, spent = judge(make, splits["val"], before)
        except CalibrantError as error:
            print(f"  {label:42s} refused: {error}", flush=True)
            continue
        values, shown = figures(before, after, intervals=intervals)
        moved = float(after.correct.double().mean() - before.correct.double().mean())
        results[label] = Result(values, shown, spent, moved)
        print(
            f"  {label:42s} NLL {values[0]:7.4f} {shown[0]:28s} ECE {values[1]:6.2%} {shown[1]:28s} "
            f"mass {values[2]:6.2%} {shown[2]:28s} accuracy {moved:+.2%}  {spent:.2f} s",
            flush=True,
        )
    return results


def figures(before: Predictions, after: Predictions, *, intervals: bool) -> tuple[tuple[float, ...], tuple[str, ...]]:
    """Return the metrics after calibration, and their paired differences with intervals in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        if not intervals:
            return tuple(metric(after) for metric in METRICS), ("",) * len(METRICS)
        rows = compare(before, after, metrics=METRICS).rows
    shown = tuple("" if row.low is None else f"{row.difference:+.4f} [{row.low:+.4f}, {row.high:+.4f}]" for row in rows)
    return tuple(row.b for row in rows), shown


def summarise(found: dict[str, dict[str, Result]]) -> None:
    """Print means over sets, counts against temperature scaling, and the claims on focal temperature scaling."""
    every = sorted({label for results in found.values() for label in results})
    print(
        f"\nMeans over {len(found)} sets; harm: log-loss more than 1 % above none; win/lose: log-loss against T by NLL"
    )
    for label in every:
        rows = [(results[label], results) for results in found.values() if label in results]
        nll, width, mass = (statistics.fmean(row.values[m] for row, _ in rows) for m in range(3))
        harm = sum(row.values[0] > 1.01 * results["none"].values[0] for row, results in rows)
        line = f"  {label:42s} NLL {nll:7.4f}  ECE {width:6.2%}  mass {mass:6.2%}  harm {harm:2d}/{len(rows)}"
        if all("TemperatureScaling" in results for _, results in rows):
            less = [row.values[0] - results["TemperatureScaling"].values[0] for row, results in rows]
            line += f"  win/lose {sum(d < -1e-9 for d in less)}/{sum(d > 1e-9 for d in less)}"
        print(line + f"  {sum(row.seconds for row, _ in rows):.1f} s")
    for a, b in (
        ("FocalTemperatureScaling", "TemperatureScaling"),
        ("FocalTemperatureScaling, ECE", "TemperatureScaling, ECE"),
        ("FocalTemperatureScaling, ECE", "TemperatureScaling"),
        ("FocalTemperatureScaling, line", "FocalTemperatureScaling"),
        ("FocalTemperatureScaling, ECE, line", "FocalTemperatureScaling, ECE"),
        ("FocalTemperatureScaling, continuous", "FocalTemperatureScaling"),
    ):
        claim(found, a, b)


def claim(found: dict[str, dict[str, Result]], a: str, b: str) -> None:
    """Print how ``a`` compares with ``b`` over the sets that have both."""
    pairs = [(results[a].values, results[b].values) for results in found.values() if a in results and b in results]
    if not pairs:
        return
    print(f"{a}  against  {b}:")
    for m, metric in enumerate(("log-loss", "ECE", "equal-mass ECE")):
        less = [x[m] - y[m] for x, y in pairs]
        total = sum(x[m] for x, _ in pairs) / sum(y[m] for _, y in pairs) - 1
        worst = max(x[m] / y[m] - 1 for x, y in pairs)
        better, worse = sum(d < -1e-9 for d in less), sum(d > 1e-9 for d in less)
        print(
            f"    {metric:15s} mean {total:+.1%}, lower on {better}, higher on {worse} of {len(pairs)}, worst {worst:+.0%}"
        )


def speed(rows: int, classes: int, rounds: int) -> None:
    """Print CPU seconds of the temperature fit here and in other libraries, and how far each stays above the optimum."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(rows, classes, generator=generator)
    logits[torch.arange(rows), torch.randint(classes, (rows,), generator=generator)] += 6
    labels = torch.multinomial((logits.double() / 1.7).softmax(dim=1), 1, generator=generator)[:, 0]
    fits: dict[str, Callable[[], float]] = {
        "calibrant": lambda: calibrators.TemperatureScaling().fit(logits, labels).temperature,
        "probmetrics": lambda: _probmetrics(logits, labels),
        "scikit-learn": lambda: _sklearn(logits, labels),
    }
    times: dict[str, list[float]] = {name: [] for name in fits}
    found: dict[str, float] = {}
    for _ in range(rounds):
        for name, fit in list(fits.items()):
            start = time.process_time()
            try:
                found[name] = fit()
            except ImportError as error:
                print(f"{name}: {error}")
                del fits[name]
                continue
            times[name].append(time.process_time() - start)
    least = float(cross_entropy(logits.double() / found["calibrant"], labels))
    base = statistics.median(times["calibrant"])
    for name, temperature in found.items():
        spent = statistics.median(times[name])
        excess = float(cross_entropy(logits.double() / temperature, labels)) - least
        print(
            f"N={rows} K={classes} {name:14s} {spent:8.3f} s  ratio {spent / base:6.1f}  T={temperature:.9f}  "
            f"log-loss above ours {excess:.1e}",
            flush=True,
        )


def _probmetrics(logits: Tensor, labels: Tensor) -> float:
    from probmetrics.calibrators import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    calibrator = TemperatureScalingCalibrator()
    calibrator.fit_torch(CategoricalLogits(logits), labels)
    return float(1 / calibrator.invtemp_)


def _sklearn(logits: Tensor, labels: Tensor) -> float:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Stored(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """A classifier whose features are its logits."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Stored":
            self.classes_ = np.arange(x.shape[1])
            return self

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(axis=1)

        def decision_function(self, x: np.ndarray) -> np.ndarray:
            return x

    x, y = logits.numpy(), labels.numpy()
    fitted = CalibratedClassifierCV(FrozenEstimator(Stored().fit(x, y)), method="temperature").fit(x, y)
    return float(1 / fitted.calibrated_classifiers_[0].calibrators[0].beta_)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", action="store_true", help="every method on every set")
    parser.add_argument("--only", nargs="*", default=[], help="names of sets")
    parser.add_argument("--methods", nargs="*", default=[], help="names of methods")
    parser.add_argument("--values-only", action="store_true", help="no intervals of differences")
    parser.add_argument("--most-classes", type=int, default=10_000, help="leave out sets with more classes")
    parser.add_argument("--speed", action="store_true", help="the temperature fit against other libraries")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.sets:
        names = arguments.only or sorted(path.stem for path in folder().glob("*.npz"))
        names = [name for name in names if load_set(name)["val"][0].shape[1] <= arguments.most_classes]
        chosen = methods(arguments.methods)
        summarise({name: run_set(name, chosen, intervals=not arguments.values_only) for name in names})
    if arguments.speed:
        for classes in (100, 1000):
            speed(50_000, classes, arguments.rounds)


if __name__ == "__main__":
    main()
