"""A collection killed at random moments ends, resumed, with exactly the rollouts of an undisturbed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 50

# One process imports everything and forks a collector for each kill: an import each time would be slower than
# the collection, and most kills would hit it instead.
SCRIPT = """
import json, os, random, shutil, signal, sys, time
from pathlib import Path
import numpy, pandas, pyarrow.parquet
import fpa, fpa.run
from fpa.collect import collect
from fpa.engines.fake import FakeEngine
from fpa.settings import Settings

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
settings = Settings(every=2, samples=3, base_tokens=30, rollout_tokens=30, keep_ids=True)
questions = fpa.load_questions("demo", limit=2)

def start(out):
    pid = os.fork()
    if pid == 0:
        collect(settings, FakeEngine(), questions, out)
        os._exit(0)
    return pid

def finish(out):
    assert os.waitpid(start(out), 0)[1] == 0

began = time.monotonic()
finish(folder / "undisturbed")
whole = time.monotonic() - began
chance = random.Random(2024)
report = []
while len(report) < kills:
    out = folder / f"killed{len(report):02d}"
    pid = start(out)
    time.sleep(chance.uniform(0, whole))
    os.kill(pid, signal.SIGKILL)
    if os.WIFSIGNALED(os.waitpid(pid, 0)[1]):
        report.append(len(list(out.glob("rollouts/*.parquet"))))
        finish(out)
    else:  # it had ended before: aim earlier
        whole *= 0.9
        shutil.rmtree(out)
print(json.dumps(report))
"""


def tables(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in run.rglob("*") if p.suffix == ".parquet"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_fifty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), str(KILLS)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    expected = tables(tmp_path / "undisturbed")
    assert len(expected) > 10
    for i in range(KILLS):
        run = tmp_path / f"killed{i:02d}"
        assert tables(run) == expected
        assert not (run / "quarantine").exists()
        assert list((run / ".tmp").iterdir()) == []
        assert not (run / "failures.jsonl").exists()
    # The kills must have hit collections at work: some with some of their parts on disk and some not.
    units = sum(name.startswith("rollouts") for name in expected)
    assert sum(0 < parts < units for parts in report) >= KILLS // 5
