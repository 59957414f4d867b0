"""The trainings of a study on a Ray cluster: same store and same results as locally; a training is retried if its worker dies."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant._core.constraints import Count, checked
from calibrant.errors import FitError
from calibrant.scale.execute import RETRIES, need_ray, result_on_ray, start_ray
from calibrant.study import Store
from calibrant.study.preflight import check_folders, check_study
from calibrant.study.recipe import AnyStudy, Cell, Recipe
from calibrant.study.run import Step, most_informative_first, refuse_several_devices, run_whole
from calibrant.study.store import AnyStore


@checked
def run_study_on_ray(
    study: AnyStudy, store: AnyStore, *, address: str | None = None, workers: Count = 1, accelerator: str = "auto"
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
    ray = need_ray()
    check_study(study)
    cells = list(study.cells())
    ordered = most_informative_first(study, cells)
    waiting = list({c.recipe.fingerprint: c for c in ordered if not store.finished(c.recipe)}.values())
    done = len(cells) - len(waiting)
    if not waiting:
        return
    refuse_several_devices(waiting, "--executor local")
    check_folders(waiting)
    own = not ray.is_initialized()
    if own:
        start_ray(ray, address, cpus=workers * max(_cpus(cell.recipe) for cell in waiting))
    try:
        for cell in _finishing(ray, waiting, Store(store.root.absolute()), accelerator=accelerator):
            done += 1
            yield Step(cell, cell.recipe.training.epochs, done, len(cells))
    finally:
        if own:
            ray.shutdown()


def _finishing(ray: Any, cells: Sequence[Cell], store: Store, *, accelerator: str) -> Iterator[Cell]:
    """Yield the cells as their tasks finish; on an error, or when closed, the others are cancelled."""
    pending: dict[Any, Cell] = {}
    remote = ray.remote(max_retries=RETRIES)(run_whole)
    for cell in cells:
        gpus = cell.recipe.training.devices if accelerator in ("cuda", "gpu") else 0
        task = remote.options(num_cpus=_cpus(cell.recipe), num_gpus=gpus)
        pending[task.remote(_placed(cell.recipe), store, accelerator)] = cell
    try:
        while pending:
            for reference in ray.wait(list(pending))[0]:
                cell = pending.pop(reference)
                lost = FitError(
                    f"the run of {cell.objective!r}, seed {cell.recipe.seed} to finish",
                    f"a worker that died {RETRIES + 1} times",
                    "check memory, then run the study again: finished runs are kept",
                )
                result_on_ray(ray, reference, lost)
                yield cell
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)


def _cpus(recipe: Recipe) -> int:
    return recipe.training.threads * recipe.training.devices


def _placed(recipe: Recipe) -> Recipe:
    """Return the recipe with its data's folder as an absolute path: a worker may have another working directory."""
    # the working directory of a worker is Ray's own
    if "folder" not in recipe.data:
        return recipe
    return replace(recipe, data={**recipe.data, "folder": str(Path(recipe.data["folder"]).absolute())})
