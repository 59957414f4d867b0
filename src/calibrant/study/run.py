"""Runs the unfinished training runs of a study one after the other, in several processes, or as tasks of a Ray cluster."""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from calibrant._files import error_boundary
from calibrant.errors import CalibrantError, FitError, InputError, optional
from calibrant.study.build import check_folders, check_study
from calibrant.study.recipe import Cell, Recipe, Study
from calibrant.study.store import Store
from calibrant.study.train import training

MAX_DEATHS = 3  # number of times in a row that processes may die before the study raises an error
RETRIES = 3  # number of times that a training run is repeated if its worker on a Ray cluster dies
LOOK_EVERY = 1.0  # seconds between two readings of the numbers of finished epochs


@dataclass(frozen=True)
class Step:
    """A progress event of a running study.

    Args:
        cell: The training run.
        epoch: Number of epochs that this run has finished.
        done: Number of finished training runs of the study.
        total: Number of all training runs of the study.
    """

    cell: Cell
    epoch: int
    done: int
    total: int


def run_study(study: Study, store: Store, *, workers: int = 1, accelerator: str = "auto") -> Iterator[Step]:
    """Execute the unfinished training runs and yield progress events. A repeated call resumes an interrupted study.

    Args:
        study: The study.
        store: Where runs are stored.
        workers: Number of processes; with 1, everything runs in this process.
        accelerator: Lightning Fabric's accelerator.

    Yields:
        The progress after each epoch and each finished run.

    Raises:
        FitError: If a training run diverges or does not fit into its device's memory, or if processes die three times in a
            row.
        FileFormatError: If the disk has too little space for the files of a run.
        InputError: If there are several workers and a training run uses several devices.
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
    for cell, reached in _in_processes(waiting, store, workers=workers, accelerator=accelerator):
        done += reached is None
        yield Step(cell, cell.recipe.training.epochs if reached is None else reached, done, total)


def unfinished(study: Study, store: Store, *, inside_workers: bool) -> tuple[list[Cell], int]:
    """Check that the unfinished training runs can be executed, and return them in order, with the number of all runs.

    Args:
        study: The study.
        store: Where runs are stored.
        inside_workers: Whether they are executed in workers, which cannot start processes for several devices.
    """
    check_study(study)
    cells = list(study.cells())
    # seed by seed, so that a study that is stopped early has complete seeds to compare
    by_seed = sorted(cells, key=lambda cell: study.seeds.index(cell.recipe.seed))
    left = {cell.recipe.fingerprint: cell for cell in by_seed if not store.finished(cell.recipe)}
    check_folders(left.values())
    devices = max((cell.recipe.training.devices for cell in left.values()), default=1)
    if inside_workers and devices > 1:
        raise InputError("devices = 1 with several workers or Ray", str(devices), "run it with one worker here")
    return list(left.values()), len(cells)


def reports_progress() -> bool:
    """Return whether this process reports progress; if one training run uses several processes, only rank 0 does."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def execute(recipe: Recipe, store: Store, *, accelerator: str = "auto") -> Iterator[int]:
    """Train one recipe and store the result, yielding the number of finished epochs after each epoch.

    Args:
        recipe: The recipe.
        store: Where the run is stored.
        accelerator: Lightning Fabric's accelerator.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # warnings about loaders and clusters, which are not used
        try:
            run = yield from training(recipe, checkpoint=store.checkpoint(recipe), accelerator=accelerator)
        except torch.OutOfMemoryError as error:
            wanted = f"a training run with batch size {recipe.training.batch} to fit in the memory of its device"
            remedy = "run fewer workers at a time, or set a smaller batch (finished training runs are kept)"
            raise FitError(wanted, f"out of memory (seed {recipe.seed})", remedy) from error
    if not dist.is_initialized() or dist.get_rank() == 0:  # with several devices, only rank 0 writes
        store.save(recipe, run)


def _in_processes(
    cells: list[Cell], store: Store, *, workers: int, accelerator: str
) -> Iterator[tuple[Cell, int | None]]:
    """Yield cells with their number of finished epochs, or with None for a finished run.

    Runs whose process died are retried.
    """
    context = multiprocessing.get_context("spawn")
    left = {cell.recipe.fingerprint: cell for cell in cells}
    deaths = 0  # consecutive deaths of the pool, which does not show which run was the cause
    while left:
        workers, waiting = min(workers, len(left)), list(left.values())
        # shared without a lock, because a killed worker could keep it
        epochs, seen = context.RawArray("l", len(waiting)), [0] * len(waiting)
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(epochs,)) as pool:
            try:
                futures = {
                    pool.submit(_run_and_count, cell.recipe, store, accelerator, place): cell
                    for place, cell in enumerate(waiting)
                }
                while futures:
                    for place, cell in enumerate(waiting):
                        if epochs[place] != seen[place] and cell.recipe.fingerprint in left:
                            seen[place] = epochs[place]
                            yield cell, seen[place]
                    for future in wait(futures, LOOK_EVERY, return_when=FIRST_COMPLETED).done:
                        cell = futures.pop(future)
                        future.result()
                        del left[cell.recipe.fingerprint]
                        deaths = 0
                        yield cell, None
            except BrokenProcessPool as error:
                deaths += 1
                if deaths == MAX_DEATHS:
                    wanted = f"{workers} training runs at a time to finish"
                    got = f"{MAX_DEATHS} deaths of their processes in a row without a finished run"
                    remedy = "check the memory, then run the study again (finished runs are kept)"
                    raise FitError(wanted, got, remedy) from error
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        for name in [name for name, cell in left.items() if store.finished(cell.recipe)]:
            deaths = 0
            yield left.pop(name), None  # finished, but its future was lost with the pool


_epochs: Any = None  # in a worker, the numbers of finished epochs of all training runs of its pool


def _begin(epochs: Any) -> None:
    """Initialise a worker so that Ctrl-C ends it without a traceback; finished runs are already on disk."""
    global _epochs
    _epochs = epochs
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run_and_count(recipe: Recipe, store: Store, accelerator: str, place: int) -> None:
    """Run a recipe to its end in a worker, and write the number of finished epochs to memory shared with the main process."""
    for epoch in execute(recipe, store, accelerator=accelerator):
        _epochs[place] = epoch


def run_study_on_ray(
    study: Study, store: Store, *, address: str | None = None, workers: int = 1, accelerator: str = "auto"
) -> Iterator[Step]:
    """Execute the unfinished training runs as tasks of a Ray cluster, yielding a progress event after each run.

    If its worker dies, a training run resumes from its last checkpoint, at most three times. The store, and any data folder
    that the study names, must be accessible from every node at the same absolute path.

    Args:
        study: The study.
        store: Where runs are stored.
        address: Address of the cluster, or None to start one on this machine for the duration of the study.
        workers: Number of concurrent training runs on a cluster started here; it has no effect on an existing cluster.
        accelerator: Lightning Fabric's accelerator; ``"cuda"`` requests one GPU per training run.

    Yields:
        The progress after each finished run.

    Raises:
        MissingExtraError: If Ray is not installed.
        InputError: If there is no cluster at the address, or a training run needs several devices.
        FitError: If a training run diverges, or its worker dies four times.
    """
    with optional("ray", extra="ray"):
        import ray
    waiting, total = unfinished(study, store, inside_workers=True)
    if not waiting:
        return
    own = not ray.is_initialized()
    if own:
        cpus = workers * max(cell.recipe.training.threads for cell in waiting)
        where: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        remedy = "start one with `ray start --head`"
        with error_boundary(f"a Ray cluster at {address!r}", "none", remedy, kind=InputError):
            ray.init(**({"address": address} if address else where), log_to_driver=False, configure_logging=False)
    gpus = 1 if accelerator == "cuda" else 0
    kept, tasks = Store(store.root.absolute()), {}
    try:
        for cell in waiting:
            recipe, data = cell.recipe, dict(cell.recipe.data)
            if "folder" in data:  # absolute, because workers have another working directory
                data["folder"] = str(Path(data["folder"]).absolute())
            task = ray.remote(max_retries=RETRIES, num_cpus=recipe.training.threads, num_gpus=gpus)(_run_whole)
            tasks[task.remote(replace(recipe, data=data), kept, accelerator)] = cell
        for done in range(total - len(waiting) + 1, total + 1):
            (reference,), _ = ray.wait(list(tasks))
            cell = tasks.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayTaskError as error:  # without Ray's traceback
                raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None
            except ray.exceptions.WorkerCrashedError as error:
                wanted = f"the run of {cell.objective!r}, seed {cell.recipe.seed} to finish"
                remedy = "check the memory, then run the study again (finished runs are kept)"
                raise FitError(wanted, f"a worker that died {RETRIES + 1} times", remedy) from error
            yield Step(cell, cell.recipe.training.epochs, done, total)
    finally:  # on an error, or when the caller stops
        for reference in tasks:
            ray.cancel(reference, force=True)
        if own:
            ray.shutdown()


def _run_whole(recipe: Recipe, store: Store, accelerator: str) -> None:
    """Run a recipe to its end in a worker."""
    for _ in execute(recipe, store, accelerator=accelerator):
        pass
