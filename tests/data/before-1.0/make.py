"""Write one small file of every kind, with what each must answer: run on the code of commit 0b16652, and never again.

python tests/data/before-1.0/make.py FOLDER SCRATCH
"""

import io
import json
import os
import shutil
import sys
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibrant._formats.writing import write_named
from typer.testing import CliRunner

import calibrant
from calibrant import MultiLabelPredictions, Predictions, calibrators
from calibrant.binning import EqualMass, EqualWidth
from calibrant.calibrators import (
    AdaptiveTemperatureScaling,
    AutoCalibrator,
    BetaCalibration,
    BoostedScaling,
    Chain,
    DirichletCalibration,
    FeatureScaling,
    FocalCalibration,
    FocalTemperatureScaling,
    GroupScaling,
    HistogramBinning,
    IsotonicCalibration,
    KernelScaling,
    MatrixScaling,
    MultiLabelCalibrator,
    PlattScaling,
    PriorShift,
    QuadraticScaling,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
)
from calibrant.cli import main
from calibrant.operate import Deployed, Monitor, abstain, thresholds
from calibrant.study import Store, load_study
from calibrant.study.train import Outcome

ROWS, PROBES = 160, 12


def made(rows: int, classes: int, *, seed: int, kind: str | None = "sampling", sharp: float = 2.0) -> Predictions:
    """Return over-confident predictions, with weights, groups of two rows, and features of numbers and of names."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, classes)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    region = rng.integers(0, 3, rows)
    weights = rng.integers(1, 4, rows) if kind == "frequency" else rng.uniform(0.5, 2, rows)
    return Predictions.from_logits(
        (true * (sharp + 0.5 * (region == 2))[:, None]).astype(np.float32),
        labels,
        groups=np.arange(rows) // 2,
        weights=None if kind is None else weights,
        weight_kind=kind,
        features={"region": np.array(["east", "north", "west"])[region], "age": rng.normal(40, 9, rows).round(2)},
    )


def bare(data: Predictions, *, groups: bool = False) -> Predictions:
    return Predictions.from_logits(data.logits, data.labels, groups=data.groups if groups else None)


def several(rows: int, *, seed: int) -> MultiLabelPredictions:
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(rows, 3)) * 1.5
    labels = (rng.random((rows, 3)) < 1 / (1 + np.exp(-true))).astype(np.int64)
    labels[rng.random((rows, 3)) < 0.05] = -1
    return MultiLabelPredictions.from_logits(
        (2 * true).astype(np.float32),
        labels,
        names=["cat", "dog", "owl"],
        weights=rng.uniform(0.5, 2, rows),
        weight_kind="sampling",
        features={"region": np.array(["east", "north"])[rng.integers(0, 2, rows)]},
    )


def fits(classes: int) -> dict[str, Any]:
    """Return name → (calibrator to fit, whether with features)."""
    plain = {
        name: FocalCalibration(gamma=1.5) if name == "FocalCalibration" else getattr(calibrators, name)()
        for name in calibrators.__all__
        if name
        not in ("Chain", "GroupScaling", "BoostedScaling", "FeatureScaling", "MultiLabelCalibrator", "PriorShift")
    }
    found: dict[str, tuple[Any, bool]] = {name: (one, False) for name, one in plain.items()}
    found |= {
        "PriorShift": (PriorShift([0.2, 0.3, 0.5][:classes] if classes == 3 else [0.4, 0.6]), False),
        "PriorShift-em": (PriorShift(), False),
        "PriorShift-bbse": (PriorShift(method="bbse", floor=0.01), False),
        "GroupScaling": (GroupScaling(["region"]), True),
        "BoostedScaling": (BoostedScaling(most_trees=6), True),
        "FeatureScaling": (FeatureScaling(["age"], ridge=2.0), True),
        "AdaptiveTemperatureScaling-age": (AdaptiveTemperatureScaling(["age"], knots=4), True),
        "Chain": (Chain(TemperatureScaling(), HistogramBinning(EqualWidth(6))), False),
        "Chain-features": (Chain(VectorScaling(), GroupScaling(["region"])), True),
        "Chain-nested": (Chain(Chain(TemperatureScaling(), FocalCalibration(gamma=1.0)), IsotonicCalibration()), False),
        "HistogramBinning-mass": (HistogramBinning(EqualMass(5), empty="nearest", floor=0.01), False),
        "DirichletCalibration-strengths": (DirichletCalibration(off_diagonal=0.1), False),
        "FocalTemperatureScaling-continuous": (FocalTemperatureScaling(search="continuous"), False),
        "KernelScaling-waves": (KernelScaling(waves=6), False),
        "Auto-top": (AutoCalibrator(top_label=True), False),
        "Auto-keep": (AutoCalibrator(keep_argmax=True, folds=3), False),
        "Auto-features": (AutoCalibrator(features=["region", "age"], folds=3), True),
        "Auto-members": (
            AutoCalibrator(
                candidates=[
                    TemperatureScaling(), BetaCalibration(), MatrixScaling(), QuadraticScaling(), PlattScaling(), VennAbers(),
                    IsotonicCalibration(), KernelScaling(waves=4), Chain(TemperatureScaling(), VectorScaling()),
                ],
                folds=3,
            ),
            False,
        ),
        "Auto-groups": (AutoCalibrator(candidates=[TemperatureScaling(), GroupScaling(["region"])], features="all"), True),
    }  # fmt: skip
    return found


def fitted_on(calibrator: Any, data: Predictions) -> Any:
    """Fit, on bare rows where a calibrator refuses what lies beside them."""
    try:
        return calibrator.fit(data)
    except calibrant.errors.InputError:
        return calibrator.fit(bare(data))


def save_calibrators(folder: Path, answers: dict[str, np.ndarray]) -> None:
    folder.mkdir()
    for classes in (3, 2):
        data, probe = made(ROWS, classes, seed=classes), made(PROBES, classes, seed=10 + classes)
        answers[f"probe-{classes}-logits"] = probe.logits.numpy()
        answers[f"fitted-{classes}-logits"], answers[f"fitted-{classes}-labels"] = (
            data.logits.numpy(),
            data.labels.numpy(),
        )
        answers |= {f"probe-{classes}-{name}": np.asarray(values) for name, values in probe.features.items()}
        for name, (calibrator, needs) in fits(classes).items():
            if classes == 2 and "-" in name:
                continue
            fitted = fitted_on(calibrator, data)
            place = folder / f"{name}-{classes}.safetensors"
            fitted.save(place)
            logits = probe.logits.double()
            out = fitted(logits, probe.features) if needs and fitted.needs_features else fitted(logits)
            answers[f"answer-{place.stem}"] = out.softmax(1).numpy()
    data, probe = several(ROWS, seed=5), several(PROBES, seed=6)
    answers["probe-labels-logits"] = probe.logits.numpy()
    bases = {"": None, "-isotonic": IsotonicCalibration(), "-beta": BetaCalibration(), "-vector": TemperatureScaling()}
    for name, base in bases.items():
        fitted = MultiLabelCalibrator(base, strength=None if name == "-isotonic" else 10.0).fit(data)
        fitted.save(folder / f"MultiLabelCalibrator{name}.safetensors")
        answers[f"answer-MultiLabelCalibrator{name}"] = fitted(probe.logits.double()).sigmoid().numpy()


def save_operate(folder: Path, answers: dict[str, np.ndarray]) -> dict[str, Any]:
    """Save rules behind a calibrator, and monitors; return the status of each monitor, before and after one more batch."""
    folder.mkdir()
    calibrator = calibrators.load(folder.parent / "calibrators" / "TemperatureScaling-3.safetensors")
    held = made(2000, 3, seed=20, kind=None, sharp=1.0)
    rows = bare(held)
    region = held.features["region"]
    rules = {
        "costs": thresholds([[0, 1, 2], [4, 0, 1], [1, 3, 0]]),
        "costs-reject": thresholds([[0, 1, 2], [4, 0, 1], [1, 3, 0]], reject=0.4),
        "abstain": abstain(rows, error=0.2),
        "abstain-class": abstain(rows, error=0.25, by="class"),
        "abstain-group": abstain(rows, error=0.25, by="group", features=region),
        "abstain-coverage": abstain(rows, coverage=0.6),
    }
    probe = made(PROBES, 3, seed=13)
    for name, rule in rules.items():
        module = Deployed(calibrator, rule)
        module.save(folder / f"deployed-{name}.safetensors")
        again = Predictions.from_logits(probe.logits)
        answer = module.decide(again, probe.features["region"]) if name == "abstain-group" else module.decide(again)
        answers[f"answer-deployed-{name}"] = answer.numpy()
    found = {}
    good, late = held[:600], made(300, 3, seed=21, kind=None, sharp=2.5)
    beside = {
        one: Predictions.from_logits(data.logits, data.labels, features=data.features)
        for one, data in {"good": good, "late": late}.items()
    }
    kinds = {
        "classes": (bare(good), bare(late), {}),
        "by": (beside["good"], beside["late"], {"by": ["region"]}),
        "pairs": (bare(good).top_label(), bare(late).top_label(), {}),
    }
    for name, (reference, batches, options) in kinds.items():
        monitor = Monitor(reference, **options)
        monitor.update(batches[:120], ids=range(120), time=1_700_000_000.0)
        monitor.update(batches[120:200], ids=range(120, 200), time=1_700_086_400.0)
        monitor.save(folder / f"monitor-{name}.safetensors")
        timeline = [[block.rows, block.confidence, block.right, block.loss, block.first] for block in monitor.timeline]
        before = monitor.status.plain()
        after = monitor.update(batches[200:], ids=range(200, 300), time=1_700_172_800.0).plain()
        found[name] = {"before": before, "timeline": timeline, "after": after}
    answers["later-logits"], answers["later-labels"] = late.logits[200:].numpy(), late.labels[200:].numpy()
    answers["later-region"] = np.asarray(late.features["region"])[200:]
    return found


def save_files(folder: Path, answers: dict[str, np.ndarray]) -> None:
    """Save predictions in every format that is written."""
    folder.mkdir()
    test, val = made(40, 3, seed=31), made(30, 3, seed=32)
    counted = made(40, 3, seed=33, kind="frequency")
    for suffix in ("npz", "safetensors"):
        calibrant.save_predictions(folder / f"splits.{suffix}", {"val": val, "test": test})
        calibrant.save_predictions(folder / f"counted.{suffix}", {"all": counted})
        calibrant.save_predictions(folder / f"pairs.{suffix}", {"all": bare(test).top_label()})
    probs = Predictions.from_probs(test.probs, test.labels)
    moved = bare(test).calibrated_by(HistogramBinning(EqualWidth(4)).fit(bare(val)))  # carries decisions
    calibrant.save_predictions(folder / "decisions.npz", {"all": moved})
    calibrant.save_predictions(folder / "probs.npz", {"all": probs})
    calibrant.save_predictions(folder / "whole.parquet", {"all": test})
    calibrant.save_predictions(folder / "pairs.parquet", {"all": bare(test).top_label()})
    arrays = {
        "logits": test.logits.numpy(), "label": test.labels.numpy(), "region": np.asarray(test.features["region"]),
        "age": np.asarray(test.features["age"]),
    }  # fmt: skip
    for suffix in ("csv", "tsv", "jsonl", "arrow"):
        write_named(folder / f"table.{suffix}", arrays)
    write_named(folder / "tensors.pt", {"logits": test.logits.numpy(), "labels": test.labels.numpy()})
    write_named(folder / "arrays", {"logits": test.logits.numpy(), "labels": test.labels.numpy()})
    labels = several(40, seed=34)
    plain = MultiLabelPredictions.from_logits(labels.logits, labels.labels, names=labels.names)
    for suffix in ("npz", "safetensors"):
        calibrant.save_multilabel(folder / f"labels.{suffix}", {"val": labels[:15], "test": labels[15:]})
    for suffix in ("parquet", "csv", "jsonl"):
        calibrant.save_multilabel(folder / f"labels.{suffix}", {"all": plain})
    for name, data in {"test": test, "val": val, "counted": counted}.items():
        answers |= {
            f"{name}-nll": data.nll.numpy(), f"{name}-labels": data.labels.numpy(), f"{name}-groups": data.groups.numpy(),
            f"{name}-weights": data.weights.numpy(), f"{name}-region": np.asarray(data.features["region"]),
            f"{name}-age": np.asarray(data.features["age"]), f"{name}-probs": data.probs.numpy(),
        }  # fmt: skip
    answers |= {"pairs-p": test.top_label().p.numpy(), "pairs-y": test.top_label().y.numpy()}
    answers |= {"decisions": moved.decision.numpy(), "decisions-confidence": moved.confidence.numpy()}
    answers |= {
        "labels-probs": labels.probs.numpy(), "labels-labels": labels.labels.numpy(), "labels-weights": labels.weights.numpy(),
        "labels-region": np.asarray(labels.features["region"]),
    }  # fmt: skip


STUDY = """
name = "small"
title = "t"
about = "a"
seeds = [0]
data = { name = "digits", folds = 2, train = 40, validation = 60 }
model = { type = "MLP", hidden = [8] }
training = { epochs = 2, batch = 20, lr = 0.05 }
[[objectives]]
label = "CE"
loss = { type = "CrossEntropyLoss" }
"""


def save_study(folder: Path, answers: dict[str, np.ndarray]) -> None:
    """Save two finished runs as a study's store holds them; training itself is no matter of files."""
    folder.mkdir()
    (folder / "small.toml").write_text(STUDY.lstrip())
    for number, cell in enumerate(load_study(folder / "small.toml").cells()):
        val, test = bare(made(20, 10, seed=41)), bare(made(25, 10, seed=42 + number))
        given = {
            "validation": val, "test": test, "trajectory": [{"epoch": 0, "loss": 2.25}, {"epoch": 1, "loss": 1.5}],
            "epoch": 2, "validation_uses": {"fit the temperature": 1}, "seconds": 1.25, "device": "cpu", "ood": {},
            "learned_epochs": torch.arange(40), "max_logits": torch.arange(40) / 8,
        }  # fmt: skip
        outcome = Outcome(**{one.name: given[one.name] for one in fields(Outcome)})
        Store(folder / "runs").save(cell.recipe, outcome)
        answers |= {f"study-{number}-nll": test.nll.numpy(), "study-val-nll": val.nll.numpy()}


# What is run for its JSON, in this folder; {tmp} is an empty folder.
COMMANDS = {
    "evaluate": "evaluate files/splits.npz --json",
    "evaluate-bare": "evaluate files/table.csv --columns logits_* --kind logits --label label --draws 0 --json",
    "evaluate-calibrated": "evaluate files/probs.npz -c calibrators/TemperatureScaling-3.safetensors --draws 0 --json",
    "evaluate-auto": "evaluate files/probs.npz -c calibrators/AutoCalibrator-3.safetensors --draws 0 --json",
    "evaluate-pairs": "evaluate files/pairs.npz --draws 0 --json",
    "evaluate-labels": "evaluate files/labels.npz --multilabel --draws 0 --json",
    "evaluate-groups": "evaluate files/table.jsonl --by region --draws 0 --json",
    "fit": "fit files/splits.npz -m TemperatureScaling -o {tmp}/c.safetensors --json",
    "fit-auto": "fit files/splits.npz -o {tmp}/c.safetensors --json",
    "fit-labels": "fit files/labels.npz --multilabel -o {tmp}/c.safetensors --json",
    "compare": "compare none calibrators/TemperatureScaling-3.safetensors --on files/probs.npz --split all --json",
    "check": "check files/probs.npz --max ece=.5 --min accuracy=.2 --split all --json",
    "check-worse": "check files/reference.npz --baseline files/reference.npz --no-worse nll=.5 --split all --json",
    "plan": "plan --ece .1 --draws 20 --json",
    "watch": "watch {tmp}/state.safetensors --reference files/reference.npz --json",
    "watch-state": "watch {tmp}/watch.safetensors --json",
    "estimate": "estimate files/unlabelled.npz --reference files/reference.npz --json",
    "decide": "decide files/reference.npz --error .3 --json",
    "decide-costs": "decide files/reference.npz --costs files/costs.csv --json",
    "report": "report files/splits.npz --format json -o {tmp}/report.json",
    "methods": "methods --json",
    "study-show": "study show study/small.toml --store study/runs --json",
    "study-record": "study show study/small.toml --store study/runs --record {tmp}/report.json",
    "study-list": "study list --json",
    "theory": "theory --json",
}


def keys_of(value: Any, path: str = "") -> set[str]:
    """Return the paths of all keys; the members of a list share one."""
    if isinstance(value, dict):
        found = {f"{path}/{name}" for name in value}
        return found | {one for name, inner in value.items() for one in keys_of(inner, f"{path}/{name}")}
    if isinstance(value, list):
        return {one for inner in value for one in keys_of(inner, f"{path}/*")}
    return set()


def command(words: str, tmp: Path) -> tuple[int, str]:
    """Run a command line in the working folder; return the exit code, and what it printed or wrote as JSON."""
    done = CliRunner().invoke(main, words.format(tmp=tmp).split())
    written = tmp / "report.json"
    return done.exit_code, written.read_text() if written.exists() else done.stdout or done.stderr


def save_commands(folder: Path) -> dict[str, Any]:
    calibrant.save_predictions("files/reference.npz", {"all": bare(made(400, 3, seed=51, sharp=1.0))})
    unlabelled = made(150, 3, seed=52, sharp=1.0)
    calibrant.save_predictions("files/unlabelled.npz", {"all": Predictions.from_logits(unlabelled.logits)})
    Path("files/costs.csv").write_text("0,1,2\n4,0,1\n1,3,0\n")
    found = {}
    for name, words in COMMANDS.items():
        tmp = folder / name
        tmp.mkdir(parents=True)
        if name == "watch-state":
            shutil.copy("operate/watch.safetensors", tmp)
        code, text = command(words, tmp)
        if name == "watch":
            shutil.copy(tmp / "state.safetensors", "operate/watch.safetensors")
        shown = json.loads(text)
        keep = shown if name.startswith("evaluate") and name != "evaluate" else None  # draws aside
        found[name] = {"arguments": words, "exit": code, "keys": sorted(keys_of(shown)), "values": keep}
    return found


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    answers: dict[str, np.ndarray] = {}
    here = Path()
    save_calibrators(here.absolute() / "calibrators", answers)
    statuses = save_operate(here.absolute() / "operate", answers)
    save_files(here.absolute() / "files", answers)
    save_study(here.absolute() / "study", answers)
    commands = save_commands(Path(sys.argv[2]))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **answers)
    Path("answers.npz").write_bytes(buffer.getvalue())
    Path("statuses.json").write_text(json.dumps(statuses, indent=1) + "\n")
    Path("commands.json").write_text(json.dumps(commands, indent=1) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    make(Path(sys.argv[1]))
