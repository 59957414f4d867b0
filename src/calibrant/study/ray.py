"""Runs the trainings of a study as tasks of a Ray cluster, with the same store and results as on this machine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant._files import error_boundary
from calibrant.errors import CalibrantError, FitError, InputError, optional
from calibrant.study.recipe import Recipe, Study
from calibrant.study.run import Step, execute, unfinished
from calibrant.study.store import Store

RETRIES = 3  # how often a training is repeated if its worker dies


def run_study_on_ray(
    study: Study, store: Store, *, address: str | None = None, workers: int = 1, accelerator: str = "auto"
) -> Iterator[Step]:
    """Run the unfinished trainings as tasks of a Ray cluster; yields a progress event after each.

    If its worker dies, a training resumes from its last checkpoint, at most three times. The store, and data in a folder
    that the study names, must be readable from every node at the same absolute path.

    Args:
        study: The study.
        store: Where runs are stored.
        address: Address of the cluster, or None to start one on this machine for the duration of the study.
        workers: Concurrent trainings on the cluster started here; without effect on an existing cluster.
        accelerator: Lightning Fabric's accelerator; ``"cuda"`` requests one GPU per training.

    Raises:
        MissingExtraError: If Ray is not installed.
        InputError: If there is no cluster at the address, or a training needs several devices.
        FitError: If a training diverges, or its worker dies four times.
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
            task = ray.remote(max_retries=RETRIES, num_cpus=cell.recipe.training.threads, num_gpus=gpus)(_run_whole)
            tasks[task.remote(_absolute(cell.recipe), kept, accelerator)] = cell
        for done in range(total - len(waiting) + 1, total + 1):
            (reference,), _ = ray.wait(list(tasks))
            cell = tasks.pop(reference)
            _await_task(ray, reference, f"the run of {cell.objective!r}, seed {cell.recipe.seed} to finish")
            yield Step(cell, cell.recipe.training.epochs, done, total)
    finally:  # on an error, or when the caller stops
        for reference in tasks:
            ray.cancel(reference, force=True)
        if own:
            ray.shutdown()


def _run_whole(recipe: Recipe, store: Store, accelerator: str) -> None:
    """Run a recipe to its end, in a worker."""
    for _ in execute(recipe, store, accelerator=accelerator):
        pass


def _await_task(ray: Any, reference: Any, wanted: str) -> None:
    """Wait for a task, and raise its error without Ray's traceback, or a ``FitError`` if its worker died too often."""
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None
    except ray.exceptions.WorkerCrashedError as error:
        remedy = "check memory, then run the study again: finished runs are kept"
        raise FitError(wanted, f"a worker that died {RETRIES + 1} times", remedy) from error


def _absolute(recipe: Recipe) -> Recipe:
    """Return the recipe with an absolute path of its data, because a worker has another working directory."""
    if "folder" not in recipe.data:
        return recipe
    return replace(recipe, data={**recipe.data, "folder": str(Path(recipe.data["folder"]).absolute())})
