"""Files of arrays: .npz and .safetensors by name, a folder of .npy as one, a single .npy, and .pt without unpickling code."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.check import is_dense, kind_of, remedy_of_layout
from calibrant._core.files import Array, error_boundary, read_arrays, refuse_beyond_memory, unpickled
from calibrant._core.paths import check_source, shown
from calibrant.data.formats.layout import CLASS_NAMES, SCORES, stem_and_name
from calibrant.errors import FileFormatError


def read_tensors(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name; those of a ``.npy`` or a bare ``.pt`` are called as the file is.

    Raises:
        FileFormatError: If it is broken, larger than the memory, or holds anything but arrays.
    """
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        refuse_beyond_memory(sum(file.stat().st_size for file in files), path)
        return {file.stem: read_npy(file) for file in files}  # val_logits.npy is called val_logits
    suffix = path.suffix.lower()
    if suffix in (".npz", ".safetensors"):
        return read_arrays(path)
    return {name_of(path): read_npy(path)} if suffix == ".npy" else _read_torch(path)


def read_npy(path: Path) -> Array:
    """Return the array of a ``.npy`` file; objects are never unpickled."""
    refuse_beyond_memory(check_source(path).stat().st_size, path)
    remedy = unpickled(path, "write it with numpy.save from an array of numbers")
    # whatever the parser raises means that the file is broken
    with error_boundary("a readable .npy file of numbers", f"a broken one, or pickled objects: {shown(path)}", remedy):
        found: Array = np.lib.format.read_array(io.BytesIO(path.read_bytes()), allow_pickle=False)
    return found


def name_of(path: Path) -> str:
    """Return "logits" for ``run7_logits.npy`` (a name that says what it holds), else the file's own stem."""
    kind = stem_and_name(path.stem)[1]
    return kind if kind in SCORES else path.stem


def _read_torch(path: Path) -> dict[str, Array]:
    import torch

    refuse_beyond_memory(check_source(path).stat().st_size, path)
    try:
        # executes nothing, from torch 2.6 on, which the package requires (before, CVE-2025-32434)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler's errors, and those of a broken archive, share no base
        raise FileFormatError(
            f"tensors alone in {shown(path)}",
            "a broken file, or objects that only executed code could restore",
            "save a dict of tensors: torch.save({'logits': logits, 'labels': labels}, path)",
        ) from error
    return _named(found, path)


def _named(found: Any, path: Path) -> dict[str, Array]:
    """Return what ``torch.save`` kept: a dict by its names, a pair as scores and labels, one tensor by the file's name."""
    import torch

    found = _whole(found)
    if isinstance(found, torch.Tensor):
        return {name_of(path): _array(found)}
    if isinstance(found, list | tuple) and len(found) == 2 and all(isinstance(one, torch.Tensor) for one in found):
        return {name_of(path): _array(found[0]), "labels": _array(found[1])}
    if isinstance(found, Mapping):
        parts = {outer: inner for outer, inner in found.items() if isinstance(inner, Mapping)}
        nested = {f"{outer}_{name}": value for outer, inner in parts.items() for name, value in inner.items()}
        # {"val": {"logits": …, "labels": …}} beside {"logits": …, "labels": …}
        tensors = {str(n): _array(one) for n, one in {**found, **nested}.items() if isinstance(one, torch.Tensor)}
        names = next((found[name] for name in found if str(name).rstrip("_") in CLASS_NAMES), None)
        if isinstance(names, list | tuple) and names and all(isinstance(one, str) for one in names):
            tensors["class_names"] = np.array(names)
        if tensors:
            return tensors
    raise FileFormatError(
        f"a tensor, a pair of logits and labels, or a dict of tensors in {shown(path)}",
        f"{type(found).__name__}",
        "save a dict: torch.save({'logits': logits, 'labels': labels}, path)",
    )


def _whole(found: Any) -> Any:
    """Return batches joined: of a list of dicts or pairs of tensors as one dict or pair, of a dict of lists as one of tensors."""
    import torch

    if isinstance(found, Mapping):
        return {name: _joined(values) for name, values in found.items()}
    if not isinstance(found, list) or not found or any(type(one) is not type(found[0]) for one in found):
        return found
    parts = [
        one if isinstance(one, Mapping) else dict(enumerate(one)) if isinstance(one, list | tuple) else {}
        for one in found
    ]
    names = parts[0].keys()
    tensors = all(isinstance(one, torch.Tensor) and one.dim() for part in parts for one in part.values())
    if not names or not tensors or any(part.keys() != names for part in parts):
        return found
    whole = {name: torch.cat([part[name] for part in parts]) for name in names}
    return whole if isinstance(found[0], Mapping) else list(whole.values())


def _joined(values: Any) -> Any:
    """Return a list of tensors of rows, one a batch, as one tensor; anything else as it is."""
    import torch

    batches = isinstance(values, list | tuple) and values and all(isinstance(one, torch.Tensor) for one in values)
    alike = batches and len({(one.dim(), one.shape[1:], one.dtype) for one in values}) == 1 and values[0].dim()
    return torch.cat(list(values)) if alike else values


def _array(tensor: Any) -> Array:
    tensor = tensor.detach()
    if not is_dense(tensor):
        raise FileFormatError("dense tensors", kind_of(tensor), remedy_of_layout(tensor, name="tensor"))
    # NumPy has neither bfloat16 nor eight-bit floats; float32 holds every value of both
    if str(tensor.dtype) == "torch.bfloat16" or (tensor.is_floating_point() and tensor.itemsize < 2):
        tensor = tensor.float()
    # conjugates and negatives are views that only mark what is to be done: NumPy refuses them
    found: Array = tensor.resolve_conj().resolve_neg().contiguous().numpy()
    return found
