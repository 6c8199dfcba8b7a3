"""The experiments: every statistic on a case worked by hand, and every experiment on the reference run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from experiments import __main__ as command
from experiments import figures
from experiments.budget import cheapest, frontier, frontier_limits
from experiments.cells import cells, measured, prepared
from experiments.datasets import Dataset, distinct, find
from experiments.multiplier import seen_limits
from experiments.noise import by_halves, slope
from experiments.pieces import code_version, compute
from experiments.resampling import limits, mean_limits, multiplicities, ratio_limits
from experiments.result import markdown, number, with_limits
from experiments.spending import FreeDraws, spread_out, stored_of
from experiments.token_signals import (
    four_state,
    resolved_variance,
    threshold_state,
    token_signals,
    weighted_scores,
)
from fpa.errors import FpaError
from fpa.run import open_run
from fpa.score import score_questions
from smoothing.metrics import average_precision

REFERENCE = Path(__file__).resolve().parent.parent / "data" / "reference"


# --- statistics -------------------------------------------------------------------------------------------


def test_slope_of_a_power_law() -> None:
    sizes = np.array([4, 10, 50, 200])
    assert slope(sizes, 3.0 * sizes**-0.5) == pytest.approx(-0.5, abs=1e-12)


def test_error_by_halves_on_two_rows() -> None:
    a, b = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.5, 0.5], [0.5, 0.5]])
    # Distances 0.5 and 0, half of their mean 0.125; squares 0.5 and 0, a quarter of their mean 0.0625.
    assert by_halves(a, b) == pytest.approx((0.125, 0.0625))


def test_error_by_halves_is_that_of_a_multinomial() -> None:
    rng, n, p = np.random.default_rng(1), 50, np.array([0.5, 0.3, 0.2])
    found = np.mean([by_halves(*(rng.multinomial(n, p, (2, 400)) / n))[1] for _ in range(50)])
    # The mean of both halves has 2n draws: Σ p(1 − p)/(2n), known here to 1/√20000.
    assert found == pytest.approx((p * (1 - p)).sum() / (2 * n), rel=5 / np.sqrt(20_000))


def test_intervals_over_questions() -> None:
    assert (multiplicities(7).sum(axis=1) == 7).all()
    assert multiplicities(7).tolist() == multiplicities(7).tolist()
    assert limits(np.arange(101), 0.9) == pytest.approx((5.0, 95.0))
    assert np.isnan(limits([1.0, np.nan])).all()
    assert mean_limits([2.0, 2.0, np.nan]) == (2.0, 2.0, 2.0)
    value, low, high = mean_limits([3.0])
    assert value == 3.0
    assert np.isnan([low, high]).all()  # one question has no interval


def test_interval_of_a_mean_covers_it_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(2), 0
    for _ in range(200):
        _, low, high = mean_limits(rng.normal(size=40))
        hits += low <= 0 <= high
    # 95 %, a little less for a percentile interval of 40: within four standard errors of 0.935.
    assert abs(hits / 200 - 0.935) < 4 * np.sqrt(0.935 * 0.065 / 200)


def test_ratio_is_paired_over_questions() -> None:
    below = np.array([1.0, 5.0, 20.0, 3.0])
    assert ratio_limits(2 * below, below) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio_limits([1.0, np.nan], [2.0, 4.0])[0] == 0.5
    assert np.isnan(ratio_limits([1.0, 1.0], [-1.0, 0.5])[0])


def test_cheapest_cell_and_frontier() -> None:
    tv, tokens = np.array([0.10, 0.104, 0.2, 0.05]), np.array([50.0, 10.0, 5.0, 100.0])
    assert cheapest(tv, tokens, 0.10) == 1  # 4 % above the target is within the tolerance
    assert cheapest(tv, tokens, 0.01) is None
    assert frontier(tv, tokens).tolist() == [2, 1, 0, 3]
    assert frontier(np.array([0.1, 0.2]), np.array([1.0, 2.0])).tolist() == [0]


def test_interval_of_a_frontier() -> None:
    # Two questions alike in cost; the second cell costs twice as much and is better for the first question alone.
    error, price = np.array([[0.4, 0.2], [0.2, 0.2]]), np.array([[10.0, 10.0], [20.0, 20.0]])
    low, high = frontier_limits(error, price, np.array([0, 1]))
    assert low == pytest.approx([0.2, 0.2])
    assert high == pytest.approx([0.4, 0.2])
    # A dearer cell that is no better never makes the interval worse: the cheaper one is chosen.
    low, high = frontier_limits(error[::-1], price, np.array([0, 1]))
    assert high == pytest.approx([0.2, 0.2])
    assert np.isnan(frontier_limits(error[:, :1], price[:, :1], np.array([0]))).all()


def test_an_axis_holds_the_bands_that_are_drawn() -> None:
    drawn = pd.DataFrame(
        {"method": ["auto", "kernel"], "value": [10.0, 2.0], "low": [5.0, 0.1], "high": [100.0, np.nan]}
    )
    assert seen_limits(drawn) == pytest.approx((1.4, 150.0))  # kernel's band is not drawn


# --- signals ----------------------------------------------------------------------------------------------


def test_entropix_states_at_hand_worked_entropies() -> None:
    #        keep      clarify   branch    resample  overlap   default
    h = [0.2, 3.0, 1.0, 3.0, 2.0, 1.0]
    v = [1.0, 1.0, 3.0, 3.0, 3.0, 2.0]
    assert four_state(h, v) == ["keep", "clarify", "branch", "resample", "branch", "default"]
    bits = np.log(2)
    assert threshold_state(np.array([0.05, 6, 3, 6, 3]) * bits, np.array([0.05, 0.05, 6, 6, 1]) * bits**2) == [
        "argmax", "clarify", "explore", "resample", "adaptive",
    ]  # fmt: skip


def test_variance_that_a_token_decides() -> None:
    # Two tokens of ½ that lead to opposite answers decide all of Σ o(1 − o) = ½; without noise in one-hot shares.
    assert resolved_variance([0.5, 0.5], [[1, 0], [0, 1]], [200, 200]) == pytest.approx(0.5)
    assert resolved_variance([0.9, 0.1], [[0.5, 0.5]] * 2, [10**9] * 2) == pytest.approx(0.0, abs=1e-8)


def test_variance_that_a_token_decides_is_unbiased() -> None:
    rng, weight = np.random.default_rng(3), np.array([0.7, 0.2, 0.1])
    truth = np.array([[0.6, 0.4], [0.3, 0.7], [0.1, 0.9]])
    mean = weight @ truth
    exact = float(weight @ np.square(truth - mean).sum(axis=1))
    values = [
        resolved_variance(weight, np.stack([rng.multinomial(20, o) / 20 for o in truth]), [20] * 3)
        for _ in range(3000)
    ]
    assert np.mean(values) == pytest.approx(exact, abs=4 * np.std(values) / np.sqrt(len(values)))


def test_auroc_and_precision_by_hand() -> None:
    score, truth = [0.9, 0.8, 0.8, 0.1], [True, False, True, False]
    ap, auroc = weighted_scores(score, truth, np.ones((1, 4)))
    # Pairs won: (0.9 beats both) 2, (0.8 ties one, beats one) 1.5, of 4.
    assert auroc[0] == pytest.approx(3.5 / 4)
    assert ap[0] == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)
    none, nothing = weighted_scores(score, [False] * 4, np.ones((1, 4)))
    assert np.isnan([none[0], nothing[0]]).all()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3)), min_size=2, max_size=30))
def test_weights_are_repetitions(rows: list[tuple[int, bool, int]]) -> None:
    score, truth, weight = (np.array(column) for column in zip(*rows, strict=True))
    again = np.repeat(np.arange(len(rows)), weight)
    ap, auroc = weighted_scores(score, truth, weight[None, :].astype(float))
    if len(again):
        repeated, area = weighted_scores(score[again], truth[again], np.ones((1, len(again))))
        np.testing.assert_allclose([ap[0], auroc[0]], [repeated[0], area[0]])
        np.testing.assert_allclose(repeated[0], average_precision(score[again], truth[again]))


def test_draws_are_spread_in_proportion_until_there_is_no_room() -> None:
    weight, cost = np.array([1.0, 1.0, 2.0, 0.0]), np.array([10.0, 10.0, 5.0, 1.0])
    assert spread_out(weight, cost, np.array([99] * 4), 60.0) == pytest.approx([2, 2, 4, 0])
    # The third has room for one alone: what it leaves goes to the others.
    assert spread_out(weight, cost, np.array([99, 99, 1, 9]), 65.0) == pytest.approx([3, 3, 1, 0])
    assert spread_out(np.zeros(4), cost, np.array([9] * 4), 60.0).tolist() == [0] * 4


# --- the reference run ------------------------------------------------------------------------------------


def test_cells_agree_with_the_score_command() -> None:
    question = open_run(REFERENCE).collected_ids[0]
    mine = cells(REFERENCE, question, (5, 30), (1, 4), 2)
    theirs = score_questions(
        open_run(REFERENCE), None, (5, 30), (1, 4), 2, ("raw", "full", "auto"), [question]
    )
    key = ["method", "samples", "every", "replicate"]
    both = mine.merge(theirs, on=key, suffixes=("", "_score"))
    assert len(both) >= 3 * 2 * 2 * 2
    for column in ("tv", "error", "spread", "tv_jump@0.15", "tv_flat@0.20"):
        np.testing.assert_allclose(both[column], both[f"{column}_score"], atol=1e-12)
    assert (both["tokens"] == both["generated_tokens"]).all()


def test_no_cell_refers_to_its_own_draws() -> None:
    draws, positions, _ = prepared(REFERENCE, open_run(REFERENCE).collected_ids[0])
    own = draws.select(100, 1, 0).counts() / 100
    rest = (draws.counts() - draws.select(100, 1, 0).counts()) / 100
    seen: dict[str, Callable] = {"cheat": lambda o: lambda at: own}
    table = measured(REFERENCE, open_run(REFERENCE).collected_ids[0], (1,), 1, {100: seen})
    assert len(positions) == len(own)
    assert table["tv"].iloc[0] == pytest.approx(np.abs(own - rest).sum(axis=1).mean() / 2)


def test_signals_of_the_reference_find_its_answer_tokens() -> None:
    table = token_signals(REFERENCE, "demo-02")
    assert (table["tv"] <= 1).all()
    top = table.loc[table["variance"].idxmax()]
    assert top["tv"] > 0.3  # the answer's letter
    assert top["auto@0.15"] > 0.9
    base = open_run(REFERENCE).base("demo-02")
    np.testing.assert_allclose(table["entropy"], [base.distributions[t].entropy for t in table["t"]])
    assert table["tv_branch"].isna().all()  # no branches in a run of free draws


def test_draws_that_leave_are_handed_out_once_and_never_from_the_reference() -> None:
    source = FreeDraws(REFERENCE, "demo-01", 0)
    draws, _, _ = prepared(REFERENCE, "demo-01")
    room = source.room()
    assert source.reference.sum(axis=1).tolist() == [100] * len(source.positions)
    for at, count in enumerate(room):
        source.diverge(at, int(count) + 5)
    assert source.room().tolist() == [0] * draws.length
    assert source.divergence.sum() == room.sum() == source.taken.sum()
    left = np.array([((draws.diverge_at == t) & (draws.outcomes >= 0)).sum() for t in range(draws.length)])
    assert (room <= left).all()
    other = FreeDraws(REFERENCE, "demo-01", 0)
    np.testing.assert_array_equal(other.reference, source.reference)


# --- the command ------------------------------------------------------------------------------------------


def check_figure(name: str, figure: Figure) -> None:
    """Whether a figure of the reference run says its S and N, and shows its bands whole."""
    figure.draw_without_rendering()
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    for ax in figure.axes:
        assert ax._left_title.get_window_extent().x1 <= figure.bbox.x1
    if name in ("noise", "multiplier", "budget"):
        for ax in figure.axes:
            assert ax.collections
        whole = [ax for ax in figure.axes if name != "budget"]
        for low, high, at in [
            (*ax.get_ylim(), c.get_paths()[0].vertices) for ax in whole for c in ax.collections
        ]:
            assert low <= np.nanmin(at[:, 1])
            assert np.nanmax(at[:, 1]) <= high
    if name == "noise":
        assert re.fullmatch(
            r"reference \(3 questions\), N=1 token\n"
            r"slope: TV -0\.\d\d \(multinomial -0\.\d\d\), RMSE -0\.\d\d",
            titles[0],
        )
    if name == "forks":
        assert all("N=4 tokens" in title for title in titles)
    if name == "ablation":
        said = [text.get_text() for text in figure.legends[0].get_texts()]
        assert said == ["N=1 token", "N=4 tokens"]
    if name == "budget":
        said = [text.get_text() for text in figure.axes[0].texts]
        assert said[0] == "raw, S=30, N=1 token; as accurate:"
        assert [re.sub(r"\d+", "#", text).rstrip("s") for text in said[2:]] == [
            "full: S=#, N=# token", "auto: S=#, N=# token",
        ]  # fmt: skip
        assert len(figure.axes[0].collections) == 3  # bands of raw, full, auto


@pytest.mark.parametrize("name", command.EXPERIMENTS)
def test_every_experiment_on_the_reference_run(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    save = figures.save
    monkeypatch.setattr(figures, "save", lambda figure, *rest: (drawn.append(figure), save(figure, *rest))[1])
    status = command.main(
        [
            name,
            "--data",
            str(REFERENCE),
            "--out",
            str(tmp_path / "out"),
            "--cache",
            str(tmp_path / "cache"),
            "--workers",
            "1",
        ]
    )
    said = capsys.readouterr().out
    assert status == 0
    check_figure(name, drawn[0])
    assert "**reference (3 questions)**" in said
    assert "decide" in said or name in ("noise", "interval")  # three questions judge no claim
    assert (tmp_path / "out" / f"{name}.svg").stat().st_size > 10_000
    assert (tmp_path / "out" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    table = pd.read_csv(next(t for t in sorted((tmp_path / "out").glob("*.csv")) if "shown" not in t.name))
    assert len(table)
    whole = "\n".join(p.read_text() for p in (tmp_path / "out").glob("*.csv"))
    expected = {
        "signals": (
            "entropy",
            "Entropix four states: acts",
            "EAGER, θ=2.5",
            "stratified",
            "auto, S=30",
            "full, S=30",
        ),
        "ablation": ("raw", "no change points", "martingale", "bayes", "auto"),
    }
    for method in expected.get(name, ("raw", "kernel", "segment", "full", "martingale", "bayes", "auto")):
        assert method in whole


def test_the_page_reports_what_was_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "EXPERIMENTS", {"budget": command.EXPERIMENTS["budget"]})
    arguments = ["all", "--data", str(REFERENCE), "--workers", "1", "--cache", str(tmp_path / "cache")]
    arguments += ["--out", str(tmp_path / "out"), "--docs", str(tmp_path / "docs")]
    assert command.main(arguments) == 0
    page = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    assert "## `budget`" in page
    assert "python -m experiments budget" in page
    assert "images/results-budget.svg" in page
    first = (tmp_path / "docs" / "images" / "results-budget.svg").read_bytes()
    assert command.main(arguments) == 0  # from the cache, to the byte
    assert (tmp_path / "docs" / "results.md").read_text(encoding="utf-8") == page
    assert (tmp_path / "docs" / "images" / "results-budget.svg").read_bytes() == first


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["noise", "--docs", str(tmp_path), "--data", str(REFERENCE)]) == 2
    assert command.main(["noise", "--data", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
    with pytest.raises(FpaError):
        find([tmp_path])


def _counted(path: Path, question_id: str, log: str) -> pd.DataFrame:
    with open(log, "a", encoding="utf-8") as file:
        file.write(question_id + "\n")
    return pd.DataFrame({"x": [len(question_id)]})


def test_pieces_are_made_once_and_again_when_a_parameter_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_counted, "__module__", "experiments.cells")
    monkeypatch.setitem(vars(__import__("experiments.cells", fromlist=["cells"])), "_counted", _counted)
    dataset, log, other = Dataset(REFERENCE), tmp_path / "log", tmp_path / "other"
    first = compute(dataset, _counted, tmp_path / "cache", 1, log=str(log))
    assert first.equals(compute(dataset, _counted, tmp_path / "cache", 1, log=str(log)))
    assert len(log.read_text().splitlines()) == len(dataset.questions)
    compute(dataset, _counted, tmp_path / "cache", 1, log=str(other))
    assert len(other.read_text().splitlines()) == len(dataset.questions)
    assert first["question_id"].tolist() == list(dataset.questions)


def test_code_version_follows_imports() -> None:
    versions = {code_version(m) for m in ("experiments.cells", "experiments.noise", "smoothing.metrics")}
    assert len(versions) == 3


# --- output -----------------------------------------------------------------------------------------------


def test_numbers_and_tables() -> None:
    assert [number(v) for v in (0.0123456, 1234.5, 0.0, float("nan"), -0.5)] == [
        "0.0123", "1,234", "0", "–", "-0.500",
    ]  # fmt: skip
    assert with_limits(1.0, 0.5, 2.0, 2) == "1.0 [0.50, 2.0]"
    assert markdown(pd.DataFrame({"a|b": ["x"], "n": [0.5]})).splitlines()[0] == "| a\\|b | n |"


def test_ticks() -> None:
    assert [figures.short(v) for v in (0.5, 20, 2000, 3e6)] == ["0.5", "20", "2k", "3M"]
    assert figures.nice_ticks(0.9, 12) == [1, 2, 5, 10]
    assert len(figures.nice_ticks(1, 1e9)) <= 10
    plt.close("all")


# --- released rollouts ------------------------------------------------------------------------------------


@pytest.mark.shared
@pytest.mark.xdist_group("published")
def test_a_released_question_is_replayed_as_it_was_stored(shared: Path) -> None:
    from stores import imported

    from experiments.replay import Stored

    folder, _ = imported(shared)
    run = folder / "s200-llama"
    question = open_run(run).collected_ids[0]
    mine = stored_of(run, question)
    row = shared / "data" / "forking-fast" / "s200" / "llama" / f"{question}.json.gz"
    theirs = Stored.read(row)
    assert mine.categories == theirs.categories
    assert mine.every_token == theirs.every_token
    assert mine.base_outcome == theirs.base_outcome
    np.testing.assert_allclose(mine.curve, theirs.curve, atol=2e-6)
    np.testing.assert_allclose(mine.step_p, theirs.step_p)
    assert np.sort(mine.tokens.sum(axis=1)).tolist() == np.sort(theirs.tokens.sum(axis=1)).tolist()
    kept = distinct([Dataset(folder / name) for name in ("s200-llama", "s1000-llama", "s200-deepseek")])
    assert [d.name for d in kept] == ["s200-llama", "s200-deepseek"]
