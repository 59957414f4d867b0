"""``apply`` on a folder of tables gives the same files back, all of them or none; drawn tables are read row by row."""

from pathlib import Path

import numpy as np
import pytest
from tests.cli.conftest import Run
from tests.conftest import late
from tests.draws import drawn

from calibrant.calibrators import TemperatureScaling  # type: ignore[attr-defined]
from calibrant.data.formats.reading import hold_labels_alone

pandas = late("pandas")


@pytest.fixture(autouse=True)
def made(home: Path) -> None:
    """Two parts and a split in a folder of its own, beside a calibrator ``c.safetensors``."""
    TemperatureScaling().fit(*drawn(400, 2)).save("c.safetensors")
    Path("in", "test").mkdir(parents=True)
    p = np.random.default_rng(0).random(30).round(4)
    for name in ("a.csv", "b.csv.gz", "test/c.csv"):
        table = pandas.DataFrame({"id": [f"{at:04d}" for at in range(30)], "p_no": 1 - p, "p_yes": p, "note": "=1"})
        table.to_csv(Path("in", name), index=False)


def test_same_files(run: Run) -> None:
    run("apply c.safetensors in -o out", code=0)
    files = sorted(str(one.relative_to("out")) for one in Path("out").rglob("*") if one.is_file())
    assert files == ["a.csv", "b.csv.gz", "test/c.csv"]
    for name in files:
        before, after = (pandas.read_csv(Path(home, name), dtype=str) for home in ("in", "out"))
        assert after[list(before)].equals(before)
        assert list(after)[len(before.columns) :] == ["p_no_calibrated", "p_yes_calibrated"]


def test_all_or_none(run: Run) -> None:
    Path("in", "d.csv").write_text("id,p_no,p_maybe\n1,.5,.5\n")
    run("apply c.safetensors in -o out", code=2, says="d.csv")
    assert not list(Path("out").rglob("*"))
    run("apply c.safetensors in -o in", code=2)


def test_of_labels_alone() -> None:
    Path("labels.txt").write_text("0\n1\n1\n")
    Path("solution.csv").write_text("id,target,Usage\n1,cat,Public\n2,dog,Private\n")
    np.save("y.npy", np.eye(3)[[0, 2, 1]])
    assert all(hold_labels_alone(Path(name)) for name in ("labels.txt", "solution.csv", "y.npy"))
    assert not hold_labels_alone(Path("in/a.csv"))
    assert not hold_labels_alone(Path("nowhere.csv"))
