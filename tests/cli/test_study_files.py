"""A study's file with one fault: ``study run --dry-run`` finds it, in one sentence that names the file, before a training."""

import re
from pathlib import Path

import pytest
from tests.cli.conftest import Run

PAGE = Path(__file__).parents[2] / "docs" / "study-file.md"
TEXT = re.findall(r"```toml title=[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]


def _with(old: str, new: str) -> str:
    assert old in TEXT, old
    return TEXT.replace(old, new, 1)


# What is wrong: the file's text.
FAULTS: dict[str, str] = {
    "seeds nested": _with("seeds = [0, 1, 2]", "seeds = [[0]]"),
    "loss gamma str": _with("gamma = 3.0", 'gamma = "3"'),
    "loss gamma nan": _with("gamma = 3.0", "gamma = nan"),
    "loss nested arg": _with('"FocalLoss", gamma = 3.0', '"MMCELoss", base = { type = "FocalLoss", gama = 1 }'),
    "drop_last w/ big batch": _with("batch = 32", "batch = 100000\ndrop_last = true"),
    "precision typo": _with("batch = 32", 'batch = 32\nprecision = "fp16"'),
    "nesterov no momentum": _with("momentum = 0.9", "momentum = 0.0\nnesterov = true"),
    "momentum with adam": _with("momentum = 0.9", 'momentum = 0.9\noptimizer = "adam"'),
    "model classes": _with("hidden = [128, 128]", "hidden = [128]\nclasses = 3"),
    "model conv": _with('type = "MLP"', 'type = "SmallCNN"').replace("hidden = [128, 128]\n", ""),
    "data ood opt": _with("folds = 5", 'folds = 5\nood = [{ name = "pure-noise", sd = 1 }]'),
    "claims one": _with('falls = ["Cross-entropy", "Focal 3"]', 'falls = ["Cross-entropy"]'),
    "figure ood without": _with('kind = "reliability"', 'kind = "ood"'),
    "columns dup": _with('columns = ["main"]', 'columns = ["main", "main"]'),
    "name path": _with('name = "mine"', 'name = "../x"'),
    "published twice": TEXT + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ece"\nvalue = 0.03\n' * 2,
    "published per cent": TEXT + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ece"\nvalue = 3.5\n',
    "printed bool": TEXT
    + '\n[[printed]]\nsource = "t"\nmeasures = ["ece"]\nobjectives = ["Focal 3"]\nrows = { "" = [[true]] }\n',
    "papers typo": TEXT.replace('name = "mine"', 'name = "mine"\npapers = ["muk"]', 1),
    "settings losses arg": TEXT + '\n[[settings]]\nlabel = "a"\nlosses = { "Focal 3" = { gam = 1.0 } }\n',
    "settings like typo": TEXT + '\n[[settings]]\nlabel = "a"\nlike = "zzz"\n',
    "scales other value typo": TEXT + "\n[scales.gpu]\ntraining = { epochs = -3 }\n[scales.cpu]\n",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_dry_run_finds_it(fault: str, home: Path, run: Run) -> None:
    Path("s.toml").write_text(FAULTS[fault], encoding="utf-8")
    done = run("study", "run", "s.toml", "--dry-run", code=2)
    assert re.match(r"error: ([^:]*s\.toml[^:]*: )?expected ", done.stderr), done.stderr
    assert "s.toml" in done.stderr
    assert done.stderr.count("\n") == 1
    assert len(done.stderr) < 600
    assert [entry.name for entry in home.iterdir()] == ["s.toml"]


def test_the_template_itself_and_one_of_windows_are_right(home: Path, run: Run) -> None:
    for text in (TEXT, "\ufeff" + TEXT.replace("\n", "\r\n")):
        Path("s.toml").write_bytes(text.encode())
        run("study", "run", "s.toml", "--dry-run", code=0)


def test_an_objective_that_is_not_there_is_refused_beside_one_that_is(run: Run) -> None:
    run("study", "run", "digits", "--dry-run", "--only", "Cross-entropy", "--only", "Focl", code=2, says="got 'Focl'")
