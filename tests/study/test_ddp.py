"""Two processes that share each batch (gloo) train as one process does."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightning", reason="optional package 'lightning' is not installed")

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
