"""What labels chosen by ``operate.sample`` are worth against simple random rows, how often the intervals cover, and looks err.

    python -m benchmarks.auditor cells --data DIR… [--replicates 100] [--cells CELLS.jsonl]
    python -m benchmarks.auditor looks [--pools 10000] [--looks LOOKS.jsonl]
    python -m benchmarks.auditor joint [--pools 2000] [--joint JOINT.jsonl]
    python -m benchmarks.auditor oracle --data DIR… [--oracle ORACLE.jsonl]
    python -m benchmarks.auditor record --cells CELLS.jsonl --looks LOOKS.jsonl --joint JOINT.jsonl --oracle ORACLE.jsonl

DIR holds prediction files: with a val and a test split of logits, or top-label confidences. The test split is the pool,
calibrated by 300 rows of val with AutoCalibrator (of top-label rows: a temperature by 300 that then leave the pool); costs are
drawn once for each number of classes. The squared error of the estimate is divided by the variance of the mean of as many
simple random rows (for groups: of equally many of each group), which is known since all labels are. A cell that is in the file is
not computed again. One thread.

The doubt of ``operate.audit.design`` was chosen on half A of the 44 logit sets, drawn by the seed, by the variance that all labels
give; half B and the 11 top-label sets were not looked at then. The estimate and the order of rows were chosen on all 44 before.

``oracle`` computes what of the squared error of the accuracy any design leaves that knows no more than the scores: it is told how
they relate to errors by nine tenths of *all* labels, for the other tenth. Its variance is Σ (e − q)² (1 / π − 1) / N², with q the
probability of an error so learned and π ∝ √(q (1 − q) + doubt · mean), at most 1, for the best of several doubts.
"""

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.records import versions
from calibrant import BinaryPairs, Predictions, load_predictions
from calibrant.calibrators import AutoCalibrator, TemperatureScaling
from calibrant.data.checks import Data
from calibrant.errors import CalibrantError
from calibrant.operate import audit, sample
from calibrant.operate.audit.design import inclusion_probabilities
from calibrant.operate.audit.figures import BINNED, Outlook, Pool
from calibrant.statistics import Interval

RECORD = Path("benchmarks/records/auditor.json")
BUDGETS = (300, 1000)
CALIBRATION, SEED = 300, 20261123
DOUBTS = (0.1, 0.05, 0.02, 0.005)  # of the oracle; the design has the first
FIGURES = ("accuracy", "cost", "nll", "ece", "difference", "worst group")
# Where scores do not deserve trust: what is asked of the intervals is the same.
TRIALS = {
    "calibrated": FIGURES,
    "temperature": ("accuracy", "cost", "nll"),  # calibrated by one number
    "first batch": ("accuracy", "cost", "nll", "ece"),  # raw scores; the first hundred labels teach the others
    "in batches": ("accuracy",),  # calibrated; a third of the labels teaches the rest
    "overconfident": ("accuracy", "cost", "nll", "ece"),  # log-odds of raw scores times 3
    "shifted": ("accuracy", "cost", "nll", "ece"),  # the first half of the classes is rare
    "rare": ("accuracy", "cost", "nll", "ece"),  # errors thinned to 1 %
    "other figures": ("brier", "aurc", "cost-gap", "classwise-ece", "ece by group"),  # calibrated
    "two classes": ("event-ece", "aurc", "cost-gap"),  # calibrated, and the first half of the classes counted as one
}
BY_GROUP = {"worst group": "accuracy", "ece by group": "ece"}

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Remembered(Pool):
    """A pool that keeps what it expects at each temperature, as many draws of one pool ask for it again and again."""

    @lru_cache(maxsize=12)  # noqa: B019 - a pool of this benchmark lives as long as the process needs it
    def _kept(self, figure: str, temperature: float, design: bool) -> Outlook:
        return super().outlook(figure, temperature=temperature, design=design)

    def outlook(self, figure: str, *, temperature: float = 1.0, design: bool = False) -> Outlook:
        """As ``Pool.outlook``, whose spreads a design overwrites."""
        kept = self._kept(figure, temperature, design)
        return replace(kept, spread=kept.spread.copy(), flat=kept.flat if kept.flat is None else kept.flat.copy())

    def digest(self) -> str:
        """Return the same for every pool, which is not compared here."""
        return "one"

    __hash__ = object.__hash__
    __eq__ = object.__eq__


@dataclass(frozen=True)
class Rows:
    """A pool whose labels are all known."""

    pool: Pool
    labels: torch.Tensor

    def truth(self, figure: str) -> tuple[float, float | None]:
        """Return the figure and the variance of its values; None where it is no mean."""
        if figure in BINNED:
            from calibrant.metrics import ECE, ClasswiseECE

            model = self.pool.held
            if isinstance(model, BinaryPairs):
                return ECE()(model), None
            known = Predictions(model.logits, labels=self.labels)
            if figure == "classwise-ece":
                return ClasswiseECE()(known), None
            return ECE()(known.one_vs_rest(1) if figure == "event-ece" else known), None
        pool = self.pool.ranked() if figure == "aurc" else self.pool
        values = pool.values(figure, np.arange(len(pool)), self.labels.numpy())
        if figure == "cost-gap":
            return abs(float(values.mean())), None
        return float(values.mean()), float(values.var(ddof=1))

    def select(self, rows: torch.Tensor) -> "Rows":
        """Return some rows."""
        return Rows(self.pool.select(rows.numpy()), self.labels[rows])


def costs_of(classes: int) -> torch.Tensor:
    rng = np.random.default_rng(SEED + classes)
    return torch.from_numpy(rng.uniform(0.2, 2, (classes, classes)) * (1 - np.eye(classes)))


@lru_cache(maxsize=2)
def rows_of(path: Path, trial: str, other: Path | None = None) -> Rows:
    """Return the pool of a set as a trial wants it; ``other`` is a second model's file of the same rows."""
    rng = np.random.default_rng(SEED)
    model: Data
    if "conf" in np.load(path):
        model, labels = _top_label(path, trial, rng)
    else:
        test = load_predictions(path, "test")
        assert isinstance(test, Predictions)
        model, labels = Predictions.from_logits(_scores(path, trial, rng)), test.need_labels()
    second = None if other is None else Predictions.from_logits(_scores(other, trial, rng))
    if trial == "two classes" and isinstance(model, Predictions):
        cut = model.classes // 2
        halves = [part.logsumexp(dim=1) for part in (model.logits[:, :cut], model.logits[:, cut:])]
        model, labels = Predictions.from_logits(torch.stack(halves, dim=1)), (labels >= cut).long()
    costs = costs_of(model.classes) if isinstance(model, Predictions) else None
    rows = Rows(Remembered(model, second, costs), labels)
    if trial == "shifted":  # of top-label rows, whose classes are not in the pool, the surer half
        rare = labels < model.classes / 2 if isinstance(model, Predictions) else model.p > model.p.median()
        rows = rows.select(torch.from_numpy(np.flatnonzero(~rare.numpy() | (rng.random(len(labels)) < 0.15))))
    if trial == "rare":
        wrong = rows.pool.values("error", np.arange(len(labels)), labels.numpy()) == 1
        keep = min(1.0, 0.01 * (~wrong).sum() / max(0.99 * wrong.sum(), 1))
        rows = rows.select(torch.from_numpy(np.flatnonzero(~wrong | (rng.random(len(labels)) < keep))))
    return rows


def _scores(path: Path, trial: str, rng: np.random.Generator) -> torch.Tensor:
    val, test = load_predictions(path, "val"), load_predictions(path, "test")
    assert isinstance(val, Predictions)
    assert isinstance(test, Predictions)
    if trial in ("first batch", "overconfident"):
        return test.logits * (3.0 if trial == "overconfident" else 1.0)
    rows = torch.from_numpy(rng.choice(len(val), CALIBRATION, replace=False))
    calibrator = TemperatureScaling() if trial == "temperature" else AutoCalibrator()
    scores: torch.Tensor = calibrator.fit(val.logits[rows], val.need_labels()[rows])(test.logits)
    return scores


def _top_label(path: Path, trial: str, rng: np.random.Generator) -> tuple[BinaryPairs, torch.Tensor]:
    """Return pairs of confidence and correctness; 300 rows calibrate the log-odds and leave the pool."""
    held = np.load(path)
    p = torch.from_numpy(held["conf"].astype(np.float64)).clamp(1e-6, 1 - 1e-6)
    right = torch.from_numpy((held["pred"] == held["label"]).astype(np.int64))
    log_odds = p.logit()
    first = rng.permutation(len(p))[:CALIBRATION]
    factor = 3.0 if trial == "overconfident" else 1.0
    if trial not in ("first batch", "overconfident"):
        two = torch.stack([torch.zeros_like(log_odds), log_odds], dim=1)[first]
        factor = 1 / float(TemperatureScaling().fit(two, right[first]).temperature)
    rest = torch.from_numpy(np.setdiff1d(np.arange(len(p)), first))
    # Whether the answer is right is the label.
    return BinaryPairs.from_decisions((log_odds[rest] * factor).sigmoid(), right[rest]), right[rest]


def groups_of(rows: Rows) -> Integers:
    """Return four groups, a half, a quarter and two eighths of the rows, by the predicted class."""
    model = rows.pool.held
    assert isinstance(model, Predictions)
    rank = np.argsort(np.argsort(model.predicted.numpy(), kind="stable")) / len(rows.pool)
    return np.asarray(np.searchsorted([0.5, 0.75, 0.875], rank), np.int64)


def found_of(rows: Rows, figure: str, budget: int, seed: int, *, first: int) -> list[tuple[str, Interval]]:
    """Draw, label and estimate once."""
    aim = "accuracy" if figure == "difference" else figure
    by = "part" if figure in BY_GROUP else None
    drawn = sample(rows.pool, first, aim="worst group" if by else aim, seed=seed, by=by)
    if first < budget:
        drawn = drawn.extend(budget - first, labels=rows.labels[drawn.rows])
    name = BY_GROUP.get(figure, aim)
    return list(audit(rows.pool, drawn, rows.labels[drawn.rows], figures=[name], by=by).figures.items())


def cell(rows: Rows, figure: str, budget: int, replicates: int, *, first: int) -> dict[str, Any]:
    """Return the squared error over that of even draws, the coverage, and the refusals of one cell."""
    if figure in BY_GROUP:
        name, parts = BY_GROUP[figure], groups_of(rows)
        names, sizes = np.unique(parts, return_counts=True)
        rows = Rows(Remembered(_with_groups(rows.pool.held, parts), None, rows.pool.costs), rows.labels)
        truths = {f"{name}[{part}]": rows.select(torch.from_numpy(np.flatnonzero(parts == part))) for part in names}
        known = {full: one.truth(name) for full, one in truths.items()}
        each = budget / len(names)
        even = float(np.mean([float(known[full][1] or 0) * max(1 / each - 1 / size, 0)
                              for full, size in zip(known, sizes, strict=True)]))  # fmt: skip
    else:
        name = "accuracy" if figure == "difference" else figure
        known = {name: rows.truth(name)}
        variance = known[name][1]
        even = 0.0 if variance is None else variance * (1 / budget - 1 / len(rows.pool))
    errors, hits, widths, refused = [], [], [], 0
    for seed in range(replicates):
        try:
            found = found_of(rows, figure, budget, seed, first=first)
        except CalibrantError:
            refused += 1
            continue
        errors.append(np.mean([(one.estimate - known[full][0]) ** 2 for full, one in found]))
        hits += [one.low <= known[full][0] <= one.high for full, one in found]
        widths += [(one.high - one.low) / 2 for _, one in found]
    ratio = float(np.mean(errors)) / even if even and errors else None
    return {
        "pool": len(rows.pool), "replicates": replicates, "refused": refused,
        "error_ratio": ratio, "ratio_error": ratio and float(np.std(errors)) / len(errors) ** 0.5 / even,
        "coverage": float(np.mean(hits)) if hits else None, "intervals": len(hits),
        "half_width": float(np.mean(widths)) if widths else None,
    }  # fmt: skip


def _with_groups(model: Data, parts: Integers) -> Predictions:
    assert isinstance(model, Predictions)
    return Predictions.from_logits(model.logits, features={"part": parts})


def partners(paths: list[Path]) -> dict[Path, Path]:
    """Return for each set another model's predictions of the same rows, where there are some."""
    same: dict[bytes, list[Path]] = {}
    for path in paths:
        with np.load(path) as held:
            if "test_labels" in held:
                same.setdefault(held["test_labels"].astype(np.int64).tobytes(), []).append(path)
    return {
        one: group[(at + 1) % len(group)] for group in same.values() if len(group) > 1 for at, one in enumerate(group)
    }


def cells(paths: list[Path], replicates: int, into: Path) -> None:
    """Append every cell that ``into`` does not hold yet."""
    done = {_key(one) for one in _lines(into)}
    second = partners(paths)
    for trial, figures in TRIALS.items():
        for path in paths:
            for figure in figures:
                for budget in BUDGETS:
                    key = {"trial": trial, "set": path.stem, "figure": figure, "labels": budget}
                    pairs = "conf" in np.load(path)
                    if _key(key) in done or (pairs and figure not in ("accuracy", "ece")):
                        continue
                    if figure == "difference" and path not in second:
                        continue
                    rows = rows_of(path, trial, second.get(path) if figure == "difference" else None)
                    if budget > 0.7 * len(rows.pool) * (0.5 if figure in BY_GROUP else 1):
                        continue
                    first = {"first batch": 100, "in batches": budget // 3}.get(trial, budget)
                    found = cell(rows, figure, budget, replicates, first=first)
                    _append(into, key | found)


def looks(pools: int, into: Path, *, count: int = 6, batch: int = 100) -> None:
    """Append, for each pool, whether a limit at the truth is decided wrongly at any look, and the labels a clear limit takes.

    The clear limit is .1 below the truth; the fixed plan takes all batches. Pools cycle over confidence that is right, too high
    and too low, and over accuracies from about .5 to .97.
    """
    done, rows = len(_lines(into)), 2000
    for seed in range(done, pools):
        rng = np.random.default_rng([SEED, seed])
        z = rng.normal(size=(rows, 3)) * (1, 2, 4, 8)[seed % 4]
        labels = torch.from_numpy((z + rng.gumbel(size=z.shape)).argmax(1))
        scale = (1.0, 2.5, 0.4)[seed // 4 % 3]
        pool = Remembered(Predictions.from_logits(z * scale))
        truth = float(pool.values("accuracy", np.arange(rows), labels.numpy()).mean())
        drawn, clear, wrong = sample(pool, batch, seed=seed), None, False
        for look in range(1, count + 1):
            at = labels[drawn.rows]
            below = audit(pool, drawn, at, minimum={"accuracy": truth + 1e-9}, maximum={"accuracy": truth - 1e-9})
            wrong |= any(line.verdict == "pass" for line in below.lines)
            if clear is None and audit(pool, drawn, at, minimum={"accuracy": truth - 0.1}).verdict == "pass":
                clear = look * batch
            if look < count:
                drawn = drawn.extend(batch, labels=at)
        _append(into, {"seed": seed, "scale": scale, "truth": truth, "wrong": wrong, "clear": clear})


def joint(pools: int, into: Path, *, count: int = 6, batch: int = 100) -> None:
    """Append, for each pool, whether any limit at the truth on three models' differences is decided wrongly at any look.

    Two others see the same scores with less and with more noise. Of each difference the accuracy and the Brier score have a limit on
    either side: eight tests, and an interval that leaves the truth out would decide a limit there wrongly.
    """
    rows, names = 2000, ("accuracy", "brier")
    for seed in range(len(_lines(into)), pools):
        rng = np.random.default_rng([SEED, 1, seed])
        z = rng.normal(size=(rows, 3)) * (1, 2, 4, 8)[seed % 4]
        labels = torch.from_numpy((z + rng.gumbel(size=z.shape)).argmax(1))
        scale = (1.0, 2.5, 0.4)[seed // 4 % 3]
        model, *others = (
            Predictions.from_logits((z + rng.normal(size=z.shape) * noise) * scale) for noise in (0, 0.5, 2)
        )
        pool = Remembered(model, others={str(at): one for at, one in enumerate(others)})
        truth = {name + after: float(one.values(name, np.arange(rows), labels.numpy()).mean())
                 for after, one in pool.compared.items() for name in names}  # fmt: skip
        limits = {name: dict.fromkeys(names, 0.0) for name in ("minimum", "maximum")}
        drawn, wrong = sample(Remembered(model), batch, seed=seed), False
        for look in range(1, count + 1):
            at = labels[drawn.rows]
            lines = audit(pool, drawn, at, **limits).lines
            wrong |= any(not line.interval.low <= truth[line.figure] <= line.interval.high for line in lines)
            if look < count:
                drawn = drawn.extend(batch, labels=at)
        _append(into, {"seed": seed, "scale": scale, "wrong": wrong})


def oracle(paths: list[Path], into: Path) -> None:
    """Append, for each set and number of labels, the squared error of the accuracy that an oracle leaves, over that of even rows."""
    done = {(one["set"], one["labels"]) for one in _lines(into)}
    for path in paths:
        if "conf" in np.load(path) or all((path.stem, budget) in done for budget in BUDGETS):
            continue
        rows = rows_of(path, "calibrated")
        model = rows.pool.held
        assert isinstance(model, Predictions)
        right = rows.pool.values("accuracy", np.arange(len(rows.pool)), rows.labels.numpy())
        known = {"own": rows.pool.outlook("accuracy").mean, **_learned(model, right)}
        for budget in BUDGETS:
            if (path.stem, budget) in done or budget > 0.7 * len(right):
                continue
            even = right.var(ddof=1) * (1 / budget - 1 / len(right))
            found = {
                name: {doubt: _variance(right, q, budget, doubt) / even for doubt in DOUBTS}
                for name, q in known.items()
            }
            _append(into, {"set": path.stem, "labels": budget, "ratios": found})


def _learned(model: Predictions, right: Floats) -> dict[str, Floats]:
    """Return P(correct) of each row, as the other tenths of the rows teach it: from the confidence, and from all that scores tell."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    probs = model.float64_probs().clamp_min(1e-30)
    best = probs.topk(2, dim=1).values
    entropy = -(probs * probs.log()).sum(dim=1)
    log_odds = best[:, 0].logit().clamp(-30, 30)
    features = torch.stack([log_odds, best[:, 0] - best[:, 1], entropy, model.predicted.clamp_max(30)], dim=1).numpy()
    trees = HistGradientBoostingClassifier(
        max_iter=60, learning_rate=0.08, max_leaf_nodes=8, min_samples_leaf=40, categorical_features=[3], random_state=0
    )
    methods = {"confidence": (LogisticRegression(C=1e3), features[:, :1]), "all": (trees, features)}
    return {name: cross_val_predict(method, x, right, cv=10, method="predict_proba")[:, 1]
            for name, (method, x) in methods.items()}  # fmt: skip


def _variance(right: Floats, q: Floats, budget: int, doubt: float) -> float:
    """Return Σ (e − q)² (1 / π − 1) / N² of a draw in proportion to √(q (1 − q)), with a doubt as that of the design."""
    within = q * (1 - q)
    chance = inclusion_probabilities(np.sqrt(within + doubt * within.mean()), budget)
    return float((np.square(right - q) * (1 / chance - 1)).sum()) / len(right) ** 2


def fixed_plan(truth: float, *, away: float = 0.1, power: float = 0.9) -> int:
    """Return the simple random rows after which one look at an exact interval decides a limit ``away`` with probability ``power``."""
    from scipy.stats import norm

    z = norm.ppf(0.975) + norm.ppf(power)
    return int(np.ceil(z**2 * truth * (1 - truth) / away**2))


def record(cells_at: Path, looks_at: Path, joint_at: Path, oracle_at: Path) -> dict[str, Any]:
    """Return the record of the files."""
    found, several, bound = _lines(looks_at), _lines(joint_at), _lines(oracle_at)
    return {
        "versions": versions(),
        "sequential": {
            "pools": len(found), "looks": 6, "batch": 100, "wrong": float(np.mean([one["wrong"] for one in found])),
            "undecided": float(np.mean([one["clear"] is None for one in found])),
            "labels_clear_mean": float(np.mean([one["clear"] or 600 for one in found])),
            "labels_fixed": 600,
            # what one look of simple random rows needs at a power of 90 %, if the truth were known beforehand
            "labels_oracle_mean": float(np.mean([fixed_plan(one["truth"]) for one in found])),
        },
        "joint": {"pools": len(several), "looks": 6, "tests": 8, "wrong": float(np.mean([one["wrong"] for one in several]))},
        # the median over sets at the best doubt for each number of labels and what the oracle learns from
        "oracle": {
            f"{name}, {budget}": round(min(float(np.median([one["ratios"][name][str(doubt)] for one in bound
                                                           if one["labels"] == budget])) for doubt in DOUBTS), 4)
            for name in ("own", "confidence", "all") for budget in BUDGETS if any(one["labels"] == budget for one in bound)
        },
        "cells": [{name: round(value, 5) if isinstance(value, float) else value for name, value in one.items()}
                  for one in _lines(cells_at)],
    }  # fmt: skip


def told(kept: dict[str, Any]) -> Iterator[str]:
    """Yield one line for each trial, figure and number of labels."""

    sets = sorted({str(one["set"]) for one in kept["cells"]})
    fresh = {one for one in sets if one.startswith(("imagenet", "birds", "cifar100-densenet"))}
    logits = [one for one in sets if one not in fresh]
    tuned = set(np.random.default_rng(SEED).permutation(logits)[: len(logits) // 2].tolist())
    parts = {"44 logit sets": set(logits), "half A": tuned, "half B": set(logits) - tuned, "11 fresh sets": fresh}
    for trial, figures in TRIALS.items():
        for figure in figures:
            for budget in BUDGETS:
                for name, chosen in parts.items():
                    all_of = [one for one in kept["cells"] if one["set"] in chosen
                              and (one["trial"], one["figure"], one["labels"]) == (trial, figure, budget)]  # fmt: skip
                    if not all_of:
                        continue
                    ratios = [one["error_ratio"] for one in all_of if one["error_ratio"] is not None]
                    above = [
                        one["error_ratio"] - 2 * one["ratio_error"] for one in all_of if one["error_ratio"] is not None
                    ]
                    short = [one["coverage"] + 2 * (0.93 * 0.07 / one["replicates"]) ** 0.5 for one in all_of
                             if one["coverage"] is not None]  # fmt: skip
                    yield (
                        f"{trial:13} {figure:11} {budget:4} {name:13}: {len(all_of):2} cells, "
                        + (
                            f"ratio {np.median(ratios):.2f}, worst {max(ratios):.2f} (− 2 s.e. {max(above):.2f}), "
                            if ratios
                            else ""
                        )
                        + f"coverage {np.mean([one['coverage'] for one in all_of if one['coverage'] is not None]):.3f}, "
                        f"least {min(one['coverage'] for one in all_of if one['coverage'] is not None):.2f}, "
                        f"below 93 % − 2 s.e.: {sum(one < 0.93 for one in short)}, "
                        f"refused {np.mean([one['refused'] / one['replicates'] for one in all_of]):.1%}"
                    )


def _key(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["trial"], one["set"], one["figure"], one["labels"]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, one: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(one) + "\n")


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cells", "looks", "joint", "oracle", "record"))
    parser.add_argument("--data", type=Path, nargs="*", default=[])
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--pools", type=int, default=10_000)
    parser.add_argument("--cells", type=Path, default=Path("calibrant-runs/auditor-cells.jsonl"))
    parser.add_argument("--looks", type=Path, default=Path("calibrant-runs/auditor-looks.jsonl"))
    parser.add_argument("--joint", type=Path, default=Path("calibrant-runs/auditor-joint.jsonl"))
    parser.add_argument("--oracle", type=Path, default=Path("calibrant-runs/auditor-oracle.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.nice(5)
    for path in (options.cells, options.looks, options.joint, options.oracle):
        path.parent.mkdir(parents=True, exist_ok=True)
    paths = sorted(one for place in options.data for one in place.glob("*.npz"))
    if options.what == "cells":
        cells(paths, options.replicates, options.cells)
    elif options.what == "oracle":
        oracle(paths, options.oracle)
    elif options.what == "looks":
        looks(options.pools, options.looks)
    elif options.what == "joint":
        joint(options.pools, options.joint)
    else:
        kept = record(options.cells, options.looks, options.joint, options.oracle)
        RECORD.write_text(json.dumps(kept, separators=(",", ":")) + "\n")
        print("\n".join(told(kept)))


if __name__ == "__main__":
    main()
