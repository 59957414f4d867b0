"""Rows that the ranks of ``torch.distributed`` hold: each sums over its own, and all get the same answers."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import torch
from torch import Tensor

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Kind, checked
from calibrant._core.files import error_boundary
from calibrant.errors import CalibrantError, InputError, WorkerError
from calibrant.rows.source import RowSource, reduced

LocalRows = Annotated[RowSource, Kind(RowSource, "make it with MemoryRows.of(logits, labels)")]


@dataclass(frozen=True)
class _Answer:
    """What one rank found: its sum, None where it holds no row that is selected, or the error that it ran into."""

    value: Any = None
    error: CalibrantError | None = None


class DistributedRows(RowSource):
    """The rows of all ranks of a ``torch.distributed`` group, in the order of the ranks; every rank gets the same answers.

    Every rank makes it of its own rows and then calls the same fit, which ends in the same bits on all of them. An error on
    one rank is raised on all.

    Args:
        local: This rank's rows: a ``MemoryRows``, or any other source. A rank may hold none.
        group: The process group; None is the default one.

    Raises:
        InputError: If there is no process group, or the ranks differ in their number of classes, or in whether their rows
            carry weights.
        WorkerError: If another rank is lost, now or during a fit.

    Examples:
        >>> from torch import distributed
        >>> store = distributed.HashStore()
        >>> distributed.init_process_group("gloo", store=store, rank=0, world_size=1)  # torchrun sets these
        >>> from calibrant.calibrators import TemperatureScaling
        >>> from calibrant.rows import MemoryRows
        >>> rows = DistributedRows(MemoryRows.of(2 * torch.eye(3), [0, 1, 1]))
        >>> TemperatureScaling().fit_from(rows)
        TemperatureScaling(temperature=1.443)
        >>> distributed.destroy_process_group()
    """

    @checked
    def __init__(self, local: LocalRows, group: Any = None) -> None:
        from torch import distributed

        if not distributed.is_available() or not distributed.is_initialized():
            raise refuse("a process group", "none", "call torch.distributed.init_process_group first")
        if group is not None and not isinstance(group, distributed.ProcessGroup):
            raise refuse("a process group or None", shown(group), "make one with torch.distributed.new_group")
        self.local, self.group = local, group
        ranks = self._gathered((local.count, local.classes, local.weighted))
        if len({classes for _, classes, _ in ranks}) > 1:
            found = ", ".join(str(classes) for _, classes, _ in ranks)
            raise refuse("ranks with equally many classes", found, "use outputs of one model")
        if len({weighted for count, _, weighted in ranks if count}) > 1:
            raise refuse("weights on all ranks or on none", "some with and some without", "pass weights on every rank")
        self.count, self.classes = sum(count for count, _, _ in ranks), local.classes
        self.weighted, self.device = any(weighted for _, _, weighted in ranks), local.device

    def part(self, work: Callable[..., Any], join: Callable[..., Any], *parameters: Any) -> Any:
        """Return ``work(chunk, *parameters)`` of all ranks' chunks, joined in the order of the ranks."""
        answers = self._agreed(lambda: _to_device(self.local.part(work, join, *parameters), torch.device("cpu")))
        found = reduced(join, (value for value in answers if value is not None))
        return _to_device(found, self.device)

    @cached_property
    def uncut(self) -> "DistributedRows":
        """The same rows, uncut on each rank."""
        return self._changed(local=self.local.uncut)

    def prepared(self, make: Callable[..., Any], *parameters: Any) -> "DistributedRows":
        """Return what ``make`` makes of every chunk, on its rank."""
        rows = self._changed()

        def prepare() -> None:
            rows.local = self.local.prepared(make, *parameters)

        self._agreed(prepare)
        return rows

    def _agreed(self, task: Callable[[], Any]) -> list[Any]:
        """Return what ``task`` returns on every rank; an error on one of them is raised on all, so that none waits for it."""
        mine = _Answer()
        try:
            mine = _Answer(task())
        except CalibrantError as error:
            mine = _Answer(error=error)
        answers: list[_Answer] = self._gathered(mine)
        if mine.error is not None:
            raise mine.error
        for rank, answer in enumerate(answers):
            if answer.error is not None:
                raise InputError(f"rank {rank}: {answer.error}") from answer.error
        return [answer.value for answer in answers]

    def _gathered(self, mine: Any) -> list[Any]:
        from torch import distributed

        found: list[Any] = [None] * distributed.get_world_size(self.group)
        remedy = "see what the other ranks say, and start all of them again"
        # a rank has ended, or did not answer in time
        with error_boundary("every rank to answer", "a lost one", remedy, kind=WorkerError, caught=RuntimeError):
            distributed.all_gather_object(found, mine, group=self.group)
        return found


def _to_device(value: Any, device: torch.device) -> Any:
    """Return a result on ``device``: another rank's accelerator may not exist here."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(_to_device(item, device) for item in value)
    if isinstance(value, dict):
        return {key: _to_device(item, device) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{one.name: _to_device(getattr(value, one.name), device) for one in fields(value)})
    return value
