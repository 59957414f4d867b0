"""Measures the test log-loss of calibrators on saved logits, after fitting each on a few validation rows.

    python -m benchmarks.sets --data ../shared/data/logits --out sets.jsonl --record benchmarks/records/sets.json
    python -m benchmarks.sets --data DIR --out x.jsonl --only 'oodcv-*' --rows 100 --calibrators TemperatureScaling Identity

A case consists of a set, a number of validation rows, a random draw of these rows, and a calibrator. The calibrator is named by its
class and arguments, such as ``StructuredMatrixScaling`` or ``AutoCalibrator(folds=5)``, or by its name in probmetrics, such as
``probmetrics:logistic``, if probmetrics is installed. With more than 20 classes, ``StructuredMatrixScaling`` is replaced with
``StructuredVectorScaling``. Finished cases are written to ``--out`` and are not computed again, so an interrupted run can be
resumed. ``--record`` writes a dict set → rows → calibrator → log-losses of the draws. The table shows geometric means relative to
the first calibrator. All 44 sets take an hour on one core. ``--data`` is a folder of ``.npz`` files with ``val_logits``,
``val_labels``, ``test_logits`` and ``test_labels``.
"""

import argparse
import ast
import json
import math
import sys
import time
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.race.peers import probmetrics_fit, probmetrics_probs
from calibrant import calibrators
from calibrant.errors import CalibrantError, CalibrantWarning

MANY_CLASSES = 20  # beyond, a matrix has more entries than rows to fit it on
DEFAULT = ("AutoCalibrator", "TemperatureScaling", "StructuredMatrixScaling", "CentredIsotonic")


class Probmetrics:
    """A calibrator from probmetrics with its default options, named as in ``probmetrics.get_calibrator``."""

    def __init__(self, name: str) -> None:
        from probmetrics.calibrators import get_calibrator

        self.calibrator = get_calibrator(name, svs_print_init_info=False, sms_print_init_info=False)

    def fit(self, logits: Tensor, labels: Tensor) -> Self:
        """Fit on logits (N, K) and labels (N,)."""
        with torch.enable_grad():
            probmetrics_fit(self.calibrator, logits, labels)
        return self

    def __call__(self, logits: Tensor) -> Tensor:
        """Return log-probabilities (N, K)."""
        return probmetrics_probs(self.calibrator, logits).detach().double().log()


def made(call: str, classes: int) -> Any:
    """Return the calibrator that ``call`` names, such as ``AutoCalibrator(folds=5)`` or ``probmetrics:logistic``."""
    if call.startswith("probmetrics:"):
        return Probmetrics(call.removeprefix("probmetrics:"))
    tree = ast.parse(call, mode="eval").body
    name, keywords = (tree.func, tree.keywords) if isinstance(tree, ast.Call) else (tree, [])
    if not isinstance(name, ast.Name) or name.id not in calibrators.__all__:
        raise SystemExit(f"expected a calibrator such as TemperatureScaling() or AutoCalibrator(folds=5), got {call}")
    vector = name.id == "StructuredMatrixScaling" and classes > MANY_CLASSES
    make = calibrators.StructuredVectorScaling if vector else getattr(calibrators, name.id)
    return make(**{one.arg: ast.literal_eval(one.value) for one in keywords})


def log_loss(call: str, fit: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float | None:
    """Return the mean test log-loss of a calibrator fitted on the rows ``fit``, or None if it refuses these rows."""
    logits, labels = test
    try:
        answers = made(call, logits.shape[1]).fit(*fit)(logits)
    except CalibrantError:
        return None
    return float(cross_entropy(answers, labels))


def load(path: Path, split: str) -> tuple[Tensor, Tensor]:
    """Return the float64 logits (N, K) and the labels (N,) of a split in a file."""
    with np.load(path) as file:
        return torch.from_numpy(file[f"{split}_logits"]).double(), torch.from_numpy(file[f"{split}_labels"])


def cases(options: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield every case that is not in ``done`` with its log-loss and seconds; the first draws of all sets come first."""
    paths = [path for path in sorted(options.data.glob("*.npz")) if fnmatchcase(path.stem, options.only)]
    for draw in range(options.draws):
        for path in paths:
            validation, test = load(path, "val"), load(path, "test")
            order = torch.from_numpy(np.random.default_rng(draw).permutation(len(validation[1])))
            for rows in options.rows:
                fit = validation[0][order[:rows]], validation[1][order[:rows]]
                for call in options.calibrators:
                    case = {"set": path.stem, "rows": rows, "draw": draw, "calibrator": call}
                    if key(case) not in done:
                        start = time.perf_counter()
                        yield case | {
                            "loss": log_loss(call, fit, test),
                            "seconds": round(time.perf_counter() - start, 2),
                        }


def key(case: dict[str, Any]) -> str:
    """Return the fields that identify a case."""
    return json.dumps([case[name] for name in ("set", "rows", "draw", "calibrator")])


def known(path: Path) -> list[dict[str, Any]]:
    """Return the cases in a file, except for an incomplete last line from an interrupted run."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def record(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a dict set → rows → calibrator → log-losses, in the order of the draws."""
    tree: dict[str, Any] = {}
    for case in sorted(found, key=lambda case: (case["set"], case["rows"], case["calibrator"], case["draw"])):
        by_rows = tree.setdefault(case["set"], {}).setdefault(str(case["rows"]), {})
        by_rows.setdefault(case["calibrator"], []).append(case["loss"] and float(f"{case['loss']:.7g}"))
    return tree


def table(tree: dict[str, Any]) -> str:
    """Return the geometric mean of each calibrator's log-loss relative to the first one's, by number of rows."""
    names = list(dict.fromkeys(name for one in tree.values() for by_rows in one.values() for name in by_rows))
    sizes = sorted({int(rows) for one in tree.values() for rows in one})
    lines = [
        f"| log-loss relative to {names[0]} | " + " | ".join(map(str, sizes)) + " |",
        "| --- |" + " --- |" * len(sizes),
    ]
    for name in names:
        cells = []
        for rows in sizes:
            both = [
                (one[str(rows)].get(name, []), one[str(rows)].get(names[0], []))
                for one in tree.values()
                if str(rows) in one
            ]
            ratios = [math.log(a / b) for mine, base in both for a, b in zip(mine, base, strict=False) if a and b]
            cells.append(f"{math.exp(sum(ratios) / len(ratios)):.4f}" if ratios else "–")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the missing cases, write them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of .npz files")
    parser.add_argument("--out", type=Path, required=True, help="file of the finished cases, one per line")
    parser.add_argument("--record", type=Path, help="JSON file for all cases in --out")
    parser.add_argument("--calibrators", nargs="+", default=list(DEFAULT), metavar="CALL")
    parser.add_argument("--rows", nargs="+", type=int, default=[100, 300, 1000], help="numbers of validation rows")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="pattern for the names of sets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = known(options.out)
    with options.out.open("a", encoding="utf-8") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        for case in cases(options, {key(case) for case in found}):
            print(json.dumps(case), file=file, flush=True)
            found.append(case)
    tree = record(found)
    if options.record is not None:
        lines = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in tree.items()]
        options.record.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.stdout.write(table(tree) + "\n")


if __name__ == "__main__":
    main()
