"""The numbers of every family are those recorded: ``compute.py`` says how a change that moves some by design records them."""

import itertools

import pytest
from tests.reference import compute

RECORDED = compute.recorded()


@pytest.mark.parametrize("family", compute.FAST, ids=lambda family: family.__name__)
def test_numbers_are_as_recorded(family: compute.Family) -> None:
    found = compute.entries([family])
    moved = [compute.differences(name, RECORDED.get(name, "missing"), value) for name, value in found.items()]
    assert not (lines := list(itertools.chain.from_iterable(moved))), "\n".join(lines[:40])


def test_every_recorded_entry_is_computed() -> None:
    names = {name for family in (*compute.FAST, *compute.SLOW) for name, _ in family()}
    assert set(RECORDED) == names


@pytest.mark.slow
def test_a_study_trains_to_the_recorded_figures() -> None:
    for name, value in compute.entries(compute.SLOW).items():
        assert not list(compute.differences(name, RECORDED[name], value))
