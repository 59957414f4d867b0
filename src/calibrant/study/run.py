"""Run the unfinished trainings of a study, one after the other or in several processes."""

import multiprocessing
import os
import signal
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch
import torch.distributed as dist

from calibrant._core.constraints import Count, checked
from calibrant._core.warn import warn_user
from calibrant.errors import FileFormatError, FitError, InputError, Remedy, UsageWarning
from calibrant.study.data import load_fold
from calibrant.study.preflight import check_folders, check_study
from calibrant.study.recipe import AnyRecipe, AnyStudy, Cell, Recipe, Study
from calibrant.study.store import AnyStore, Store
from calibrant.study.train import training

HALVING = 2  # divisor of the number of concurrent trainings each time their device runs out of memory
QUIET_END = (signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a traceback: what it finished is on disk
ATTEMPTS = 3  # number of times a training's process may die before the study raises


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


@checked
def run_study(study: AnyStudy, store: AnyStore, *, workers: Count = 1, accelerator: str = "auto") -> Iterator[Step]:
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
    check_study(study)
    cells = list(study.cells())
    if workers > 1:
        refuse_several_devices(cells, "one worker")
    waiting = {
        cell.recipe.fingerprint: cell
        for cell in most_informative_first(study, cells)
        if not store.finished(cell.recipe)
    }
    check_folders(waiting.values())
    _refuse_changed_data(cells, store, waiting=bool(waiting))
    done = len(cells) - len(waiting)
    if workers == 1:
        for cell in waiting.values():
            for epoch in execute(cell.recipe, store, accelerator=accelerator):
                yield Step(cell, epoch, done, len(cells))
            done += 1
            yield Step(cell, cell.recipe.training.epochs, done, len(cells))
        return
    for cell in _in_processes(list(waiting.values()), store, workers=workers, accelerator=accelerator):
        done += 1
        yield Step(cell, cell.recipe.training.epochs, done, len(cells))


def _refuse_changed_data(cells: Sequence[Cell], store: Store, *, waiting: bool) -> None:
    """Raise if features or one's own files differ from those of finished trainings: one study would be about two data sets."""
    finished = {cell.setting: cell for cell in cells if store.finished(cell.recipe)}
    for cell in finished.values():
        recipe, begun = cell.recipe, store.record(cell.recipe).get("digest")
        if begun and (waiting or "files" in recipe.data) and load_fold(recipe.data, seed=recipe.seed).digest != begun:
            wanted = f"the data of {cell.setting!r} with which {store.root} was begun"
            raise FileFormatError(wanted, "others", "choose another --store")


def most_informative_first(study: Study, cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells in the order to run them: by seed, then objectives that occur in most claims first.

    Args:
        study: The study, with the claims of its papers.
        cells: Cells of the study.
    """
    claimed = Counter(label for claim in study.claims for label in claim.falls)
    # a study that is stopped early has whole seeds first, and of the next the objectives that claims compare
    place = {seed: rank for rank, seed in enumerate(study.seeds)}
    return sorted(cells, key=lambda cell: (place[cell.recipe.seed], -claimed[cell.objective]))


def refuse_several_devices(cells: Iterable[Cell], remedy: str) -> None:
    """Raise for trainings on several devices, which start processes themselves and cannot do so inside a worker."""
    most = max((cell.recipe.training.devices for cell in cells), default=1)
    if most > 1:
        got = f"{most}"
        raise InputError("devices = 1 with several workers", got, f"run it with {remedy}, which starts the processes")


def reports_progress() -> bool:
    """Return whether this process reports progress: of the processes of one training, only that of rank 0 does."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


@checked
def execute(recipe: AnyRecipe, store: AnyStore, *, accelerator: str = "auto") -> Iterator[int]:
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
                    Remedy(
                        "run fewer at a time (workers), or set a smaller batch: finished trainings are kept",
                        command="run fewer at a time (--workers), or set a smaller batch: finished trainings are kept",
                    ),
                ) from error
            raise
    if not dist.is_initialized() or dist.get_rank() == 0:  # of several devices, only rank 0 writes
        store.save(recipe, outcome)


def _in_processes(cells: list[Cell], store: Store, *, workers: int, accelerator: str) -> Iterator[Cell]:
    """Yield the cells as their runs finish; if a process dies, its unfinished runs are retried."""
    context = multiprocessing.get_context("spawn")
    attempts = dict.fromkeys((cell.recipe.fingerprint for cell in cells), ATTEMPTS)
    left = {cell.recipe.fingerprint: cell for cell in cells}
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
                        yield cell
            except BrokenProcessPool as error:
                _count_attempt(left, attempts, store, error)
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
            yield left.pop(name)  # finished, but its future was lost with the pool


def _count_attempt(left: dict[str, Cell], attempts: dict[str, int], store: Store, error: BrokenProcessPool) -> None:
    """Count a failed attempt for every run that had begun; raise if one has no attempts left."""
    for name, cell in left.items():
        if store.folder(cell.recipe).exists() and not store.finished(cell.recipe):
            attempts[name] -= 1
        if not attempts[name]:
            wanted = f"the run of {cell.objective!r}, seed {cell.recipe.seed} to finish"
            got = f"a process that died {ATTEMPTS} times"
            raise FitError(wanted, got, "check memory, then run the study again: finished runs are kept") from error


def run_whole(recipe: Recipe, store: Store, accelerator: str) -> None:
    """Run a recipe to its end, in a worker."""
    for _ in execute(recipe, store, accelerator=accelerator):
        pass
