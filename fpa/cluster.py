"""The same work on many machines: a pool of engines on Ray that looks like one engine.

``RayEngine`` keeps the engine contract, so everything that collects with one engine collects with a pool, into
the same run directory and with the same rows. The process that collects stays the only writer. Workers may die: what
they had in hand is given to others. The collecting process may die: the run is resumed as ever.
"""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fpa.curves import LEVEL, Smoothed, collected, curve_name, curve_table
from fpa.engines import load_engine
from fpa.engines.base import (
    Completion,
    Engine,
    EngineError,
    EngineInfo,
    EngineStopped,
    GreedyPath,
    Message,
    Request,
)
from fpa.engines.fake import FakeEngine
from fpa.engines.hub import HubTokenizer, package
from fpa.errors import FpaError, UsageError
from fpa.run import Run
from smoothing import Observations, fit

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_DEATHS = 3  # of one worker in a row, without an answer in between, before the pool gives up
DRAWS_AT_ONCE = 32  # taken for an engine that does not say how many draws it has in hand
AHEAD = 2  # draws that wait at a worker, as multiples of what its engine has in hand
AFFINE = 24  # leading tokens of a prefix by which its next positions find the worker that has it cached
HUB_OPTIONS = ("chat_template", "revision", "trust_remote_code")


def connect(address: str | None = None, cpus: int | None = None) -> Any:
    """Join a Ray cluster, or start Ray on this machine where there is no address.

    Raises:
        EngineError: Ray is not installed, or the cluster cannot be reached.
    """
    ray = package("ray", "cluster", "ray")
    if ray.is_initialized():
        return ray
    if address is not None:
        _check_reachable(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
    for tries_left in (2, 1, 0):
        try:
            if address is None:
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
            else:
                ray.init(address=address, log_to_driver=False)
            break
        except Exception as error:  # Ray raises plain Exception where its start-up takes too long
            ray.shutdown()
            if address is None and tries_left and "timed out during startup" in str(error):
                continue  # its limit is half a minute, which a busy machine misses at times
            first = str(error).strip().splitlines()[0]
            raise EngineError(
                f"no Ray cluster at {address or 'this machine'} ({first}): start one with ray start, or leave "
                "the address out to use this machine alone"
            ) from error
    return ray


def _check_reachable(address: str) -> None:
    """Refuse an address where nobody listens: Ray itself would end this process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # a name such as auto, which Ray resolves
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:  # the latter for ports too large
        raise EngineError(
            f"no Ray cluster at {address} ({error}): start one with ray start --head, or leave the address out to "
            "use this machine alone"
        ) from error


class Worker:
    """One engine in a process of its own (a Ray actor).

    All work for the engine goes through one thread: draws join what the engine has in flight, and base paths and
    readouts go first, as they do when one process collects.
    """

    def __init__(self, name: str, model: str, options: Mapping[str, Any]) -> None:
        self._make = (name, model, dict(options))
        self._engine: Engine | None = None
        self._draws: queue.SimpleQueue[tuple[Request, Callable[[Any], None]]] = queue.SimpleQueue()
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...], Callable[[Any], None]]] = (
            queue.SimpleQueue()
        )
        self._something = threading.Semaphore(0)

    async def load(self) -> tuple[EngineInfo, int]:
        """Load the model; what it is, and how many draws it has in hand at once."""
        if self._engine is None:
            name, model, options = self._make
            self._engine = await asyncio.to_thread(load_engine, name, model, **options)
            threading.Thread(target=self._work, daemon=True).start()
        return self._engine.info, int(getattr(self._engine, "at_once", DRAWS_AT_ONCE))

    async def complete(self, request: Request) -> Completion:
        """The draws of one request."""
        result: Completion = await self._wait(lambda done: self._draws.put((request, done)))
        return result

    async def call(self, method: str, *arguments: Any) -> Any:
        """The result of another method of the engine, in its turn."""
        return await self._wait(lambda done: self._calls.put((method, arguments, done)))

    async def text(self, method: str, *arguments: Any) -> Any:
        """The result of a method that only turns text into tokens or back."""
        return await asyncio.to_thread(getattr(self._engine, method), *arguments)

    async def ends(self) -> frozenset[int]:
        """Ids of the tokens that end a turn."""
        assert self._engine is not None
        return self._engine.end_ids

    async def _wait(self, put: Callable[[Callable[[Any], None]], None]) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def done(result: Any) -> None:
            loop.call_soon_threadsafe(future.set_result, result)

        put(done)
        self._something.release()
        result = await future
        if isinstance(result, BaseException):
            raise result
        return result

    def _work(self) -> None:
        """The engine's thread."""
        assert self._engine is not None
        waiting: dict[str, Callable[[Any], None]] = {}
        while True:
            self._something.acquire()
            self._something.release()
            try:
                for completion in self._engine.sample(self._feed(waiting)):
                    waiting.pop(completion.key)(completion)
            except BaseException as error:  # whoever waits has to hear of it
                for done in waiting.values():
                    done(error)
                waiting.clear()

    def _feed(self, waiting: dict[str, Callable[[Any], None]]) -> Iterator[Request]:
        """What is asked for now; ends when nothing is, so that the engine is never kept from its draws."""
        while self._something.acquire(blocking=False):
            try:
                method, arguments, done = self._calls.get_nowait()
            except queue.Empty:
                request, done = self._draws.get_nowait()
                waiting[request.key] = done
                yield request
                continue
            try:
                done(getattr(self._engine, method)(*arguments))
            except BaseException as error:
                done(error)


@dataclass(eq=False)
class _Seat:
    """A place for one worker, which is filled again when the worker dies."""

    actor: Any = None
    loading: Any = None
    info: EngineInfo | None = None
    ready: bool = False
    draws: int = 0
    at_once: int = DRAWS_AT_ONCE
    deaths: int = 0
    heads: dict[tuple[int, ...], None] = field(default_factory=dict)


class RayEngine:
    """A pool of engines on Ray that keeps the contract of one.

    Args:
        name, model, options: the engine that every worker loads, as for ``load_engine``.
        address: of a Ray cluster; None starts Ray on this machine.
        workers: engines in the pool; as many as fit the cluster by default.
        gpus, cpus: of one engine.

    Raises:
        UsageError: the cluster is too small for a single engine.
        EngineError: Ray is missing or cannot be reached, or the engine does not load.
    """

    def __init__(
        self,
        name: str,
        model: str,
        options: Mapping[str, Any] | None = None,
        *,
        address: str | None = None,
        workers: int | None = None,
        gpus: float = 0.0,
        cpus: float = 1.0,
    ) -> None:
        self._ray = connect(address)
        room = self._ray.cluster_resources()
        fits = min(
            int(room.get("CPU", 0) / cpus) if cpus else 10**6,
            int(room.get("GPU", 0) / gpus) if gpus else 10**6,
        )
        if fits < 1:
            raise UsageError(
                f"the Ray cluster has {room.get('CPU', 0):.0f} CPUs and {room.get('GPU', 0):.0f} GPUs, too few for "
                f"one engine of {cpus:g} CPUs and {gpus:g} GPUs"
            )
        count = workers if workers is not None else fits
        if count < 1:
            raise UsageError(f"the pool needs at least one worker, got {count}")
        self._errors = self._ray.exceptions
        self._make = (name, model, dict(options or {}))
        self._resources = {"num_cpus": cpus, "num_gpus": gpus}
        self._seats = [_Seat() for _ in range(count)]
        self._expected: dict[Any, Any] = {}
        self._text = self._text_side()
        for seat in self._seats:
            self._fill(seat)
        self.info = self._first_info()
        self.ahead = 2 * count

    # --- workers

    def _fill(self, seat: _Seat) -> None:
        """Put a new worker into a seat."""
        kind = self._ray.remote(Worker).options(max_concurrency=100_000, max_restarts=0, **self._resources)
        seat.actor = kind.remote(*self._make)
        seat.loading = seat.actor.load.remote()
        seat.ready, seat.draws, seat.heads = False, 0, {}

    def _first_info(self) -> EngineInfo:
        while not (seats := self._ready()):
            self._wait_for_one()
        assert seats[0].info is not None
        return seats[0].info

    def _ready(self) -> list[_Seat]:
        """The seats whose workers have loaded."""
        for seat in self._seats:
            if not seat.ready and self._ray.wait([seat.loading], timeout=0)[0]:
                self._seat_loaded(seat)
        return [seat for seat in self._seats if seat.ready]

    def _seat_loaded(self, seat: _Seat) -> None:
        try:
            info, seat.at_once = self._ray.get(seat.loading)
        except self._errors.RayTaskError as error:
            raise _cause(error) from error
        except self._errors.RayActorError as error:
            self._died(seat, error)
            return
        known = getattr(self, "info", info)
        if (info.name, info.model, info.fingerprint) != (known.name, known.model, known.fingerprint):
            raise EngineError(
                f"a worker loaded another model ({info.model}, {info.fingerprint}) than the others"
            )
        seat.info = info
        seat.ready = True

    def _wait_for_one(self) -> None:
        """Wait until some worker has loaded, or failed to."""
        self._ray.wait([seat.loading for seat in self._seats if not seat.ready], num_returns=1, timeout=5.0)

    def _died(self, seat: _Seat, error: BaseException) -> None:
        """A worker is gone: put another into its seat, unless they all die there."""
        seat.deaths += 1
        if seat.deaths >= MOST_DEATHS:
            raise EngineStopped(
                f"workers keep dying ({' '.join(str(error).split())[:200]}): look at the machine's memory, then run "
                "the same command again"
            ) from error
        self._ray.kill(seat.actor)
        self._fill(seat)

    def _on(self, seats: Sequence[_Seat], method: str, *arguments: Any) -> Any:
        """The result of a call that any worker can do; another one does it where the first dies."""
        while True:
            seat = min(seats or self._some(), key=lambda s: s.draws)
            actor = seat.actor
            try:
                return self._ray.get(getattr(actor, method).remote(*arguments))
            except self._errors.RayTaskError as error:
                cause = _cause(error)
                if not isinstance(cause, EngineStopped):
                    raise cause from error
                lost: BaseException = cause
            except self._errors.RayActorError as error:
                lost = error
            if seat.actor is actor:  # nobody has seen to it yet
                self._died(seat, lost)
            seats = ()

    def _some(self) -> list[_Seat]:
        """Seats with a worker, waiting for one where all have just died."""
        while not (seats := self._ready()):
            self._wait_for_one()
        return seats

    # --- text and tokens

    def _text_side(self) -> Any:
        """What turns text into tokens here, without asking a worker; None where only the engine can."""
        name, model, options = self._make
        if name in ("vllm", "transformers"):
            given = {k: v for k, v in options.items() if k in HUB_OPTIONS}
            return HubTokenizer(model, engine=name, extra=name, **given)
        return FakeEngine(model, **options) if name == "fake" else None

    def _text_call(self, method: str, *arguments: Any) -> Any:
        if self._text is not None:
            return getattr(self._text, method)(*arguments)
        return self._on((), "text", method, *arguments)

    def encode_chat(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Token ids of a conversation through the model's chat template; one BOS if the model has one."""
        return tuple(self._text_call("encode_chat", messages))

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of plain text: no special tokens added, none parsed."""
        return tuple(self._text_call("encode", text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self._text_call("decode", token_ids))

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """The text each token adds, special tokens shown."""
        return tuple(self._text_call("pieces", token_ids))

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids of the tokens that end a turn."""
        if not hasattr(self, "_ends"):
            self._ends: frozenset[int] = (
                self._text.end_ids if self._text is not None else self._on((), "ends")
            )
        return self._ends

    # --- generation

    def expect(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> None:
        """Begin a base path that ``greedy`` will be asked for soon."""
        asked = (tuple(prompt_ids), max_tokens, temperature)
        if asked not in self._expected:
            seat = min(self._some(), key=lambda s: s.draws)
            self._expected[asked] = seat.actor.call.remote("greedy", *asked)

    def greedy(self, prompt_ids: Sequence[int], max_tokens: int, temperature: float) -> GreedyPath:
        """The greedy path; see the contract in ``fpa.engines.base``."""
        asked = (tuple(prompt_ids), max_tokens, temperature)
        begun = self._expected.pop(asked, None)
        if begun is not None:
            try:
                path: GreedyPath = self._ray.get(begun)
                return path
            except self._errors.RayTaskError as error:
                if not isinstance(_cause(error), EngineStopped):
                    raise _cause(error) from error
            except self._errors.RayActorError:
                pass  # the worker is gone: ask again, which sees to it
        again: GreedyPath = self._on((), "call", "greedy", *asked)
        return again

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        """Completions as they finish, over all workers; what a dying worker had in hand goes to others."""
        source = iter(requests)
        again: list[Request] = []
        running: dict[Any, tuple[Request, _Seat, Any]] = {}
        exhausted = False
        try:
            while True:
                while (again or not exhausted) and (seats := self._free()):
                    request = again.pop() if again else next(source, None)
                    if request is None:
                        exhausted = True
                        break
                    # Asking for the next request may have taken a while: look at the workers anew.
                    seat = self._seat_for(request, self._free() or seats)
                    seat.draws += request.n
                    ref = seat.actor.complete.remote(request)
                    running[ref] = (request, seat, seat.actor)
                if not running:
                    if exhausted and not again:
                        return
                    self._wait_for_one()
                    continue
                done, _ = self._ray.wait(list(running), num_returns=1, timeout=1.0)
                for ref in done:
                    request, seat, actor = running.pop(ref)
                    completion = self._collect(ref, request, seat, actor)
                    if completion is None:
                        again.append(request)
                    else:
                        yield completion
        finally:
            for ref, (request, seat, actor) in running.items():
                if seat.actor is actor:
                    seat.draws -= request.n
                self._ray.cancel(ref)

    def _collect(self, ref: Any, request: Request, seat: _Seat, actor: Any) -> Completion | None:
        """The answer to a request; None where its worker died, which is seen to."""
        lost: BaseException
        try:
            completion: Completion = self._ray.get(ref)
        except self._errors.RayTaskError as error:
            lost = _cause(error)
            if not isinstance(lost, EngineStopped):
                raise lost from error
        except self._errors.RayActorError as error:
            lost = error
        else:
            if seat.actor is actor:
                seat.draws -= request.n
            seat.deaths = 0
            return completion
        if seat.actor is actor:
            self._died(seat, lost)
        return None

    def _free(self) -> list[_Seat]:
        """Workers that take more draws; an idle one takes a request of any size."""
        return [s for s in self._ready() if s.draws == 0 or s.draws < AHEAD * s.at_once]

    def _seat_for(self, request: Request, seats: Sequence[_Seat]) -> _Seat:
        """The worker that has this prefix cached, unless it is busier than the others; else the least busy."""
        head = request.prefix_ids[:AFFINE]
        seat = min(seats, key=lambda s: (s.draws // max(1, s.at_once), head not in s.heads, s.draws))
        seat.heads.pop(head, None)
        seat.heads[head] = None
        if len(seat.heads) > 1000:
            seat.heads.pop(next(iter(seat.heads)))
        return seat

    def choose(self, prefixes: Sequence[tuple[int, ...]], candidates: Sequence[int]) -> NDArray[np.float64]:
        """(len(prefixes), len(candidates)) raw next-token probabilities of the candidate tokens."""
        if not prefixes:
            return np.zeros((0, len(candidates)))
        seats = self._some()
        parts = [list(part) for part in np.array_split(np.arange(len(prefixes)), len(seats)) if len(part)]
        asked = [([prefixes[i] for i in part], list(candidates)) for part in parts]
        begun = [s.actor.call.remote("choose", *a) for s, a in zip(seats, asked, strict=False)]
        tables = []
        for ref, arguments in zip(begun, asked, strict=True):
            try:
                tables.append(self._ray.get(ref))
            except (self._errors.RayActorError, self._errors.RayTaskError):
                tables.append(self._on((), "call", "choose", *arguments))
        return np.concatenate(tables)

    def close(self) -> None:
        """Let the workers go; the cluster stays."""
        for seat in self._seats:
            self._ray.kill(seat.actor)
        self._seats = []

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _cause(error: Any) -> BaseException:
    """The exception that a worker raised."""
    cause = error.cause
    return cause if isinstance(cause, FpaError) else error


def map_on_ray(
    function: Callable[[Item], Result], items: Iterable[Item], *, address: str | None = None, ahead: int = 2
) -> Iterator[Result]:
    """``map`` over a Ray cluster: results in the order of the items, few of them held at a time.

    A task whose worker dies is done again; what ``function`` raises is raised here.

    Args:
        function: without side effects, importable where the workers run.
        items: read no faster than results are taken, ``ahead`` of them per CPU.
        address: of a Ray cluster; None starts Ray on this machine.
        ahead: tasks waiting for each CPU.
    """
    ray = connect(address)
    task = ray.remote(function).options(max_retries=5)
    most = max(2, int(ahead * ray.cluster_resources().get("CPU", 1)))
    running: list[Any] = []
    source = iter(items)
    while True:
        while len(running) < most:
            try:
                running.append(task.remote(next(source)))
            except StopIteration:
                break
        if not running:
            return
        try:
            yield ray.get(running.pop(0))
        except ray.exceptions.RayTaskError as error:
            raise _cause(error) from error


def smooth_run(
    run: Run,
    method: str,
    samples: int | None = None,
    every: int = 1,
    replicate: int = 0,
    hyperparameters: Mapping[str, Any] | None = None,
    on_question: Callable[[Smoothed], None] | None = None,
    *,
    address: str | None = None,
) -> str:
    """``fpa.curves.smooth_run`` with the questions spread over a Ray cluster: the same table.

    The run is read and written here; workers see only counts and curves.
    """

    def tasks() -> Iterator[tuple[str, Observations, str, Mapping[str, Any] | None]]:
        for question_id in collected(run):
            yield (
                question_id,
                run.observations(question_id, samples, every, replicate),
                method,
                hyperparameters,
            )

    frames = []
    for smoothed in map_on_ray(_smooth, tasks(), address=address):
        frames.append(curve_table(smoothed))
        if on_question is not None:
            on_question(smoothed)
    name = curve_name(method, samples, every, replicate)
    run.save_curves(name, pd.concat(frames, ignore_index=True))
    return name


def _smooth(task: tuple[str, Observations, str, Mapping[str, Any] | None]) -> Smoothed:
    question_id, observations, method, hyperparameters = task
    try:
        fitted = fit(observations, method=method, hyperparameters=hyperparameters)
    except ValueError as error:
        raise UsageError(f"{question_id}: {error}") from error
    lo, hi = fitted.band(observations.grid, LEVEL)
    return Smoothed(question_id, method, observations, fitted, fitted.predict(observations.grid), lo, hi)
