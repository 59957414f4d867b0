"""Broken recipes: any value in any place is read, or refused in one sentence."""

import copy
import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from calibrant.errors import CalibrantError
from calibrant.study import load_study
from calibrant.study.load import presets
from calibrant.study.resolve import make_loss

pytest.importorskip("hypothesis", reason="optional package 'hypothesis' is not installed")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CALM = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
LEAVES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12),
    st.sampled_from(["", "CE", "FocalLoss", "no:such", ":", "os:system.x", "MLP", "digits", "main"]),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text("abz_", max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def toml_of(value: Any) -> str:
    """Return ``value`` as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml_of(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are TOML's own words
    return json.dumps(value, ensure_ascii=False)


def places_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*path, key), *places_of(item, (*path, key))]]


def read(text: str, folder: Path) -> bool:
    """Read a study as the command line does; say whether it was whole. Any error but ours fails the test."""
    path = folder / "study.toml"
    path.write_text(text, encoding="utf-8")
    try:
        for scale in ("cpu", None):
            for cell in load_study(path, scale=scale).cells():
                assert cell.recipe.fingerprint
                make_loss(cell.recipe.loss)
    except CalibrantError as error:
        said = str(error)
    else:
        return True
    assert said
    assert "\n" not in said
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "adafocal-table"])
def test_any_value_in_any_place_is_read_or_refused(name: str, tmp_path: Path) -> None:
    assert name in presets()
    whole = tomllib.loads(files("calibrant.study").joinpath("presets", f"{name}.toml").read_text(encoding="utf-8"))
    places, seen = places_of(whole), [0, 0]
    assert read("\n".join(f"{key} = {toml_of(value)}" for key, value in whole.items()), tmp_path)

    @CALM
    @given(st.sampled_from(places), st.one_of(VALUES, st.just("…drop")))
    def attack(place: tuple[Any, ...], value: Any) -> None:
        broken = copy.deepcopy(whole)
        holder = broken
        for key in place[:-1]:
            holder = holder[key]
        if value == "…drop":
            del holder[place[-1]]
        else:
            holder[place[-1]] = value
        seen[read("\n".join(f"{json.dumps(k)} = {toml_of(v)}" for k, v in broken.items()), tmp_path)] += 1

    attack()
    assert seen[0] > 20  # refused
    assert sum(seen) >= 100


@CALM
@given(st.text(max_size=200))
def test_any_text_is_no_study(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        assert not read(text, Path(folder))
