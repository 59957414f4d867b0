"""The contract of a calibrator, as a function to call in a test."""

import copy
import math
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from calibrant._check import refuse, shown
from calibrant._plain import renewed
from calibrant.calibrators import Calibrator, load
from calibrant.errors import CalibrantError, CalibrantWarning, InputError, LeakError, NotFittedError
from calibrant.predictions import Predictions

__all__ = ["check_calibrator"]

CLASSES = 4
_ROUNDING = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 1e-5, torch.float64: 1e-9}  # of a probability


def check_calibrator(calibrator: Calibrator) -> None:
    """Check that ``calibrator`` does what every calibrator of ``calibrant.calibrators`` does; call it in a test of your own.

    Fits and their refusals, dtypes, rows answered one by one, the facts it declares, copies, states and files, numbers for
    saturated rows and for data without an optimum, and the leakage guard. It is made anew from its configuration and is not
    changed itself.

    Args:
        calibrator: The calibrator to check, fitted or not.

    Raises:
        AssertionError: Naming the clause that does not hold.
        InputError: If ``calibrator`` is no ``calibrators.Calibrator``.

    Examples:
        >>> from calibrant.calibrators import Calibrator
        >>> class Halving(Calibrator):
        ...     preserves_argmax = True
        ...
        ...     def _fit(self, rows):
        ...         pass
        ...
        ...     def _transform(self, logits):
        ...         return logits / 2
        >>> check_calibrator(Halving())
    """
    if not isinstance(calibrator, Calibrator):
        raise refuse(
            "a calibrator that extends calibrators.Calibrator", shown(calibrator), "pass an object of your class"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        _unfitted(renewed(calibrator))
        _bad_data(calibrator)
        fitted = _fitted(calibrator)
        for clause in CLAUSES:
            clause(fitted)
        _degenerate_data(calibrator)


def _fitted(calibrator: Calibrator) -> Calibrator:
    """Return a copy fitted on the sample."""
    fresh = renewed(calibrator)
    logits, labels = _sample()
    kept = logits.clone(), labels.clone()
    _require(fresh.fit(logits, labels) is fresh, "fit returns self")
    _require(fresh.fitted, "it is fitted after fit")
    _require(torch.equal(logits, kept[0]) and torch.equal(labels, kept[1]), "fit leaves its data as they are")
    return fresh


def _unfitted(calibrator: Calibrator) -> None:
    _require(not calibrator.fitted, "it is not fitted before fit")
    _refuses(lambda: calibrator(_sample()[0]), NotFittedError, "an answer before fit")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.safetensors")
        _refuses(lambda: calibrator.save(path), NotFittedError, "to save before fit")
        _require(not path.exists(), "nothing is written before fit")


def _bad_data(calibrator: Calibrator) -> None:
    z, y = _sample()
    cases: dict[str, tuple[Tensor, Tensor]] = {
        "NaN": (z.masked_fill(z > 6, math.nan), y),
        "+inf": (z.masked_fill(z > 6, math.inf), y),
        "integer logits": (z.long(), y),
        "one class": (z[:, :1], y * 0),
        "no rows": (z[:0], y[:0]),
        "probabilities": (torch.softmax(z, dim=1), y),
        "a label of K": (z, y + 1),
        "labels with a class axis": (z, y[:, None]),
        "too few labels": (z, y[1:]),
        "floating labels": (z, y.double()),
    }
    for what, (logits, labels) in cases.items():
        fresh = renewed(calibrator)
        _refuses(lambda fresh=fresh, z=logits, y=labels: fresh.fit(z, y), InputError, f"a fit on {what}")  # type: ignore[misc]
        _require(not fresh.fitted, f"it is not fitted by a refused fit on {what}")
    for what, weight in {"negative": -torch.ones(len(y)), "NaN": torch.full((len(y),), math.nan)}.items():
        fresh = renewed(calibrator)
        _refuses(
            lambda fresh=fresh, w=weight: fresh.fit(z, y, sample_weight=w),  # type: ignore[misc]
            InputError,
            f"{what} weights",
        )


def _other_inputs_are_refused(fitted: Calibrator) -> None:
    for what, wrong in {
        "another K": torch.zeros(3, CLASSES + 1),
        "a row without its axis": torch.zeros(CLASSES),
        "integers": torch.zeros(2, CLASSES, dtype=torch.int64),
    }.items():
        _refuses(lambda wrong=wrong: fitted(wrong), InputError, f"logits of {what}")  # type: ignore[misc]


def _rows_and_dtypes(fitted: Calibrator) -> None:
    logits = _sample(60, seed=1)[0]
    alone = torch.cat([fitted(row[None]) for row in logits])
    _close(alone, fitted(logits), 1e-9, "every row is answered by itself")
    for dtype, tolerance in _ROUNDING.items():
        answer = fitted(logits.to(dtype))
        _require(
            answer.dtype == dtype and answer.shape == logits.shape, f"the answer to {dtype} has its dtype and shape"
        )
        _close(answer, fitted(logits.to(dtype).double()), tolerance, f"the answer to {dtype} is that to its values")


def _facts_hold(fitted: Calibrator) -> None:
    _require(isinstance(fitted.preserves_argmax, bool), "preserves_argmax is True or False")
    _require(isinstance(fitted.top_label, bool), "top_label is True or False")
    base = _sample(2000, seed=2)[0]
    for logits in (base, base * 100, base.half(), base.float() * 40):
        if fitted.preserves_argmax:
            answer = fitted(logits)
            chosen = answer.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
            _require(torch.equal(chosen, answer.amax(dim=1)), "the decision stays, as preserves_argmax says")


def _saturated_rows_give_numbers(fitted: Calibrator) -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        logits = torch.tensor([[3e4, 0, 0, 0], [-3e4, 3e4, 0, 1], [0, 0, 0, 0], [5e-4, 0, 0, 0]], dtype=dtype)
        _require_normal(fitted(logits), f"saturated rows of {dtype} give numbers")


def _copies_answer_the_same(fitted: Calibrator) -> None:
    logits = _sample(50, seed=4)[0]
    expected = fitted(logits)
    other = renewed(fitted)
    other.load_state_dict(fitted.state_dict())
    copies = {
        "a copy": copy.deepcopy(fitted),
        "one with its state": other,
        "one made half": copy.deepcopy(fitted).half(),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.safetensors")
        fitted.save(path)
        copies["one saved and loaded"] = load(path, classes=[type(fitted)])
        _require([file.name for file in Path(folder).iterdir()] == [path.name], "save writes one file")
    data = Predictions.from_logits(*_sample())
    for what, one in copies.items():
        _require(one.fitted and torch.equal(one(logits), expected), f"{what} answers the same to the bit")
        _require(repr(one) == repr(fitted), f"{what} has the same representation")
        _refuses(lambda one=one: data.calibrated_by(one), LeakError, f"{what} on the rows of its fit")  # type: ignore[misc]
    _require(len(data.calibrated_by(fitted, allow_fit_rows=True)) == len(data), "allow_fit_rows=True lets it")


def _degenerate_data(calibrator: Calibrator) -> None:
    z, y = _sample()
    cases = {
        "rows that are all right": (z, z.argmax(dim=1)),
        "rows that are all wrong": (z, z.argmin(dim=1)),
        "one class only": (z, torch.zeros_like(y)),
        "equal logits": (torch.ones_like(z), y),
        "huge logits": (z * 1e5, y),
        "two rows": (z[:2], y[:2]),
    }
    for what, (logits, labels) in cases.items():
        fresh = renewed(calibrator)
        try:
            fresh.fit(logits, labels)
        except CalibrantError:
            continue
        _require_normal(fresh(_sample(50, seed=9)[0]), f"a fit on {what} gives numbers, or is refused")


CLAUSES: tuple[Callable[[Calibrator], None], ...] = (
    _other_inputs_are_refused,
    _rows_and_dtypes,
    _facts_hold,
    _saturated_rows_give_numbers,
    _copies_answer_the_same,
)


def _sample(rows: int = 240, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return over-confident logits (float64) with labels drawn from softmax(logits / 2)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=generator)[:, 0]


def _require(holds: bool, clause: str) -> None:
    if not holds:
        raise AssertionError(
            f"expected that {clause}, got otherwise; see the contract of calibrant.calibrators.Calibrator"
        )


def _require_normal(answer: Tensor, clause: str) -> None:
    wrong = torch.isnan(answer).any() | (answer == math.inf).any() | ~torch.isfinite(answer.amax(dim=1)).all()
    _require(not bool(wrong), clause)


def _close(found: Tensor, right: Tensor, tolerance: float, clause: str) -> None:
    difference = (torch.softmax(found.double(), dim=1) - torch.softmax(right.double(), dim=1)).abs().max()
    _require(float(difference) <= tolerance, clause)


def _refuses(call: Callable[[], object], error: type[CalibrantError], what: str) -> None:
    """Require that ``call`` ends in ``error``."""
    try:
        call()
    except error:
        return
    except Exception as other:
        raise AssertionError(
            f"expected that it refuses {what} by {error.__name__}, got {type(other).__name__}; see its text"
        ) from other
    raise AssertionError(f"expected that it refuses {what} by {error.__name__}, got an answer; call the base's checks")
