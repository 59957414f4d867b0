"""``calibrant decide``: the threshold of the function, the module it saves, exit codes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibrant import load_predictions
from calibrant.calibrators import TemperatureScaling
from calibrant.operate import Deployed, abstain


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(3000, 3)) * 3
    labels = (true + rng.gumbel(size=true.shape)).argmax(1)
    logits = (2 * true).astype(np.float32)
    path = tmp_path / "p.npz"
    parts = {"val_logits": logits[:1000], "val_labels": labels[:1000]}
    np.savez(path, **parts, test_logits=logits[1000:], test_labels=labels[1000:])
    TemperatureScaling().fit(load_predictions(path, "val")).save(tmp_path / "c.safetensors")
    return path


def test_it_finds_and_saves_what_the_function_finds(file: Path, run: Any) -> None:
    calibrator, out = file.with_name("c.safetensors"), file.with_name("d.safetensors")
    done = run("decide", file, "--error", ".1", "-c", calibrator, "-o", out, "--json")
    assert done.exit_code == 0, done.output
    test = load_predictions(file, "test")
    fitted = TemperatureScaling().fit(load_predictions(file, "val"))
    rule = abstain(test.calibrated_by(fitted), error=0.1)  # type: ignore[union-attr]
    assert json.loads(done.stdout)["parts"][0]["threshold"] == rule.threshold
    deployed = Deployed.load(out)
    z = torch.randn(50, 3)
    assert torch.equal(deployed(z), rule(fitted(z)))
    assert "answer from confidence" in run("decide", file, "--coverage", ".8", "--by", "class").stdout


def test_where_nothing_qualifies_nothing_is_written(file: Path, run: Any) -> None:
    out = file.with_name("d.safetensors")
    done = run("decide", file, "--error", ".00001", "-o", out)
    assert (done.exit_code, out.exists()) == (3, False)
    assert "no threshold has an error of at most 1e-05" in " ".join(done.stdout.split())
    for arguments, message in (
        ([], "error or coverage, got neither"),
        (["--error", "2"], "expected error"),
        (["--error", ".1", "-o", file.with_name("d.bin")], "ends in .safetensors"),
        (["--error", ".1", "-c", file.with_name("c.safetensors"), "--split", "val"], "fitted"),
    ):
        done = run("decide", file, *arguments)
        assert done.exit_code == 2
        assert message in done.stderr
