"""The explorer's data: what the pages are given is what the run and the smoothers say."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from explore_runs import FIRST_ALTERNATIVE, HOSTILE, World, read_data, rollouts, world, write_run
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import fpa
import smoothing
from fpa.collect import collect
from fpa.eager import branch_points
from fpa.engines.fake import FakeEngine
from fpa.entropix import LETTERS, FourStateRules, ThresholdRules, four_state, threshold_state
from fpa.errors import FpaError, UsageError
from fpa.explore import explore, view
from fpa.explore.alternatives import ANOTHER, alternatives
from fpa.explore.pack import SCALE, deltas, quantised, write_data
from fpa.explore.serve import make_server
from fpa.parts import write_part
from fpa.progress import CountProgress
from fpa.published import import_published
from fpa.run import open_run
from fpa.settings import Settings
from fpa.store import question_key
from smoothing import fit
from smoothing.metrics import jumps


def data_of(site: Path, name: str) -> Any:
    return read_data(site / "data" / f"{name}.js")


def curve_of(columns: list[list[int]]) -> np.ndarray:
    return np.cumsum(columns, axis=1).T / SCALE


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A run of three questions, its reference, and the pages of both."""
    folder = tmp_path_factory.mktemp("explore")
    worlds = [world("q1", subject="maths"), world("q2", fork=None), world(HOSTILE, question=HOSTILE, every=3)]
    run = write_run(folder / "run", worlds)
    dense = [World(w.question, w.tokens, w.p, w.divert, w.ends, 60) for w in worlds[:2]]
    reference = write_run(folder / "reference", dense, seed=50, texts=False)
    site = folder / "site"
    explore(run, site, reference, ("full",), samples=(5, 10), every=(1, 2, 4), workers=1)
    return run, reference, site


# --- packing


@given(st.lists(st.integers(-(2**40), 2**40)))
def test_deltas_add_up_to_the_numbers(values: list[int]) -> None:
    assert np.cumsum(deltas(values)).tolist() == values


@given(st.lists(st.floats(0, 1), min_size=1))
def test_probabilities_survive_to_half_a_step(values: list[float]) -> None:
    restored = np.cumsum(quantised(values)) / SCALE
    assert np.abs(restored - values).max() <= 0.5 / SCALE + 1e-12


@settings(max_examples=40, deadline=None)  # it writes files
@given(content=st.recursive(st.none() | st.text() | st.integers(), st.lists))
def test_data_scripts_hold_any_text_and_no_code(
    content: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "packed" / "data"
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder / "x.js", "x", content)
    assert data_of(folder.parent, "x") == content


# --- next tokens


def counted_by_hand(w: World, seed: int) -> dict[tuple[int, int], dict[str, int]]:
    """(position, next token) -> outcomes, one rollout and one position at a time."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for r in rollouts(w, seed):
        last = len(w.tokens) - 1 if r.diverge_at is None else r.diverge_at
        for t in range(r.start, last + 1):
            token = r.token_ids[t - r.start] if t == r.diverge_at else t
            tally = found.setdefault((t, token), {})
            tally[r.outcome] = tally.get(r.outcome, 0) + 1
    return found


@pytest.mark.parametrize("every", [1, 3])
def test_next_tokens_count_every_rollout_that_passes(tmp_path: Path, every: int) -> None:
    w = world("q", every=every)
    run = open_run(write_run(tmp_path / "run", [w], seed=7))
    names = w.question.categories
    found = alternatives(run.rollouts("q"), run.base("q"), names, True, 0)
    seen = {
        (t, a.token): {k: int(n) for k, n in zip(names, a.counts, strict=True) if n}
        for t, here in found.items()
        for a in here
        if a.counts.any()
    }
    assert seen == counted_by_hand(w, 7)
    assert all(sum(a.base for a in here) == 1 for here in found.values())
    first = found[6]
    assert [a.token for a in first] == [FIRST_ALTERNATIVE + 12, 6, FIRST_ALTERNATIVE + 13]
    assert [a.p for a in first] == pytest.approx([0.45, 0.4, 0.15])


def test_texts_of_next_tokens_come_from_where_they_are_listed(tmp_path: Path) -> None:
    worlds = [replace(world("listed", samples=4), listed=True), world("bare", samples=4)]
    explore(write_run(tmp_path / "run", worlds), tmp_path / "site", methods=("raw",), examples=0, workers=1)
    [listed, bare] = [data_of(tmp_path / "site", question_key(q))["next"]["6"] for q in ("listed", "bare")]
    assert [a[0] for a in listed] == [
        f" else{FIRST_ALTERNATIVE + 12}",
        " w6",
        f" else{FIRST_ALTERNATIVE + 13}",
    ]
    assert [a[0] for a in bare] == [a[0] for a in listed]  # from the other question: one vocabulary
    explore(
        write_run(tmp_path / "old", worlds[1:]), tmp_path / "plain", methods=("raw",), examples=0, workers=1
    )
    assert [a[0] for a in data_of(tmp_path / "plain", question_key("bare"))["next"]["6"]] == [
        None,
        " w6",
        None,
    ]


def test_runs_from_before_texts_were_listed(tmp_path: Path) -> None:
    w = world("q", samples=4)
    run = write_run(tmp_path / "run", [w])
    [part] = run.glob("base.parquet")
    table = pq.read_table(part)
    write_part(part, table.drop_columns(["top_texts"]), run / ".tmp", {})
    explore(run, tmp_path / "site", methods=("raw",), workers=1)
    assert data_of(tmp_path / "site", question_key("q"))["tokens"] == list(w.tokens)


def test_what_split_from_another_rollout_is_not_counted_again(tmp_path: Path) -> None:
    w = world("q", samples=4)
    run = write_run(tmp_path / "run", [w])
    before = open_run(run).rollouts("q")
    [part] = (run / "rollouts").glob("*.parquet")
    table = pq.read_table(part)
    copy = table.slice(0, 2)
    column = copy.schema.get_field_index("parent")
    copy = copy.set_column(column, copy.schema.field(column), pa.array([0, 0], pa.int32()))
    (run / ".tmp").mkdir(exist_ok=True)
    write_part(part, pa.concat_tables([table, copy]), run / ".tmp", {"fpa.unit": part.stem})
    explore(run, tmp_path / "site", methods=("raw",), workers=1)
    core = data_of(tmp_path / "site", question_key("q"))
    assert core["rollouts"] == len(before) + 2
    assert sum(sum(a[4]) for a in core["next"]["0"]) == 4


def test_states_follow_the_rules_and_are_left_out_where_unknown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [world("q", samples=4), world("bare", samples=4, entropies=False)])
    explore(run, tmp_path / "site", methods=("raw",), workers=1)
    states = data_of(tmp_path / "site", question_key("q"))["states"]
    base = open_run(run).base("q")
    for name, rule in (("four", four_state), ("threshold", threshold_state)):
        one_by_one = [rule([d.entropy], [d.varentropy])[0] for d in base.distributions]
        assert states[name] == "".join(LETTERS[state] for state in one_by_one)
    assert states["four"] == "k" * 6 + "d" + "k" * 13  # unsure at its fork alone
    assert data_of(tmp_path / "site", question_key("bare"))["states"] is None


def test_states_of_single_tokens_may_be_unknown(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", [world("q")]))
    base = run.base("q")
    holes = tuple(replace(d, entropy=float("nan")) if t == 3 else d for t, d in enumerate(base.distributions))
    found = view._rules(run, replace(base, distributions=holes))["states"]
    for rules in ("four", "threshold"):
        assert [t for t, letter in enumerate(found[rules]) if letter == "-"] == [3]


@pytest.mark.parametrize(
    ("options", "own"),
    [({"rules": "four-state", "keep_entropy": 1.0}, "four"), ({"high_varentropy": 1.0}, "threshold")],
)
def test_a_steered_runs_own_numbers_colour_its_tokens(
    options: dict[str, Any], own: str, tmp_path: Path
) -> None:
    settings = Settings(
        strategy="entropix",
        options=options,
        samples=3,
        every=6,
        base_tokens=30,
        rollout_tokens=30,
        keep_text=True,
    )
    questions = fpa.load_questions("demo", limit=1)
    collect(settings, FakeEngine(), questions, tmp_path / "run")
    explore(tmp_path / "run", tmp_path / "site", methods=("raw",), workers=1)
    run = open_run(tmp_path / "run")
    [question_id] = run.question_ids
    core = data_of(tmp_path / "site", question_key(question_id))
    h, v = np.array([[d.entropy, d.varentropy] for d in run.base(question_id).distributions]).T
    rule = four_state if own == "four" else threshold_state
    rules = FourStateRules(keep_entropy=1.0) if own == "four" else ThresholdRules(high_varentropy=1.0)
    assert core["own"] == own
    assert core["states"][own] == "".join(LETTERS[s] for s in rule(h, v, rules))  # type: ignore[arg-type]
    assert core["states"][own] != "".join(LETTERS[s] for s in rule(h, v)), "the case shows nothing"
    # What was drawn, letter by letter, and the states of each rollout that can be read, from its place on.
    rows = run.rollouts(question_id)
    nexts = alternatives(rows, run.base(question_id), run.question(question_id).categories, True, 2)
    read = [(t, e) for t, here in nexts.items() for a in here for e in a.examples]
    assert any(t not in set(rows["start"]) for t, _ in read), "the case shows nothing"
    for t, example in read:
        own_rows = rows[[text.endswith(example.text) for text in rows["text"]]]
        assert example.states in [row["states"][t - row["start"] :] for _, row in own_rows.iterrows()]
    drawn = "".join(rows["states"])
    assert core["drawn"] == {letter: drawn.count(letter) for letter in set(drawn)}


@pytest.mark.parametrize("theta", [1.5, "auto"])
def test_eagers_splits_follow_the_runs_threshold(theta: float | str, tmp_path: Path) -> None:
    settings = Settings(
        strategy="eager", options={"theta": theta}, samples=4, base_tokens=30, rollout_tokens=30
    )
    collect(settings, FakeEngine(), fpa.load_questions("demo", limit=2), tmp_path / "run")
    explore(tmp_path / "run", tmp_path / "site", workers=1)
    run = open_run(tmp_path / "run")
    [first, _] = run.question_ids
    core = data_of(tmp_path / "site", question_key(first))
    tops = [[d.top_entropy for d in run.base(q).distributions] for q in run.question_ids]
    limit = np.percentile(np.concatenate(tops), 99) if theta == "auto" else theta
    assert core["own"] == "eager"
    assert core["theta"] == pytest.approx(limit, abs=1e-3)
    assert core["states"]["eager"] == "".join("b" if at else "d" for at in branch_points(tops[0], limit))


def test_without_token_ids_other_tokens_are_one(tmp_path: Path) -> None:
    w = world("q")
    run = open_run(write_run(tmp_path / "run", [w], texts=False))
    found = alternatives(run.rollouts("q"), run.base("q"), w.question.categories, True, 0)
    left = [r for r in rollouts(w, 1) if r.diverge_at == 6]
    [other] = [a for a in found[6] if a.token == ANOTHER]
    assert other.counts.sum() == len(left) > 0
    assert other.p is None


def test_examples_go_on_where_the_base_path_stops(tmp_path: Path) -> None:
    w = world("q")
    run = open_run(write_run(tmp_path / "run", [w]))
    found = alternatives(run.rollouts("q"), run.base("q"), w.question.categories, True, 3)
    shown = [a.examples for a in found[6] if not a.base]
    assert [[e.text for e in examples] for examples in shown] == [
        [f" else{i} so it is (A)."] * 3 for i in (0, 1)
    ]
    base = next(a for a in found[0] if a.base)
    assert base.examples
    assert all(e.text.startswith(" w0") and not e.whole for e in base.examples)
    both = {e.outcome for e in base.examples}
    assert both == {k for k, n in zip(w.question.categories, base.counts, strict=True) if n} or len(both) == 3


# --- pages


def test_curves_are_the_smoothers_curves(built: tuple[Path, Path, Path]) -> None:
    path, reference, site = built
    run = open_run(path)
    for question_id in ("q1", "q2"):
        core = data_of(site, question_key(question_id))
        cells = data_of(site, question_key(question_id) + ".cells")
        grid = np.cumsum(core["grid"])
        assert grid.tolist() == list(range(20))
        assert set(cells) == {f"{s}/{n}" for s in (5, 10, "all") for n in (1, 2, 4)}
        for samples, every in ((None, 1), (5, 4), (10, 2)):
            cell = cells[f"{samples or 'all'}/{every}"]
            chosen = run.draws(question_id).select(samples, every)
            assert (cell["tokens"], cell["rollouts"]) == (chosen.generated_tokens, chosen.continuations)
            for method in ("full", "raw"):
                fitted = fit(chosen.observations(grid), method)
                lower, upper = fitted.band(grid, 0.9)
                for name, wanted in (("p", fitted.predict(grid)), ("lo", lower), ("hi", upper)):
                    assert np.abs(curve_of(cell["curves"][method][name]) - wanted).max() <= 0.5 / SCALE + 1e-9
        positions, curve, _ = open_run(reference).curve(question_id)
        assert np.cumsum(core["reference"]["positions"]).tolist() == positions.tolist()
        assert np.abs(curve_of(core["reference"]["p"]) - curve).max() <= 0.5 / SCALE + 1e-9
        assert core["spent"] == int(run.rollouts(question_id)["n_tokens"].sum())
        [own] = [a for a in core["next"]["6"] if a[3]]
        assert own[:3] == [" w6", 6, core["p"][6]]


def test_overview_says_what_the_pages_show(built: tuple[Path, Path, Path]) -> None:
    path, _, site = built
    index = data_of(site, "index")
    columns = index["columns"]
    run = open_run(path)
    assert columns["id"] == list(run.question_ids)
    assert columns["subject"] == [run.question(q).subject for q in run.question_ids]
    for i in range(len(run.question_ids)):
        curve = curve_of(data_of(site, columns["key"][i])["full"]["curves"]["full"]["p"])
        assert columns["forks"][i] == len(jumps(curve, index["threshold"]))
        assert columns["accuracy"][i] == pytest.approx(curve[0, 0], abs=1e-3)
        assert columns["confidence"][i] == pytest.approx(curve[-1].max(), abs=1e-3)
        assert columns["base"][i] == "B"
        assert columns["tokens"][i] == 20
    assert columns["forks"][columns["id"].index("q1")] == 1
    assert columns["forks"][columns["id"].index("q2")] == 0
    cards = data_of(site, "cards-0")
    assert {c["text"] for c in cards} == {"Which one is it?", HOSTILE}
    assert np.abs(np.sum(cards[0]["spark"], axis=0) - 100).max() <= 3


def test_first_view_is_small_and_nothing_hostile_is_in_a_file(built: tuple[Path, Path, Path]) -> None:
    site = built[2]
    largest = max(p.stat().st_size for p in (site / "data").iterdir())
    fixed = sum(p.stat().st_size for p in site.iterdir() if p.is_file())
    assert fixed + largest < 1_000_000
    for file in (site / "data").iterdir():
        assert re.fullmatch(r"[a-z0-9._-]+\.js", file.name)
        assert not set(file.read_bytes()) & set(b"<>'`$&\\"), file


def test_rebuilding_gives_the_same_bytes_and_leaves_nothing_old(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [world("q", samples=4)], texts=False)
    explore(run, tmp_path / "site", methods=("raw",), samples=(), every=(1,), workers=1)
    before = {p.name: p.read_bytes() for p in (tmp_path / "site" / "data").iterdir()}
    (tmp_path / "site" / "data" / "old.js").write_text("old")
    explore(run, tmp_path / "site", methods=("raw",), samples=(), every=(1,), workers=1)
    assert {p.name: p.read_bytes() for p in (tmp_path / "site" / "data").iterdir()} == before


def test_several_workers_write_what_one_does(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [world(f"q{i}", samples=4) for i in range(3)], texts=False)
    done: list[tuple[int, int]] = []
    for workers in (1, 2):
        explore(
            run, tmp_path / f"site{workers}", methods=("raw",), workers=workers,
            progress=lambda *now: done.append(now),
        )  # fmt: skip
    assert done == [(1, 3), (2, 3), (3, 3)] * 2
    one, two = (
        {p.name: p.read_bytes() for p in (tmp_path / s / "data").iterdir()} for s in ("site1", "site2")
    )
    assert one == two


def test_unfinished_and_empty_runs(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        [world("done", samples=4)],
        uncollected=(world("path"),),
        asked_only=(world("asked"),),
        failed={"asked": "too long"},
    )
    explore(run, tmp_path / "site", methods=("raw",), workers=1)
    columns = data_of(tmp_path / "site", "index")["columns"]
    assert columns["id"] == ["asked", "done", "path"]
    assert columns["failure"] == ["too long", None, None]
    assert columns["forks"][0] is columns["forks"][2] is None
    assert "tokens" not in data_of(tmp_path / "site", question_key("asked"))
    assert "full" not in data_of(tmp_path / "site", question_key("path"))
    explore(write_run(tmp_path / "empty", []), tmp_path / "nothing", workers=1)
    assert data_of(tmp_path / "nothing", "index")["columns"] == {}


def test_a_method_that_cannot_be_fitted_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("it needs a full moon")

    monkeypatch.setitem(smoothing.MODELS, "moon", refuse)
    run = write_run(tmp_path / "run", [world("q", samples=4)], texts=False)
    explore(run, tmp_path / "site", methods=("moon",), samples=(), every=(1,), workers=1)
    core = data_of(tmp_path / "site", question_key("q"))
    assert core["full"]["curves"]["moon"] == {"missing": "it needs a full moon"}
    assert "p" in core["full"]["curves"]["raw"]


def test_command_with_its_progress_and_sliders(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [world(f"q{i}", samples=12) for i in range(2)], texts=False)
    site = tmp_path / "site"
    options = ["--method", "raw", "--samples", "3", "--samples", "7", "--every", "5", "--out", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", "fpa", "explore", str(run), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")  # short work on no terminal needs no lines
    assert done.stdout.strip() == str(site / "index.html")
    core = data_of(site, question_key("q0"))
    assert (core["sizes"], core["strides"]) == ([3, 7, "all"], [1, 5])


def test_progress_says_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("fpa.progress.time.monotonic", lambda: now[0])
    text = StringIO()
    with CountProgress(Console(file=text), "building pages", "questions") as progress:
        for done in range(1, 5):
            now[0] += 6.0
            progress(done, 4)
    assert text.getvalue() == "2 of 4 questions, about 12 s left\n"
    text = StringIO()
    with CountProgress(
        Console(file=text, force_terminal=True, width=100), "building pages", "questions"
    ) as bar:
        bar(1, 2)
        bar(2, 2)
        bar._bar.refresh()
    assert "2/2" in text.getvalue()


def test_refusals(tmp_path: Path, built: tuple[Path, Path, Path]) -> None:
    run = built[0]
    with pytest.raises(UsageError, match="unknown method 'none'; known: raw"):
        explore(run, tmp_path / "a", methods=("none",))
    with pytest.raises(UsageError, match="at least 1"):
        explore(run, tmp_path / "a", every=(0,))
    with pytest.raises(UsageError, match="between 0 and 1"):
        explore(run, tmp_path / "a", threshold=1.5)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="holds other files"):
        explore(run, mine)
    assert [p.name for p in mine.iterdir()] == ["thesis.tex"]
    with pytest.raises(UsageError, match="is a file"):
        explore(run, mine / "thesis.tex")
    other = write_run(tmp_path / "other", [world("q1", tokens=[" a", " b"], fork=1)])
    with pytest.raises(UsageError, match=r"base path in .* is another one"):
        explore(run, tmp_path / "b", other, methods=("raw",), workers=1)


def test_serving(built: tuple[Path, Path, Path]) -> None:
    site = built[2]
    with make_server(site) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        with urlopen(f"http://127.0.0.1:{port}/") as answer:
            assert b"<title>Forking paths</title>" in answer.read()
            assert answer.headers["Cache-Control"] == "no-store"
        for hidden in ("data/", "../run/manifest.json", "%2e%2e/run/manifest.json"):
            with pytest.raises(HTTPError, match="404"):
                urlopen(f"http://127.0.0.1:{port}/{hidden}")
        with pytest.raises(FpaError, match=f"port {port} cannot be used"):
            make_server(site, port)
        server.shutdown()
    with pytest.raises(UsageError, match="holds no pages"):
        make_server(site / "data")


@pytest.mark.shared
def test_released_rollouts(shared: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for track in ("llama", "deepseek"):
        name = "row009.json.gz"
        (source / f"{track}-{name}").symlink_to(
            (shared / "data" / "forking-fast" / "s200" / track / name).resolve()
        )
    for path, questions in import_published(source, tmp_path / "runs").runs.items():
        run = open_run(path)
        site = tmp_path / f"site-{path.name}"
        explore(run, site, methods=("raw",), samples=(30,), every=(1, 4), workers=1)
        core = data_of(site, question_key(questions[0]))
        draws = run.draws(questions[0])
        assert np.cumsum(core["positions"]).tolist() == draws.positions.tolist()
        for t in draws.positions.tolist():
            here = core["next"][str(t)]
            assert sum(a[3] for a in here) == 1
            assert {sum(a[4]) for a in here} == {
                200
            }  # every branch kept has its 200 draws, and no other counts
            assert all(a[2] >= 0.05 or a[3] for a in here)
        positions, curve, _ = run.curve(questions[0])
        for t, row in zip(positions.tolist(), curve, strict=True):
            p = np.array([a[2] for a in core["next"][str(t)]])
            shares = np.array([a[4] for a in core["next"][str(t)]]) / 200
            assert np.abs(p / p.sum() @ shares - row).max() < 5e-4  # the probabilities have four decimals
