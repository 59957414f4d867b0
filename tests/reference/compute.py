"""Compute the reference: the numbers of every family on small fixed data, each under a name.

    python -m tests.reference.compute                         # write data/*.json again, whole
    python -m tests.reference.compute --only 'metrics/*/ECE*'  # those entries alone: a change moved them by design
    python -m tests.reference.compute --slow                  # the entry of the study, too, which trains for a minute

An entry's name is family/…/what, its value a number, or lists and tables of numbers. ``test_reference.py`` compares.
All data come from NumPy's ``RandomState``, whose streams never change.
"""

import argparse
import hashlib
import itertools
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from click.testing import CliRunner
from tests import makers
from torch import Tensor

import calibrant
from calibrant import Predictions, calibrators, evaluate, losses, metrics, scores, statistics, theory
from calibrant.binning import EqualMass, EqualWidth
from calibrant.errors import CalibrantError
from calibrant.operate import Monitor, abstain, check, estimate, thresholds

DATA = Path(__file__).parent / "data"
Entry = tuple[str, Callable[[], Any]]
Family = Callable[[], Iterator[Entry]]
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}

# --- Data ----------------------------------------------------------------------------------------------------------


def drawn(rows: int, classes: int, *, seed: int, spread: float = 2.0, sharp: float = 1.6) -> tuple[Any, Any, Any]:
    """Return logits (N, K), labels (N,) drawn from softmax(logits / sharp), and the generator after them."""
    rng = np.random.RandomState(seed)
    logits = np.round(rng.standard_normal((rows, classes)) * spread, 3)
    p = np.exp(logits / sharp)
    cumulative = p.cumsum(axis=1) / p.sum(axis=1, keepdims=True)
    labels = (cumulative < rng.random_sample((rows, 1))).sum(axis=1).clip(max=classes - 1)
    return logits, labels, rng


def population(name: str) -> Any:
    """Return one of the synthetic populations of ``POPULATIONS``."""
    if name == "weights":
        logits, labels, rng = drawn(400, 4, seed=1)
        weights = np.round(rng.gamma(2.0, 0.5, size=400), 3) + 0.05
        return Predictions.from_logits(logits, labels, weights=weights)
    if name == "groups":
        logits, labels, rng = drawn(420, 3, seed=2)
        groups = rng.randint(0, 40, size=420)
        return Predictions.from_logits(
            logits + 0.5 * rng.standard_normal((40, 3))[groups].round(2), labels, groups=groups
        )
    if name == "thousand":
        logits, labels, _ = drawn(300, 1000, seed=3, spread=3.0)
        return Predictions.from_logits(logits, labels)
    if name == "zeros":  # probabilities of a decision tree: many alike, exact 0 and 1 among them, none of a label
        _, labels, rng = drawn(400, 5, seed=4)
        p = rng.randint(0, 4, size=(400, 5)) / 8.0
        p[np.arange(400), labels] += 0.125
        p[::40] = np.eye(5)[labels[::40]]
        return Predictions.from_probs(p / p.sum(axis=1, keepdims=True), labels)
    if name == "two":
        logits, labels, _ = drawn(500, 2, seed=5)
        return Predictions.from_logits(logits, labels)
    logits, _, rng = drawn(350, 5, seed=6, spread=1.5)
    labels = (rng.random_sample((350, 5)) < 1 / (1 + np.exp(-0.7 * logits))).astype(np.int64)
    labels[rng.random_sample((350, 5)) < 0.05] = -1
    return calibrant.MultiLabel.from_logits(logits, labels)


POPULATIONS = ("weights", "groups", "thousand", "zeros", "two", "labels")
EXAMPLES = ("cifar10", "sst", "20news")


def example(name: str, split: str, rows: int) -> Predictions:
    """Return the first rows of a bundled example."""
    return calibrant.load_example(name)[split][:rows]


# --- Losses --------------------------------------------------------------------------------------------------------

LOSSES: dict[str, Callable[..., Any]] = {name: partial(makers.make, name) for name in makers.NAMES} | {
    "LabelSmoothingLoss-others": lambda **o: losses.LabelSmoothingLoss(0.1, "others", **o),
    "FocalLoss": lambda **o: losses.FocalLoss(3.0, **o),
    "FocalLoss-half": lambda **o: losses.FocalLoss(0.5, **o),
    "FocalLoss-detached": lambda **o: losses.FocalLoss(2.0, detach_weight=True, **o),
    "AdaFocalLoss": lambda **o: updated_adafocal(**o),
}
OF_LABELS: dict[str, Callable[..., Any]] = {
    "BinaryCrossEntropyLoss": losses.BinaryCrossEntropyLoss,
    "BinaryFocalLoss": lambda **o: losses.BinaryFocalLoss(2.0, **o),
    "BinaryLabelSmoothingLoss": lambda **o: losses.BinaryLabelSmoothingLoss(0.1, **o),
}


def updated_adafocal(**options: Any) -> Any:
    """Return an AdaFocal loss after one update from validation rows."""
    loss = losses.AdaFocalLoss(bins=4, **options)
    loss.update(example("sst", "val", 400))
    return loss


def loss_rows() -> tuple[Tensor, Tensor]:
    """Return logits (14, 5) with rows of margins up to 300, and labels of which one is ignored."""
    logits, labels, _ = drawn(14, 5, seed=10, spread=2.5)
    logits[3], logits[4] = [40.0, 0, 0, 0, 0], [300.0, 0, -300.0, 0, 0]
    labels[3:6] = 0, 2, -100
    return torch.from_numpy(logits), torch.from_numpy(labels)


def value_and_gradient(loss: Any, logits: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the loss and its gradient with respect to the logits."""
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, labels)
    value.sum().backward()
    return {"value": value, "gradient": leaf.grad}


def loss_entries() -> Iterator[Entry]:
    """Yield every loss in three dtypes, with options, with soft targets, and fused with a linear layer."""
    logits, labels = loss_rows()
    for (name, make), (dtype, kind) in itertools.product(LOSSES.items(), DTYPES.items()):
        yield f"losses/{name}/{dtype}", lambda m=make, k=kind: value_and_gradient(m(), logits.to(k), labels)
    options = {"reduction": "sum", "weight": torch.tensor([1.0, 0.5, 2.0, 0.0, 1.5]), "ignore_index": 4}
    kept = labels.clamp_min(0)
    for name, make in LOSSES.items():
        yield f"losses/{name}/options", lambda m=make: value_and_gradient(m(**options), logits, kept)
    targets = torch.softmax(logits.flip(0) / 50, dim=1)
    for name in makers.SOFT[:-1]:
        yield f"losses/{name}/soft", lambda n=name: value_and_gradient(LOSSES[n](), logits, targets)
    binary, truth = logits[:, :3] / 3, (logits[:, :3] > 1).long()
    truth[2, 1] = -1
    for (name, make), (dtype, kind) in itertools.product(OF_LABELS.items(), DTYPES.items()):
        yield f"losses/{name}/{dtype}", lambda m=make, k=kind: value_and_gradient(m(), binary.to(k), truth)
    weighted = losses.BinaryFocalLoss(2.0, pos_weight=torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))
    yield "losses/BinaryFocalLoss/pos_weight", lambda: value_and_gradient(weighted, binary, truth)
    hidden, weight = logits[:, :4] / 100, logits.T[:, :4].clamp(-3, 3)
    for name in ("CrossEntropyLoss", "FocalLoss"):
        yield f"losses/{name}/fused", lambda n=name: losses.FusedLinearLoss(LOSSES[n]())(hidden, weight, labels)
    yield "losses/AdaFocalLoss/gammas", lambda: updated_adafocal().gammas


# --- Theory, scores, binning -----------------------------------------------------------------------------

SCORES = {
    "log": scores.LogScore(),
    "focal-2": scores.FocalScore(2.0),
    "focal-half": scores.FocalScore(0.5),
    "focal-negative": scores.FocalScore(-0.5),
    "inverse-1": scores.InverseFocalScore(1.0),
    "inverse-2": scores.InverseFocalScore(2.0),
}


def log_simplex() -> Tensor:
    """Return log-probabilities (7, 4), nearly certain rows, a uniform row and an excluded class among them."""
    logits, _, _ = drawn(7, 4, seed=11, spread=3.0)
    logits[0], logits[1] = 0.0, [60.0, 0, 0, 0]
    logits[2, 3] = -math.inf
    return torch.from_numpy(logits).log_softmax(dim=1)


def theory_entries() -> Iterator[Entry]:
    """Yield maps, minimisers and bounds of the theory, and the scores they are made of."""
    rows = log_simplex()
    u = torch.tensor([-1e-9, -1e-3, -0.1, -0.7, -2.0, -30.0], dtype=torch.float64)
    v = torch.log(-torch.expm1(u))
    for name, score in SCORES.items():
        yield f"theory/{name}/score", lambda s=score: [s.value(u, v), s.slope(u, v)]
        yield f"theory/{name}/validity", lambda s=score: theory.validity(s)
        for work in (theory.calibration_map, theory.inverse_calibration_map, theory.proper_part):
            yield f"theory/{name}/{work.__name__}", lambda s=score, w=work: w(s, rows)
        yield f"theory/{name}/minimiser", lambda s=score: theory.minimiser(s, rows[[0, 3, 4, 5, 6]])
    grid = torch.tensor([-40.0, -3.0, -0.1, 0.0, 0.5, 2.0, 40.0], dtype=torch.float64)
    for gamma in (-0.5, 0.5, 3.0):
        yield f"theory/focal_map/{gamma}", lambda g=gamma: theory.focal_map(rows, g)
        yield f"theory/focal_logit/{gamma}", lambda g=gamma: theory.focal_logit(grid, g)
        yield f"theory/measured_temperature_bounds/{gamma}", lambda g=gamma: theory.measured_temperature_bounds(g)
    for gamma in (0.5, 3.0, 10.0):
        yield f"theory/temperature_bounds/{gamma}", lambda g=gamma: theory.temperature_bounds(g)
        yield (
            f"theory/entropy_bound/{gamma}",
            lambda g=gamma: asdict(theory.entropy_bound(rows[3:], torch.arange(4), g)),
        )
        yield (
            f"theory/focal_curvature/{gamma}",
            lambda g=gamma: theory.focal_curvature(torch.tensor([0.01, 0.5, 0.99]), g),
        )
    yield "theory/temperature_bounds/tight", lambda: theory.temperature_bounds(3.0, tight=True)
    yield "theory/fit_temperatures", lambda: theory.fit_temperatures(2, (0.0, 1.0, 3.0))
    yield "theory/nearest_temperature", lambda: [theory.nearest_temperature(classes, 2.0) for classes in (2, 3)]
    yield "theory/gamma_from_threshold", lambda: [theory.gamma_from_threshold(p) for p in (0.1, 0.2, 0.25, 0.45)]
    yield "theory/scaling_change", lambda: theory.scaling_change(rows, 2.0)


def binning_entries() -> Iterator[Entry]:
    """Yield edges, bins and sums of both binnings, on probabilities at the edges and with ties."""
    rng = np.random.RandomState(12)
    at_edges = torch.tensor([0.0, 1.0, *(i / 15 for i in range(1, 15)), *(i / 10 for i in range(1, 10))]).double()
    p = torch.cat([at_edges, torch.from_numpy(rng.random_sample(60).round(2))])
    y = torch.from_numpy((rng.random_sample(len(p)) < p.numpy()).astype(np.float64))
    kinds = {
        "width": EqualWidth(15), "width-10": EqualWidth(10), "mass": EqualMass(15), "papers": EqualMass(6, ties="interpolated")
    }  # fmt: skip
    for name, kind in kinds.items():
        yield f"binning/{name}/edges", lambda k=kind: k.edges(p)
        yield f"binning/{name}/assign", lambda k=kind: k.assign(p)
        yield f"binning/{name}/sums", lambda k=kind: [(t := k.table(p, y)).count, t.sum_p, t.sum_y]


# --- Metrics -------------------------------------------------------------------------------------------------------

METRICS: dict[str, metrics.Metric] = makers.METRICS | {
    "ECE-mass": metrics.ECE(EqualMass(15)),
    "ECE-papers": metrics.ECE(EqualMass(15, ties="interpolated")),
    "ECE-10": metrics.ECE(EqualWidth(10)),
    "SplitNLL": metrics.SplitNLL("correct"),
}
FEW_ROWS = ("CanonicalError",)  # its cost grows with the square of the rows
WITH_INTERVAL = (
    "Accuracy", "Error", "NLL", "Brier", "ECE", "ECE-mass", "ECE-10", "ClasswiseECE", "TopLabelECE", "DebiasedECE", "CanonicalError"
)  # fmt: skip
WITH_LIMIT = ("NLL", "Brier", "ECE", "ECE-mass", "MCE", "ClasswiseECE", "TopLabelECE", "DebiasedECE", "SmoothECE")


def measured_data() -> Iterator[tuple[str, Any]]:
    """Yield the name and the data of what is measured."""
    for name in EXAMPLES:
        yield name, example(name, "test", 2000)
    for name in POPULATIONS[:-1]:
        yield name, population(name)
    two = population("two")
    yield "events", calibrant.Pairs.from_probs(two.probs[:, 1].double(), two.labels)


def metric_entries() -> Iterator[Entry]:
    """Yield each metric's value, its interval and its limit if calibrated, on the examples and the populations."""
    for name, data in measured_data():
        for label, metric in METRICS.items():
            if (name, label) == ("thousand", "CanonicalError"):
                continue  # half a minute
            rows = data[:200] if label in FEW_ROWS else data
            yield f"metrics/{name}/{label}", lambda m=metric, r=rows: m(r)
            if label in WITH_INTERVAL:
                yield f"intervals/{name}/{label}", lambda m=metric, r=rows: ends(statistics.interval(m, r))
            if label in WITH_LIMIT:
                yield f"nulls/{name}/{label}", lambda m=metric, r=rows: expected(m, r)
    labels = population("labels")
    yield "labels", lambda: {"panel": evaluate.multilabel_panel(labels), "table": evaluate.label_table(labels)}
    data, far = example("cifar10", "test", 500), population("weights").logits
    ood = Predictions.from_logits(torch.cat([far, far, far], dim=1)[:, :10] / 3)
    yield "metrics/ood_auroc", lambda: metrics.ood_auroc(data, ood)
    yield "metrics/risk_coverage", lambda: thinned(metrics.risk_coverage(data))
    yield "metrics/ood_roc", lambda: thinned(metrics.ood_roc(data, ood))
    yield "intervals/bootstrap", lambda: ends(statistics.bootstrap(metrics.NLL(), data, draws=200, seed=0))


def ends(interval: Any) -> list[float]:
    """Return an interval's estimate, or a figure's value, and both ends."""
    return [getattr(interval, "estimate", None) or interval.value, interval.low, interval.high]


def expected(metric: metrics.Metric, data: Any) -> list[float]:
    """Return the mean of a metric if calibrated, and its 97.5 % limit."""
    band = statistics.null_band(metric, data, draws=60, seed=0)
    return [band.estimate, band.high]


def thinned(curve: Any) -> dict[str, Any]:
    """Return every 25th point of a curve."""
    return {
        name: value[::25] if isinstance(value, Tensor) and value.dim() else value for name, value in vars(curve).items()
    }


# --- Calibrators ---------------------------------------------------------------------------------------------------

CALIBRATORS: dict[str, Callable[[], Any]] = {
    name: getattr(calibrators, name)
    for name in makers.CALIBRATORS
    if name not in ("ConfidenceBinning", "FeatureScaling", "GroupScaling", "KeepDecision")
} | {
    "TemperatureScaling-ece": lambda: calibrators.TemperatureScaling("ece", grid="mukhoti"),
    "FocalTemperatureScaling-line": lambda: calibrators.FocalTemperatureScaling("ece", search="line"),
    "FocalCalibration": lambda: calibrators.FocalCalibration(1.5),
    "Chain": lambda: calibrators.Chain(calibrators.TemperatureScaling(), calibrators.IsotonicCalibration()),
}  # fmt: skip
AFFINE = ("VectorScaling", "MatrixScaling")


def fitted(make: Callable[[], Any], data: Any) -> dict[str, Any]:
    """Return what a calibrator learned of ``data``, by the names that it shows, and its answers for the first rows."""
    calibrator = make().fit(data)
    learned = {name: getattr(calibrator, name) for name in ("temperature", "gamma") if hasattr(calibrator, name)}
    if type(calibrator).__name__ in AFFINE and data.classes < 5:
        learned["affine"] = calibrator.scale, calibrator.bias
    return learned | {"answers": calibrator(data.logits[:8]).double().log_softmax(dim=1)}


def calibrator_entries() -> Iterator[Entry]:
    """Yield the parameters and the answers of every calibrator on three sets, and of those that read more than logits."""
    sets = {"20news": example("20news", "val", 400), "weights": population("weights"), "two": population("two")}
    for (place, data), (name, make) in itertools.product(sets.items(), CALIBRATORS.items()):
        if place != "20news" or name not in ("AutoCalibrator", "VennAbers", "KernelScaling"):
            yield f"calibrators/{place}/{name}", lambda m=make, d=data: fitted(m, d)
    zeros = population("zeros")
    for name in ("TemperatureScaling", "StructuredVectorScaling", "IsotonicCalibration", "HistogramBinning"):
        yield f"calibrators/zeros/{name}", lambda n=name: fitted(CALIBRATORS[n], zeros)
    thousand = population("thousand")
    for name in ("TemperatureScaling", "EnsembleTemperatureScaling"):
        yield f"calibrators/thousand/{name}", lambda n=name: calibrated_log_loss(CALIBRATORS[n](), thousand)
    logits, labels, rng = drawn(400, 3, seed=20)
    columns = {"age": rng.standard_normal(400).round(2), "site": np.array(["a", "b", "c"])[rng.randint(0, 3, size=400)]}
    data = Predictions.from_logits(logits, labels, features=columns)
    for of_columns in (calibrators.GroupScaling(["site"]), calibrators.FeatureScaling(["age"])):
        answers = lambda c=of_columns: c.fit(data)(data.logits[:8], data[:8].features).log_softmax(dim=1)  # noqa: E731
        yield f"calibrators/columns/{type(of_columns).__name__}", answers
    several, of_labels = calibrators.MultiLabelCalibrator(), population("labels")
    yield "calibrators/labels/MultiLabelCalibrator", lambda: several.fit(of_labels)(of_labels.logits[:8])
    before, shift = population("weights"), calibrators.PriorShift()
    after = before.logits[:200] + torch.tensor([1.0, 0.0, 0.0, -1.0])
    yield "calibrators/shift/PriorShift-em", lambda: shift.fit(before).adapt(after)(after[:4])


def calibrated_log_loss(calibrator: Any, data: Predictions) -> float:
    """Return the log-loss of the rows that a calibrator is fitted on, after it."""
    return metrics.NLL()(data.calibrated_by(calibrator.fit(data), allow_fit_rows=True))


# --- Evaluation and operation ----------------------------------------------------------------------------------------


def evaluation_entries() -> Iterator[Entry]:
    """Yield comparisons, tests of subgroups, the gate, the estimate without labels, abstention and a monitor."""
    a = example("cifar10", "test", 1500)
    scaled = calibrators.TemperatureScaling().fit(example("cifar10", "val", 1000))
    b, two, groups = a.calibrated_by(scaled), population("two"), population("groups")
    yield "evaluate/compare", lambda: evaluate.compare(a, b)
    own = calibrators.TemperatureScaling().fit(groups)
    yield "evaluate/compare-groups", lambda: evaluate.compare(groups, groups.calibrated_by(own, allow_fit_rows=True))
    yield "evaluate/panel", lambda: list(evaluate.panel(b, draws=100))
    yield "evaluate/optimal_ece", lambda: evaluate.optimal_ece(a)
    for score in ("log", "brier"):
        yield f"evaluate/refinement-{score}", lambda s=score: evaluate.refinement(a, score=s)
    yield "evaluate/calibration_line", lambda: evaluate.calibration_line(two.one_vs_rest(1))
    yield "evaluate/cost_calibration", lambda: evaluate.cost_calibration(two, [[0.0, 1.0], [5.0, 0.0]])
    logits, labels, rng = drawn(900, 3, seed=30)
    columns = {"site": np.array(["a", "b", "c"])[rng.randint(0, 3, size=900)], "old": rng.randint(0, 2, size=900)}
    data = Predictions.from_logits(logits, labels, features=columns)
    yield "evaluate/subgroups", lambda: evaluate.subgroups(data, ["site", "old"], depth=2)
    limits = {"ece": 0.1, "error": 0.2, "brier": 0.4}
    yield "operate/check", lambda: check(b, maximum=limits, minimum={"accuracy": 0.8}).plain()
    yield "operate/check-worse", lambda: check(b, no_worse={"nll": 0.01, "accuracy": 0.01}, baseline=a).plain()
    yield "operate/check-two", lambda: check(two, maximum={"ece": 0.03, "event-ece": 0.3}).plain()
    yield "operate/estimate", lambda: estimate(b[:700], reference=b[700:]).plain()
    yield "operate/abstain-error", lambda: abstain(b, error=0.05).plain()
    yield "operate/abstain-coverage", lambda: abstain(b, coverage=0.8).plain()
    rule = thresholds([[0.0, 1.0], [5.0, 0.0]], reject=0.4)
    yield "operate/thresholds", lambda: [rule.decide(two[:20]), *ends(rule.expected_cost(two)), rule.foreseen_cost(two)]
    yield "operate/monitor", monitored


def monitored() -> list[Any]:
    """Return the status of a monitor after each of ten batches, of which the last five are overconfident."""
    reference, _labels, _ = drawn(600, 3, seed=40, sharp=1.0)
    monitor = Monitor(Predictions.from_logits(reference, _labels))
    logits, labels, _ = drawn(1500, 3, seed=41, sharp=1.0)
    logits = np.where(np.arange(1500)[:, None] < 750, logits, 1.8 * logits)
    return [
        monitor.update(Predictions.from_logits(logits[i : i + 150], labels[i : i + 150])) for i in range(0, 1500, 150)
    ]


# --- Commands and studies ----------------------------------------------------------------------------------------


def predictions_file(folder: Path) -> Path:
    """Return a file with the splits val and test of 400 rows each of a bundled example."""
    path = folder / "predictions.npz"
    splits = {split: example("cifar10", split, 400) for split in ("val", "test")}
    arrays = {
        f"{split}_{name}": getattr(data, name).numpy()
        for split, data in splits.items()
        for name in ("logits", "labels")
    }
    np.savez(path, **arrays)
    return path


def printed(*words: str) -> str:
    """Return what a command printed."""
    from calibrant.cli import main

    done = CliRunner().invoke(main, [*words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def command_entries() -> Iterator[Entry]:
    """Yield the tables that the commands print as JSON."""

    def evaluated() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path, calibrator = str(predictions_file(Path(folder))), str(Path(folder) / "calibrator.safetensors")
            printed("fit", path, "--method", "TemperatureScaling", "-o", calibrator)
            found = json.loads(printed("evaluate", path, "--split", "test", "--calibrator", calibrator, "--json"))
        return {"rows": [{name: value for name, value in row.items() if name != "file"} for row in found["rows"]]}

    def reported() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "report.json"
            printed("report", str(predictions_file(Path(folder))), "-o", str(target))
            found = json.loads(target.read_text(encoding="utf-8"))
        return {name: found[name] for name in found if name not in ("title", "versions", "notes")}

    yield "commands/evaluate", evaluated
    yield "commands/report", reported


def study_entries() -> Iterator[Entry]:
    """Yield the fingerprints of all trainings of each preset at each scale, as their number, the first, and a digest."""
    from calibrant.study.load import load_study, presets, read_tables

    def of(name: str, scale: str | None) -> list[Any]:
        found = [cell.recipe.fingerprint for cell in load_study(name, scale=scale).cells()]
        return [len(found), found[0], hashlib.sha256(" ".join(found).encode()).hexdigest()[:16]]

    for name in presets():
        for scale in read_tables(name)[1] or (None,):
            yield f"studies/{name}/{scale or 'default'}", lambda n=name, s=scale: of(n, s)


def slow_entries() -> Iterator[Entry]:
    """Yield the test figures of a study of two trainings."""
    from calibrant.study.load import load_study
    from calibrant.study.run import run_study
    from calibrant.study.store import Store

    def trained() -> Any:
        study = replace(load_study("digits").restricted(objectives=["Cross-entropy", "Focal 3"]), seeds=(0,))
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder)
            for _ in run_study(study, store, accelerator="cpu"):
                pass
            found = [(cell, store.load(cell.recipe)) for cell in study.cells()]
        kinds = (metrics.Accuracy(), metrics.NLL(), metrics.ECE())
        return {f"{cell.objective} {cell.recipe.fold}": [kind(run.test) for kind in kinds] for cell, run in found}

    yield "trained/digits", trained


FAST: Sequence[Family] = (
    loss_entries,
    theory_entries,
    binning_entries,
    metric_entries,
    calibrator_entries,
    evaluation_entries,
    command_entries,
    study_entries,
)
SLOW: Sequence[Family] = (slow_entries,)

# --- Writing and comparing -------------------------------------------------------------------------------------------

# The first pattern that fits a name: how far a number x may lie from the recorded r, in units of max(1, |r|).
TOLERANCES = {
    "losses/*/bfloat16": 1e-2,
    "losses/*/float32": 2e-6,
    "losses/AdaFocalLoss/*": 1e-6,
    "intervals/*": 1e-6,
    "nulls/*": 1e-6,
    "calibrators/*": 1e-6,
    "labels": 1e-6,
    "evaluate/*": 1e-6,
    "operate/*": 1e-6,
    "commands/*": 1e-6,
    "trained/*": 1e-3,
    "*": 1e-9,
}


def tolerance(name: str) -> float:
    """Return the tolerance of an entry."""
    return next(value for pattern, value in TOLERANCES.items() if fnmatchcase(name, pattern))


def plain(value: Any, digits: int) -> Any:
    """Return a value as JSON holds it, rounded; sentences are left out, since their wording is no number."""
    if isinstance(value, Tensor):
        return plain(value.detach().double().tolist() if value.is_floating_point() else value.tolist(), digits)
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), digits)
    if is_dataclass(value) and not isinstance(value, type):
        return plain({name: getattr(value, name) for name in value.__dataclass_fields__}, digits)
    if hasattr(value, "_asdict"):
        return plain(value._asdict(), digits)
    if isinstance(value, Mapping):
        found = {str(name): plain(part, digits) for name, part in value.items()}
        return {name: part for name, part in found.items() if part is not Ellipsis}
    if isinstance(value, list | tuple):
        return [part for part in (plain(part, digits) for part in value) if part is not Ellipsis]
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, str):
        return value if len(value) <= 40 and value.count(" ") <= 2 else Ellipsis
    return float(f"{value:.{digits}g}") if math.isfinite(value) else str(value)


def computed(name: str, work: Callable[[], Any]) -> Any:
    """Return an entry's value, or "refused" where the call is refused."""
    digits = {1e-9: 12, 1e-6: 9, 2e-6: 8, 1e-2: 4, 1e-3: 6}[tolerance(name)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return plain(work(), digits)
        except CalibrantError:
            return "refused"


def entries(families: Sequence[Family] = FAST, only: str = "*") -> dict[str, Any]:
    """Return the entries whose names fit the pattern ``only``."""
    found = {}
    for name, work in itertools.chain.from_iterable(family() for family in families):
        if fnmatchcase(name, only):
            found[name] = computed(name, work)
    return found


def recorded() -> dict[str, Any]:
    """Return the entries that the files in ``data`` hold."""
    return {
        name: value
        for path in sorted(DATA.glob("*.json"))
        for name, value in json.loads(path.read_text(encoding="utf-8")).items()
    }


def differences(name: str, old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield each number of an entry that moved, as its place, the recorded value and the new one."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new)]
    if all(numbers):
        if not abs(old - new) <= tolerance(name) * max(1.0, abs(old)):
            yield f"{name}{path}: {old!r} → {new!r}"
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:  # a field that is None may as well be left out
            yield from differences(name, old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(name, one, other, f"{path}[{place}]")
    elif old != new:
        yield f"{name}{path}: {str(old)[:80]} → {str(new)[:80]}"


def write(found: Mapping[str, Any], *, only: str = "*") -> None:
    """Write the entries that were computed, in place of those recorded whose names fit ``only``."""
    kept = {name: value for name, value in recorded().items() if not fnmatchcase(name, only)}
    if only == "*":  # the slow entries stay, unless they are among those computed
        kept = {name: value for name, value in recorded().items() if name.startswith("trained/")}
    for family, names in itertools.groupby(sorted({**kept, **found}), key=lambda name: name.split("/")[0]):
        lines = [f"{json.dumps(name)}: {json.dumps({**kept, **found}[name], separators=(',', ':'))}" for name in names]
        (DATA / f"{family}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Compute the entries, print what moved, and write them."""
    parser = argparse.ArgumentParser(description="Write the reference of all families again.")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names such as 'metrics/*/ECE'; all if left out")
    parser.add_argument("--slow", action="store_true", help="also train the study of a minute")
    options = parser.parse_args()
    torch.set_num_threads(1)
    before = recorded()
    found = entries((*FAST, *SLOW) if options.slow else FAST, options.only)
    for name in found:
        for line in differences(name, before.get(name, "missing"), found[name]):
            print(line)  # noqa: T201 - the list of what moved is what this prints
    write(found, only=options.only)


if __name__ == "__main__":
    main()
