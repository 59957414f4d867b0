"""Scores of the packages on labelled data, made once and kept, split by text."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.wild.labelled import write_labelled
from benchmarks.wild.packages import TEXTS, Package
from calibrant import Predictions

# names of one language in two lists: Django's first
ALIASES = {"nb": "no", "he": "iw", "id": "in", "zh": "zh-Hans"}


@dataclass(frozen=True)
class Scored:
    """A package's answers on labelled data.

    Args:
        classes: How many names it gives.
        left_out: Rows whose label it does not know.
        top_only: Whether it gives its first answer alone; its rows are then those of "right" against "wrong".
        val: To fit on.
        test: To evaluate on; no text, and no translation of one, is in both.
    """

    classes: int
    left_out: int
    top_only: bool
    val: Predictions
    test: Predictions


def scored(package: Package, home: Path, *, most: int, files: str, data: Path = Path("../shared/data")) -> Scored:
    """Return a package's scores, made at the first call.

    Args:
        package: Which.
        home: Where environments and scores are kept.
        most: Texts a language, or files a type.
        files: The folder whose files are used.
        data: The folder with reviews and posts.

    Raises:
        RuntimeError: If it cannot be installed or run.
    """
    home.mkdir(parents=True, exist_ok=True)
    out = home / f"{package.name}-{most}{package.environment.suffix}"
    texts = home / f"{package.data}-{most}.jsonl"
    if package.data == "texts" and not texts.exists():
        TEXTS.run(home, [str(texts), str(most)])
    if package.data in ("reviews", "posts") and not texts.exists():
        write_labelled(package.data, data, texts)
    if not out.exists():
        given = [files, str(most)] if package.data == "files" else [str(texts)]
        package.environment.run(home, [*given, str(out)])
    if out.suffix == ".json":
        arrays = {key: np.array(values) for key, values in json.loads(out.read_text(encoding="utf-8")).items()}
    else:
        with np.load(out) as file:
            arrays = dict(file)
    if package.data != "files":
        rows = [json.loads(line) for line in texts.read_text(encoding="utf-8").splitlines()]
        rows = [row for row in rows if row.get("part", "test") == "test"]
        arrays |= {key: np.array([row[key] for row in rows]) for key in ("label", "message")}
    return split(arrays)


def split(arrays: dict[str, np.ndarray]) -> Scored:
    """Return scores as two splits, by the parity of each message's hash.

    Args:
        arrays: ``label``, ``message`` and either ``probs`` (N, K) with ``names`` (K,), or ``conf`` and ``name``.
    """
    side = np.array([int(message[:8], 16) % 2 for message in arrays["message"]])
    _, groups = np.unique(arrays["message"], return_inverse=True)
    top_only = "conf" in arrays
    names = sorted(set(arrays["name"].tolist())) if top_only else arrays["names"].tolist()
    place = {name: index for index, name in enumerate(names)}
    label = np.array([place.get(name, place.get(ALIASES.get(name, ""), -1)) for name in arrays["label"].tolist()])
    known = label >= 0
    if top_only:
        found = np.array([place[name] for name in arrays["name"].tolist()])
        p, y = arrays["conf"].astype(float).clip(0, 1), (found == label).astype(int)
        p, y = np.stack([1 - p, p], axis=1), y
    else:
        p, y = arrays["probs"].astype(float), label
    parts = []
    for rows in (known & (side == 0), known & (side == 1)):
        total = p[rows].sum(axis=1, keepdims=True)
        if not bool((total > 0).all()):
            raise RuntimeError(f"expected a distribution in every row, got {int((total <= 0).sum())} rows without one")
        parts.append(Predictions.from_probs(p[rows] / total, y[rows], groups=groups[rows]))
    return Scored(len(names), int((~known).sum()), top_only, *parts)
