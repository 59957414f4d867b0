"""Sums over a data set, asked for pass by pass; each is kept in a journal, so that a stopped fit goes on where it was."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant._files import atomic_write
from calibrant.errors import FileFormatError, InputError
from calibrant.scale.checkpoint import data_identity, read_checkpoint
from calibrant.scale.execute import Executor, in_turn
from calibrant.scale.rows import ParquetRows, Shard

__all__ = ["PassProgress", "StreamedPasses", "labelled"]

PassProgress = Callable[[int, int, int], None]
Work = Callable[..., Tensor]


class StreamedPasses:
    """What a fit asks of rows on disk: sums of vectors over the shards, one pass a question.

    The same question is answered once. Sums are added in the order of the shards, so that every executor gives the same
    bits, and with a journal a fit that was stopped hears the same answers again without a pass.

    Args:
        rows: The data set.
        fit: What is fitted, as text; a journal of another fit is refused.
        executor: What runs the shards.
        journal: The JSON file, or None for none.
        progress: Called with (passes begun, rows done in this one, rows in all).

    Raises:
        FileFormatError: If the journal belongs to other data or another fit, or is none.
    """

    def __init__(
        self,
        rows: ParquetRows,
        fit: str,
        *,
        executor: Executor = in_turn,
        journal: str | os.PathLike[str] | None = None,
        progress: PassProgress | None = None,
    ) -> None:
        self.rows = rows
        self.executor = executor
        self.progress = progress
        self.count = 0
        self.journal = None if journal is None else Path(journal)
        self._identity = {**data_identity(rows), "fit": fit}
        self._answers: dict[str, list[float]] = {}
        self._open: tuple[str, int, list[float]] = ("", 0, [])  # the question that is asked, shards done, their sum
        if self.journal is not None and self.journal.exists():
            self._load(self.journal)

    def total(self, work: Work, **arguments: Any) -> Tensor:
        """Return Σ work(rows, shard, **arguments) over the shards: a float64 vector."""
        return self._ask(work, torch.add, arguments)

    def largest(self, work: Work, **arguments: Any) -> Tensor:
        """Return the entrywise maximum of work(rows, shard, **arguments) over the shards."""
        return self._ask(work, torch.maximum, arguments)

    def remove(self) -> None:
        """Delete the journal: all is done."""
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)

    def _ask(self, work: Work, join: Callable[[Tensor, Tensor], Tensor], arguments: dict[str, Any]) -> Tensor:
        key = f"{work.__name__} {arguments!r}"
        if key in self._answers:
            return torch.tensor(self._answers[key], dtype=torch.float64)
        self.count += 1
        begun, values = (self._open[1], self._open[2]) if self._open[0] == key else (0, [])
        answer = torch.tensor(values, dtype=torch.float64) if begun else None
        left = self.rows.shards[begun:]
        finished = self.rows.rows - sum(shard.rows for shard in left)
        self._tell(finished)
        for shard, part in zip(left, self.executor(partial(work, self.rows, **arguments), left), strict=True):
            answer = part if answer is None else join(answer, part)
            begun, finished = begun + 1, finished + shard.rows
            self._open = (key, begun, answer.tolist())
            self._save()
            self._tell(finished)
        assert answer is not None  # a data set has at least one row
        self._answers[key] = answer.tolist()
        return answer

    def _tell(self, finished: int) -> None:
        if self.progress is not None:
            self.progress(self.count, finished, self.rows.rows)

    def _save(self) -> None:
        if self.journal is None:
            return
        answers = {key: [value.hex() for value in values] for key, values in self._answers.items()}
        key, done, values = self._open
        content = {"identity": self._identity, "answers": answers, "open": [key, done, [v.hex() for v in values]]}
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.journal) as file:
            file.write(json.dumps(content).encode())

    def _load(self, journal: Path) -> None:
        content = read_checkpoint(journal, self._identity, keys=("answers", "open"))
        try:
            self._answers = {key: [float.fromhex(v) for v in values] for key, values in content["answers"].items()}
            key, done, values = content["open"]
            self._open = (str(key), int(done), [float.fromhex(v) for v in values])
        except (AttributeError, TypeError, ValueError) as error:
            raise FileFormatError(f"expected a checkpoint, got something else in {journal}; delete it") from error


def labelled(rows: ParquetRows, shard: Shard) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield logits (n, K) and labels (n,) of the pieces of a shard.

    Args:
        rows: The data set.
        shard: One of its row groups.

    Raises:
        InputError: If they have no labels.
    """
    for piece in rows.read(shard):
        if piece.labels is None:
            raise InputError("expected a column label to fit on, got none; add it")
        yield piece.logits, piece.labels
