"""Run the unfinished trainings of a study, one after the other or in several processes."""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch
import torch.distributed as dist

from calibrant._core.warn import warn_user
from calibrant.errors import FitError, InputError, UsageWarning
from calibrant.study.preflight import check_folders, check_study
from calibrant.study.recipe import Cell, Recipe, Study
from calibrant.study.store import Store
from calibrant.study.train import training

HALVING = 2  # divisor of the number of concurrent trainings each time their device runs out of memory
QUIET_END = (signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a traceback: what it finished is on disk
MAX_DEATHS = 3  # times in a row that processes of trainings may die before the study raises


class MemoryShortageError(FitError):
    """A training needed more memory than its device had left."""


@dataclass(frozen=True)
class Step:
    """A progress event of a running study.

    Args:
        cell: The training.
        epoch: Its finished epochs.
        done: Finished trainings of the study.
        total: All trainings of the study.
    """

    cell: Cell
    epoch: int
    done: int
    total: int


def run_study(study: Study, store: Store, *, workers: int = 1, accelerator: str = "auto") -> Iterator[Step]:
    """Run the unfinished trainings and yield progress events; a repeated call resumes an interrupted study.

    Args:
        study: The study.
        store: Where runs are stored.
        workers: Number of processes; with 1 trainings run in this process and every epoch is reported.
        accelerator: Lightning Fabric's accelerator.

    Raises:
        FitError: If a training diverges, its process dies three times, or one training alone does not fit in its device's
            memory. Several that do not fit together are run half as many at a time, with a warning.
        FileFormatError: If the disk has too little room for a training's files.
        InputError: If there are several workers and a training uses several devices.
    """
    waiting, total = unfinished(study, store, inside_workers=workers > 1)
    done = total - len(waiting)
    if workers == 1:
        for cell in waiting:
            for epoch in execute(cell.recipe, store, accelerator=accelerator):
                yield Step(cell, epoch, done, total)
            done += 1
            yield Step(cell, cell.recipe.training.epochs, done, total)
        return
    for cell in _in_processes(waiting, store, workers=workers, accelerator=accelerator):
        done += 1
        yield Step(cell, cell.recipe.training.epochs, done, total)


def unfinished(study: Study, store: Store, *, inside_workers: bool) -> tuple[list[Cell], int]:
    """Return the trainings that are to be run, in order, and the number of all; a study that cannot be run raises.

    Args:
        study: The study.
        store: Where runs are stored.
        inside_workers: Whether trainings run in workers, which cannot start the processes of several devices.
    """
    check_study(study)
    cells = list(study.cells())
    # whole seeds first, so that a study that is stopped early has something to compare
    by_seed = sorted(cells, key=lambda cell: study.seeds.index(cell.recipe.seed))
    left = {cell.recipe.fingerprint: cell for cell in by_seed if not store.finished(cell.recipe)}
    check_folders(left.values())
    devices = max((cell.recipe.training.devices for cell in left.values()), default=1)
    if inside_workers and devices > 1:
        raise InputError(
            "devices = 1 with several workers or Ray", f"{devices}", "run it with one worker on this machine"
        )
    return list(left.values()), len(cells)


def reports_progress() -> bool:
    """Return whether this process reports progress: of the processes of one training, only that of rank 0 does."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def execute(recipe: Recipe, store: Store, *, accelerator: str = "auto") -> Iterator[int]:
    """Train one recipe and store the result; yields the number of finished epochs after each.

    Args:
        recipe: The recipe.
        store: Where the run is stored.
        accelerator: Lightning Fabric's accelerator.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", module="lightning"
        )  # about data loaders and clusters, which are not used here
        try:
            outcome = yield from training(recipe, checkpoint=store.checkpoint(recipe), accelerator=accelerator)
        except BaseException as error:
            store.tidy(recipe)
            if isinstance(error, torch.OutOfMemoryError):
                raise MemoryShortageError(
                    f"a training of batch {recipe.training.batch} to fit in the memory of its device",
                    f"out of memory (seed {recipe.seed})",
                    "run fewer workers at a time, or set a smaller batch: finished trainings are kept",
                ) from error
            raise
    if not dist.is_initialized() or dist.get_rank() == 0:  # of several devices, only rank 0 writes
        store.save(recipe, outcome)


def _in_processes(cells: list[Cell], store: Store, *, workers: int, accelerator: str) -> Iterator[Cell]:
    """Yield the cells as their runs finish; if a process dies, its unfinished runs are retried."""
    context = multiprocessing.get_context("spawn")
    left = {cell.recipe.fingerprint: cell for cell in cells}
    deaths = 0  # consecutive ones: a pool that dies names none of its runs
    while left:
        workers = min(workers, len(left))
        with ProcessPoolExecutor(workers, mp_context=context, initializer=signal.signal, initargs=QUIET_END) as pool:
            futures = {pool.submit(run_whole, cell.recipe, store, accelerator): cell for cell in left.values()}
            try:
                while futures:
                    for future in wait(futures, return_when=FIRST_COMPLETED).done:
                        cell = futures.pop(future)
                        future.result()
                        del left[cell.recipe.fingerprint]
                        deaths = 0
                        yield cell
            except BrokenProcessPool as error:
                deaths += 1
                if deaths == MAX_DEATHS:
                    wanted = f"{workers} trainings at a time to finish"
                    got = f"{MAX_DEATHS} deaths of their processes in a row, with none finished between"
                    raise FitError(
                        wanted, got, "check memory, then run the study again: finished runs are kept"
                    ) from error
            except MemoryShortageError:
                if workers == 1:
                    raise
                workers //= HALVING
                warn_user(
                    f"expected memory for {workers * HALVING} trainings at a time, got too little; going on with {workers}",
                    UsageWarning,
                )
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        for name in [name for name, cell in left.items() if store.finished(cell.recipe)]:
            deaths = 0
            yield left.pop(name)  # finished, but its future was lost with the pool


def run_whole(recipe: Recipe, store: Store, accelerator: str) -> None:
    """Run a recipe to its end, in a worker."""
    for _ in execute(recipe, store, accelerator=accelerator):
        pass
