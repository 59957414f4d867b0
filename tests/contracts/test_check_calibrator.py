"""``check_calibrator`` holds for every calibrator of ours, and names what a faulty one breaks."""

from typing import Any

import pytest
import torch
from tests.contracts.test_calibrators import FAMILY, make
from torch import Tensor

from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.errors import InputError
from calibrant.testing import check_calibrator


class Shrinking(Calibrator):
    """A calibrator without a fault, from which those below differ in one thing."""

    preserves_argmax = True
    strength: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._declare("strength")

    def _fit(self, rows: Any) -> None:
        self.strength = torch.tensor(0.5, dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        return (logits.double() * self.strength).to(logits.dtype)


class Moving(Shrinking):
    def _transform(self, logits: Tensor) -> Tensor:
        return logits.flip(1)


class AcrossRows(Shrinking):
    def _transform(self, logits: Tensor) -> Tensor:
        return logits / logits.abs().amax().clamp_min(1)


class Widening(Shrinking):
    def _transform(self, logits: Tensor) -> Tensor:
        return logits.double()


class NaNs(Shrinking):
    preserves_argmax = False

    def _transform(self, logits: Tensor) -> Tensor:
        p = torch.softmax(logits.double(), dim=1)
        return (torch.log(p) * torch.where(p == 0, 0.0, 1.0)).to(logits.dtype)


class OutsideItsState(Shrinking):
    def _fit(self, rows: Any) -> None:
        super()._fit(rows)
        self.factor = 0.5

    def _transform(self, logits: Tensor) -> Tensor:
        return logits * getattr(self, "factor", 0.25)


class WithoutGuard(Shrinking):
    def fit_from(self, rows: Any) -> Any:
        super().fit_from(rows)
        self.fit_rows = self.fit_rows[:0]
        return self


class Unchecked(Shrinking):
    def fit(self, logits: Any, labels: Any = None, **_: Any) -> Any:
        self._fit(None)
        self.classes.fill_(4)
        self._columns = 4
        return self


@pytest.mark.parametrize("name", FAMILY)
def test_every_calibrator_keeps_the_contract(name: str) -> None:
    check_calibrator(make(name))


def test_one_of_a_stranger_keeps_it_fitted_or_not() -> None:
    check_calibrator(Shrinking())
    fitted = TemperatureScaling().fit(torch.eye(3) * 2, [0, 1, 1])
    temperature = fitted.temperature
    check_calibrator(fitted)
    assert fitted.temperature == temperature


@pytest.mark.parametrize(
    ("cls", "clause"),
    [
        (Moving, "the decision stays"),
        (AcrossRows, "every row is answered by itself"),
        (Widening, "has its dtype and shape"),
        (NaNs, "saturated rows of .* give numbers"),
        (OutsideItsState, "one with its state answers the same"),
        (WithoutGuard, "on the rows of its fit by LeakError"),
        (Unchecked, "refuses a fit on NaN by InputError"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_fault_is_named(cls: type[Calibrator], clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check_calibrator(cls())


def test_what_is_no_calibrator_is_refused() -> None:
    for wrong in (TemperatureScaling, None, torch.nn.Identity()):
        with pytest.raises(InputError, match="expected a calibrator that extends"):
            check_calibrator(wrong)  # type: ignore[arg-type]
