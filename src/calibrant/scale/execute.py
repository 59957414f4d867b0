"""Executors: this process, several processes, or a Ray cluster. All yield results in the shards' order.

A shard is what ``ParquetRows`` lists, or any other picklable piece of work.
"""

import inspect
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Protocol

from torch import nn

from calibrant._core.check import refuse, shown
from calibrant._core.constraints import Count, Fits, checked
from calibrant._core.files import error_boundary, reason_of
from calibrant.errors import CalibrantError, InputError, WorkerError, optional

_FINISH = (
    "every worker process to finish",
    "one that was killed",
    "check memory, use fewer workers, and run it again: what was finished is kept",
)
_START = (
    "worker processes to start",
    "one that ended before the first result",
    'in a script put the call under `if __name__ == "__main__":`, keep your code in a file that can be imported, and check memory',
)
RETRIES = 3  # of a shard whose worker died; after four deaths the shard itself is assumed to be the cause


class Executor(Protocol):
    """Runs a picklable function on every shard and yields the results in order."""

    def __call__(self, function: Callable[[Any], Any], shards: Sequence[Any], /) -> Iterator[Any]:
        """Yield ``function(shard)`` for every shard, in order."""


def _taking(arguments: int) -> Fits:
    """Return the constraint of a function that can be called with so many arguments."""

    def check(value: Any, *, name: str) -> Any:
        if value is map:  # which has no signature, and runs in turn
            return value
        try:
            inspect.signature(value).bind(*range(arguments))
            callables = not isinstance(value, nn.Module | type)
        except (TypeError, ValueError):
            callables = False
        if not callables:
            raise refuse(f"{name} as a function of {arguments} arguments", shown(value), "pass one")
        return value

    return Fits(check, "")


Runner = Annotated[Executor, _taking(2)]
Progress = Annotated[Callable[[int, int], None], _taking(2)]  # called with (rows done, total rows)
PassProgress = Annotated[
    Callable[[int, int, int], None], _taking(3)
]  # with (passes begun, rows done in this pass, total rows)


def in_turn(function: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Any]:
    """Yield ``function(shard)`` for every shard, one after the other in this process.

    Args:
        function: Called on each shard.
        shards: The shards.
    """
    return map(function, shards)


class Processes:
    """An executor of single-threaded processes on this machine; they start at the first call and are reused by later calls.

    Args:
        workers: Number of processes, ≥ 1.
    """

    @checked
    def __init__(self, workers: Count) -> None:
        self.workers = workers
        self._pool: Any = None
        self._answered = False  # whether a process has ever returned a result

    def __call__(self, function: Callable[[Any], Any], shards: Sequence[Any], /) -> Iterator[Any]:
        """Yield ``function(shard)`` for every shard, in order.

        Raises:
            InputError: If the function is none that a process can import.
            WorkerError: If a process died.
        """
        from concurrent.futures.process import BrokenProcessPool

        pool = self._started()
        waiting: deque[Any] = deque()
        try:
            # once, not once a shard: it holds the calibrator with all that it learned
            job = pickle.dumps(function)
            for shard in shards:
                waiting.append(pool.submit(_pickled, job, shard))
                if len(waiting) >= 2 * self.workers:  # bounds the results held in memory
                    yield self._result(waiting.popleft())
            while waiting:
                yield self._result(waiting.popleft())
        except BrokenProcessPool as error:
            self.close()
            raise WorkerError(*(_FINISH if self._answered else _START)) from error
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            _check_importable(function, error)  # raises for a function that cannot be sent
            raise
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Stop the processes; a later call starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _result(self, future: Any) -> Any:
        found = pickle.loads(future.result())
        self._answered = True
        return found

    def _started(self) -> Any:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        if self._pool is None:
            self._answered = False
            self._pool = ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"), initializer=_one_thread)
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool


@checked
def processes(workers: int) -> Processes:
    """Return an executor of ``workers`` single-threaded processes on this machine.

    They start at the first call and stop when the executor is closed or garbage-collected.

    Args:
        workers: Number of processes, ≥ 1.
    """
    return Processes(workers)


class RayCluster:
    """An executor on a Ray cluster; a shard whose worker dies is run again, up to three times.

    Args:
        address: Address of the cluster, or None to start one on this machine.
        workers: CPUs of the cluster started here; None takes all.
    """

    @checked
    def __init__(self, address: str | None, workers: Count | None) -> None:
        self.address = address
        self.workers = workers
        self._own = False

    def __call__(self, function: Callable[[Any], Any], shards: Sequence[Any], /) -> Iterator[Any]:
        """Yield ``function(shard)`` for every shard, in order.

        Raises:
            InputError: If there is no cluster at the address.
            WorkerError: If a shard's worker died four times.
        """
        import ray

        if not ray.is_initialized():
            self._start(ray)
        yield from _on_ray(ray, function, shards)

    def close(self) -> None:
        """Disconnect from the cluster, and stop it if it was started here."""
        if self._own:
            import ray

            ray.shutdown()
            self._own = False

    def _start(self, ray: Any) -> None:
        start_ray(ray, self.address, cpus=self.workers)
        self._own = True
        weakref.finalize(self, ray.shutdown)


def start_ray(ray: Any, address: str | None, *, cpus: int | None) -> None:
    """Connect to the cluster at ``address``, or start one of so many CPUs on this machine.

    Raises:
        InputError: If there is none at the address.
    """
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        ray.init(num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    unreached = (ConnectionError, ValueError, RuntimeError)
    wanted, remedy = f"a Ray cluster at {address!r}", "start one with `ray start --head`"
    with error_boundary(wanted, "none", remedy, kind=InputError, caught=unreached):
        ray.init(address=address, **quiet)


def need_ray() -> Any:
    """Return Ray.

    Raises:
        MissingExtraError: If it is not installed.
    """
    with optional("ray", extra="ray"):
        import ray
    return ray


def result_on_ray(ray: Any, reference: Any, lost: CalibrantError) -> Any:
    """Return the result of a task; an error of its own is raised unwrapped, and ``lost`` if its worker died too often."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # wraps the function's own error
        # its traceback would name this package's tasks, not the user's data
        raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None
    except ray.exceptions.WorkerCrashedError as error:
        raise lost from error


@checked
def ray_cluster(address: str | None = None, *, workers: int | None = None) -> RayCluster:
    """Return an executor on a Ray cluster; a shard whose worker dies is run again, up to three times.

    The data's path must be readable from every node.

    Args:
        address: Address of the cluster, or None to start one on this machine, which stops when the executor is closed or
            garbage-collected.
        workers: CPUs of the cluster started here; None takes all. Without effect on an existing cluster.

    Raises:
        MissingExtraError: If Ray is not installed.
    """
    need_ray()
    return RayCluster(address, workers)


def _check_importable(function: Callable[[Any], Any], error: Exception) -> None:
    """Raise if ``function`` cannot be sent to another process."""
    try:
        pickle.dumps(function)
    except (AttributeError, TypeError, pickle.PicklingError):
        raise InputError(
            "functions that worker processes can import",
            f"another ({reason_of(error)})",
            "move the function to the top of its file, and pass what it needs as parameters",
        ) from error


def _on_ray(ray: Any, function: Callable[[Any], Any], shards: Sequence[Any]) -> Iterator[Any]:
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_work)
    shared = ray.put(function)
    window = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[Any] = deque()
    rest = iter(shards)
    lost = WorkerError(
        "every worker to finish",
        f"one that died {RETRIES + 1} times on the same rows",
        "check memory, and run it again: what was finished is kept",
    )
    while True:
        while len(waiting) < window and (shard := next(rest, None)) is not None:
            waiting.append(remote.remote(shared, shard))
        if not waiting:
            return
        yield result_on_ray(ray, waiting.popleft(), lost)


def _pickled(job: bytes, shard: Any) -> bytes:
    """Return the result of a pickled function as bytes.

    Handed over as objects, PyTorch would open a file for each tensor and keep it open as long as the tensor is held.
    """
    try:
        function = pickle.loads(job)
    except (AttributeError, ImportError) as error:
        raise WorkerError(*_START) from error
    return pickle.dumps(function(shard))


def _work(function: Callable[[Any], Any], shard: Any) -> Any:
    _one_thread()
    return function(shard)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
