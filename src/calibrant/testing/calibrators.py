"""The contract of a calibrator, as a function to call in a test."""

import copy
import json
import math
import tempfile
import warnings
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from calibrant._core.config import renewed
from calibrant.calibrators import Calibrator, load
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, CalibrantWarning, InputError, LeakError, NotFittedError
from calibrant.rows import MemoryRows
from calibrant.testing._require import draw, require, require_refusal

_CLASSES = 4
_EXACT = 2e-4  # in a probability: fits end within their certificate, which is a gradient and not a parameter
_ROUNDING = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 1e-5, torch.float64: 1e-9}  # of a probability


def check_calibrator(calibrator: Calibrator, *, exact: float = _EXACT) -> None:
    """Check that ``calibrator`` does what every calibrator of ``calibrant.calibrators`` does; call it in a test of your own.

    Fits and their refusals, two classes, second fits, weights, rows in another order, dtype or container, rows answered one by one,
    the facts it declares, copies, states and files, excluded classes, numbers for saturated rows and for data without an optimum,
    and the leakage guard. It is made anew from its configuration and is not changed itself.

    Args:
        calibrator: The calibrator to check, fitted or not.
        exact: Largest difference of a probability between a fit on rows of weight w and on w times as many rows; wider for
            a calibrator that splits the rows at random.

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
        raise InputError("check_calibrator takes an object of a class that extends calibrators.Calibrator")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        _unfitted(renewed(calibrator))
        _bad_data(calibrator)
        fitted = renewed(calibrator)
        logits, labels = _random_rows()
        kept = logits.clone(), labels.clone()
        require(fitted.fit(logits, labels) is fitted and fitted.fitted, "fit returns self, which is then fitted")
        require(torch.equal(logits, kept[0]) and torch.equal(labels, kept[1]), "fit leaves its data as they are")
        _answers(fitted)
        _declared_facts(fitted)
        _dtypes(fitted)
        _copies(fitted)
        _weighted_fit(calibrator, exact)
        # rows split by position differ in another order, as they do where weights stand for repetitions
        _other_fits(calibrator, fitted, 1e-5 if exact <= _EXACT else exact)
        _other_data(calibrator)


def _random_rows(rows: int = 240, classes: int = _CLASSES, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return over-confident logits: twice those of the true probabilities."""
    return draw(rows, classes, scale=3.0, sharp=0.5, seed=seed)


def _unfitted(calibrator: Calibrator) -> None:
    require(not calibrator.fitted, "it is not fitted before fit")
    require_refusal(NotFittedError, "an answer before fit", calibrator, _random_rows()[0])
    with tempfile.TemporaryDirectory() as folder:
        require_refusal(NotFittedError, "a file before fit", calibrator.save, Path(folder, "c.safetensors"))
        require(not list(Path(folder).iterdir()), "nothing is written before fit")


def _bad_data(calibrator: Calibrator) -> None:
    z, y = _random_rows()
    one = torch.ones(len(y))
    for what, logits, labels, weight in (
        ("NaN", z.masked_fill(z > 6, math.nan), y, None),
        ("one class", z[:, :1], y * 0, None),
        ("probabilities", torch.softmax(z, dim=1), y, None),
        ("a label of K", z, y + 1, None),
        ("too few labels", z, y[1:], None),
        ("negative weights", z, y, -one),
        ("only zero weights", z, y, one * 0),
    ):
        fresh = renewed(calibrator)
        require_refusal(InputError, f"a fit on {what}", partial(fresh.fit, weights=weight), logits, labels)
        require(not fresh.fitted, f"it is not fitted where it refuses {what}")


def _answers(fitted: Calibrator) -> None:
    logits = _random_rows(60, seed=1)[0]
    whole = fitted(logits)
    require(isinstance(whole, Tensor) and whole.shape == logits.shape, "it returns a tensor (N, K) for logits (N, K)")
    # what is answered together must not depend on who else is in the batch, as a sort or a mean over rows would make it
    _near(torch.cat([fitted(row[None]) for row in logits]), whole, 1e-9, "every row is answered by itself")
    require_refusal(InputError, "logits of another K", fitted, torch.zeros(3, _CLASSES + 1))


def _dtypes(fitted: Calibrator) -> None:
    logits = _random_rows(60, seed=1)[0]
    for dtype, tolerance in _ROUNDING.items():
        narrow = logits.to(dtype)
        answer = fitted(narrow)
        require(
            answer.dtype == dtype and answer.shape == narrow.shape, f"the answer to {dtype} has its dtype and shape"
        )
        _near(answer, fitted(narrow.double()), tolerance, f"the answer to {dtype} is that to its values")
    for dtype in (torch.float16, torch.float32, torch.float64):
        # float16 ends at 65,504: a map that doubles 3e4 must not return inf
        mask = torch.finfo(dtype).min  # by which networks exclude a class where −inf is none of their numbers
        rows = [[3e4, 0, 0, 0], [-3e4, 3e4, 0, 1], [0] * 4, [5e-4, 0, 0, 0], [2, 1.5, mask, 1], [mask, 0, mask, mask]]
        _require_numbers(fitted(torch.tensor(rows, dtype=dtype)), f"saturated rows of {dtype} give numbers")


def _declared_facts(fitted: Calibrator) -> None:
    for fact in ("preserves_argmax", "top_label"):
        require(isinstance(getattr(fitted, fact), bool), f"{fact} is True or False")
    base = _random_rows(2000, seed=2)[0]
    # the decision is lost by rounding, first where logits are far apart or their dtype is narrow
    for logits in (base, base * 100, base.half(), base.float() * 40) if fitted.preserves_argmax else ():
        answer = fitted(logits)
        chosen = answer.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
        require(torch.equal(chosen, answer.amax(dim=1)), "the decision stays, as preserves_argmax says")
    known = {"fit_rows", *fitted.config()}
    for name, value in vars(fitted).items():
        declared = name in known or not isinstance(value, Tensor)
        require(declared, f"the learned tensor {name} is declared: write {name}: Tensor into the class")


def _copies(fitted: Calibrator) -> None:
    # a state alone holds what was learned: nothing may lie in plain attributes
    other, moved = renewed(fitted), copy.deepcopy(fitted)
    torch.nn.Sequential(other).load_state_dict(torch.nn.Sequential(fitted).state_dict())
    torch.nn.Sequential(moved).half().bfloat16().double()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.safetensors")
        fitted.save(path)
        saved = load(path, classes=[type(fitted)])
        require([file.name for file in Path(folder).iterdir()] == [path.name], "save writes one file")
    table, logits = fitted.config(), _random_rows(50, seed=4)[0]
    require(json.loads(json.dumps(table)) == table, "its configuration is plain JSON data")
    data, fresh = Predictions.from_logits(*_random_rows()), Predictions.from_logits(*_random_rows(seed=10))
    for what, one in (
        ("one with its state", other),
        ("a copy moved with its model through every dtype", moved),
        ("one saved and loaded", saved),
    ):
        require(one.fitted and torch.equal(one(logits), fitted(logits)), f"{what} answers the same to the bit")
        require(repr(one) == repr(fitted), f"{what} has the same representation")
        require_refusal(LeakError, f"{what} on the rows of its fit", data.calibrated_by, one)
    if fitted.preserves_argmax or fitted.top_label:
        require(torch.equal(fresh.calibrated_by(fitted).predicted, fresh.predicted), "predictions keep their decisions")


def _weighted_fit(calibrator: Calibrator, exact: float) -> None:
    logits, labels = _random_rows()
    # 0, 1 and 2: a weight of 0 must leave the row out of folds and bins, too
    times = torch.arange(len(labels)) % 3
    weighted = renewed(calibrator)
    try:
        # fit(logits, labels, weights=…) would divide them by their mean, for which a ridge has another strength
        weighted.fit(MemoryRows.of(logits, labels, weights=times.double()))
    except InputError:  # it refuses weights
        return
    repeated = renewed(calibrator).fit(logits.repeat_interleave(times, dim=0), labels.repeat_interleave(times))
    fresh = _random_rows(50, seed=6)[0]
    clause = "a row of weight w counts as w rows in the fit: multiply each row's term by its weight"
    _near(weighted(fresh), repeated(fresh), exact, clause)


def _other_fits(calibrator: Calibrator, fitted: Calibrator, tolerance: float) -> None:
    logits, labels = _random_rows()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    probes = _random_rows(50, seed=6)[0]
    shuffled = renewed(calibrator).fit(logits[order], labels[order])
    _near(shuffled(probes), fitted(probes), tolerance, "the order of the rows does not matter to a fit")
    listed = renewed(calibrator).fit(logits.numpy(), labels.tolist())
    require(torch.equal(listed(probes), fitted(probes)), "arrays and lists are fitted as tensors are")
    # a fit that computes in half precision, and not in float64, differs by far more than 1e-4
    half = logits.half()
    narrow, wide = (renewed(calibrator).fit(z, labels) for z in (half, half.double()))
    _near(narrow(probes), wide(probes), 1e-4, "a fit on float16 is that on its values in float64")
    # of another number of classes first: no learned shape may survive; then of other rows, from where a search may start
    again = renewed(calibrator).fit(*_random_rows(300, 3, seed=8)).fit(*_random_rows(seed=11)).fit(logits, labels)
    _near(again(probes), fitted(probes), 1e-4, "a second fit forgets the first")


def _other_data(calibrator: Calibrator) -> None:
    try:
        answer = renewed(calibrator).fit(*_random_rows(300, 2, seed=5))(_random_rows(50, 2, seed=6)[0])
    except Exception as error:
        raise AssertionError(f"two classes must work, and give {type(error).__name__}: {error}") from error
    require(answer.shape == (50, 2), "the answer to two classes has two columns")
    _require_numbers(answer, "a fit on two classes gives numbers")
    z, y = _random_rows()
    excluded = z.clone()
    # in half of the rows a class is excluded, as a mask of options does; it is the label of none of them
    excluded[::2, 3] = -math.inf
    for what, logits, labels in (
        ("rows with a class excluded by −inf", excluded, torch.where(y == 3, 0, y)),
        ("rows that are all right", z, z.argmax(dim=1)),
        ("rows that are all wrong", z, z.argmin(dim=1)),
        ("one class only", z, torch.zeros_like(y)),
        ("equal logits", torch.ones_like(z), y),
        ("huge logits", z * 1e5, y),
        ("two rows", z[:2], y[:2]),
    ):
        fresh = renewed(calibrator)
        try:
            fresh.fit(logits, labels)
        except CalibrantError:
            continue
        _require_numbers(fresh(_random_rows(50, seed=9)[0]), f"a fit on {what} gives numbers, or is refused")
        if logits is excluded and fresh.preserves_argmax and not fresh.top_label:
            likeliest = float(fresh(excluded).double().softmax(dim=1)[::2, 3].max())
            require(likeliest < 0.25, "a class excluded by −inf does not become likely")


def _require_numbers(answer: Tensor, clause: str) -> None:
    """Require logits with a softmax: no NaN, no +inf, and no row of −inf alone."""
    require(bool(torch.isfinite(answer.amax(dim=1)).all()), clause)


def _near(found: Tensor, right: Tensor, tolerance: float, clause: str) -> None:
    difference = (torch.softmax(found.double(), dim=1) - torch.softmax(right.double(), dim=1)).abs().max()
    require(float(difference) <= tolerance, f"{clause} (probabilities differ by {float(difference):.2g})")
