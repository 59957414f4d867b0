"""The contract of calibrators, as a function to call in a test."""

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
_EXACT = 2e-4  # difference of probabilities; fits stop at a small gradient, so their parameters are not exact
_ROUNDING = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 1e-5, torch.float64: 1e-9}  # in a probability


def check_calibrator(calibrator: Calibrator, *, exact: float = _EXACT) -> None:
    """Check that ``calibrator`` fulfils the contract of the calibrators in ``calibrant.calibrators``.

    Call this function in the tests of your own calibrator. It checks:

    - fits: errors for invalid data, two classes, refitting, weights, and rows in another order, dtype or container;
    - outputs: the same for a row alone as in a batch, and finite for saturated rows and for data without an optimum;
    - properties such as ``preserves_argmax``, excluded classes, copies, states, files, and the leakage guard.

    The calibrator is not changed: the checks use new objects with its configuration.

    Args:
        calibrator: The calibrator to check, fitted or not.
        exact: Largest accepted difference in a probability between a fit on rows of weight w and a fit on w copies of
            these rows. Pass a larger value for a calibrator that splits the rows at random.

    Raises:
        AssertionError: If the calibrator breaks the contract; the message names the clause.
        InputError: If ``calibrator`` is not a ``calibrators.Calibrator``.

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
        require(torch.equal(logits, kept[0]) and torch.equal(labels, kept[1]), "fit does not change its data")
        _answers(fitted)
        _declared_facts(fitted)
        _dtypes(fitted)
        _copies(fitted)
        _weighted_fit(calibrator, exact)
        # with rows split by position, another order gives another fit, and so does repetition instead of weights
        _other_fits(calibrator, fitted, 1e-5 if exact <= _EXACT else exact)
        _other_data(calibrator)


def _random_rows(rows: int = 240, classes: int = _CLASSES, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return over-confident logits, twice those of the true probabilities, and labels."""
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
        require(not fresh.fitted, f"it is not fitted after it refuses {what}")


def _answers(fitted: Calibrator) -> None:
    logits = _random_rows(60, seed=1)[0]
    whole = fitted(logits)
    require(isinstance(whole, Tensor) and whole.shape == logits.shape, "it returns a tensor (N, K) for logits (N, K)")
    # a row's output must not depend on the other rows of the batch, as it would with a sort or a mean over rows
    _near(
        torch.cat([fitted(row[None]) for row in logits]),
        whole,
        1e-9,
        "the output of a row does not depend on the other rows",
    )
    require_refusal(InputError, "logits of another K", fitted, torch.zeros(3, _CLASSES + 1))


def _dtypes(fitted: Calibrator) -> None:
    logits = _random_rows(60, seed=1)[0]
    for dtype, tolerance in _ROUNDING.items():
        narrow = logits.to(dtype)
        answer = fitted(narrow)
        require(
            answer.dtype == dtype and answer.shape == narrow.shape, f"the output for {dtype} has its dtype and shape"
        )
        _near(
            answer, fitted(narrow.double()), tolerance, f"the output for {dtype} is that for the same values in float64"
        )
    for dtype in (torch.float16, torch.float32, torch.float64):
        # float16 ends at 65,504: a map that doubles 3e4 must not return inf
        mask = torch.finfo(dtype).min  # used by networks that cannot represent −inf to exclude a class
        rows = [[3e4, 0, 0, 0], [-3e4, 3e4, 0, 1], [0] * 4, [5e-4, 0, 0, 0], [2, 1.5, mask, 1], [mask, 0, mask, mask]]
        _require_numbers(fitted(torch.tensor(rows, dtype=dtype)), f"the output for saturated rows of {dtype} is finite")


def _declared_facts(fitted: Calibrator) -> None:
    for fact in ("preserves_argmax", "top_label"):
        require(isinstance(getattr(fitted, fact), bool), f"{fact} is True or False")
    base = _random_rows(2000, seed=2)[0]
    # rounding can change the decision, above all if logits are far apart or their dtype is narrow
    for logits in (base, base * 100, base.half(), base.float() * 40) if fitted.preserves_argmax else ():
        answer = fitted(logits)
        chosen = answer.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
        require(
            torch.equal(chosen, answer.amax(dim=1)), "the predicted class does not change if preserves_argmax is True"
        )
    known = {"fit_rows", *fitted.config()}
    for name, value in vars(fitted).items():
        declared = name in known or not isinstance(value, Tensor)
        require(declared, f"the learned tensor {name} is declared: write {name}: Tensor into the class")


def _copies(fitted: Calibrator) -> None:
    # everything learned must be in the state, and nothing in plain attributes
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
        require(one.fitted and torch.equal(one(logits), fitted(logits)), f"{what} has bit-identical outputs")
        require(repr(one) == repr(fitted), f"{what} has the same repr")
        require_refusal(LeakError, f"{what} on the rows used for fitting", data.calibrated_by, one)
    if fitted.preserves_argmax or fitted.top_label:
        require(torch.equal(fresh.calibrated_by(fitted).predicted, fresh.predicted), "predictions keep their decisions")


def _weighted_fit(calibrator: Calibrator, exact: float) -> None:
    logits, labels = _random_rows()
    # 0, 1 and 2: a weight of 0 must leave the row out of folds and bins, too
    times = torch.arange(len(labels)) % 3
    weighted = renewed(calibrator)
    try:
        # fit(logits, labels, weights=…) would divide the weights by their mean, which changes the effect of a ridge
        # penalty
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
    _near(shuffled(probes), fitted(probes), tolerance, "a fit does not depend on the order of the rows")
    listed = renewed(calibrator).fit(logits.numpy(), labels.tolist())
    require(torch.equal(listed(probes), fitted(probes)), "a fit on arrays and lists is that on tensors")
    # a fit that computes in half precision, and not in float64, differs by far more than 1e-4
    half = logits.half()
    narrow, wide = (renewed(calibrator).fit(z, labels) for z in (half, half.double()))
    _near(narrow(probes), wide(probes), 1e-4, "a fit on float16 is that on the same values in float64")
    # first with another number of classes, whose shapes must not survive; then with other rows, where a search might
    # start
    again = renewed(calibrator).fit(*_random_rows(300, 3, seed=8)).fit(*_random_rows(seed=11)).fit(logits, labels)
    _near(again(probes), fitted(probes), 1e-4, "a second fit forgets the first")


def _other_data(calibrator: Calibrator) -> None:
    try:
        answer = renewed(calibrator).fit(*_random_rows(300, 2, seed=5))(_random_rows(50, 2, seed=6)[0])
    except Exception as error:
        raise AssertionError(f"two classes must work, but raise {type(error).__name__}: {error}") from error
    require(answer.shape == (50, 2), "the output for two classes has two columns")
    _require_numbers(answer, "the output after a fit on two classes is finite")
    z, y = _random_rows()
    excluded = z.clone()
    # in half of the rows a class is excluded, as by a mask over options; it is not the label of any of these rows
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
        _require_numbers(fresh(_random_rows(50, seed=9)[0]), f"a fit on {what} is refused, or its output is finite")
        if logits is excluded and fresh.preserves_argmax and not fresh.top_label:
            likeliest = float(fresh(excluded).double().softmax(dim=1)[::2, 3].max())
            require(likeliest < 0.25, "a class excluded by −inf does not become likely")


def _require_numbers(answer: Tensor, clause: str) -> None:
    """Require logits that have a softmax: no NaN, no +inf, and no row that is −inf everywhere."""
    require(bool(torch.isfinite(answer.amax(dim=1)).all()), clause)


def _near(found: Tensor, right: Tensor, tolerance: float, clause: str) -> None:
    difference = (torch.softmax(found.double(), dim=1) - torch.softmax(right.double(), dim=1)).abs().max()
    require(float(difference) <= tolerance, f"{clause} (probabilities differ by {float(difference):.2g})")
