"""Requests in step: what shares a step, in which order, and that no draw depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import END, Scripted

from fpa.eager import TreeSampler
from fpa.engines.base import Completion, EngineError, EngineStopped, Request
from fpa.entropix import FourStateRules
from fpa.guided import RuleSampler, StepSampler
from fpa.records import Distribution

WAIT = 7
SAMPLERS = ("rules", "trees")


def sampler_on(kind: str, engine: Scripted) -> StepSampler:
    if kind == "trees":
        return TreeSampler(engine, theta=1.0)  # type: ignore[arg-type]
    return RuleSampler(engine, FourStateRules(), WAIT, branch_limit=2, branch_min_p=0.0)  # type: ignore[arg-type]


def forks_and_ends(ids: tuple[int, ...]) -> np.ndarray:
    """Every third token is drawn of many and splits sequences; others may end the turn. No token is 0, 5 or 7."""
    p = np.zeros(300)
    if len(ids) % 3 == 1:
        p[1], p[20:276] = 0.9, 0.1 / 256
        return p
    p[[1, 2, 3, 4, END]] = 0.4, 0.2, 0.1, 0.1, 0.2
    return p


def request(name: int, n: int = 2, length: int = 8, temperature: float = 1.0) -> Request:
    # Prefixes that differ in their first token, so that a step's prefixes tell whose they are.
    return Request(str(name), (1000 + name,), n, 50 * name, temperature, length)


def by_key(done: Sequence[Completion]) -> dict[str, Completion]:
    assert len({c.key for c in done}) == len(done)
    return {c.key: c for c in done}


def owners(call: Sequence[tuple[int, ...]]) -> set[int]:
    return {prefix[0] - 1000 for prefix in call}


@pytest.mark.parametrize("kind", SAMPLERS)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9),
    at_once=st.integers(1, 24),
)
def test_no_draw_depends_on_what_shares_its_steps(
    kind: str, sizes: list[tuple[int, int]], at_once: int
) -> None:
    requests = [request(i, n, length) for i, (n, length) in enumerate(sizes)]
    shared = Scripted(forks_and_ends, at_once, reproducible=False)
    together = by_key(list(sampler_on(kind, shared).sample(requests)))
    apart = Scripted(forks_and_ends, at_once)
    assert together == by_key(list(sampler_on(kind, apart).sample(requests)))
    # The same is read of the engine, nothing twice and in no more steps; and it is never given more at once than it
    # has room for, but for one request that needs more by itself.
    assert sorted(shared.asked) == sorted(apart.asked)
    assert shared.steps <= apart.steps
    assert all(len(call) <= at_once or len(owners(call)) == 1 for call in shared.calls)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_requests_share_steps_and_take_as_many_as_the_longest(kind: str) -> None:
    engine = Scripted(lambda ids: np.eye(40)[4], at_once=32, reproducible=False)
    done = list(sampler_on(kind, engine).sample([request(i, n=2, length=5 + i) for i in range(8)]))
    assert [c.key for c in done] == list("01234567")  # as they finish
    assert engine.steps == 12
    assert owners(engine.calls[0]) == set(range(8))
    assert owners(engine.calls[-1]) == {7}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_engine_that_promises_the_same_tokens_reads_one_request_at_a_time(kind: str) -> None:
    engine = Scripted(forks_and_ends, at_once=32)
    done = list(sampler_on(kind, engine).sample([request(i, n=3) for i in range(6)]))
    assert [c.key for c in done] == list("012345")
    assert all(len(owners(call)) == 1 for call in engine.calls)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_requests_are_read_no_faster_than_there_is_room(kind: str) -> None:
    read = 0

    def coming() -> Iterator[Request]:
        nonlocal read
        for i in range(12):
            read += 1
            yield request(i, n=1, length=4)

    sampler = sampler_on(kind, Scripted(lambda ids: np.eye(40)[4], at_once=3, reproducible=False))
    for finished, _ in enumerate(sampler.sample(coming())):
        assert read <= 3 + finished + 1
    assert read == 12


@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_is_read_at_another_temperature_waits(kind: str) -> None:
    temperatures = [0.5, 1.0, 0.5, 1.0]
    engine = Scripted(forks_and_ends, reproducible=False)
    requests = [request(i, temperature=t) for i, t in enumerate(temperatures)]
    done = by_key(list(sampler_on(kind, engine).sample(requests)))
    assert all(len({temperatures[i] for i in owners(call)}) == 1 for call in engine.calls)
    assert done == by_key(list(sampler_on(kind, Scripted(forks_and_ends)).sample(requests)))


@pytest.mark.parametrize("kind", SAMPLERS)
@given(broken=st.sets(st.integers(0, 7), min_size=1))
def test_whatever_fails_in_a_shared_step_fails_alone(kind: str, broken: set[int]) -> None:
    """Token 5 in a prefix is an error of the scripted engine: here in the prompt, or on the way."""

    def p(ids: tuple[int, ...]) -> np.ndarray:
        return np.eye(40)[5 if len(ids) == 3 and ids[0] in (11, 12) else 4]

    firsts = {i: (5, 11, 12)[i % 3] if i in broken else 13 for i in range(8)}
    requests = [Request(str(i), (1000 + i, first), 2, i, 1.0, 6) for i, first in firsts.items()]
    engine = Scripted(p, at_once=32, reproducible=False)
    done = by_key(list(sampler_on(kind, engine).sample(requests)))
    assert len(done) == 8
    for i in range(8):
        assert done[str(i)].error == ("no fives" if i in broken else None)
    whole = by_key(list(sampler_on(kind, Scripted(p)).sample(requests)))
    assert done == whole


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("gone", [True, False])
def test_an_engine_that_fails_in_the_middle_or_is_gone(kind: str, gone: bool) -> None:
    class Failing(Scripted):
        def next_distributions(self, *args: object, **more: object) -> list[Distribution]:  # type: ignore[override]
            if self.steps == 3:
                raise EngineStopped("gone") if gone else EngineError("out of order")
            return super().next_distributions(*args, **more)  # type: ignore[arg-type]

    sampler = sampler_on(kind, Failing(lambda ids: np.eye(40)[4], reproducible=False))
    requests = [request(i) for i in range(3)]
    if gone:
        with pytest.raises(EngineStopped, match="gone"):
            list(sampler.sample(requests))
    else:
        assert [c.error for c in sampler.sample(requests)] == ["out of order"] * 3


def test_an_error_of_the_decoder_befalls_its_request_alone() -> None:
    class Undecodable(Scripted):
        def decode(self, ids: Sequence[int]) -> str:
            if ids[-1] == 3:
                raise EngineError("no threes")
            return super().decode(ids)

    engine = Undecodable(lambda ids: np.eye(40)[ids[0] if ids else 4], reproducible=False)
    requests = [Request(str(token), (1000, token), 2, 0, 1.0, 4, stop=("x",)) for token in (2, 3, 4)]
    done = by_key(list(RuleSampler(engine, FourStateRules(), WAIT).sample(requests)))  # type: ignore[arg-type]
    assert [done[k].error for k in "234"] == [None, "no threes", None]
