"""Every calibrator of probmetrics and those here that correspond to them, on all sets of real logits, one case at a time.

    python -m benchmarks.beside_probmetrics --data ../shared/data --out beside.jsonl
    python -m benchmarks.beside_probmetrics --out beside.jsonl --record docs/results/probmetrics.json   # and write the record
    python -m benchmarks.beside_probmetrics --page                                                     # the page's tables

Each method is fitted on the whole validation split of a set with its defaults, and evaluated on the whole test split. Differences
in log-loss to ``AutoCalibrator`` have paired 95 % intervals over the test rows. A case is one set and one method; cases go to
``--out`` as they are found, so that a stopped run goes on where it was. A case that takes more than ``--limit`` CPU seconds is cut
off and recorded as such; one that a method refuses is recorded in its own words.
"""

import argparse
import contextlib
import json
import math
import os
import re
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.auto import half_of
from benchmarks.probmetrics_methods import peers
from benchmarks.records import machine, versions
from calibrant import Predictions, calibrators
from calibrant.calibrators import Calibrator
from calibrant.errors import CalibrantError
from calibrant.metrics import ECE
from calibrant.statistics.means import paired_test

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "docs" / "results" / "probmetrics.json"
AUTO = "AutoCalibrator"
OURS = (
    AUTO,
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "VectorScaling",
    "MatrixScaling",
    "DirichletCalibration",
    "TemperatureScaling",
    "TemperatureMixture",
    "EnsembleTemperatureScaling",
    "PlattScaling",
    "BetaCalibration",
    "IsotonicCalibration",
    "CentredIsotonic",
    "VennAbers",
    "Identity",
)
HELPERS = ("betacal", "cir-model", "venn-abers", "dirichletcal", "torch-uncertainty", "pytorch-minimize")
LIMIT = 60.0
Case = dict[str, Any]


class CutOffError(BaseException):
    """A case's CPU time is over; no ``Exception``, so that no method can catch it."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise ``CutOffError`` inside once this process has used so much CPU time; at the end of the step that then runs."""

    def stop(number: int, frame: object) -> None:
        raise CutOffError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def makers() -> dict[str, Callable[[], Calibrator]]:
    """Return every method by the name that the tables give it; ``AutoCalibrator`` first."""
    return {name: getattr(calibrators, name) for name in OURS} | peers()


def measured(make: Callable[[], Calibrator], splits: dict[str, Any], *, limit: float) -> tuple[Case, Tensor | None]:
    """Return a method's figures on one set, as plain data, and its log-loss (N,) on the test rows; None if it has none."""
    before = Predictions.from_logits(splits["test"][0].double(), splits["test"][1])
    start = time.process_time()
    try:
        with at_most(limit), warnings.catch_warnings(), open(os.devnull, "w") as unread:
            warnings.simplefilter("ignore")
            with contextlib.redirect_stdout(unread):  # several print their progress
                fitted = make().fit(*splits["val"])
                fit_seconds = time.process_time() - start
                after = before.calibrated_by(fitted, allow_fit_rows=True)  # test rows are of another split
    except CutOffError:
        return {"cut_off": limit}, None
    except CalibrantError as error:
        return {"refused": str(error)}, None
    losses = row_losses(after)
    loss = float(losses.mean())
    seconds = time.process_time() - start
    if not bool((losses >= 0).all()):
        return {"refused": f"gave {int((~(losses >= 0)).sum())} rows that are no distribution"}, None
    found = {
        "log_loss": loss if math.isfinite(loss) else None,
        "infinite_rows": int(torch.isinf(losses).sum()),
        "ece": ECE()(after),
        "fit_seconds": round(fit_seconds, 3),
        "seconds": round(seconds, 3),
    }
    return found, losses


def row_losses(after: Predictions) -> Tensor:
    """Return minus the log-probability of the true class (N,), in float64."""
    return -after.logits.double().log_softmax(dim=1).gather(1, after.need_labels()[:, None])[:, 0]


def against(losses: Tensor, auto: Tensor) -> dict[str, float | None]:
    """Return the mean difference of two losses (N,) with the ends of its paired 95 % interval; None where one is infinite."""
    if not bool(torch.isfinite(losses).all() and torch.isfinite(auto).all()):
        return {"difference": None, "low": None, "high": None}
    [test] = paired_test(losses - auto, level=0.95)
    return {"difference": float((losses - auto).mean()), "low": test.low, "high": test.high}


def loaded(path: Path) -> dict[str, Any]:
    """Return {"val": (logits, labels), "test": …} of one set."""
    with np.load(path) as file:
        return {
            split: (torch.from_numpy(file[f"{split}_logits"]), torch.from_numpy(file[f"{split}_labels"]))
            for split in ("val", "test")
        }


def warm_up(splits: dict[str, Any]) -> None:
    """Fit every method once on few rows, so that imports and compilation are in no case's seconds."""
    few = {key: (logits[:300], labels[:300]) for key, (logits, labels) in splits.items()}
    for make in makers().values():
        measured(make, few, limit=LIMIT)


def run(paths: Sequence[Path], out: Path, *, limit: float) -> list[Case]:
    """Measure what ``out`` does not hold yet, and return all its cases."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(row["set"], row["method"]) for row in rows}
    kept = out.with_suffix(".losses")
    kept.mkdir(exist_ok=True)
    if paths:
        warm_up(loaded(paths[0]))
    with out.open("a") as file:
        for path in paths:
            splits = loaded(path)
            facts = {
                "set": path.stem,
                "classes": splits["val"][0].shape[1],
                "rows": [len(splits[s][1]) for s in splits],
            }
            for name, make in makers().items():
                if (path.stem, name) in done:
                    continue
                found, losses = measured(make, splits, limit=limit)
                beside = kept / f"{path.stem}.npy"  # AutoCalibrator's, for the pairs of a run that goes on
                if name == AUTO and losses is not None:
                    np.save(beside, losses.numpy())
                elif losses is not None and beside.exists():
                    found |= against(losses, torch.from_numpy(np.load(beside)))
                row = {**facts, "method": name, **found}
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
            print(f"{path.stem}: done", flush=True)
    return rows


def summary(sets: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one line a method, best mean rank first: how often it is served, and its log-loss beside ``AutoCalibrator``'s.

    A rank counts every method that serves the set; an infinite log-loss is last.
    """
    ranks: dict[str, list[float]] = {}
    for found in sets.values():
        losses = {name: _loss(one) for name, one in found["methods"].items() if "log_loss" in one}
        for name, loss in losses.items():
            below, equal = (sum(test(other) for other in losses.values()) for test in (loss.__gt__, loss.__eq__))
            ranks.setdefault(name, []).append(below + (equal + 1) / 2)
    names = sorted(
        {name for found in sets.values() for name in found["methods"]}, key=lambda name: (_mean(ranks.get(name)), name)
    )
    return [{"method": name, "rank": _mean(ranks.get(name)), **_line(name, sets)} for name in names]


def _line(name: str, sets: dict[str, Any]) -> dict[str, Any]:
    every = [(key, found["methods"][name]) for key, found in sets.items() if name in found["methods"]]
    served = [(key, one) for key, one in every if "log_loss" in one]
    finite = [(key, one) for key, one in served if one["log_loss"] is not None]
    held = [(key, one) for key, one in finite if half_of(key) == "judged"]
    decided = [one for _, one in served if one.get("low") is not None]
    return {
        "served": len(served),
        "refused": sum("refused" in one for _, one in every),
        "cut_off": sum("cut_off" in one for _, one in every),
        "infinite": len(served) - len(finite),
        "relative": _relative(finite, sets),
        "relative_held_out": _relative(held, sets),
        "lower": sum(one["high"] < 0 for one in decided),
        "higher": sum(one["low"] > 0 for one in decided) + len(served) - len(finite),
        "seconds": round(sum(one["fit_seconds"] for _, one in served), 1),
    }


def _relative(cases: Sequence[tuple[str, Case]], sets: dict[str, Any]) -> float | None:
    """Return the mean log-loss over these sets divided by ``AutoCalibrator``'s over the same, minus 1."""
    if not cases:
        return None
    own = sum(one["log_loss"] for _, one in cases)
    return float(own / sum(sets[key]["methods"][AUTO]["log_loss"] for key, _ in cases) - 1)


def _loss(one: Case) -> float:
    return math.inf if one["log_loss"] is None else float(one["log_loss"])


def _mean(values: Sequence[float] | None) -> float:
    return statistics.fmean(values) if values else math.inf


def recorded(rows: Sequence[Case]) -> dict[str, Any]:
    """Return the record of all cases: machine, versions, and every set's figures by method."""
    known = {key: one for key, one in versions().items() if key in ("python", "calibrant", "torch", "probmetrics")}
    for name in ("numpy", "scikit-learn", *HELPERS):
        try:
            known[name] = version(name)
        except PackageNotFoundError:
            known[name] = "absent"
    sets: dict[str, Any] = {}
    for row in rows:
        facts = {"classes": row["classes"], "rows": row["rows"], "half": half_of(row["set"]), "methods": {}}
        own = {key: value for key, value in row.items() if key not in ("set", "classes", "rows", "method")}
        for key, value in own.items():
            if key in ("log_loss", "ece", "difference", "low", "high") and value is not None:
                own[key] = round(value, 6)
        if own.get("infinite_rows") == 0:
            del own["infinite_rows"]
        sets.setdefault(row["set"], facts)["methods"][row["method"]] = own
    return {"machine": machine(), "versions": known, "limit": LIMIT, "sets": dict(sorted(sets.items()))}


def written(record: dict[str, Any]) -> str:
    """Return the record as JSON, one line a case."""
    sets = []
    for name, found in record["sets"].items():
        methods = ",\n".join(f"  {json.dumps(method)}: {json.dumps(one)}" for method, one in found["methods"].items())
        facts = json.dumps({key: value for key, value in found.items() if key != "methods"})
        sets.append(f' {json.dumps(name)}: {facts[:-1]}, "methods": {{\n{methods}\n }}}}')
    head = json.dumps({key: value for key, value in record.items() if key != "sets"})
    return f'{head[:-1]}, "sets": {{\n' + ",\n".join(sets) + "\n}}\n"


def table(record: dict[str, Any]) -> str:
    """Return the page's table."""
    columns = (
        "calibrator",
        "sets served",
        "mean rank",
        "log-loss relative to `AutoCalibrator`",
        "on the held-out half",
        "lower / higher beyond the interval",
        "fits, CPU s",
    )
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    for one in summary(record["sets"]):
        if not one["served"]:
            continue
        name = one["method"]
        shown = f"probmetrics `{name.removeprefix('probmetrics ')}`" if " " in name else f"`{name}`"
        served = f"{one['served']}" + (f", ∞ on {one['infinite']}" if one["infinite"] else "")
        relative = [
            f"{value:+.1%}" if value is not None else "–" for value in (one["relative"], one["relative_held_out"])
        ]
        decided = f"{one['lower']} / {one['higher']}"
        if name == AUTO:
            relative, decided = ["", ""], ""
        cells = [shown, served, f"{one['rank']:.1f}", *relative, decided, f"{one['seconds']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def left_out(record: dict[str, Any]) -> str:
    """Return a list of what was refused or cut off, by method and words, with the number of sets."""
    counts: dict[tuple[str, str], list[str]] = {}
    for key, found in record["sets"].items():
        for name, one in found["methods"].items():
            if "cut_off" in one:
                counts.setdefault((name, f"cut off at {one['cut_off']:.0f} CPU seconds"), []).append(key)
            elif "refused" in one:
                words = re.sub(r"\(\d+, \d+\)", "(N, K)", one["refused"])  # one line for sets of different sizes
                counts.setdefault((name, words), []).append(key)
    lines = []
    for (name, words), keys in sorted(counts.items()):
        where = f"{len(keys)} sets" if len(keys) > 3 else ", ".join(f"`{key}`" for key in keys)
        lines.append(f"- {name}: `{words}` ({where})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("beside.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="names of sets; all if left out")
    parser.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds a case")
    parser.add_argument("--record", type=Path, help="write the record here")
    parser.add_argument(
        "--page", action="store_true", help="print the tables of the committed record, and measure nothing"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.page:
        record = json.loads(RECORD.read_text())
    else:
        paths = sorted((options.data / "logits").glob("*.npz"), key=lambda path: (path.stat().st_size, path.stem))
        record = recorded(
            run(
                [path for path in paths if not options.only or path.stem in options.only],
                options.out,
                limit=options.limit,
            )
        )
        if options.record:
            options.record.write_text(written(record))
    print(table(record), left_out(record), sep="\n\n")


if __name__ == "__main__":
    main()
