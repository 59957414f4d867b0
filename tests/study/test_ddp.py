"""Two processes that share each batch (gloo) train as one process does."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import needs

from calibrant.study import Store, load_study

pytestmark = needs("lightning")

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
import numpy as np
import torch.distributed as dist
from calibrant.study import Recipe, Training, training

devices, reduction, clip, out = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]) or None, Path(sys.argv[4])
plan = Training(epochs=3, batch=16, lr=0.02, momentum=0.9, devices=devices, reduction=reduction, clip=clip)
data = {"name": "digits", "train": 61, "validation": 60}  # 61: the last batch is not shared evenly
recipe = Recipe(data, {"type": "MLP", "hidden": [8]}, {"type": "FocalLoss", "gamma": 2.0}, plan)
run = training(recipe, accelerator="cpu")
while True:
    try:
        next(run)
    except StopIteration as end:
        outcome = end.value
        break
if not dist.is_initialized() or dist.get_rank() == 0:
    np.save(out, outcome.test.logits.numpy())
if dist.is_initialized():
    dist.destroy_process_group()
"""


STUDY = """
name = "small"
title = "A small study"
about = "a"
seeds = [0, 1]
data = { name = "digits", train = 63, validation = 60 }
model = { type = "MLP", hidden = [8] }
training = { epochs = 2, batch = 20, lr = 0.05, devices = DEVICES }
[[objectives]]
label = "CE"
loss = { type = "CrossEntropyLoss" }
"""


@pytest.mark.slow
def test_a_whole_study_of_two_processes_a_training_gives_what_one_gives(tmp_path: Path) -> None:
    found = []
    for devices in (1, 2):
        path, store = tmp_path / f"{devices}.toml", tmp_path / str(devices)
        path.write_text(STUDY.replace("DEVICES", str(devices)))
        command = [sys.executable, "-m", "calibrant", "study", "run", str(path), "--accelerator", "cpu"]
        done = subprocess.run([*command, "--store", str(store)], capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("A small study") == 1  # the second process says nothing
        kept = Store(store)
        found.append([kept.load(cell.recipe) for cell in load_study(path).cells()])
        assert not list(store.rglob("checkpoint.pt"))
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one.test.logits, two.test.logits, atol=1e-6)
        assert torch.equal(one.test.labels, two.test.labels)


@pytest.mark.slow
@pytest.mark.parametrize(("reduction", "clip"), [("mean", 0.0), ("sum", 2.0)])
def test_two_processes_equal_one(tmp_path: Path, reduction: str, clip: float) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = []
    for devices in (1, 2):
        out = tmp_path / f"{devices}.npy"
        done = subprocess.run(
            [sys.executable, str(script), str(devices), reduction, str(clip), str(out)],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        found.append(np.load(out))
    assert np.allclose(*found, atol=1e-5)  # float32 sums in another order, three epochs long
    assert not np.allclose(found[0], 0, atol=1e-2)
