"""Labelled texts of a data folder as JSON lines: reviews of the Stanford Sentiment Treebank, and posts of 20 Newsgroups."""

import hashlib
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from calibrant.errors import CalibrantError
from calibrant.study.data.text import BINARY, leaves_of, roots_of

SCORED = {"reviews": 1000, "posts": 1000}  # rows, for the processor's time
TRAINED = 1000  # posts that a head is trained on
LETTERS = 100  # fewest in a post without its header lines and quotations
_NOT_OWN = re.compile(r"^\s*(>|\||[\w-]+:)")
Row = tuple[str, str]  # text, label


def write_labelled(kind: str, data: Path, out: Path) -> None:
    """Write ``part`` ("train" or "test"), ``label``, ``message`` (the text's hash) and ``text`` of each row.

    Args:
        kind: "reviews" or "posts".
        data: Folder with ``sst`` and ``20news``.
        out: The file to write.

    Raises:
        RuntimeError: If the folder has no such data.
    """
    try:
        parts = {"reviews": reviews, "posts": posts}[kind](data)
    except (CalibrantError, OSError) as error:
        raise RuntimeError(
            f"could not read {kind} in {data}; name the folder with sst and 20news by --data: {error}"
        ) from None
    beside = out.with_suffix(".partial")
    with open(beside, "w", encoding="utf-8") as file:
        for part, rows in parts.items():
            for text, label in rows:
                message = hashlib.sha256(text.encode()).hexdigest()
                file.write(json.dumps({"part": part, "label": label, "message": message, "text": text}) + "\n")
    beside.replace(out)


def reviews(data: Path) -> dict[str, list[Row]]:
    """Return sentences of the treebank's development and test sets that are not neutral."""
    found = []
    for root in (root for name in ("dev", "test") for root in roots_of(data / "sst", name)):
        if root[0] in BINARY:
            text = " ".join(leaves_of(root)).replace("-LRB-", "(").replace("-RRB-", ")")
            found.append((text, ("negative", "positive")[BINARY[root[0]]]))
    return {"test": _drawn(found, SCORED["reviews"])}


def posts(data: Path) -> dict[str, list[Row]]:
    """Return posts of the test split (by date), and posts of the training split that are none of these."""
    parts = {}
    for name in ("train", "test"):
        paths = sorted((data / "20news").glob(f"{name}*.parquet"))
        if not paths:
            raise FileNotFoundError(f"expected {name}*.parquet in {data / '20news'}, got none")
        tables = [pq.read_table(path, columns=["text", "label"]) for path in paths]
        rows = [
            (own(text), str(label)) for table in tables for text, label in zip(*map(list, _columns(table)), strict=True)
        ]
        parts[name] = [row for row in rows if sum(c.isalpha() for c in row[0]) >= LETTERS]
    test = _drawn(parts["test"], SCORED["posts"])
    seen = {text for text, _ in test}
    return {"train": _drawn([row for row in parts["train"] if row[0] not in seen], TRAINED), "test": test}


def own(post: str) -> str:
    """Return a post without header lines and quotations, in one line."""
    return " ".join(" ".join(line for line in post.splitlines() if not _NOT_OWN.match(line)).split())


def _columns(table: object) -> list[Iterable[object]]:
    return [table[name].to_pylist() for name in ("text", "label")]  # type: ignore[index]


def _drawn(rows: list[Row], most: int) -> list[Row]:
    random.Random(0).shuffle(rows)
    return rows[:most]
