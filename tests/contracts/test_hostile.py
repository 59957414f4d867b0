"""Every public callable takes wrong arguments in one sentence: see ``hostile.py`` for the cases and the families held to it."""

import pytest
from tests.contracts import hostile

# In `make test` each argument is given every fifth of these values in turn, so that each value meets every fifth argument;
# the slow test gives all of HOSTILE to all.
QUICK = [
    "None", "str", "-1", "nan", "[]", "Predictions", "float matrix", "3-d", "complex matrix", "labels K", "missing path", "nested",
]  # fmt: skip


@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_everything_public_can_be_called(family: str) -> None:
    assert hostile.unknown(family) == []


@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_wrong_arguments_get_one_sentence(family: str) -> None:
    assert [f"{case}: {wrong}" for case, wrong in hostile.faults(family, values=QUICK, step=5)] == []


@pytest.mark.slow
@pytest.mark.parametrize("family", hostile.FAMILIES)
def test_the_whole_matrix_of_wrong_arguments_gets_one_sentence(family: str) -> None:
    assert [f"{case}: {wrong}" for case, wrong in hostile.faults(family)] == []


def test_a_fault_is_found() -> None:
    def careless(labels: object) -> float:
        return float(labels)  # type: ignore[arg-type]

    case = hostile.Case("scores.careless", "labels", "str")
    assert "ValueError" in str(hostile.fault(case, careless))
    assert hostile.fault(hostile.Case("scores.careless", "labels", "1.5"), careless) is None
    assert hostile.fault(hostile.Case("scores.careless", "labels", "nan"), careless) == "returns NaN"
