"""Log-loss of 50-tree forests: as they are, through scikit-learn's sigmoid, and through ``CalibratedClassifier``.

    python -m benchmarks.forests [--splits 20] [--json docs/results/forests.json]

Prints the mean over the splits (half of each data set to fit on), one row a data set, in Markdown. Data are those that
scikit-learn carries; diabetes is split at its median. The adapter's prior was chosen on splits of seeds 100 to 105; these
begin at 200.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from benchmarks.records import versions
from calibrant.adapters.sklearn import CalibratedClassifier

TREES, FIRST = 50, 200
MODELS = ("forest", "sigmoid", "default")


def data_sets() -> Iterator[tuple[str, Any, Any]]:
    """Yield name, features and labels of the five data sets."""
    for name, load in (("iris", load_iris), ("wine", load_wine), ("breast cancer", load_breast_cancer)):
        yield name, *load(return_X_y=True)
    X, y = load_diabetes(return_X_y=True)
    yield "diabetes", X, (y > np.median(y)).astype(int)
    yield "digits", *load_digits(return_X_y=True)


def log_loss(model: Any, X: Any, y: Any) -> float:
    """Return the mean log-loss of ``model``, probabilities not below float64's epsilon."""
    p = model.predict_proba(X)[np.arange(len(y)), y]
    return float(-np.log(np.maximum(p, np.finfo(float).eps)).mean())


def losses_of(X: Any, y: Any, *, seed: int) -> list[float]:
    """Return the log-loss of the three models on one split."""
    X_fit, X_test, y_fit, y_test = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
    forest = RandomForestClassifier(TREES, random_state=seed)
    models = (forest, CalibratedClassifierCV(forest, method="sigmoid"), CalibratedClassifier(forest))
    return [log_loss(model.fit(X_fit, y_fit), X_test, y_test) for model in models]


def main() -> None:
    """Print the table, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    print("| data | rows to fit on | forest | sigmoid | default | lower on |\n| --- | --: | --: | --: | --: | --: |")
    found = []
    for name, X, y in data_sets():
        rows = np.array([losses_of(X, y, seed=seed) for seed in range(FIRST, FIRST + chosen.splits)])
        won = int((rows[:, 2] < rows[:, 1]).sum())
        means = rows.mean(axis=0)
        fields = zip(MODELS, rows.T.round(6).tolist(), strict=True)
        found.append({"data": name, "rows": len(y) // 2, "classes": len(np.unique(y)), "log_loss": dict(fields)})
        shown = " | ".join(f"{value:.4f}" for value in means)
        print(f"| {name} | {len(y) // 2:,} | {shown} | {won} of {chosen.splits} splits |", flush=True)
    if chosen.json:
        seeds = [FIRST, FIRST + chosen.splits]
        record = {"trees": TREES, "seeds": seeds, "versions": versions(), "data_sets": found}
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
