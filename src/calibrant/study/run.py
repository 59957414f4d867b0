"""Runs the unfinished training runs of a study one after the other, in several processes, or as tasks of a Ray cluster."""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator, MutableMapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from calibrant._files import error_boundary
from calibrant.errors import CalibrantError, FileFormatError, FitError, InputError, optional
from calibrant.study.build import check_study, missing_folders
from calibrant.study.recipe import Cell, Recipe, Study
from calibrant.study.store import Store
from calibrant.study.train import training

RETRIES = 3  # number of times that a training run is repeated if its worker on a Ray cluster dies
LOOK_EVERY = 1.0  # seconds between two readings of the numbers of finished epochs
MEMORY = "check the memory, then run the study again (finished runs are kept)"


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
        FitError: If a training run diverges or does not fit into its device's memory, or if a process dies.
        FileFormatError: If the disk has too little space for the files of a run.
        InputError: If there are several workers and a training run uses several devices.
    """
    waiting, total = unfinished(study, store, inside_workers=workers > 1)
    if workers > 1 and waiting:
        yield from _in_processes(waiting, store, total, workers=workers, accelerator=accelerator)
        return
    for done, cell in enumerate(waiting, start=total - len(waiting)):
        for epoch in execute(cell.recipe, store, accelerator=accelerator):
            yield Step(cell, epoch, done, total)
        yield Step(cell, cell.recipe.training.epochs, done + 1, total)


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
    for folder, setting in missing_folders(left.values()):
        remedy = "put the data there, or name another folder with --data or study.with_data_from"
        raise FileFormatError(f"the data of setting {setting!r}", f"no such folder: {folder}", remedy)
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


def _in_processes(waiting: list[Cell], store: Store, total: int, *, workers: int, accelerator: str) -> Iterator[Step]:
    """Execute training runs in several processes and yield progress events."""
    context, done = multiprocessing.get_context("spawn"), total - len(waiting)
    with context.Manager() as manager:
        epochs = manager.dict()  # maps fingerprints to numbers of finished epochs that were not reported yet
        # Ctrl-C ends a worker without a traceback; finished runs are already on disk
        on_start: Any = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_DFL)}
        pool = ProcessPoolExecutor(min(workers, len(waiting)), context, **on_start)
        try:
            futures = {pool.submit(_run_whole, cell.recipe, store, accelerator, epochs): cell for cell in waiting}
            while futures:
                for future in wait(futures, LOOK_EVERY, return_when=FIRST_COMPLETED).done:
                    cell = futures.pop(future)
                    future.result()
                    done += 1
                    yield Step(cell, cell.recipe.training.epochs, done, total)
                for future, cell in futures.items():
                    if future.running() and (epoch := epochs.pop(cell.recipe.fingerprint, None)):
                        yield Step(cell, epoch, done, total)
        except BrokenProcessPool as error:
            raise FitError(f"{workers} training runs at a time to finish", "a process that died", MEMORY) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _run_whole(recipe: Recipe, store: Store, accelerator: str, epochs: MutableMapping[str, int]) -> None:
    """Run a recipe to its end in a worker, writing the number of finished epochs to ``epochs``."""
    for epoch in execute(recipe, store, accelerator=accelerator):
        epochs[recipe.fingerprint] = epoch


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
            tasks[task.remote(replace(recipe, data=data), kept, accelerator, {})] = cell
        for done in range(total - len(waiting) + 1, total + 1):
            (reference,), _ = ray.wait(list(tasks))
            cell = tasks.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.RayTaskError as error:  # without Ray's traceback
                raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None
            except ray.exceptions.WorkerCrashedError as error:
                wanted = f"the run of {cell.objective!r}, seed {cell.recipe.seed} to finish"
                raise FitError(wanted, f"a worker that died {RETRIES + 1} times", MEMORY) from error
            yield Step(cell, cell.recipe.training.epochs, done, total)
    finally:  # on an error, or when the caller stops
        for reference in tasks:
            ray.cancel(reference, force=True)
        if own:
            ray.shutdown()
