"""``calibrant fit --top-label`` and ``--keep``: what is fitted, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import load


@pytest.mark.parametrize(("option", "setting"), [(["--top-label"], "top_label"), (["--keep", "argmax"], "keep")])
def test_it_is_fitted_for_auto_and_refused_elsewhere(
    option: list[str], setting: str, tmp_path: Path, run: Callable[..., Any]
) -> None:
    path, out = tmp_path / "p.npz", tmp_path / "c.safetensors"
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(200, 3))
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(axis=1)
    np.savez(path, val_logits=z, val_labels=y)
    for options, text in (
        (["--method", "TemperatureScaling"], f"expected --method auto with {option[0]}, got TemperatureScaling"),
        (["--multilabel"], option[0]),
    ):
        answer = run("fit", path, *option, *options, "-o", out, code=2)
        assert text in " ".join(answer.stderr.split())
    assert not out.exists()
    run("fit", path, *option, "-o", out, code=0)
    assert load(out).config()[setting] == (option[1] if len(option) > 1 else True)
