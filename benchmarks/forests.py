"""Log-loss of 50-tree forests: as they are, through scikit-learn's sigmoid, and through ``CalibratedClassifier``.

Run ``python benchmarks/forests.py [SPLITS]``; prints the mean over the splits (half of each data set to fit on), one row
a data set, in Markdown. Data are those that scikit-learn carries; diabetes is split at its median. The adapter's prior was
chosen on splits of seeds 100 to 105; these begin at 200.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

from calibrant.adapters.sklearn import CalibratedClassifier

TREES, FIRST = 50, 200


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


def main() -> None:
    """Print the table."""
    splits = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    print("| data | rows to fit on | forest | sigmoid | default |\n| --- | --: | --: | --: | --: |")
    for name, X, y in data_sets():
        rows = []
        for seed in range(FIRST, FIRST + splits):
            X_fit, X_test, y_fit, y_test = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
            forest = RandomForestClassifier(TREES, random_state=seed)
            models = (forest, CalibratedClassifierCV(forest, method="sigmoid"), CalibratedClassifier(forest))
            rows.append([log_loss(model.fit(X_fit, y_fit), X_test, y_test) for model in models])
        means = " | ".join(f"{value:.4f}" for value in np.mean(rows, axis=0))
        print(f"| {name} | {len(y_fit)} | {means} |", flush=True)


if __name__ == "__main__":
    main()
