"""The pool of engines on Ray: the same rows as one process, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

ray = pytest.importorskip("ray", reason="needs Ray: make test-vllm runs this")
psutil = pytest.importorskip("psutil", reason="needs psutil, which comes with vLLM")

import fpa  # noqa: E402
from fpa import cluster  # noqa: E402
from fpa.cluster import RayEngine, map_on_ray  # noqa: E402
from fpa.collect import Silent, Summary, collect  # noqa: E402
from fpa.curves import smooth_run as smooth_here  # noqa: E402
from fpa.engines.base import EngineError, EngineStopped, Request  # noqa: E402
from fpa.engines.fake import FakeEngine  # noqa: E402
from fpa.errors import UsageError  # noqa: E402
from fpa.run import open_run  # noqa: E402
from fpa.settings import Settings  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")

SETTINGS = Settings(every=2, samples=6, base_tokens=40, rollout_tokens=40, keep_ids=True)
QUESTIONS = fpa.load_questions("demo", limit=5)


@pytest.fixture(scope="module", autouse=True)
def _local_ray() -> Iterator[None]:
    cluster.connect(cpus=4)  # logical: the fake engine needs none
    yield
    ray.shutdown()


def rows(path: Path) -> pd.DataFrame:
    """All rollouts of a run, in a fixed order."""
    run = open_run(path)
    table = pd.concat([run.rollouts(q) for q in run.question_ids], ignore_index=True)
    return table.sort_values(["question_id", "start", "draw"], ignore_index=True)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert not collect(SETTINGS, FakeEngine(), QUESTIONS, out).failures
    return rows(out)


def pool(workers: int = 2, delay: float = 0.0) -> RayEngine:
    return RayEngine("fake", "fake", {"delay": delay}, workers=workers, cpus=0.5)


def same(path: Path, expected: pd.DataFrame) -> None:
    """Bit-identical rows: nothing lost, nothing twice."""
    pd.testing.assert_frame_equal(rows(path), expected, check_exact=True)


def worker_processes() -> list[Any]:
    """The processes of this test's Ray workers."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ray::Worker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Watching(Silent):
    """Calls something each time a unit is stored."""

    def __init__(self, then: Callable[[int], None]) -> None:
        self.units = 0
        self._then = then

    def advance(self, continuations: int, tokens: int) -> None:
        self.units += 1
        self._then(self.units)


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_are_those_of_one_process(workers: int, tmp_path: Path, undisturbed: pd.DataFrame) -> None:
    with pool(workers) as engine:
        assert engine.info == FakeEngine().info
        summary = collect(SETTINGS, engine, QUESTIONS, tmp_path / "run")
    assert not summary.failures
    same(tmp_path / "run", undisturbed)


@pytest.mark.parametrize("strategy", ["branches", "stratified", "adaptive"])
def test_every_strategy_gives_the_same_rows(strategy: str, tmp_path: Path) -> None:
    budget = {"budget": 4000} if strategy == "adaptive" else {}
    settings = Settings(strategy=strategy, every=4, samples=4, base_tokens=40, rollout_tokens=40, **budget)
    collect(settings, FakeEngine(), QUESTIONS, tmp_path / "one")
    with pool() as engine:
        collect(settings, engine, QUESTIONS, tmp_path / "pool")
    same(tmp_path / "pool", rows(tmp_path / "one"))


def test_all_workers_work() -> None:
    requests = [
        Request(f"r{i}", FakeEngine().encode_chat([{"content": f"q {i}"}]), 5, 10 * i, 1.0, 9)
        for i in range(40)
    ]
    with pool(2, delay=0.05) as engine:
        while len(engine._ready()) < 2:
            time.sleep(0.05)
        answers, busy = {}, []
        for completion in engine.sample(requests):
            answers[completion.key] = completion
            busy.append(sum(seat.draws > 0 for seat in engine._seats))
    assert answers == {c.key: c for c in FakeEngine().sample(requests)}
    assert max(busy) == 2


def test_workers_that_die_lose_nothing(tmp_path: Path, undisturbed: pd.DataFrame) -> None:
    killed = []

    def kill_one(units: int) -> None:
        if units in (3, 12, 20):
            process = worker_processes()[0]
            process.send_signal(signal.SIGKILL)
            killed.append(process.pid)

    with pool(2, delay=0.02) as engine:
        summary = collect(SETTINGS, engine, QUESTIONS, tmp_path / "run", Watching(kill_one))
    assert len(killed) == 3
    assert not summary.failures
    same(tmp_path / "run", undisturbed)


def test_the_last_worker_dying_loses_nothing(tmp_path: Path, undisturbed: pd.DataFrame) -> None:
    def kill_all(units: int) -> None:
        if units == 6:
            for process in worker_processes():
                process.send_signal(signal.SIGKILL)

    with pool(1, delay=0.02) as engine:
        collect(SETTINGS, engine, QUESTIONS, tmp_path / "run", Watching(kill_all))
    same(tmp_path / "run", undisturbed)


def running_after(seconds: float, processes: list[psutil.Process]) -> list[str]:
    """The names of those that still run when the time is over.

    A zombie has ended: what is left is a row for its parent, which in a container may be a first process that never
    collects it.
    """

    def runs(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    deadline = time.monotonic() + seconds
    while any(map(runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [process.name() for process in processes if runs(process)]


def test_a_zombie_no_longer_runs_and_a_sleeper_does() -> None:
    ended, sleeper = (
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({s})"]) for s in (0, 60)
    )
    try:
        while psutil.Process(ended.pid).status() != psutil.STATUS_ZOMBIE:  # until it is waited for
            time.sleep(0.01)
        processes = [psutil.Process(ended.pid), psutil.Process(sleeper.pid)]
        assert len(running_after(0.3, processes)) == 1
        sleeper.kill()
        assert running_after(30, processes) == []
    finally:
        sleeper.kill()
        ended.wait()
        sleeper.wait()


DRIVER = """
import sys
import fpa
from fpa import cluster
from fpa.cluster import RayEngine
from fpa.collect import collect
from fpa.settings import Settings
settings = Settings(every=2, samples=6, base_tokens=40, rollout_tokens=40, keep_ids=True)
cluster.connect(cpus=4)
with RayEngine("fake", "fake", {"delay": 0.1}, workers=2, cpus=0.5) as engine:
    collect(settings, engine, fpa.load_questions("demo", limit=5), sys.argv[1])
"""


def test_the_driver_dying_loses_nothing(tmp_path: Path, undisturbed: pd.DataFrame) -> None:
    out = tmp_path / "run"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(out)], env={**os.environ, "RAY_ADDRESS": ""})
    try:
        deadline = time.monotonic() + 120
        while len(list(out.glob("rollouts/*.parquet"))) < 8:
            assert driver.poll() is None, "the run was over before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.kill()
        driver.wait()
    before = {p.name: p.stat().st_mtime_ns for p in out.glob("rollouts/*.parquet")}
    with pool() as engine:
        summary = collect(SETTINGS, engine, QUESTIONS, out)
    assert 0 < summary.spent.continuations < len(undisturbed)  # what was there is not done again
    for name, written in before.items():
        assert (out / "rollouts" / name).stat().st_mtime_ns == written
    same(out, undisturbed)
    left = running_after(60, family)
    assert not left, f"the killed driver left {left} of {len(family)} behind"


def test_workers_that_keep_dying_end_the_run(tmp_path: Path) -> None:
    killing = [True]

    def killer() -> None:
        while killing[0]:
            for process in worker_processes():
                process.send_signal(signal.SIGKILL)
            time.sleep(0.01)

    import threading

    with pool(1, delay=0.2) as engine:
        thread = threading.Thread(target=killer)
        thread.start()
        try:
            with pytest.raises(EngineStopped, match="workers keep dying"):
                collect(SETTINGS, engine, QUESTIONS, tmp_path / "run")
        finally:
            killing[0] = False
            thread.join()


def test_a_bad_question_fails_alone(tmp_path: Path) -> None:
    word = QUESTIONS.questions[1].question.split()[0]
    alone = [q.question_id for q in QUESTIONS.questions if word in q.question.split()]
    with RayEngine("fake", "fake", {"fail": word}, workers=2, cpus=0.5) as engine:
        summary: Summary = collect(SETTINGS, engine, QUESTIONS, tmp_path / "run")
    assert sorted(summary.failures) == sorted(alone)
    assert all("told to fail" in why for why in summary.failures.values())


def test_a_model_that_does_not_load_is_one_line() -> None:
    with pytest.raises(EngineError, match="no such model file"):
        RayEngine("llamacpp", "/nowhere.gguf", workers=1, cpus=0.5)


def test_a_cluster_that_is_too_small_is_refused() -> None:
    with pytest.raises(UsageError, match=r"4 CPUs and 0 GPUs, too few for one engine of 1 CPUs and 1 GPUs"):
        RayEngine("fake", "fake", gpus=1)


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    code = "import fpa.cluster; fpa.cluster.connect('127.0.0.1:1')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "no Ray cluster at 127.0.0.1:1" in done.stderr.strip().splitlines()[-1]


def test_smoothing_on_ray_gives_the_same_curves(tmp_path: Path) -> None:
    collect(SETTINGS, FakeEngine(), QUESTIONS, tmp_path / "run")
    run = open_run(tmp_path / "run")
    seen: list[str] = []
    here = run.path / "curves" / f"{smooth_here(run, 'kernel')}.parquet"
    expected = pd.read_parquet(here)
    here.unlink()
    there = (
        run.path
        / "curves"
        / f"{cluster.smooth_run(run, 'kernel', on_question=lambda s: seen.append(s.question_id))}.parquet"
    )
    assert here == there
    pd.testing.assert_frame_equal(pd.read_parquet(there), expected, check_exact=True)
    assert seen == list(run.collected_ids)
    with pytest.raises(UsageError):
        cluster.smooth_run(run, "no-such-method")


def test_mapping_keeps_order_and_reads_no_faster_than_needed() -> None:
    read: list[int] = []

    def squared(n: int) -> int:
        if n == 30:
            raise UsageError("thirty is too many")
        return n * n

    def items(most: int) -> Iterator[int]:
        for n in range(most):
            read.append(n)
            yield n

    results = map_on_ray(squared, items(20))
    assert next(results) == 0
    assert len(read) < 20
    assert list(results) == [n * n for n in range(1, 20)]
    with pytest.raises(UsageError, match="thirty is too many"):
        list(map_on_ray(squared, items(40)))
