"""Detection of rows that a monitor has already counted, by hashes of batches and of row ids."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant._core.check import as_array, refuse, shown
from calibrant.data.predictions import Predictions
from calibrant.operate.rows import Data

__all__ = ["marks"]


def marks(data: Data, ids: Iterable[Any] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a hash (1,) of the batch and the hashes (N,) of its ids, or (0,).

    Args:
        data: The batch.
        ids: (N,) names or integers, or None.

    Raises:
        InputError: If ids are not one per row and distinct.
    """
    content = hashlib.blake2b(digest_size=8)
    for values in (data.logits if isinstance(data, Predictions) else data.p, data.labels, data.correct):
        if values is not None:
            content.update(np.ascontiguousarray(values.detach().cpu().float().numpy()).tobytes())
    names = np.empty(0, dtype=np.int64)
    if ids is not None:
        listed = [str(one).encode(errors="surrogatepass") for one in _listed(ids)]
        if len(listed) != len(data) or len(set(listed)) != len(listed):
            raise refuse(
                f"{len(data)} different ids", f"{len(listed)}, {len(set(listed))} of them different", "pass one per row"
            )
        content.update(b"\n".join(listed))
        names = np.array([_hash(hashlib.blake2b(one, digest_size=8)) for one in listed], dtype=np.int64)
    return np.array([_hash(content)], dtype=np.int64), names


def _listed(ids: Any) -> list[Any]:
    if isinstance(ids, torch.Tensor | np.ndarray):
        array = as_array(ids, name="ids")
        if array.ndim != 1:
            raise refuse("ids of shape (N,)", f"shape {array.shape}", "pass one per row")
        return list(array.tolist())
    if isinstance(ids, str | bytes | Mapping) or not isinstance(ids, Iterable):
        raise refuse("ids as a list, one per row", shown(ids), "pass names or integers")
    return list(ids)


def _hash(content: "hashlib.blake2b") -> int:
    return int.from_bytes(content.digest(), "little", signed=True)
