"""``calibrant fit --features``: what is fitted, what travels with the file, and what is refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run

from calibrant import Predictions, save_predictions
from calibrant.calibrators import GroupScaling


def sample(rows: int = 1500, *, effect: float = 1.0, seed: int = 0) -> Predictions:
    """Return logits whose rows of site a have a higher rate than they say."""
    rng = np.random.default_rng(seed)
    z, site = rng.normal(size=rows) * 1.5, rng.choice(["a", "b", "c"], rows)
    y = (rng.random(rows) < 1 / (1 + np.exp(-z - effect * (site == "a") + effect * (site == "b")))).astype(int)
    return Predictions.from_binary_logits(z, y, features={"site": site, "noise": rng.integers(0, 2, rows)})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-m GroupScaling --features absent", "p.npz has no column 'absent'"),
        ("--features site,site", "got 'site,site'"),
        ("--features site --method TemperatureScaling", "--method FeatureScaling or GroupScaling with --features"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(options: str, said: str, run: Run) -> None:
    save_predictions("p.npz", {"val": sample(200)})
    run(f"fit p.npz {options} -o c.safetensors", code=2, says=said)
    assert not Path("c.safetensors").exists()


@pytest.mark.parametrize("options", ["-m GroupScaling", "-m FeatureScaling"])
def test_features_that_are_not_there_are_refused(options: str, home: Path, run: Run) -> None:
    data = sample(200)
    bare = Predictions.from_logits(data.logits, data.labels)
    save_predictions("p.npz", {"val": bare})
    done = run(f"fit p.npz {options} -o c.safetensors", code=2, says="expected predictions with features for this")
    assert done.stderr.endswith("name the columns feature:NAME\n")
    assert not Path("c.safetensors").exists()


def test_features_of_other_names_are_refused_where_the_calibrator_is_used(run: Run) -> None:
    data = sample(600)
    GroupScaling(["site"], folds=2).fit(data).save("c.safetensors")
    save_predictions("p.npz", {"all": replace(data, features={"place": data.features["site"]})})
    for line in ("apply c.safetensors p.npz -o out.npz", "evaluate p.npz -c c.safetensors"):
        run(line, code=2, says="p.npz has no column 'site'. Columns: logits, labels, feature:place")
