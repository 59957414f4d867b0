"""A fitted calibrator as one safetensors file, and back: what is read is checked as input from a stranger."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

import calibrant._core.check as check
import calibrant._core.files as files
from calibrant import binning
from calibrant._core.config import build, own_version
from calibrant._core.constraints import checked
from calibrant._core.paths import WRITABLE_TABLES, as_path, shown
from calibrant.calibrators.base.calibrator import Calibrator, Learned
from calibrant.errors import FileFormatError, InputError, Remedy

L = TypeVar("L", bound=Learned)

FORMAT = "calibrant-calibrator-3"
_FORMAT_0_1_0 = "calibrant-calibrator-1"  # no digest, and configurations that name what is meant only by leaving it out
FORMER = ("calibrant-calibrator-2", _FORMAT_0_1_0)  # the first: calibrators by features that answer without them
_ROUNDING = 1e-12  # by which a mean of zeros and ones may leave its range
_MOST_CLASSES = 1 << 22
_PROBED_VALUES = 1 << 24  # in the rows a file is tried on, so that a false number of classes asks for no more memory
_SEVERAL = Remedy("load it with MultiLabelCalibrator.load", command="add --multilabel", option="--multilabel")
_PROBED_CLASSES = 16  # each of so many classes is once far ahead and once far behind in the rows a file is tried on


def save_calibrator(calibrator: Learned, path: str | os.PathLike[str]) -> None:
    """Write class, configuration, learned state, sketch of the fitting rows and a digest of it all, atomically.

    Args:
        calibrator: A fitted one.
        path: Ends in .safetensors.

    Raises:
        InputError: If the path does not end so.
    """
    if not str(path := as_path(path)).endswith(".safetensors"):
        raise InputError("a path that ends in .safetensors", f"{shown(path)!r}", "rename it")
    state = {name: value for name, value in calibrator.state_dict().items() if not name.endswith("fit_rows")}
    arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in state.items()}
    arrays["fit_rows"] = calibrator.fit_rows.cpu().numpy()
    metadata = {
        "format": FORMAT,
        "type": type(calibrator).__name__,
        "config": json.dumps(calibrator.config(), sort_keys=True),
        "features": "optional" if getattr(calibrator, "features_optional", False) else "needed",
        "versions": json.dumps({"calibrant": own_version(), "torch": torch.__version__}, sort_keys=True),
    }
    if calibrator.class_names:
        metadata["class_names"] = json.dumps(calibrator.class_names)
    if calibrator.of_decisions:
        metadata["rows"] = "decisions"
    files.write_arrays(path, arrays, metadata={**metadata, "digest": _digests(metadata, arrays)[0]})


@checked
def load_calibrator(
    path: str | os.PathLike[str], family: Any, kind: type[L], *, classes: Sequence[type[Calibrator]] = ()
) -> L:
    """Return the calibrator saved at ``path``.

    Args:
        path: A file made by ``save``.
        family: The module in whose ``__all__`` class names are looked up.
        kind: What it must be: a ``Calibrator``, or the one for several labels a row.
        classes: Further classes that may be resolved.

    Raises:
        FileFormatError: If the file is not a calibrator or is broken.
        InputError: If its class is unknown, or of another kind.
    """
    known = _check_own_classes(classes)
    # of predictions, which the reader of .safetensors would call broken
    if as_path(path).suffix in (".npz", *WRITABLE_TABLES):
        raise FileFormatError("a saved calibrator (.safetensors)", shown(path), "name a file that save made")
    metadata = files.read_metadata(path)
    if metadata.get("format") not in (FORMAT, *FORMER):
        raise FileFormatError("a saved calibrator", f"another kind of file: {shown(path)}", "make it with save")
    name = metadata.get("type", "")
    if name not in family.__all__ and name not in known:
        more = f" or one of {', '.join(sorted(known))}" if known else ""
        raise InputError(
            f"a class of {family.__name__}{more}",
            f"{name!r} in {shown(path)}",
            Remedy(
                f"pass classes=[{name}] to load",
                command=f"a class of your own is used from Python: calibrant.load(FILE, classes=[{name}])",
            ),
        )
    _check_label_count(known.get(name) or getattr(family, name), kind, path)
    try:
        arrays = files.read_arrays(path)
        digest = metadata.pop("digest", "") if metadata["format"] == _FORMAT_0_1_0 else metadata.pop("digest")
        if digest and digest not in _digests(metadata, arrays):
            raise ValueError("its content is not what was saved")
        table = _as_now({"type": name, **json.loads(metadata["config"])})
        calibrator: L = build(table, families=[family, binning], classes=list(known.values()))
        calibrator.load_state_dict({key: torch.from_numpy(value) for key, value in arrays.items()})
        if "fit_rows" not in arrays:
            raise ValueError("no fit_rows")
        for part in calibrator.loaded_parts():
            _set_optional(part, True)  # the rows that it is tried on have no features
            _check_learned(part)
            _set_optional(part, metadata.get("features", "optional") == "optional")
            part.class_names = tuple(map(str, json.loads(metadata.get("class_names", "[]"))))
            part.of_decisions = metadata.get("rows") == "decisions"
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError, IndexError, AttributeError) as error:
        raise FileFormatError(
            "a whole calibrator", f"a broken one in {shown(path)} ({files.reason_of(error)})", "save it again"
        ) from error
    return calibrator


def _set_optional(calibrator: Calibrator, optional: bool) -> None:
    for part in calibrator.modules():
        if isinstance(part, Calibrator):
            part.features_optional = optional


def _check_label_count(found: type, kind: type[Learned], path: str | os.PathLike[str]) -> None:
    if not issubclass(found, kind):
        several = issubclass(kind, Calibrator)
        expected, remedy = (
            ("one class", _SEVERAL)
            if several
            else ("several labels", Remedy("load it with calibrant.load", command="leave --multilabel out"))
        )
        raise InputError(f"a calibrator for {expected} a row", f"{found.__name__} in {shown(path)}", remedy)


def _check_own_classes(classes: Any) -> dict[str, type[Calibrator]]:
    given = list(classes) if isinstance(classes, list | tuple | set | frozenset) else [classes]
    wrong = [one for one in given if not (isinstance(one, type) and issubclass(one, Calibrator))]
    if wrong:
        raise InputError(
            "classes as a list of Calibrator classes", f"{check.shown(wrong[0])}", "pass classes=[MyMethod]"
        )
    return {cls.__name__: cls for cls in given}


def _digests(metadata: Mapping[str, str], arrays: Mapping[str, Any]) -> tuple[str, str]:
    """Return hashes of every array with all that stands beside them, and with the class and configuration alone, as files had it."""
    heads = json.dumps(dict(metadata), sort_keys=True), json.dumps([metadata["type"], metadata["config"]])
    return files.hash_arrays(heads[0], arrays), files.hash_arrays(heads[1], arrays)


def _as_now(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as it is written today, of one that version 0.1.0 may have written."""
    now: dict[str, Any] = {key: _as_now(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    if now.get("type") == "Chain" and "configs" in now:
        now["stages"] = json.loads(now.pop("configs"))
    if now.get("type") == "AutoCalibrator" and now.get("candidates") is None:
        now["candidates"] = CANDIDATES[bool(now.get("keep_argmax"))]
    for key in ("stages", "candidates"):
        if isinstance(now.get(key), list):
            now[key] = [_as_now(one) for one in now[key]]
    return now


def _check_learned(calibrator: Calibrator) -> None:
    """Refuse learned state that cannot calibrate: it comes from a file, so its shapes and values are unknown."""
    columns = int(calibrator.classes)
    if not 2 <= columns <= _MOST_CLASSES:
        raise ValueError(f"{columns} classes")
    for part in calibrator.modules():
        if isinstance(part, Calibrator) and int(part.classes) not in (
            {columns} if part is calibrator else {0, columns}
        ):
            raise ValueError(f"{int(part.classes)} classes in a part, {columns} in the whole")
        if isinstance(part, Calibrator):
            _check_bounds(part)
    for key, value in calibrator.state_dict().items():
        if value.is_floating_point() and bool(torch.isnan(value).any()):
            raise ValueError(f"NaN in {key}")
    rows = _probes(columns)
    for logits in (rows, rows.double()):
        with torch.no_grad():
            answer = calibrator(logits)
        if answer.shape != logits.shape or not answer.is_floating_point():
            raise ValueError("it does not return one row of logits for one row")
        total = torch.softmax(answer.double(), dim=1).sum(dim=1)
        if (
            bool(((total - 1).abs() > 1e-6).any())
            or bool(torch.isnan(total).any())
            or bool((answer == torch.inf).any())
        ):
            raise ValueError("its answers are not finite and normalised")


def _check_bounds(part: Calibrator) -> None:
    """Refuse learned values out of the range that the class declares for them."""
    for name, low, high in part.learned_bounds:
        value = getattr(part, name)
        inside = (value >= low - _ROUNDING) & (value <= high + _ROUNDING)
        if not bool(inside.all()):
            raise ValueError(f"{name} outside [{low:g}, {high:g}]")


def _probes(columns: int) -> Tensor:
    """Return rows (n, K) float32 that a calibrator must answer: flat, mild, and with a class far ahead or far behind."""
    ramp = torch.linspace(1, 0, columns)
    rows = [
        ramp,
        torch.zeros(columns),
        60 * ramp - 30,
        60 * ramp.flip(0) - 30,
        8 * torch.sin(3.7 * torch.arange(columns)),
    ]
    for at in torch.linspace(0, columns - 1, min(columns, _PROBED_CLASSES)).long().unique().tolist():
        for height in (1000.0, 6.0, -6.0, -1000.0):
            if len(rows) * columns < _PROBED_VALUES:
                row = torch.zeros(columns)
                row[at] = height
                rows.append(row)
    return torch.stack(rows)


# The candidates of an ``AutoCalibrator`` of version 0.1.0, whose files do not name them: never changed again.

_PRIOR = 0.5
_ENSEMBLE = {"type": "EnsembleTemperatureScaling", "prior": _PRIOR}
_FOCAL = {"type": "FocalTemperatureScaling", "gammas": [-0.9, 5.0], "search": "continuous", "prior": _PRIOR}
_MATRIX = {"type": "StructuredMatrixScaling", "strength": 0.2, "prior": _PRIOR}


def _chain(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Chain", "stages": list(stages)}


CANDIDATES: dict[bool, list[dict[str, Any]]] = {
    True: [_ENSEMBLE, _FOCAL],
    False: [
        _ENSEMBLE,
        _FOCAL,
        _chain(_FOCAL, {"type": "StructuredVectorScaling", "prior": _PRIOR}),
        _chain(_FOCAL, _MATRIX),
        {"type": "VectorScaling", "prior": _PRIOR},
        {"type": "MatrixScaling", "ridge": 20.0, "prior": _PRIOR},
        {"type": "CentredIsotonic"},
        _chain({"type": "CentredIsotonic"}, _MATRIX),
        {"type": "BetaCalibration"},
        {"type": "SplineCalibration"},
    ],
}
