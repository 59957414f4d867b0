"""The multicalibration error: against segments taken one by one, and against MCGrad's own figures."""

from itertools import combinations, product

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.errors import InputError
from calibrant.metrics import MulticalibrationError

# mcgrad.metrics.MulticalibrationError(…, precision_dtype="float64").mce of MCGrad 0.1.5 on cases(seed, weighted)
THEIRS = {
    (0, False): 0.09010507584679422,
    (1, False): 0.05619264446910246,
    (2, False): 0.05646300104510698,
    (0, True): 0.10040339016650777,
    (1, True): 0.05486941685443678,
}


def cases(seed: int, weighted: bool) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray | None]:
    """Return features, probabilities, labels and weights of 400 rows."""
    rng = np.random.default_rng(seed)
    features = {
        "site": rng.choice(["a", "b", "c", "d", "e"], 400, p=[0.4, 0.27, 0.18, 0.1, 0.05]),
        "sex": rng.choice(["f", "m"], 400),
        "age": rng.uniform(20, 80, 400),
    }
    p = rng.uniform(0.02, 0.98, 400)
    y = (rng.random(400) < p + 0.1 * (features["site"] == "b") * (features["age"] > 50)).astype(int)
    return features, p, y, rng.lognormal(size=400) if weighted else None


def predictions(seed: int, weighted: bool = False) -> Predictions:
    features, p, y, weights = cases(seed, weighted)
    kind = "sampling" if weighted else None
    return Predictions.from_binary_probs(p, y, features=features, weights=weights, weight_kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(("seed", "weighted"), THEIRS)
def test_it_is_mcgrads(seed: int, weighted: bool) -> None:
    assert MulticalibrationError()(predictions(seed, weighted)) == pytest.approx(THEIRS[seed, weighted], rel=1e-9)


def test_it_is_the_worst_of_segments_taken_one_by_one() -> None:
    rng = np.random.default_rng(0)
    p, y = np.round(rng.uniform(0.05, 0.95, 300), 1), rng.integers(0, 2, 300)
    features = {"a": rng.integers(0, 3, 300), "b": rng.choice(["x", "y"], 300)}
    found = []
    for size in range(3):
        for names in combinations(features, size):
            for values in product(*(np.unique(features[name]) for name in names)):
                inside = np.ones(300, dtype=bool)
                for name, value in zip(names, values, strict=True):
                    inside &= features[name] == value
                path = [0.0, *((y - p)[inside & (p <= v)].sum() for v in np.unique(p[inside]))]
                if inside.sum() >= 10:
                    found.append((max(path) - min(path)) / np.sqrt((p * (1 - p))[inside].sum()))
    worst = max(found) * np.sqrt((p * (1 - p)).sum()) / 300
    data = Predictions.from_binary_probs(p, y, features=features)
    assert MulticalibrationError()(data) == pytest.approx(worst, rel=1e-9)


def test_counts_are_repeated_rows_and_a_certain_error_is_infinite() -> None:
    features, p, y, _ = cases(0, False)
    times = np.random.default_rng(1).integers(1, 4, 400)
    counted = Predictions.from_binary_probs(p, y, features=features, weights=times, weight_kind="frequency")
    repeated = Predictions.from_binary_probs(
        p.repeat(times), y.repeat(times), features={name: column.repeat(times) for name, column in features.items()}
    )
    settings = MulticalibrationError(("site", "sex"), minimum=1)
    assert settings(counted) == pytest.approx(settings(repeated), rel=1e-9)
    assert MulticalibrationError()(Predictions.from_binary_probs([1.0] * 30, [0] * 30)) == np.inf


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="expected the feature 'absent', got 'age', 'sex', 'site'"):
        MulticalibrationError(("absent",))(predictions(0))
