"""Who works on the shards: this process, several processes, or a Ray cluster. All yield results in the shards' order."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from calibrant._check import check_count
from calibrant.errors import CalibrantError, MissingExtraError
from calibrant.scale.rows import Shard

__all__ = ["Executor", "in_turn", "processes", "ray_cluster"]

RETRIES = 3  # of a shard whose worker died; a shard that kills four workers is at fault itself


class Executor(Protocol):
    """Runs a picklable function on every shard and yields the results in order."""

    def __call__(self, function: Callable[[Shard], Any], shards: Sequence[Shard], /) -> Iterator[Any]:
        """Yield ``function(shard)`` for every shard, in order."""


def in_turn(function: Callable[[Shard], Any], shards: Sequence[Shard]) -> Iterator[Any]:
    """Run the shards one after the other in this process.

    Args:
        function: Called on each shard.
        shards: The shards.
    """
    return map(function, shards)


def processes(workers: int) -> Executor:
    """Return an executor of ``workers`` processes on this machine, one thread each.

    Args:
        workers: How many, ≥ 1.
    """
    check_count(workers, name="workers")

    def run(function: Callable[[Shard], Any], shards: Sequence[Shard], /) -> Iterator[Any]:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
            waiting: deque[Any] = deque()
            for shard in shards:
                waiting.append(pool.submit(function, shard))
                if len(waiting) >= 2 * workers:  # no more results than that are ever held
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    return run


def ray_cluster(address: str | None = None, *, workers: int | None = None) -> Executor:
    """Return an executor on a Ray cluster; a shard whose worker dies is run again, up to three times.

    The data's path must be readable from every node.

    Args:
        address: The cluster's, or None for one started on this machine and stopped afterwards.
        workers: Processors of the cluster started here; None takes all. Not for an existing cluster.

    Raises:
        MissingExtraError: If Ray is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", extra="ray") from error

    def run(function: Callable[[Shard], Any], shards: Sequence[Shard], /) -> Iterator[Any]:
        own = not ray.is_initialized()
        if own:
            local: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
            ray.init(
                address=address, log_to_driver=False, configure_logging=False, **(local if address is None else {})
            )
        try:
            yield from _on_ray(ray, function, shards)
        finally:
            if own:
                ray.shutdown()

    return run


def _on_ray(ray: Any, function: Callable[[Shard], Any], shards: Sequence[Shard]) -> Iterator[Any]:
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_work)
    shared = ray.put(function)
    window = max(2, 2 * int(ray.cluster_resources().get("CPU", 1)))
    waiting: deque[Any] = deque()
    rest = iter(shards)
    while True:
        while len(waiting) < window and (shard := next(rest, None)) is not None:
            waiting.append(remote.remote(shared, shard))
        if not waiting:
            return
        try:
            result = ray.get(waiting.popleft())
        except ray.exceptions.RayTaskError as error:  # the work's own error, wrapped: ours are for the user
            raise (error.cause if isinstance(error.cause, CalibrantError) else error) from None
        yield result


def _work(function: Callable[[Shard], Any], shard: Shard) -> Any:
    _one_thread()
    return function(shard)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
