"""The published protocol on the released rollouts: the published figures, cell by cell.

A part of the cells here, every method, measure and region in it; ``python -m experiments.protocol`` checks all.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from stores import imported

from experiments.protocol import TOLERANCE, compare, published, score_track
from fpa.run import open_run

pytestmark = [pytest.mark.shared, pytest.mark.xdist_group("published")]

# Few and many draws, coarse grids (fast) and one dense one a track.
CELLS = {"llama": [((5, 100), (16,))], "deepseek": [((5, 30), (4,)), ((20,), (1,))]}


@pytest.mark.parametrize("track", ["llama", "deepseek"])
def test_published_figures_come_out_within_a_millionth(shared: Path, track: str) -> None:
    folder, _ = imported(shared)
    figures = published(shared)[track]
    for samples, every in CELLS[track]:
        table = score_track(open_run(folder / f"s200-{track}"), track, samples, every)
        found = compare(table, figures)
        assert len(found) == 9 * 3 * len(samples) * len(every)
        assert {"tv", "tv_jump@0.10", "tv_jump@0.20", "tv_flat@0.15", "heldout_loglik", "coverage90"} <= set(
            found["measure"]
        )
        wrong = found[~(found["difference"].abs() <= TOLERANCE)]
        assert wrong.empty, wrong.to_string()
