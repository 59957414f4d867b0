"""What AutoCalibrator's settings cost and give, and whether the canonical error's interval covers: measured on real and made rows.

    python -m benchmarks.use keep --data ../shared/data --record docs/results/use.json      # decisions and rankings kept
    python -m benchmarks.use ones --data ../shared/data --record docs/results/use.json      # exact ones against the best clipping
    python -m benchmarks.use harm --draws 200 --cache harm.jsonl --record docs/results/use.json  # calibrated models, every setting
    python -m benchmarks.use sensitivity --data ../shared/data --record docs/results/use.json   # constants halved and doubled
    python -m benchmarks.use members --data ../shared/data --cache members.jsonl --record docs/results/use.json  # each alone
    python -m benchmarks.use canonical --draws 100 --cache canonical.jsonl --record docs/results/use.json
    python -m benchmarks.use costs --draws 200 --record docs/results/use.json               # size and power of the tests of costs
    python -m benchmarks.use realised --data ../shared/data --cache realised.jsonl --record docs/results/use.json  # costs= or not
    python -m benchmarks.use absent --draws 10 --data ../shared/data --record docs/results/use.json  # classes without a row
    python -m benchmarks.use gain --own now.jsonl --former former.jsonl --record docs/results/use.json  # of two versions
    python -m benchmarks.use picture --record docs/results/use.json                         # docs/images/keep.svg

``gain`` reads what ``benchmarks.auto --methods none AutoCalibrator --resamples 6 --out FILE`` wrote with this package and, by
PYTHONPATH, with a former one.

Real sets are fitted on their whole validation split and evaluated on up to 5,000 test rows. Every part replaces its own record only.
Sets of the half that did not choose the constants (``benchmarks.auto.half_of``) are evaluated here too: the record says when (``LOOKS``).
"""

import argparse
import datetime
import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.auto import half_of
from benchmarks.records import below_zero, beyond_chance, machine, versions
from calibrant import Predictions
from calibrant.calibrators import (
    AutoCalibrator,
    BoostedScaling,
    Calibrator,
    Chain,
    EnsembleTemperatureScaling,
    FocalTemperatureScaling,
    GroupScaling,
    TemperatureScaling,
)
from calibrant.calibrators.auto import auto
from calibrant.calibrators.auto.cross_fitting import HeldOutScores
from calibrant.calibrators.focal.temperature import fit_log_temperature
from calibrant.errors import CalibrantWarning
from calibrant.evaluate import cost_calibration
from calibrant.metrics import ECE, CanonicalError
from calibrant.rows import MemoryRows
from calibrant.statistics import interval

TEST_ROWS = 5000
MOST_CLASSES = 20
ONES = 0.9995  # confidences from here on are rounded to 1
CLIPS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-12)
LEAST_ONES = 0.01  # sets with fewer of them among the validation rows say nothing about ones
KEPT: dict[str, Callable[[], Calibrator]] = {
    "free": AutoCalibrator,
    "argmax": lambda: AutoCalibrator(keep="argmax"),
    "order": lambda: AutoCalibrator(keep="order"),
    # what keep_argmax=True was before: members that keep the order, and no projection
    "members that keep it": lambda: AutoCalibrator(
        candidates=[
            EnsembleTemperatureScaling(prior=0.5),
            FocalTemperatureScaling(gammas=(-0.9, 5.0), search="continuous", prior=0.5),
        ]
    ),
}
SETTINGS: dict[str, Callable[[int], Calibrator]] = {
    "top label": lambda classes: AutoCalibrator(top_label=True),
    "keep argmax": lambda classes: AutoCalibrator(keep="argmax"),
    "costs": lambda classes: AutoCalibrator(costs=matrices(classes, 1)[0]),
    "features": lambda classes: AutoCalibrator(features="all"),
    "GroupScaling": lambda classes: GroupScaling(),
    "BoostedScaling": lambda classes: BoostedScaling(),
}
# of auto.Constants, those that decide quality without zeros, features or a corrected top label
QUALITY = (
    "rate",
    "errors",
    "identity_odds",
    "few_errors",
    "two_classes",
    "least",
    "prior",
    "matrix_strength",
    "matrix_ridge",
    "by_chance",
)
# when test rows of the half that did not choose the constants were looked at, and what was then changed: they are no fresh evidence for it
LOOKS = (
    "2026-11-23, keep, realised, ones: all sets, evaluated; the projection and the levels of exact zeros were tuned on sets of both halves",
    "2026-11-25, ones: news20-crossval, cifar10-vgg16, and cifar10-wideresnet16x4 of the other half",
    "2026-11-25: Constants.blurs added, by cross-fitted validation losses of these three and cifar10-densenet40",
    "2026-11-25, ones: all sets with ones, once, after that",
    "2026-11-25: Constants.occurring and apart, by validation labels of all 44 sets, without test labels but for three of OODCV",
    "2026-11-25, absent, keep: all sets, once, after that",
    "2026-11-27, realised: near and its guard by 40 tables on the chosen half (-0.023 ± 0.024 %), the other once (-0.006 ± 0.020)",
    "2026-11-27, realised: weights fitted on the test labels themselves, to know what can be had: -0.35 ± 0.14 %",
    "2026-11-27, gain: some sets of both halves, twice; by_chance (3, now 1) and Σ p² of absent classes were chosen by validation rows",
    "2026-11-27, gain, absent, keep: all sets, once, after that",
    "2026-11-27, realised: near 20 to 200 with and without its guard by splits of the chosen half: no guard -0.045 to -0.009 %",
    "2026-11-27, realised: all sets, once without the guard (near 40: -0.005 ± 0.015 %), once as it stands (0.000 ± 0.006)",
)
Split = tuple[Tensor, Tensor, Tensor, Tensor]


def sets(folder: Path, names: tuple[str, ...] = (), test_rows: int | None = TEST_ROWS) -> Iterator[tuple[str, Split]]:
    """Yield each real set's name, validation logits and labels, and up to ``test_rows`` test logits and labels."""
    for path in sorted((folder / "logits").glob("*.npz"), key=lambda one: one.stat().st_size):
        if names and path.stem not in names:
            continue
        with np.load(path) as file:
            z, y, test, labels = (
                torch.from_numpy(file[f"{split}_{kind}"]) for split in ("val", "test") for kind in ("logits", "labels")
            )
        rows = torch.from_numpy(np.random.default_rng(1).permutation(len(labels))[:test_rows])
        yield path.stem, (z, y, test[rows].double(), labels[rows])


def keep(data: Path) -> dict[str, Any]:
    """Return log-loss, ECE and CPU seconds of what is kept, by set, and their means over the sets without CIFAR-100's."""
    rows: dict[str, Any] = {}
    for name, (z, y, test, labels) in sets(data):
        row: dict[str, Any] = {"half": half_of(name)}
        for method, make in KEPT.items():
            start = time.process_time()
            fitted = make().fit(z, y)
            middle = time.process_time()
            answer = fitted(test)
            seconds = [round(middle - start, 2), round(time.process_time() - middle, 2)]
            kept = Predictions.from_logits(answer, labels)
            row[method] = {"loss": float(cross_entropy(answer, labels)), "ece": ECE()(kept), "seconds": seconds}
            row[method]["changed"] = float((answer.argmax(1) != test.argmax(1)).double().mean())
        rows[name] = row
    some = [row for name, row in rows.items() if not name.startswith("cifar100-")]
    old = [row["members that keep it"]["loss"] for row in some]
    few = [row for row in some if row["free"]["changed"] < 0.05]
    ratio = [row["argmax"]["loss"] / before for row, before in zip(some, old, strict=True)]
    return {
        "sets": rows,
        "mean_loss": {method: float(np.mean([row[method]["loss"] for row in some])) for method in KEPT},
        "below_members": sum(one < 1 for one in ratio),
        "most_above_members": max(ratio) - 1,
        "ece_where_few_change": {method: float(np.mean([row[method]["ece"] for row in few])) for method in KEPT},
        "sets_where_few_change": len(few),
        "time": {
            method: sum(sum(row[method]["seconds"]) for row in rows.values())
            / sum(sum(row["free"]["seconds"]) for row in rows.values())
            for method in KEPT
        },
    }


def with_ones(logits: Tensor) -> Tensor:
    """Return probabilities in which confidences of ``ONES`` and more are 1, and what they leave is 0."""
    p = torch.softmax(logits.double(), 1)
    top = p.amax(1, keepdim=True)
    return torch.where(top >= ONES, (p == top).double(), p)


def ones(data: Path) -> dict[str, Any]:
    """Return, by set, log-loss on rounded scores, and on the same clipped where the test labels like it best.

    Of every set of up to ``MOST_CLASSES`` classes with ones; the standard error is of the paired difference from the best clipping, whose
    choice by test labels it leaves out.
    """
    rows: dict[str, Any] = {}
    for name, (z, y, test, labels) in sets(data):
        a, b = with_ones(z), with_ones(test)
        share = float((a.amax(1) == 1).double().mean())
        if z.shape[1] > MOST_CLASSES or share < LEAST_ONES:
            continue

        def losses(low: float, a: Tensor = a, b: Tensor = b, y: Tensor = y, labels: Tensor = labels) -> Tensor:
            answer = AutoCalibrator().fit(a.clamp_min(low).log(), y)(b.clamp_min(low).log())
            return cross_entropy(answer, labels, reduction="none")

        clipped = {low: losses(low) for low in CLIPS}
        best = min(CLIPS, key=lambda low: float(clipped[low].mean()))
        own = losses(0.0)
        gap, least = own - clipped[best], float(clipped[best].mean())
        rows[name] = {
            "half": half_of(name),
            "ones": share,
            "own": float(own.mean()),
            "clipped": {f"{low:g}": float(loss.mean()) for low, loss in clipped.items()},
            "behind": float(gap.mean()) / least,
            "standard_error": float(gap.std()) / len(gap) ** 0.5 / least,
            "unrounded": float(cross_entropy(AutoCalibrator().fit(z, y)(test), labels)),
        }
        print(name, rows[name], flush=True)
    behind = [row["behind"] for row in rows.values()]
    return {
        "sets": rows,
        "mean_behind": float(np.mean(behind)),
        "most_behind": max(behind),
        "beyond_half_a_percent": [name for name, row in rows.items() if row["behind"] > 0.005],
        "beyond_chance": [name for name, row in rows.items() if row["behind"] - 0.005 > 1.96 * row["standard_error"]],
    }


def calibrated(kind: str, rows: int, seed: int) -> Predictions:
    """Return rows of a model whose probabilities are the truth, in every group of two columns."""
    g = torch.Generator().manual_seed(seed)
    if kind == "two classes":
        z = 1.5 * torch.randn(rows, 2, generator=g).double() + torch.tensor([1.5, 0.0])
    elif kind == "four classes":
        z = 2 * torch.randn(rows, 4, generator=g).double()
    else:
        z = 2 * torch.randn(rows, 10, generator=g).double() - 0.35 * torch.arange(10)
    y = torch.softmax(z, dim=1).multinomial(1, generator=g)[:, 0]
    site, sex = (torch.randint(0, many, (rows,), generator=g).numpy() for many in (4, 2))
    return Predictions.from_logits(
        z, y, features={"site": np.array(list("abcd"))[site], "sex": np.array(["m", "f"])[sex]}
    )


def fitted_settings(data: Predictions) -> Iterator[tuple[str, Calibrator]]:
    """Yield each setting's name and the calibrator that it fits on ``data``, to be used before the next is asked for.

    Two settings have the members and weights of another one: the plain pool is the one without its bins of the top label, and the
    ranking is kept by the pool that keeps the decision, by another projection.
    """
    for name, make in SETTINGS.items():
        fitted = make(data.classes).fit(data)
        yield name, fitted
        if name == "top label":
            fitted.top_edges = fitted.top_values = torch.empty(0, dtype=torch.float64)
            yield "plain", fitted
        elif name == "keep argmax":
            fitted.keep = "order"
            yield "keep order", fitted


def harm(draws: int, cache: Path, sizes: tuple[int, ...] = (50, 100, 300, 1000)) -> dict[str, Any]:
    """Return the change of log-loss that each setting makes on calibrated models: of as many draws as the cache holds in the end.

    The cache has a line for each draw of a cell, so that a run goes on where it was stopped; draws come first, so that all cells fill
    together.
    """
    lines = [json.loads(line) for line in cache.read_text().splitlines()] if cache.exists() else []
    known: dict[tuple[str, int], dict[str, float]] = {(cell, draw): changes for cell, draw, changes in lines}
    cells = [
        (f"{kind}, n = {size}", kind, size) for kind in ("two classes", "four classes", "ten classes") for size in sizes
    ]
    for draw, (cell, kind, size) in product(range(draws), cells):
        if (cell, draw) not in known:
            data = calibrated(kind, size + 4000, 1000 * draw + size)
            test = data[size:]
            before = float(cross_entropy(test.logits, test.need_labels()))
            known[cell, draw] = changes = {}
            for name, fitted in fitted_settings(data[:size]):
                after = test.calibrated_by(fitted)
                changes[name] = round(float(cross_entropy(after.logits, test.need_labels())) / before - 1, 6)
            with cache.open("a") as file:
                file.write(json.dumps([cell, draw, changes]) + "\n")
    found: dict[str, Any] = {}
    for name in next(iter(known.values())):
        by_cell = {cell: [one[name] for (c, _), one in known.items() if c == cell] for cell, _, _ in cells}
        every = np.concatenate([np.array(one) for one in by_cell.values()])
        found[name] = {
            "mean": float(every.mean()),
            "beyond_1": float((every > 0.01).mean()),
            "quantile_95": float(np.quantile(every, 0.95)),
            "quantile_99": float(np.quantile(every, 0.99)),
            "most": float(every.max()),
            "cells": {
                cell: {"draws": len(one), "mean": float(np.mean(one)), "beyond_1": float((np.array(one) > 0.01).mean()), "most": max(one)}
                for cell, one in by_cell.items()
            },
        }  # fmt: skip
        print(name, {key: round(value, 5) for key, value in found[name].items() if key != "cells"}, flush=True)
    return {"draws": min(sum(c == cell for c, _ in known) for cell, _, _ in cells), "settings": found}


def overconfident(classes: int, rows: int, sharpness: float, bias: float, seed: int) -> tuple[Predictions, Tensor]:
    """Return logits ``sharpness`` times too large and without the bias of class 0, and the true probabilities."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(rows, classes, generator=g).double()
    true = torch.softmax(z + bias * torch.eye(classes)[0], 1)
    return Predictions.from_logits(sharpness * z, true.multinomial(1, generator=g)[:, 0]), true


def sharpness_of(classes: int, error: float) -> float:
    """Return how much too large logits are whose canonical error is ``error``, by bisection."""
    low, high = 1.0, 12.0
    for _ in range(25):
        middle = (low + high) / 2
        data, true = overconfident(classes, 20_000, middle, 0.0, 999)
        low, high = (middle, high) if float((data.probs - true).abs().sum(1).mean()) < error else (low, middle)
    return low


def canonical(draws: int, cache: Path) -> dict[str, Any]:
    """Return how often the lower end lies below the truth, and how far, of the cells that the cache holds in the end: a line for each.

    Small samples come first, so that a run that is stopped has those of all populations.
    """
    lines = cache.read_text().splitlines() if cache.exists() else []
    cells = [json.loads(line) for line in lines]
    known = {(cell["classes"], cell["rows"], cell["sharpness"]) for cell in cells}
    sharp = {classes: sharpness_of(classes, 0.4) for classes in (3, 10, 50)}
    for rows, classes, kind in product((500, 2000, 10_000), sharp, range(3)):
        sharpness, bias = ((1.0, 0.0), (sharp[classes], 0.0), (1.3, 1.0))[kind]
        if (classes, rows, sharpness) in known:
            continue
        data, true = overconfident(classes, 20_000, sharpness, bias, 999)
        truth = float((data.probs - true).abs().sum(1).mean())
        drawn = [interval(CanonicalError(), overconfident(classes, rows, sharpness, bias, d)[0]) for d in range(draws)]
        cell = {
            "classes": classes, "rows": rows, "truth": truth, "draws": draws, "sharpness": sharpness, "bias": bias,
            "estimate": float(np.mean([one.estimate for one in drawn])),
            "covered": float(np.mean([one.low <= truth for one in drawn])),
            "low_from_.3": float(np.mean([one.low >= 0.3 for one in drawn])),
            "half_width": float(np.mean([(one.high - one.low) / 2 for one in drawn])),
        }  # fmt: skip
        cells.append(cell)
        with cache.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        print(cell, flush=True)
    return {"cells": cells}


def matrices(classes: int, count: int) -> list[Tensor]:
    """Return random (K, K) costs, 0 for the true class."""
    g = torch.Generator().manual_seed(0)
    return [torch.rand(classes, classes, generator=g, dtype=torch.float64).fill_diagonal_(0.0) for _ in range(count)]


def costs(draws: int) -> dict[str, Any]:
    """Return the size of the tests of costs on calibrated rows, and their power beside that of a z-test that knows the variance.

    The size is of four times as many draws as the power.
    """
    cells = []
    for classes in (3, 10):
        for table in matrices(classes, 3):
            for sharpness in (1.0, 1.05, 1.1, 1.2):
                found, oracle = [], []
                many = draws if sharpness > 1 else 4 * draws
                for draw in range(many):
                    data, true = overconfident(classes, 2000, sharpness, 0.0, draw)
                    expected = data.probs @ table
                    foreseen, action = expected.min(dim=1)
                    own = table.T[action]
                    mean = (true * own).sum(dim=1)
                    spread = ((true * own.square()).sum(dim=1) - mean.square()).sum().sqrt()  # of the sum, as it is
                    realised = own.gather(1, data.need_labels()[:, None])[:, 0]
                    oracle.append(abs(float((realised - foreseen).sum() / spread)) > 1.959964)
                    one = cost_calibration(data, table)
                    found.append([one.p, one.kuiper_p, (float(mean.mean()) - one.foreseen) / one.foreseen])
                p, kuiper, gap = np.array(found).T
                cells.append(
                    {
                        "classes": classes, "sharpness": sharpness, "draws": many, "gap": float(gap.mean()),
                        "rejected": float((p < 0.05).mean()), "rejected_kuiper": float((kuiper < 0.05).mean()),
                        "rejected_knowing_the_variance": float(np.mean(oracle)),
                    }
                )  # fmt: skip
                print(cells[-1], flush=True)
    return {"draws": draws, "rows": 2000, "cells": cells}


def absent(draws: int, data: Path) -> dict[str, Any]:
    """Return how the pool does on rows of all classes when it is fitted without 3 of 10 classes, and what it says of real absence.

    Behind is the log-loss relative to a temperature's fitted on the same rows, less 1. ``kept`` counts the draws in which the classes
    keep their odds; ``never`` are the sets with classes that have no row at all, in either split, and those of them that it learns;
    ``apart``, by that constant: draws of 1, 2, 3 or half of the classes, those judged wrongly, and such sets that are found.
    """
    behind: dict[str, list[float]] = {}
    never: dict[str, bool] = {}
    judged = {
        factor: [0, 0, 0] for factor in (1.0, 1.2, 1.3, 1.4)
    }  # decisions about draws, wrong ones, sets of never learned

    def judge(z: Tensor, y: Tensor, factor: float) -> bool:
        auto.CONSTANTS = replace(usual, apart=factor)
        mass, rows = torch.bincount(y, minlength=z.shape[1]).double(), MemoryRows.of(z, y)
        return auto._may_occur(mass, rows, torch.tensor(fit_log_temperature(rows, prior=usual.prior).x))

    usual = auto.CONSTANTS
    kept = 0
    for name, (z, y, test, labels) in sets(data):
        classes = z.shape[1]
        if bool((torch.bincount(y, minlength=classes) == 0).any()):
            # those of which fewer than three rows were expected keep their odds
            for factor, found in judged.items():
                found[2] += not judge(z, y, factor)
            auto.CONSTANTS = usual
            never[name] = int(AutoCalibrator().fit(z, y).absent.sum()) < int(
                (torch.bincount(y, minlength=classes) == 0).sum()
            )
        elif 5 <= classes <= MOST_CLASSES:
            behind[name] = []
            for seed, size in product(range(10 * draws), sorted({1, 2, 3, classes // 2})):
                dropped = np.random.default_rng(seed).choice(classes, size, replace=False)
                some = ~torch.isin(y, torch.from_numpy(dropped))
                for factor, found in judged.items():
                    found[0] += 1
                    found[1] += not judge(z[some], y[some], factor)
            auto.CONSTANTS = usual
            for seed in range(draws):
                dropped = np.random.default_rng(seed).choice(classes, 3 * classes // 10, replace=False)
                some = ~torch.isin(y, torch.from_numpy(dropped))
                pool, temperature = (one.fit(z[some], y[some]) for one in (AutoCalibrator(), TemperatureScaling()))
                kept += pool.absent.numel() > 0
                own, other = (float(cross_entropy(one(test), labels)) for one in (pool, temperature))
                behind[name].append(own / other - 1)
            print(name, [f"{one:+.2%}" for one in behind[name]], flush=True)
    every = [one for row in behind.values() for one in row]
    return {
        "draws": len(every), "kept": kept, "within": sum(one <= 0.01 for one in every), "median": float(np.median(every)),
        "most": max(every), "apart": {str(factor): found for factor, found in judged.items()},
        "never": len(never), "never_learned": sum(never.values()), "sets": behind,
    }  # fmt: skip


def realised(data: Path, cache: Path, splits: int = 4, tables: int = 20, rows: int = 1000) -> dict[str, Any]:
    """Return, by set, the cost on held-out rows of decisions by pools fitted for random costs, beside those of the plain pool.

    Both are fitted on ``rows`` of a set's rows, drawn at random, and decide on all others, ``splits`` times; every second table lets
    a row go to a person. The t statistic is of the paired difference over the held-out rows, and its p values are corrected over all
    splits and tables by Holm's rule; the interval of the mean is over sets. The cache has a line for each split, so that a run goes
    on where it was stopped.
    """
    lines = [json.loads(line) for line in cache.read_text().splitlines()] if cache.exists() else []
    known: dict[tuple[int, str], list[dict[str, Any]]] = {(split, name): found for split, name, found in lines}
    seconds: list[list[float]] = []
    for split, (name, (z, y, test, labels)) in product(range(splits), sets(data, test_rows=None)):
        if z.shape[1] > MOST_CLASSES or (split, name) in known:
            continue
        z, y = torch.cat([z.double(), test]), torch.cat([y, labels])
        order = torch.from_numpy(np.random.default_rng(split).permutation(len(y)))
        (z, y), (test, labels) = ((z[some], y[some]) for some in (order[:rows], order[rows:]))
        own = [with_a_person(table, number) for number, table in enumerate(matrices(z.shape[1], tables))]
        known[split, name] = found = []
        if split == 0:  # from scratch, too
            start = time.process_time()
            AutoCalibrator().fit(z, y)
            middle = time.process_time()
            scratch = AutoCalibrator(costs=own[0]).fit(z, y)
            seconds.append([middle - start, time.process_time() - middle])
            own_way = next(pools(z, y, test, own[:1]))[1]
            torch.testing.assert_close(own_way, torch.softmax(scratch(test), 1), rtol=0, atol=1e-5)
        for table, (plain, p) in zip(own, pools(z, y, test, own), strict=True):
            actions = [(one @ table).argmin(1) for one in (p, plain)]
            paid, before = (table[labels, action] for action in actions)
            gap = (paid - before).numpy()
            error = float(gap.std(ddof=1)) / len(gap) ** 0.5
            found.append({
                "cost": float(before.mean()), "change": float(gap.mean() / before.mean()), "t": float(gap.mean()) / error if error else 0.0,
                "moved": not torch.equal(p, plain), "abstained": [float((action == z.shape[1]).double().mean()) for action in actions],
            })  # fmt: skip
        with cache.open("a") as file:
            file.write(json.dumps([split, name, found]) + "\n")
        print(split, name, [round(one["t"], 2) for one in found], flush=True)
    every = [one for found in known.values() for one in found]
    names = list(dict.fromkeys(name for _, name in known))
    by_set = {
        name: [one["change"] for (_, own), found in known.items() if own == name for one in found] for name in names
    }
    return {
        "rows": rows, "splits": splits, "tables": tables, "pairs": len(every), "moved": sum(one["moved"] for one in every),
        **mean_over(by_set.values()), "halves": {
            half: mean_over(values for name, values in by_set.items() if half_of(name) == half) for half in ("chosen", "judged")
        },
        "dearer_after_holm": beyond_chance([below_zero(-one["t"]) for one in every]),
        "most_dearer": max(one["change"] for one in every), "most_cheaper": min(one["change"] for one in every),
        "abstained": np.mean([one["abstained"] for found in known.values() for one in found[1::2]], axis=0).tolist(),
        **({"time": float(np.divide(*np.sum(seconds, axis=0)[::-1]))} if seconds else {}),
        "sets": {name: float(np.mean(values)) for name, values in by_set.items()},
    }  # fmt: skip


def with_a_person(table: Tensor, number: int) -> Tensor:
    """Return costs (K, K), in every second table with an action more, which costs the same for all classes: up to .5."""
    asked = torch.rand((), generator=torch.Generator().manual_seed(number), dtype=torch.float64) / 2
    return torch.cat([table, asked.expand(len(table), 1)], dim=1) if number % 2 else table


def pools(z: Tensor, y: Tensor, test: Tensor, tables: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, by table, probabilities of rows to come by the plain pool and by that for these costs, from one fit of their members.

    For costs a pool has other weights, by its members' probabilities of rows held out, which wrong decisions' costs of 1 are. The
    first table is fitted from scratch, too, and has to give the same.
    """
    classes, by_costs, kept = z.shape[1], auto.by_costs, []

    def keep_weights(scores: HeldOutScores, weights: Tensor) -> Tensor:
        kept.append((scores, weights))
        return weights

    auto.by_costs = keep_weights
    try:
        pool = AutoCalibrator(costs=1 - torch.eye(classes, dtype=torch.float64)).fit(z, y)
    finally:
        auto.by_costs = by_costs
    plain = torch.softmax(pool(test), 1)
    for table in tables:
        p = plain
        if kept:
            scores, weights = kept[0]
            beyond = table - table.amin(dim=1, keepdim=True)
            beyond = beyond / beyond.amax()
            foreseen = ((1 - scores.foreseen.double()) @ beyond).float()
            pool.weights = by_costs(replace(scores, foreseen=foreseen, costs=beyond[scores.costs.argmin(1)]), weights)
            p = torch.softmax(pool(test), 1)
        yield plain, p


def mean_over(groups: Iterable[Sequence[float]]) -> dict[str, Any]:
    """Return the mean of the groups' means, and its interval of 95 %, of which a group is the unit."""
    means = np.array([np.mean(values) for values in groups])
    mean, half = float(means.mean()), 1.96 * float(means.std(ddof=1)) / len(means) ** 0.5
    return {"mean_change": mean, "interval": [mean - half, mean + half]}


def gain(own: Sequence[Path], former: Sequence[Path]) -> dict[str, Any]:
    """Return by rows how much log-loss the pool saves on real sets, as a multiple of what a former version saves on the same draws.

    The interval is a bootstrap over sets.
    """
    saved: list[dict[tuple[str, str, int], float]] = [
        {
            (row["set"], row["size"], row["draw"]): row["losses"]["none"] - row["losses"]["AutoCalibrator"]
            for path in paths
            for row in map(json.loads, path.read_text().splitlines())
        }
        for paths in (own, former)
    ]
    cases = saved[0].keys() & saved[1].keys()
    names = sorted({name for name, _, _ in cases})
    generator = np.random.default_rng(0)

    def ratio(some: Sequence[tuple[str, str, int]]) -> dict[str, Any]:
        sums = np.array([[sum(one[case] for case in some if case[0] == name) for one in saved] for name in names])
        again = sums[generator.integers(len(names), size=(2000, len(names)))].sum(axis=1)
        low, high = np.quantile(again[:, 0] / again[:, 1], (0.025, 0.975))
        return {
            "cases": len(some), "former": float(sums[:, 1].sum()) / len(some), "times": float(sums[:, 0].sum() / sums[:, 1].sum()),
            "interval": [float(low), float(high)],
        }  # fmt: skip

    drawn = [case for case in cases if case[1] != "full"]
    sizes = sorted({int(size) for _, size, _ in drawn})
    by_size = {str(size): ratio([case for case in drawn if case[1] == str(size)]) for size in sizes}
    return {"number_of_sets": len(names), "by_size": by_size, "all": ratio(drawn)}


def members(data: Path, cache: Path) -> dict[str, Any]:
    """Return, by set, how far each candidate of the pool, fitted alone, is from the pool on test rows, and whether any is surely ahead.

    The cache has a line for each set, so that a run goes on where it was stopped.
    """
    lines = cache.read_text().splitlines() if cache.exists() else []
    known: dict[str, Any] = dict(json.loads(line) for line in lines)
    for name, (z, y, test, labels) in sets(data):
        if z.shape[1] > MOST_CLASSES or name in known:
            continue
        pool = AutoCalibrator().fit(z, y)
        own = cross_entropy(pool(test), labels, reduction="none")
        row: dict[str, Any] = {"half": half_of(name), "loss": float(own.mean()), "members": {}}
        for member, loss in zip(pool.candidates, pool.losses[1:].tolist(), strict=True):
            if loss == float("inf"):
                continue  # not for so many classes
            fitted = member if member.fitted else member.fit(z, y)
            gap = cross_entropy(fitted(test), labels, reduction="none") - own
            error = float(gap.std()) / len(gap) ** 0.5
            title = " + ".join(
                type(stage).__name__ for stage in (member.parts() if isinstance(member, Chain) else [member])
            )
            row["members"][title] = [float(gap.mean()), float(gap.mean()) / error if error else 0.0]
        known[name] = row
        with cache.open("a") as file:
            file.write(json.dumps([name, row]) + "\n")
        print(name, row, flush=True)
    every = [one for row in known.values() for one in row["members"].values()]
    return {
        "sets": known,
        "pairs": len(every),
        "members_ahead": sum(gap < 0 for gap, _ in every),
        "members_ahead_after_holm": beyond_chance([below_zero(t) for _, t in every]),
        "mean_relative": {
            title: float(np.mean([row["members"][title][0] / row["loss"] for row in known.values() if title in row["members"]]))
            for title in dict.fromkeys(title for row in known.values() for title in row["members"])
        },
    }  # fmt: skip


def picture(record: dict[str, Any], path: Path) -> None:
    """Draw mean log-loss and ECE of what is kept."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    part = record["keep"]
    some = [row for name, row in part["sets"].items() if not name.startswith("cifar100-")]
    names = {
        "members that keep it": "only candidates that keep the ranking",
        "order": 'ranking kept, keep="order"',
        "argmax": 'decision kept, keep="argmax"',
        "free": "free",
    }
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), sharey=True, layout="constrained")
    panels = (
        (axes[0], part["mean_loss"], f"mean log-loss, {len(some)} sets", "{:.3f}"),
        (
            axes[1],
            {name: 100 * value for name, value in part["ece_where_few_change"].items()},
            f"mean ECE in %, {part['sets_where_few_change']} sets\nwith < 5 % of decisions changed",
            "{:.2f}",
        ),
    )
    for axis, values, title, form in panels:
        bars = axis.barh(
            list(names.values()), [values[name] for name in names], color=["#9aa5b1", "#6b8fb5", "#2f6fab", "#444b54"]
        )
        axis.bar_label(bars, [form.format(values[name]) for name in names], padding=3, fontsize=8)
        axis.set_title(title, fontsize=9)
        axis.set_xlim(0, 1.2 * max(values.values()))
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    with matplotlib.rc_context({"svg.hashsalt": "calibrant"}):
        figure.savefig(path, metadata={"Date": None})


def sensitivity(data: Path, rows: int = 300) -> dict[str, Any]:
    """Return, on every third set of the half that chose the constants, how much the mean log-loss moves where one is halved or doubled."""
    chosen = [
        (name, split) for name, split in sets(data) if half_of(name) == "chosen" and not name.startswith("cifar100")
    ][::3]

    def mean_loss(constants: auto.Constants) -> float:
        auto.CONSTANTS = constants
        losses = []
        for _, (z, y, test, labels) in chosen:
            order = torch.from_numpy(np.random.default_rng(0).permutation(len(y))[:rows])
            losses.append(float(cross_entropy(AutoCalibrator().fit(z[order], y[order])(test), labels)))
        return float(np.mean(losses))

    usual = auto.CONSTANTS
    base, moved = mean_loss(usual), {}
    for name in QUALITY:
        value = getattr(usual, name)
        halved, doubled = (type(value)(value * factor) for factor in (0.5, 2))
        moved[name] = {"value": value} | {
            key: mean_loss(replace(usual, **{name: other})) / base - 1
            for key, other in (("halved", halved), ("doubled", doubled))
        }
        print(name, moved[name], flush=True)
    auto.CONSTANTS = usual
    return {"rows": rows, "which": [name for name, _ in chosen], "mean_loss": base, "constants": moved}


def keep_part(path: Path, part: str, found: dict[str, Any]) -> None:
    """Write ``found`` into the record as its part."""
    record = json.loads(path.read_text()) if path.exists() else {}
    known = {name: number for name, number in versions().items() if name in ("python", "calibrant", "torch")}
    record["looks"] = list(LOOKS)
    record[part] = {"machine": machine(), "versions": known, "day": datetime.date.today().isoformat(), **found}
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    """Measure one part, print it, and write its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "part",
        choices=(
            "keep",
            "ones",
            "harm",
            "members",
            "canonical",
            "costs",
            "realised",
            "absent",
            "gain",
            "picture",
            "sensitivity",
        ),
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--record", type=Path)
    parser.add_argument(
        "--cache",
        type=Path,
        default=Path("harm.jsonl"),
        help="of harm, members, canonical and realised: a line for each result",
    )
    parser.add_argument("--own", type=Path, nargs="*", default=[], help="of gain: what benchmarks.auto wrote")
    parser.add_argument("--former", type=Path, nargs="*", default=[], help="of gain: with another version")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CalibrantWarning)
    if options.part == "picture":
        picture(json.loads(options.record.read_text()), Path("docs/images/keep.svg"))
        return
    by_data = {"keep": keep, "ones": ones, "sensitivity": sensitivity}
    by_data["realised"] = partial(realised, cache=options.cache)
    by_data["members"] = partial(members, cache=options.cache)
    by_draws: dict[str, Callable[[int], dict[str, Any]]] = {
        "harm": partial(harm, cache=options.cache),
        "canonical": partial(canonical, cache=options.cache),
        "costs": costs,
        "absent": partial(absent, data=options.data),
    }
    if options.part == "gain":
        found = gain(options.own, options.former)
    else:
        found = (
            by_data[options.part](options.data) if options.part in by_data else by_draws[options.part](options.draws)
        )
    if options.record:
        keep_part(options.record, options.part, found)
    print(
        json.dumps(
            {name: value for name, value in found.items() if name not in ("sets", "settings", "cells")}, indent=1
        )
    )


if __name__ == "__main__":
    main()
