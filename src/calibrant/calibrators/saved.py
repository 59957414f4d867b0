"""Saves a fitted calibrator as one safetensors file with its configuration as metadata, and loads it without executing code."""

import json
import os
from collections.abc import Sequence
from typing import Any

import torch

from calibrant import _files as files
from calibrant import binning
from calibrant._core.config import build, own_version
from calibrant.calibrators.base import Calibrator, Learned
from calibrant.errors import FileFormatError, InputError

FORMAT = "calibrant-calibrator-1.0"
_FALSE = KeyError, TypeError, ValueError, RuntimeError, RecursionError, IndexError, AttributeError


def save_calibrator(calibrator: Learned, path: str | os.PathLike[str]) -> None:
    """Write class, configuration, learned state and hashes of the fitting rows, atomically.

    Args:
        calibrator: A fitted calibrator.
        path: A path that ends in .safetensors.

    Raises:
        InputError: If the path has another suffix.
    """
    files.check_suffix(path, [".safetensors"], what="a saved calibrator")
    metadata = {
        "format": FORMAT,
        "type": type(calibrator).__name__,
        "config": json.dumps(calibrator.config(), sort_keys=True),
        "versions": json.dumps({"calibrant": own_version(), "torch": torch.__version__}, sort_keys=True),
        "class_names": json.dumps(calibrator.class_names),
    }
    arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in calibrator.state_dict().items()}
    files.write_arrays(path, arrays, metadata=metadata)


def load_calibrator(path: str | os.PathLike[str], family: Any, *, classes: Sequence[type[Calibrator]] = ()) -> Any:
    """Return the calibrator saved at ``path``.

    Args:
        path: A file made by ``save``.
        family: The module in whose ``__all__`` class names are looked up.
        classes: Further classes that may be resolved.

    Raises:
        FileFormatError: If the file is not a calibrator or is broken.
        InputError: If its class is unknown.
    """
    known = {cls.__name__: cls for cls in classes}
    files.check_suffix(path, [".safetensors"], what="a saved calibrator")
    metadata = files.read_metadata(path)
    if metadata.get("format") != FORMAT:
        raise FileFormatError("a saved calibrator", f"another kind of file: {files.shown(path)}", "make it with save")
    name = metadata.get("type", "")
    if name not in family.__all__ and name not in known:
        more = f" or one of {', '.join(sorted(known))}" if known else ""
        remedy = f"load it in Python with calibrant.load(path, classes=[{name}])"
        raise InputError(f"a class of {family.__name__}{more}", f"{name!r} in {files.shown(path)}", remedy)
    try:
        table = {"type": name, **json.loads(metadata["config"])}
        calibrator: Learned = build(table, families=[family, binning], classes=list(known.values()))
        state = {key: torch.from_numpy(value) for key, value in files.read_arrays(path).items()}
        calibrator.load_state_dict(state)
        spoiled = any(value.is_floating_point() and bool(value.isnan().any()) for value in state.values())
        if spoiled or not 1 <= int(calibrator.classes) <= 1 << 22:
            raise ValueError("NaN, or an impossible number of classes")
        if not getattr(calibrator, "needs_features", False):
            calibrator(torch.zeros(1, int(calibrator.classes)))  # parts of unlike shapes fail here
        calibrator.class_names = tuple(map(str, json.loads(metadata["class_names"])))
    except _FALSE as error:
        got = f"a broken one in {files.shown(path)} ({files.reason_of(error)})"
        raise FileFormatError("a whole calibrator", got, "save it again") from error
    return calibrator
