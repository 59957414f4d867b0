"""``check_calibrator`` holds for every calibrator of ours, and names what a faulty one breaks."""

from typing import Any

import pytest
import torch
from tests.contracts.test_calibrators import FAMILY, SPLITS_ROWS, make
from torch import Tensor

from calibrant.calibrators import Calibrator, TemperatureScaling
from calibrant.errors import InputError
from calibrant.rows import Chunk
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


class Scaled(Shrinking):
    """Fits the strength by a sum over the rows, which the faulty ones below get wrong."""

    def _fit(self, rows: Any) -> None:
        self.strength = rows.mass / rows.total(confidences)


class IgnoringWeights(Scaled):
    def _fit(self, rows: Any) -> None:
        self.strength = rows.count / rows.total(unweighted_confidences)


class MeanOfPieces(Scaled):
    def _fit(self, rows: Any) -> None:
        parts = rows.collected(mean_confidence)
        self.strength = sum(parts) ** 2 / len(parts)


class PassingALambda(Scaled):
    def _fit(self, rows: Any) -> None:
        self.strength = rows.mass / rows.total(lambda chunk: confidences(chunk))


class Undeclared(Shrinking):
    def _fit(self, rows: Any) -> None:
        super()._fit(rows)
        self.factor = torch.tensor(1.0, dtype=torch.float64)

    def _transform(self, logits: Tensor) -> Tensor:
        return super()._transform(logits * self.factor)


class FalselyAffine(Shrinking):
    def affine(self) -> tuple[Tensor, Tensor]:
        return self.strength.expand(4), torch.arange(4).double()


class OneColumn(Shrinking):
    def _transform(self, logits: Tensor) -> Tensor:
        return logits[:, :1]


class NoTensor(Shrinking):
    def _transform(self, logits: Tensor) -> Tensor:
        return logits.numpy()  # type: ignore[return-value]


def unweighted_confidences(chunk: Chunk) -> Tensor:
    return chunk.logits.double().softmax(dim=1).amax(dim=1).sum()


def confidences(chunk: Chunk) -> Tensor:
    return (chunk.weights * chunk.logits.double().softmax(dim=1).amax(dim=1)).sum()


def mean_confidence(chunk: Chunk) -> Tensor:
    return confidences(chunk) / chunk.weights.sum()


class Unchecked(Shrinking):
    def fit(self, logits: Any, labels: Any = None, **_: Any) -> Any:
        self._fit(None)
        self.classes.fill_(4)
        self._columns = 4
        return self


@pytest.mark.parametrize("name", FAMILY)
def test_every_calibrator_keeps_the_contract(name: str) -> None:
    check_calibrator(make(name), exact=0.05 if name in SPLITS_ROWS else 2e-4)


def test_one_of_a_stranger_keeps_it_fitted_or_not() -> None:
    check_calibrator(Shrinking())
    check_calibrator(Scaled())
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
        (IgnoringWeights, "a row of weight w counts as w rows .*; multiply each row's term by chunk.weights"),
        (MeanOfPieces, "a fit on rows in pieces is the fit on all of them"),
        (
            PassingALambda,
            r"can be imported by its name \(PassingALambda._fit.<locals>.<lambda> cannot\), .*; move it to the top",
        ),
        (Undeclared, r'learned tensor factor is declared.*call self._declare\("factor"\)'),
        (FalselyAffine, "as affine says"),
        (OneColumn, r"a tensor \(N, K\)"),
        (NoTensor, r"a tensor \(N, K\)"),
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
