"""Many requests in flight from a pool of threads, for engines that are asked over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import pairwise

from fpa.engines.base import Completion, Continuation, EngineError, EngineStopped, Request

Complete = Callable[[Request, int, int], list[Continuation]]


def split(request: Request, chunk: int) -> Iterator[tuple[Request, int, int]]:
    """``(request, first draw, draws)`` parts of at most ``chunk`` draws, as equal as can be."""
    parts = -(-request.n // chunk)
    for first, end in pairwise(request.n * i // parts for i in range(parts + 1)):
        yield request, first, end - first


def sample_in_threads(
    requests: Iterable[Request],
    complete: Complete,
    *,
    chunk: int,
    in_flight: int,
    draws_in_flight: int | None = None,
) -> Iterator[Completion]:
    """Completions as they finish.

    Args:
        requests: read no faster than threads become free.
        complete: ``(request, first draw, draws)`` to those draws, in order; called in the pool's threads. An
            ``EngineError`` from it fails its request alone, ``EngineStopped`` ends everything.
        chunk: most draws to ask for at once.
        in_flight: parts asked for at a time.
        draws_in_flight: no further part is sent while as many draws are asked for; no such limit if None.
    """
    source = iter(requests)
    waiting: list[tuple[Request, int, int]] = []  # parts not yet sent
    running: dict[Future[list[Continuation]], tuple[Request, int]] = {}
    sizes: dict[Future[list[Continuation]], int] = {}  # draws of the running parts
    most = float("inf") if draws_in_flight is None else draws_in_flight
    parts: dict[str, dict[int, list[Continuation]]] = {}
    missing: dict[str, int] = {}
    exhausted = False
    pool = ThreadPoolExecutor(in_flight, thread_name_prefix="fpa-engine")
    try:
        while True:
            while len(running) < in_flight and sum(sizes.values()) < most and not (exhausted and not waiting):
                if not waiting:
                    request = next(source, None)
                    if request is None:
                        exhausted = True
                        continue
                    waiting = list(split(request, chunk))
                    parts[request.key], missing[request.key] = {}, len(waiting)
                request, first, draws = waiting.pop(0)
                if request.key not in parts:
                    continue  # another part of it has failed
                future = pool.submit(complete, request, first, draws)
                running[future], sizes[future] = (request, first), draws
            if not running:
                return
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                request, first = running.pop(future)
                del sizes[future]
                if request.key not in parts:
                    continue
                error = future.exception()
                if error is not None:
                    if not isinstance(error, EngineError) or isinstance(error, EngineStopped):
                        raise error
                    del parts[request.key]
                    yield Completion(request.key, (), str(error))
                    continue
                parts[request.key][first] = future.result()
                missing[request.key] -= 1
                if missing[request.key] == 0:
                    draws_in_order = sorted(parts.pop(request.key).items())
                    yield Completion(request.key, tuple(c for _, part in draws_in_order for c in part))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
