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
    "unknown top key": TEXT.replace('name = "mine"', 'name = "mine"\nsedes = [1]', 1),
    "seeds str": _with("seeds = [0, 1, 2]", 'seeds = "0"'),
    "seeds float": _with("seeds = [0, 1, 2]", "seeds = [0.0]"),
    "seeds dup 0 and -0": _with("seeds = [0, 1, 2]", "seeds = [0, -0]"),
    "seeds nested": _with("seeds = [0, 1, 2]", "seeds = [[0]]"),
    "seeds date": _with("seeds = [0, 1, 2]", "seeds = [2020-01-01]"),
    "seeds empty": _with("seeds = [0, 1, 2]", "seeds = []"),
    "no objectives": re.sub(r"\[\[objectives\]\].*?(?=\[\[claims)", "", TEXT, flags=re.S),
    "label number": _with('label = "Focal 3"', "label = 3"),
    "label empty": _with('label = "Focal 3"', 'label = ""'),
    "label case dup": _with('label = "Focal 3"', 'label = "cross-entropy"'),
    "label space dup": _with('label = "Focal 3"', 'label = "Cross-entropy "'),
    "loss str": _with('loss = { type = "FocalLoss", gamma = 3.0 }', 'loss = "FocalLoss"'),
    "loss no type": _with('loss = { type = "FocalLoss", gamma = 3.0 }', "loss = { gamma = 3.0 }"),
    "loss gamma str": _with("gamma = 3.0", 'gamma = "3"'),
    "loss gamma nan": _with("gamma = 3.0", "gamma = nan"),
    "loss gamma -1": _with("gamma = 3.0", "gamma = -1"),
    "loss reduction": _with("gamma = 3.0", 'gamma = 3.0, reduction = "none"'),
    "loss reduction typo": _with("gamma = 3.0", 'gamma = 3.0, reduction = "avg"'),
    "loss weight list": _with("gamma = 3.0", "gamma = 3.0, weight = [1.0, 2.0]"),
    "loss ignore": _with("gamma = 3.0", "gamma = 3.0, ignore_index = 1.5"),
    "loss abstract": _with('"FocalLoss", gamma = 3.0', '"Penalty"'),
    "loss lower": _with('"FocalLoss"', '"focalloss"'),
    "loss binning": _with('"FocalLoss", gamma = 3.0', '"SoftBinnedECELoss", bins = 0'),
    "loss nested typo": _with('"FocalLoss", gamma = 3.0', '"MMCELoss", base = { type = "FocalLos" }'),
    "loss nested arg": _with('"FocalLoss", gamma = 3.0', '"MMCELoss", base = { type = "FocalLoss", gama = 1 }'),
    "loss nested no type": _with('"FocalLoss", gamma = 3.0', '"MMCELoss", base = { gamma = 1 }'),
    "module missing": _with('"FocalLoss", gamma = 3.0', '"nomod:X"'),
    "module not class": _with('"FocalLoss", gamma = 3.0', '"math:pi"'),
    "module empty": _with('"FocalLoss", gamma = 3.0', '":"'),
    "module exec": _with('"FocalLoss", gamma = 3.0', '"os:getcwd"'),
    "training obj typo": _with("# training = { lr = 0.1 }", "training = { lrr = 0.1 }"),
    "training neg lr": _with("lr = 0.05", "lr = -0.05"),
    "training zero batch": _with("batch = 32", "batch = 0"),
    "drop_last w/ big batch": _with("batch = 32", "batch = 100000\ndrop_last = true"),
    "precision typo": _with("batch = 32", 'batch = 32\nprecision = "fp16"'),
    "milestone float": _with("milestones = []", "milestones = [1.5]"),
    "schedule typo": _with('"steps"', '"step"'),
    "optimizer typo": _with("batch = 32", 'batch = 32\noptimizer = "SGD"'),
    "nesterov no momentum": _with("momentum = 0.9", "momentum = 0.0\nnesterov = true"),
    "momentum 1.5": _with("momentum = 0.9", "momentum = 1.5"),
    "momentum with adam": _with("momentum = 0.9", 'momentum = 0.9\noptimizer = "adam"'),
    "rates": _with("batch = 32", 'batch = 32\nrates = { classifier = "a" }'),
    "rates neg": _with("batch = 32", "batch = 32\nrates = { classifier = -1.0 }"),
    "plain": _with("batch = 32", 'batch = 32\nplain = ["features"]'),
    "devices 2 threads": _with("batch = 32", "batch = 32\nthreads = 0"),
    "select": _with("batch = 32", 'batch = 32\nselect = "best"'),
    "model str": _with('[model]\ntype = "MLP"', '[model]\ntype = "mlp"'),
    "model hidden": _with("hidden = [128, 128]", "hidden = [128, -1]"),
    "model hidden str": _with("hidden = [128, 128]", 'hidden = "128"'),
    "model hidden float": _with("hidden = [128, 128]", "hidden = [128.5]"),
    "model classes": _with("hidden = [128, 128]", "hidden = [128]\nclasses = 3"),
    "model inputs": _with("hidden = [128, 128]", "hidden = [128]\ninputs = 3"),
    "model conv": _with('type = "MLP"', 'type = "SmallCNN"').replace("hidden = [128, 128]\n", ""),
    "model tree": _with('type = "MLP"', 'type = "TreeLSTM"').replace("hidden = [128, 128]\n", ""),
    "data name": _with('name = "digits" ', 'name = "digit" '),
    "data folds 1": _with("folds = 5", "folds = 1"),
    "data folds str": _with("folds = 5", 'folds = "5"'),
    "data folds beyond images": _with("folds = 5", "folds = 1798"),
    "data train too many": _with("folds = 5", "folds = 5\ntrain = 1500"),
    "data noise nan": _with("folds = 5", "folds = 5\nnoise = nan"),
    "data seed": _with("folds = 5", "folds = 5\nseed = 3"),
    "data fold": _with("folds = 5", "folds = 5\nfold = 3"),
    "data folder": _with("folds = 5", 'folds = 5\nfolder = "x"'),
    "data ood opt": _with("folds = 5", 'folds = 5\nood = [{ name = "pure-noise", sd = 1 }]'),
    "data ood val": _with("folds = 5", 'folds = 5\nood = [{ name = "pure-noise", deviation = "a" }]'),
    "data ood int": _with("folds = 5", "folds = 5\nood = [3]"),
    "claims typo obj": _with('falls = ["Cross-entropy", "Focal 3"]', 'falls = ["Cross-entropy", "Focal 4"]'),
    "claims one": _with('falls = ["Cross-entropy", "Focal 3"]', 'falls = ["Cross-entropy"]'),
    "claims same": _with('falls = ["Cross-entropy", "Focal 3"]', 'falls = ["Focal 3", "Focal 3"]'),
    "claims empty": _with('falls = ["Cross-entropy", "Focal 3"]', "falls = []"),
    "claims measure": _with('measure = "ece" ', 'measure = "ecee" '),
    "figure kind": _with('kind = "reliability"', 'kind = "reliabilty"'),
    "figure no kind": _with('kind = "reliability"', ""),
    "figure objectives": _with('kind = "reliability"', 'kind = "reliability"\nobjectives = ["x"]'),
    "figure setting": _with('kind = "reliability"', 'kind = "reliability"\nsetting = "x"'),
    "figure ood without": _with('kind = "reliability"', 'kind = "ood"'),
    "figure sweep": _with('kind = "reliability"', 'kind = "sweep"'),
    "columns": _with('columns = ["main"]', 'columns = ["mian"]'),
    "columns dup": _with('columns = ["main"]', 'columns = ["main", "main"]'),
    "columns empty": _with('columns = ["main"]', "columns = []"),
    "name path": _with('name = "mine"', 'name = "../x"'),
    "name empty": _with('name = "mine"', 'name = ""'),
    "name number": _with('name = "mine"', "name = 3"),
    "published typo": TEXT + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ece"\nvalue = "3"\n',
    "published unknown objective": TEXT + '\n[[published]]\nobjective = "F"\nmeasure = "ece"\nvalue = 3.0\n',
    "published measure": TEXT + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ec"\nvalue = 3.0\n',
    "published setting": TEXT
    + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ece"\nvalue = 3.0\nsetting = "zz"\n',
    "published twice": TEXT + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ece"\nvalue = 0.03\n' * 2,
    "published nan": TEXT + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ece"\nvalue = nan\n',
    "published per cent": TEXT + '\n[[published]]\nobjective = "Focal 3"\nmeasure = "ece"\nvalue = 3.5\n',
    "printed groups": TEXT
    + '\n[[printed]]\nsource = "t"\nmeasures = ["ece"]\nobjectives = ["Focal 3"]\nrows = { "" = [[1.0],[2.0]] }\n',
    "printed str": TEXT
    + '\n[[printed]]\nsource = "t"\nmeasures = ["ece"]\nobjectives = ["Focal 3"]\nrows = { "" = [["a"]] }\n',
    "printed int group": TEXT
    + '\n[[printed]]\nsource = "t"\nmeasures = ["ece"]\nobjectives = ["Focal 3"]\nrows = { "" = [3.0] }\n',
    "printed setting": TEXT
    + '\n[[printed]]\nsource = "t"\nmeasures = ["ece"]\nobjectives = ["Focal 3"]\nrows = { "zz" = [[3.0]] }\n',
    "printed bool": TEXT
    + '\n[[printed]]\nsource = "t"\nmeasures = ["ece"]\nobjectives = ["Focal 3"]\nrows = { "" = [[true]] }\n',
    "papers typo": TEXT.replace('name = "mine"', 'name = "mine"\npapers = ["muk"]', 1),
    "papers dup": TEXT.replace('name = "mine"', 'name = "mine"\npapers = ["mukhoti","mukhoti"]', 1),
    "settings label dup": TEXT + '\n[[settings]]\nlabel = "a"\n[[settings]]\nlabel = "a"\n',
    "settings typo": TEXT + '\n[[settings]]\nlabel = "a"\ndta = {}\n',
    "settings data typo": TEXT + '\n[[settings]]\nlabel = "a"\ndata = { nose = 1 }\n',
    "settings losses typo": TEXT + '\n[[settings]]\nlabel = "a"\nlosses = { "Focal 9" = { gamma = 1.0 } }\n',
    "settings losses arg": TEXT + '\n[[settings]]\nlabel = "a"\nlosses = { "Focal 3" = { gam = 1.0 } }\n',
    "settings trainings arg": TEXT + '\n[[settings]]\nlabel = "a"\ntrainings = { "Focal 3" = { lrx = 1.0 } }\n',
    "settings like typo": TEXT + '\n[[settings]]\nlabel = "a"\nlike = "zzz"\n',
    "scales unknown": TEXT + "\n[scales.tpu]\n",
    "scales other key typo": TEXT + "\n[scales.gpu]\ntrainin = { epochs = 3 }\n[scales.cpu]\n",
    "scales other value typo": TEXT + "\n[scales.gpu]\ntraining = { epochs = -3 }\n[scales.cpu]\n",
    "scales keep typo": TEXT + '\n[scales.cpu]\nkeep_objectives = ["x"]\n',
    "scales keep str": TEXT + '\n[scales.cpu]\nkeep_objectives = "Focal 3"\n',
    "scales keep empty": TEXT + "\n[scales.cpu]\nkeep_objectives = []\n",
    "scales not table": TEXT.replace('name = "mine"', 'name = "mine"\nscales = 3', 1),
    "settings not list": TEXT.replace('name = "mine"', 'name = "mine"\nsettings = 3', 1),
    "data not table": re.sub(r"\[data\].*?\n\n", "", TEXT, count=1, flags=re.S).replace(
        'name = "mine"', 'name = "mine"\ndata = 3', 1
    ),
}
QUICK = {"seeds nested", "loss gamma str", "loss nested arg", "nesterov no momentum", "precision typo", "momentum with adam",
         "model classes", "model conv", "data ood opt", "claims one", "figure ood without", "name path", "published per cent",
         "published twice", "papers typo", "settings like typo", "scales other value typo", "drop_last w/ big batch"}  # fmt: skip


@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in FAULTS]
)
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
