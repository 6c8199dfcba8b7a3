"""Memory while writing and counting rollouts does not grow with how many there are."""

from __future__ import annotations

from pathlib import Path

from benchmarks.store import measure_all


def test_memory_stays_that_of_one_question(tmp_path: Path) -> None:
    found = {row["step"]: row for row in measure_all(80_000, tmp_path)}
    assert found["counts"]["saw"] == ["80000 rollouts counted"]
    assert found["resume"]["saw"] == ["400 parts checked"]
    # A question of 40,000 rollouts takes some 20 MiB as arrays; a million of them as objects would take 500.
    for step in ("write", "resume", "finish", "counts"):
        assert found[step]["peak_mib"] < found["import"]["peak_mib"] + 120
