"""``calibrant fit --top-label``: what is fitted, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from calibrant import load


def test_it_is_fitted_for_auto_and_refused_elsewhere(tmp_path: Path, run: Callable[..., Any]) -> None:
    path, out = tmp_path / "p.npz", tmp_path / "c.safetensors"
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(200, 3))
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    np.savez(path, val_logits=z, val_labels=y)
    for options, text in (
        (["--method", "TemperatureScaling"], "expected --method auto with --top-label, got TemperatureScaling"),
        (["--multilabel"], "--top-label"),
    ):
        answer = run("fit", path, "--top-label", *options, "-o", out)
        assert answer.exit_code == 2
        assert text in " ".join(answer.stderr.split())
    assert not out.exists()
    done = run("fit", path, "--top-label", "-o", out)
    assert done.exit_code == 0, done.output
    assert load(out).config()["top_label"] is True
