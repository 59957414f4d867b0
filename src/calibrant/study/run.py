"""Run a study: every training that is not finished yet, one after the other or in several processes."""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch.distributed as dist

from calibrant._arguments import check_kind
from calibrant._check import check_count
from calibrant.errors import FitError, InputError
from calibrant.study.preflight import check_folders, check_study
from calibrant.study.recipe import Cell, Recipe, Study, check_recipe, check_study_kind
from calibrant.study.store import Store
from calibrant.study.train import training

__all__ = ["Step", "execute", "run_study"]

LIVES = 3  # how often a run may lose its process before the study gives up


@dataclass(frozen=True)
class Step:
    """News of a study that is running.

    Args:
        cell: The training concerned.
        epoch: Its finished epochs; all of them if it was finished before.
        done: Trainings of the study that are finished.
        total: Trainings of the study.
    """

    cell: Cell
    epoch: int
    done: int
    total: int


def run_study(study: Study, store: Store, *, workers: int = 1, accelerator: str = "auto") -> Iterator[Step]:
    """Run what is not finished; yields news. Stopped at any moment, it goes on from there when called again.

    Args:
        study: What to run.
        store: Where runs are kept.
        workers: Processes; 1 runs in this one and gives news of every epoch.
        accelerator: Lightning Fabric's.

    Raises:
        FitError: If a training diverges, or loses its process again and again.
        InputError: If several workers are to run trainings of several devices.
    """
    check_study_kind(study)
    check_kind(store, Store, name="store", remedy="make one with Store(folder)")
    check_count(workers, name="workers")
    check_study(study)
    cells = list(study.cells())
    if workers > 1:
        refuse_several_devices(cells, "one worker")
    waiting = {cell.recipe.fingerprint: cell for cell in cells if not store.finished(cell.recipe)}
    check_folders(waiting.values())
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


def refuse_several_devices(cells: Iterable[Cell], remedy: str) -> None:
    """Refuse trainings that start processes of their own, where they would be started inside others."""
    most = max((cell.recipe.training.devices for cell in cells), default=1)
    if most > 1:
        raise InputError(
            f"expected devices = 1 in several workers, got {most}; run it with {remedy}, which starts them"
        )


def leads() -> bool:
    """Say whether this process is the one that reports: of those that share each batch, the first."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def execute(recipe: Recipe, store: Store, *, accelerator: str = "auto") -> Iterator[int]:
    """Train one recipe and keep the result; yields the finished epochs.

    Args:
        recipe: What to train.
        store: Where the run is kept.
        accelerator: Lightning Fabric's.
    """
    check_recipe(recipe)
    check_kind(store, Store, name="store", remedy="make one with Store(folder)")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # advice on data loaders and clusters, none used here
        try:
            outcome = yield from training(recipe, checkpoint=store.checkpoint(recipe), accelerator=accelerator)
        except BaseException:
            store.tidy(recipe)
            raise
    if not dist.is_initialized() or dist.get_rank() == 0:  # of several devices, the first one writes
        store.save(recipe, outcome)


def _in_processes(cells: list[Cell], store: Store, *, workers: int, accelerator: str) -> Iterator[Cell]:
    """Yield the cells as their runs finish; the runs of a process that died are tried again."""
    context = multiprocessing.get_context("spawn")
    lives = dict.fromkeys((cell.recipe.fingerprint for cell in cells), LIVES)
    left = {cell.recipe.fingerprint: cell for cell in cells}
    while left:
        with ProcessPoolExecutor(min(workers, len(left)), mp_context=context, initializer=_end_quietly) as pool:
            futures = {pool.submit(_run_whole, cell.recipe, store, accelerator): cell for cell in left.values()}
            try:
                while futures:
                    for future in wait(futures, return_when=FIRST_COMPLETED).done:
                        cell = futures.pop(future)
                        future.result()
                        del left[cell.recipe.fingerprint]
                        yield cell
            except BrokenProcessPool as error:
                _spend_life(left, lives, store, error)
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        for name in [name for name, cell in left.items() if store.finished(cell.recipe)]:
            yield left.pop(name)  # ended while another's process died


def _spend_life(left: dict[str, Cell], lives: dict[str, int], store: Store, error: BrokenProcessPool) -> None:
    """Count a death against every run that had begun; give up on one that has none left."""
    for name, cell in left.items():
        if store.folder(cell.recipe).exists() and not store.finished(cell.recipe):
            lives[name] -= 1
        if not lives[name]:
            raise FitError(
                f"expected the run of {cell.objective!r}, seed {cell.recipe.seed} to end, got a process that died "
                f"{LIVES} times; check memory, then run the study again: finished runs are kept"
            ) from error


def _end_quietly() -> None:
    """Let Ctrl-C end a worker at once; what it had finished or checkpointed is on disk."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run_whole(recipe: Recipe, store: Store, accelerator: str) -> None:
    for _ in execute(recipe, store, accelerator=accelerator):
        pass
