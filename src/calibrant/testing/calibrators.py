"""The contract of a calibrator, as a function to call in a test."""

import copy
import json
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from calibrant._core.config import renewed
from calibrant._core.constraints import Kind, NonNegative, checked
from calibrant.calibrators import Calibrator, load
from calibrant.data.predictions import Predictions
from calibrant.errors import CalibrantError, CalibrantWarning, FileFormatError, InputError, LeakError, NotFittedError
from calibrant.rows import Chunk, RowSource
from calibrant.testing.assertions import Contract, require_refusal

CONTRACT = Contract("the docstring of calibrant.calibrators.Calibrator")
CLASSES = 4
_EXACT = 2e-4  # in a probability: fits end within their certificate, which is a gradient and not a parameter
_WRONG = (math.nan, -math.inf, -1.0, 1e30)  # what a learned value is replaced by in an altered file
_ROUNDING = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 1e-5, torch.float64: 1e-9}  # of a probability


AnyCalibrator = Annotated[
    Calibrator, Kind(Calibrator, "pass an object of your class", "a calibrator that extends calibrators.Calibrator")
]


@checked
def check_calibrator(calibrator: AnyCalibrator, *, exact: NonNegative = _EXACT) -> None:
    """Check that ``calibrator`` does what every calibrator of ``calibrant.calibrators`` does; call it in a test of your own.

    Fits and their refusals, two classes, second fits, weights, rows in another order, dtype or container, rows in pieces as
    files and worker processes hold them, rows answered one by one, the facts it declares, copies, states, files and altered
    files, by features too where it needs them, numbers for saturated rows and for data without an optimum, and the leakage
    guard. It is made anew from its configuration and is not changed itself.

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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrantWarning)
        _unfitted(renewed(calibrator))
        if renewed(calibrator).needs_features:
            _features_travel(calibrator)
        _bad_data(calibrator)
        fitted = _fitted_copy(calibrator)
        for clause in CLAUSES:
            clause(fitted)
        _weights_count(calibrator, exact)
        _fits_in_pieces(calibrator, fitted)
        # rows split by position differ in another order, as they do where weights stand for repetitions
        _same_rows_same_fit(calibrator, fitted, 1e-5 if exact <= _EXACT else exact)
        _second_fits_forget(calibrator, fitted)
        _two_classes_work(calibrator)
        _excluded_classes_stay_out(calibrator)
        _degenerate_data(calibrator)


def _fitted_copy(calibrator: Calibrator) -> Calibrator:
    """Return a copy fitted on the sample."""
    fresh = renewed(calibrator)
    logits, labels = _over_confident()
    # a fit that centres the logits in place would change the user's array
    kept = logits.clone(), labels.clone()
    CONTRACT.require(fresh.fit(logits, labels) is fresh, "fit returns self")
    CONTRACT.require(fresh.fitted, "it is fitted after fit")
    CONTRACT.require(torch.equal(logits, kept[0]) and torch.equal(labels, kept[1]), "fit leaves its data as they are")
    return fresh


def _unfitted(calibrator: Calibrator) -> None:
    CONTRACT.require(not calibrator.fitted, "it is not fitted before fit")
    require_refusal(NotFittedError, "an answer before fit", calibrator, _over_confident()[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.safetensors")
        require_refusal(NotFittedError, "a file before fit", calibrator.save, path)
        CONTRACT.require(not path.exists(), "nothing is written before fit")


def _bad_data(calibrator: Calibrator) -> None:
    z, y = _over_confident()
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
    negative, alike = -torch.ones(len(y)), torch.zeros(len(y))
    weighted = {"negative": negative, "NaN": alike + math.nan, "only zero": alike, "too few": torch.ones(len(y) - 1)}
    calls = {f"a fit on {what}": (pair, None) for what, pair in cases.items()}
    for what, (pair, weight) in (calls | {f"{what} weights": ((z, y), w) for what, w in weighted.items()}).items():
        fresh = renewed(calibrator)
        require_refusal(InputError, what, partial(fresh.fit, sample_weight=weight), *pair)
        CONTRACT.require(not fresh.fitted, f"it is not fitted where it refuses {what}")


def _other_inputs_are_refused(fitted: Calibrator) -> None:
    for what, wrong in {
        "another K": torch.zeros(3, CLASSES + 1),
        "a row without its axis": torch.zeros(CLASSES),
        "integers": torch.zeros(2, CLASSES, dtype=torch.int64),
    }.items():
        require_refusal(InputError, f"logits of {what}", fitted, wrong)


def _rows_are_answered_alone(fitted: Calibrator) -> None:
    logits = _over_confident(60, seed=1)[0]
    whole = fitted(logits)
    CONTRACT.require(
        isinstance(whole, Tensor) and whole.shape == logits.shape, "it returns a tensor (N, K) for logits (N, K)"
    )
    # what is answered together must not depend on who else is in the batch, as a sort or a mean over rows would make it
    alone = torch.cat([fitted(row[None]) for row in logits])
    _near(alone, whole, 1e-9, "every row is answered by itself")


def _dtypes_are_kept(fitted: Calibrator) -> None:
    logits = _over_confident(60, seed=1)[0]
    for dtype, tolerance in _ROUNDING.items():
        answer = fitted(logits.to(dtype))
        CONTRACT.require(
            answer.dtype == dtype and answer.shape == logits.shape, f"the answer to {dtype} has its dtype and shape"
        )
        _near(answer, fitted(logits.to(dtype).double()), tolerance, f"the answer to {dtype} is that to its values")


def _facts_hold(fitted: Calibrator) -> None:
    CONTRACT.require(isinstance(fitted.preserves_argmax, bool), "preserves_argmax is True or False")
    CONTRACT.require(isinstance(fitted.top_label, bool), "top_label is True or False")
    base = _over_confident(2000, seed=2)[0]
    # the decision is lost by rounding, first where logits are far apart or their dtype is narrow
    for logits in (base, base * 100, base.half(), base.float() * 40):
        if fitted.preserves_argmax:
            answer = fitted(logits)
            chosen = answer.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0]
            CONTRACT.require(torch.equal(chosen, answer.amax(dim=1)), "the decision stays, as preserves_argmax says")
    try:
        scale, shift = fitted.affine()
    except InputError:
        return
    z = base.double()
    mapped = (z * scale if scale.dim() == 1 else z @ scale.mT) + shift
    _near(fitted(z), mapped, 1e-9, "the calibrated logits are A·z + b, as affine says")


def _learned_tensors_are_declared(fitted: Calibrator) -> None:
    kept = {"fit_rows", *fitted.config()}  # the sketch of the fitting rows, and arguments of the constructor
    stray = [name for name, value in vars(fitted).items() if isinstance(value, Tensor) and name not in kept]
    CONTRACT.require(
        not stray,
        f"the learned tensor {', '.join(stray)} is declared",
        f"write {stray[0] if stray else ''}: Tensor into the class, so that copies and files contain it",
    )


def _weights_count(calibrator: Calibrator, exact: float) -> None:
    logits, labels = _over_confident()
    # 0, 1 and 2: a weight of 0 must leave the row out of folds and bins, too
    times = torch.arange(len(labels)) % 3
    weighted, repeated = renewed(calibrator), renewed(calibrator)
    try:
        weighted.fit(logits, labels, sample_weight=times.double())
    except InputError:  # it refuses weights, in one sentence
        return
    repeated.fit(logits.repeat_interleave(times, dim=0), labels.repeat_interleave(times))
    fresh = _over_confident(50, seed=6)[0]
    remedy = "multiply each row's term by chunk.weights, and divide by rows.mass instead of rows.count"
    _near(weighted(fresh), repeated(fresh), exact, "a row of weight w counts as w rows in the fit", remedy)


def _fits_in_pieces(calibrator: Calibrator, fitted: Calibrator) -> None:
    logits, labels = _over_confident()
    # pieces of 50 rows, none of which has all that a fit wants to know: means of pieces are not the mean of all
    pieces = [
        Chunk(logits[start : start + 50], labels=labels[start : start + 50], start=start) for start in range(0, 240, 50)
    ]
    fresh = renewed(calibrator)
    fresh.fit_from(_RowsInPieces(pieces, classes=CLASSES, count=len(labels)))
    probes = _over_confident(50, seed=6)[0]
    remedy = "request sums over rows (rows.total), and divide them after they were added"
    _near(fresh(probes), fitted(probes), 1e-6, "a fit on rows in pieces is the fit on all of them", remedy)


class _RowsInPieces(RowSource):
    """Rows in pieces, whose functions are sent to them by name, as to worker processes."""

    weighted = False
    device = torch.device("cpu")

    def __init__(self, pieces: Sequence[Any], *, classes: int, count: int) -> None:
        self.pieces, self.classes, self.count = pieces, classes, count

    def part(self, work: Callable[..., Any], join: Callable[[Any, Any], Any], *parameters: Any) -> Any:
        """Return ``work(piece, *parameters)`` of all pieces, joined in order; None without pieces."""
        _require_named((work, join, parameters))
        found = [work(piece, *parameters) for piece in self.pieces]
        return reduce(join, found) if found else None

    def prepared(self, make: Callable[..., Any], *parameters: Any) -> "_RowsInPieces":
        """Return what ``make`` makes of every piece."""
        _require_named((make, parameters))
        made = [one for piece in self.pieces if (one := make(piece, *parameters)) is not None]
        rows = _RowsInPieces(made, classes=self.classes, count=self.count)
        rows.rough = self.rough
        return rows


def _require_named(value: Any) -> None:
    """Require that every function in ``value`` can be imported by its name."""
    if isinstance(value, tuple | list):
        for one in value:
            _require_named(one)
    name = getattr(value, "__qualname__", "")
    CONTRACT.require(
        not (callable(value) and "<" in name),
        f"every function passed to the rows can be imported by its name ({name} cannot)",
        "move it to the top of its file, and pass what it needs as parameters",
    )


def _same_rows_same_fit(calibrator: Calibrator, fitted: Calibrator, tolerance: float) -> None:
    logits, labels = _over_confident()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    probes = _over_confident(50, seed=6)[0]
    shuffled = renewed(calibrator).fit(logits[order], labels[order])
    _near(shuffled(probes), fitted(probes), tolerance, "the order of the rows does not matter to a fit")
    listed = renewed(calibrator).fit(logits.numpy(), labels.tolist())
    CONTRACT.require(torch.equal(listed(probes), fitted(probes)), "arrays and lists are fitted as tensors are")
    # the same numbers in another dtype: a fit that computes in it, and not in float64, differs by far more than 1e-4
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        narrow = renewed(calibrator).fit(logits.to(dtype), labels)
        wide = renewed(calibrator).fit(logits.to(dtype).double(), labels)
        _near(narrow(probes), wide(probes), 1e-4, f"a fit on {dtype} is that on its values in float64")


def _second_fits_forget(calibrator: Calibrator, fitted: Calibrator) -> None:
    # of another number of classes first: no learned shape may survive; then of other rows, from where a search may start
    again = renewed(calibrator).fit(*_over_confident(300, 3, seed=8)).fit(*_over_confident(seed=11))
    again.fit(*_over_confident())
    probes = _over_confident(50, seed=6)[0]
    remedy = "learn everything in _fit from the rows; a value of before may only be where a search starts"
    _near(again(probes), fitted(probes), 1e-4, "a second fit forgets the first", remedy)


def _two_classes_work(calibrator: Calibrator) -> None:
    fresh = renewed(calibrator)
    try:
        answer = fresh.fit(*_over_confident(240, 2))(_over_confident(50, 2, seed=9)[0])
    except CalibrantError:
        raise
    except Exception as error:
        raise AssertionError(
            f"expected that two classes work, got {type(error).__name__}: {error}; try K = 2"
        ) from error
    CONTRACT.require(answer.shape == (50, 2), "the answer to two classes has two columns")
    _require_normal(answer, "a fit on two classes gives numbers")


def _excluded_classes_stay_out(calibrator: Calibrator) -> None:
    logits, labels = _over_confident()
    # in half of the rows a class is excluded, as a mask of options does; it is the label of none of them
    logits[::2, 3] = -math.inf
    labels[labels == 3] = 0
    fresh = renewed(calibrator)
    try:
        fresh.fit(logits, labels)
    except InputError as error:
        CONTRACT.require(
            "-inf" in str(error).replace("−", "-"), "a fit that refuses excluded classes (−inf) names them"
        )
        return
    answer = fresh(logits)
    _require_normal(answer, "rows with an excluded class (a logit of −inf) give numbers")
    if fresh.preserves_argmax and not fresh.top_label:
        most = float(torch.softmax(answer.double(), dim=1)[::2, 3].max())
        CONTRACT.require(most < 0.25, "a class excluded by −inf does not become likely")


def _saturated_rows_give_numbers(fitted: Calibrator) -> None:
    for dtype in (torch.float16, torch.float32, torch.float64):
        # float16 ends at 65,504: a map that doubles 3e4 must not return inf
        mask = torch.finfo(dtype).min  # by which networks exclude a class where −inf is none of their numbers
        logits = torch.tensor(
            [[3e4, 0, 0, 0], [-3e4, 3e4, 0, 1], [0] * 4, [5e-4, 0, 0, 0], [2, 1.5, mask, 1], [mask, 0, mask, mask]],
            dtype=dtype,
        )
        _require_normal(
            fitted(logits),
            f"saturated rows of {dtype} give numbers",
            "compute in float64, subtract each row's maximum, and convert to the dtype of the logits last",
        )


def _copies(fitted: Calibrator) -> dict[str, Calibrator]:
    """Return what must answer as ``fitted`` does: copies, one with its state alone, and what its file gives."""
    # a state alone holds what was learned: nothing may lie in plain attributes
    other, moved = renewed(fitted), copy.deepcopy(fitted)
    torch.nn.Sequential(other).load_state_dict(torch.nn.Sequential(fitted).state_dict())
    torch.nn.Sequential(moved).half().bfloat16().double()
    copies = {
        "one with its state": other,
        "a copy moved with its model through every dtype": moved,
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.safetensors")
        fitted.save(path)
        copies["one saved and loaded"] = load(path, classes=[type(fitted)])
        CONTRACT.require([file.name for file in Path(folder).iterdir()] == [path.name], "save writes one file")
    return copies


def _features_travel(calibrator: Calibrator) -> None:
    (logits, labels), site = _over_confident(400), np.array(["a", "b", "c", "d"])
    # the features say where the model is right, so that whatever goes by them learns something
    code = 2 * (logits.argmax(dim=1) == labels).long() + torch.arange(400) % 2
    features = {"site": site[code.numpy()], "count": code}
    fitted = renewed(calibrator).fit(logits, labels, features=features)
    expected = fitted(logits, features)
    CONTRACT.require(
        not torch.equal(expected, renewed(calibrator).fit(logits, labels)(logits)), "features count in a fit"
    )
    kept = torch.equal(expected.argmax(dim=1), logits.argmax(dim=1))
    CONTRACT.require(kept or not fitted.preserves_argmax, "decisions are kept by features, too, if preserves_argmax")
    for what, one in _copies(fitted).items():
        answer = one(logits, features)
        CONTRACT.require(torch.equal(answer, expected), f"{what} answers the same by features to the bit")
        CONTRACT.require(repr(one) == repr(fitted), f"{what} has the same representation")
    rows = [slice(at, at + 1) for at in range(0, 400, 9)]
    alone = torch.cat([fitted(logits[row], {name: column[row] for name, column in features.items()}) for row in rows])
    _near(alone, expected[::9], 1e-9, "every row is answered by itself and its features")
    require_refusal(InputError, "rows without the features of the fit", fitted, logits)


def _copies_answer_the_same(fitted: Calibrator) -> None:
    logits = _over_confident(50, seed=4)[0]
    expected, copies = fitted(logits), _copies(fitted)
    table = fitted.config()
    CONTRACT.require(json.loads(json.dumps(table)) == table, "its configuration is plain JSON data")
    data = Predictions.from_logits(*_over_confident())
    for what, one in copies.items():
        CONTRACT.require(one.fitted and torch.equal(one(logits), expected), f"{what} answers the same to the bit")
        CONTRACT.require(repr(one) == repr(fitted), f"{what} has the same representation")
        require_refusal(LeakError, f"{what} on the rows of its fit", data.calibrated_by, one)
    CONTRACT.require(len(data.calibrated_by(fitted, allow_fit_rows=True)) == len(data), "allow_fit_rows=True lets it")
    fresh = Predictions.from_logits(*_over_confident(seed=10))
    if fitted.preserves_argmax or fitted.top_label:
        CONTRACT.require(
            torch.equal(fresh.calibrated_by(fitted).predicted, fresh.predicted), "predictions keep their decisions"
        )


def _altered_files_are_refused_or_harmless(fitted: Calibrator) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.safetensors")
        fitted.save(path)
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata())
        arrays = {key: value.clone() for key, value in load_file(path).items()}  # load_file maps the file into memory
        # as version 0.1.0 wrote it, without the digest that would refuse every change
        undigested = {key: value for key, value in metadata.items() if key != "digest"}
        undigested["format"] = "calibrant-calibrator-1"
        reload = partial(load, path, classes=[type(fitted)])
        for key, value in arrays.items():
            if not value.is_floating_point() or not value.numel():
                continue
            # with its digest a changed file is refused as such; without, by what is in it, or it must answer with numbers
            for wrong in _WRONG:
                save_file({**arrays, key: torch.full_like(value, wrong)}, path, metadata=metadata)
                require_refusal(FileFormatError, f"a file with another {key}", reload)
                save_file({**arrays, key: torch.full_like(value, wrong)}, path, metadata=undigested)
                _require_harmless(reload, key, wrong)


def _require_harmless(reload: Callable[[], Calibrator], key: str, wrong: float) -> None:
    try:
        loaded = reload()
    except CalibrantError:
        return
    rows = _over_confident(40, seed=1)[0]
    for dtype in (torch.float32, torch.float64):
        _require_normal(
            loaded(torch.cat([rows * 0.01, rows, rows * 100]).to(dtype)),
            f"a file whose {key} is {wrong:g} is refused, or its answers are numbers",
            f'declare its range: learned_bounds = (("{key}", least, largest),)',
        )


def _degenerate_data(calibrator: Calibrator) -> None:
    z, y = _over_confident()
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
        _require_normal(fresh(_over_confident(50, seed=9)[0]), f"a fit on {what} gives numbers, or is refused")


CLAUSES: tuple[Callable[[Calibrator], None], ...] = (
    _other_inputs_are_refused,
    _rows_are_answered_alone,
    _learned_tensors_are_declared,
    _facts_hold,  # before the dtypes: a decision that must stay is put back where 16 bits lose it
    _dtypes_are_kept,
    _saturated_rows_give_numbers,
    _copies_answer_the_same,
    _altered_files_are_refused_or_harmless,
)


def _over_confident(rows: int = 240, classes: int = CLASSES, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return over-confident logits (float64) with labels drawn from softmax(logits / 2)."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits, torch.multinomial(torch.softmax(logits / 2, dim=1), 1, generator=generator)[:, 0]


def _require_normal(answer: Tensor, clause: str, remedy: str = "") -> None:
    wrong = torch.isnan(answer).any() | (answer == math.inf).any() | ~torch.isfinite(answer.amax(dim=1)).all()
    CONTRACT.require(not bool(wrong), clause, remedy)


def _near(found: Tensor, right: Tensor, tolerance: float, clause: str, remedy: str = "") -> None:
    difference = (torch.softmax(found.double(), dim=1) - torch.softmax(right.double(), dim=1)).abs().max()
    CONTRACT.require(
        float(difference) <= tolerance, f"{clause} (probabilities differ by {float(difference):.2g})", remedy
    )
