"""Two processes that share each batch (gloo) train as one process does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.conftest import needs
from tests.study.samples import study_text

from calibrant.study import Store, load_study

pytestmark = needs("lightning")

# Of 63 rows the last batch is not shared evenly.
STUDY = study_text(
    {"Mean": '"CrossEntropyLoss"', "Sum": '"FocalLoss", gamma = 2.0'},
    data="train = 63, validation = 60",
    seeds="[0]",
    training="epochs = 3, batch = 20, lr = 0.02, momentum = 0.9, devices = DEVICES",
)
STUDY += 'training = { reduction = "sum", clip = 2.0 }\n'


@pytest.mark.slow
def test_a_whole_study_of_two_processes_a_training_gives_what_one_gives(tmp_path: Path) -> None:
    found = []
    for devices in (1, 2):
        path, store = tmp_path / f"{devices}.toml", tmp_path / str(devices)
        path.write_text(STUDY.replace("DEVICES", str(devices)).replace('"t"', '"A small study"'))
        command = [sys.executable, "-m", "calibrant", "study", "run", str(path), "--accelerator", "cpu"]
        done = subprocess.run([*command, "--store", str(store)], capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("A small study") == 1  # the second process says nothing
        kept = Store(store)
        found.append([kept.load(cell.recipe) for cell in load_study(path).cells()])
        assert not list(store.rglob("checkpoint.pt"))
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one.test.logits, two.test.logits, atol=1e-5)  # float32 sums in another order
        assert not torch.allclose(one.test.logits, torch.zeros(()), atol=1e-2)
        assert torch.equal(one.test.labels, two.test.labels)
