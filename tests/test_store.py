"""The run directory's writer: whole files only, resumable, and honest about damage."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpa.errors import FpaError, UsageError
from fpa.parts import DamagedPart, check_part, part_metadata, read_part
from fpa.records import Answer, BasePath, Distribution, Question, Rollout
from fpa.run import open_run
from fpa.schemas import base_from_table, base_table
from fpa.store import RunWriter, natural_order, plain, question_key, unit_name

CONFIG = {"samples": 3, "sampling": {"temperature": 1.0, "top_k": None}}
ENGINE = {"name": "fake", "model": "m", "fingerprint": "f", "version": "1", "reproducible": True}


def open_writer(path: Path, config: dict | None = None, **other: object) -> RunWriter:
    engine = {**ENGINE, **other.pop("engine", {})}  # type: ignore[dict-item]
    return RunWriter.open(path, config or CONFIG, engine=engine, questions_fingerprint=other.get("q", "set"))


def question(question_id: str = "q1") -> Question:
    return Question(question_id, "Why?", ("this", "that"), "A")


def base(question_id: str = "q1", tokens: tuple[int, ...] = (5, 7, 9)) -> BasePath:
    listed = Distribution(np.array([tokens[0], 3], np.int32), np.array([0.75, 0.2]), 0.05, 0.7, 0.4)
    return BasePath(
        question_id,
        tokens,
        tuple(f" {t}" for t in tokens),
        (listed,) * len(tokens),
        (0,) * len(tokens),
        "stop",
        Answer("A", "parsed"),
    )


def rollouts(question_id: str = "q1", start: int = 0, n: int = 3, salt: int = 0) -> list[Rollout]:
    return [
        Rollout(
            question_id,
            start,
            i,
            None,
            None,
            10 * start + i,
            "AB"[(i + salt) % 2],
            "parsed",
            start,
            4,
            "stop",
        )
        for i in range(n)
    ]


def fill(writer: RunWriter, questions: int = 2, starts: int = 3) -> None:
    for i in range(questions):
        q = f"q{i + 1}"
        writer.put_question(question(q), [1, 2])
        writer.put_base(base(q))
        for start in range(starts):
            writer.put_rollouts(unit_name(q, start), rollouts(q, start))


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*.parquet"))}


class TestNames:
    @given(st.lists(st.text(min_size=1, max_size=300), min_size=2, max_size=5, unique=True))
    def test_any_id_gives_a_name_of_its_own_that_every_file_system_takes(self, ids: list[str]) -> None:
        names = [unit_name(q, 12) for q in ids]
        assert len({name.lower() for name in names}) == len(names)
        for name in names:
            assert len(name) < 100
            assert name.isascii()
            assert not set(name) & set('/\\:*?"<>| ')
            assert not name.startswith(".")

    @given(st.integers(0, 10**6), st.integers(0, 10**6), st.text(max_size=8))
    def test_units_of_a_question_sort_by_position(self, a: int, b: int, suffix: str) -> None:
        assert (unit_name("q", a, suffix) < unit_name("q", b, suffix)) == (a < b)

    def test_suffixes_that_differ_only_in_case_or_strange_letters_differ(self) -> None:
        assert len({unit_name("q", 0, s).lower() for s in ("", "a", "A", "ä", "a/b", "a_b")}) == 6

    def test_ids_are_listed_as_people_count(self) -> None:
        assert sorted(["q10", "q2", "q1", "p3"], key=natural_order) == ["p3", "q1", "q2", "q10"]


class TestContent:
    def test_what_was_written_is_read(self, tmp_path: Path) -> None:
        rows = [
            Rollout("q/ü", 3, 0, 17, 0.25, 2**40, "B", "readout", None, 9, "length", (1, 2, 3), "wör\nd"),
            Rollout("q/ü", 3, 1, None, None, 5, "Other", "none", 3, 0, "stop"),
        ]
        with open_writer(tmp_path / "run") as writer:
            writer.put_question(question("q/ü"), [4, 5])
            writer.put_base(base("q/ü"))
            writer.put_rollouts(unit_name("q/ü", 3), rows)
        run = open_run(tmp_path / "run")
        table = run.rollouts("q/ü").replace({np.nan: None})
        assert run.question("q/ü") == question("q/ü")
        assert run.prompt_ids("q/ü") == (4, 5)
        for stored, row in zip(table.itertuples(), rows, strict=True):
            for name in ("start", "draw", "first_token", "first_token_p", "seed", "outcome", "status"):
                assert getattr(stored, name) == getattr(row, name)
            assert stored.diverge_at == row.diverge_at
            assert stored.text == row.text
            assert (None if stored.token_ids is None else tuple(stored.token_ids)) == row.token_ids

    def test_a_base_path_comes_back_with_its_unknowns(self) -> None:
        unknown = Distribution(np.zeros(0, np.int32), np.zeros(0), math.nan, -math.inf, math.nan)
        tail = Distribution(np.array([3], np.int32), np.array([0.9]), 0.1, 0.3, 0.2)
        path = BasePath(
            "q", (5, 7), ("a", "b"), (unknown, tail), (0, 1), "length", Answer("Other", "truncated")
        )
        table = base_table(path)
        assert table["p"].to_pylist() == [None, 0.0]
        assert table["entropy"].to_pylist()[0] is None
        back = base_from_table(table)
        assert back.token_ids == path.token_ids
        assert back.answer == path.answer
        assert back.finish_reason == "length"
        assert math.isnan(back.distributions[0].tail_mass)
        assert back.distributions[1].p.tolist() == [0.9]

    @pytest.mark.parametrize("tokens", [(), (1, 2)])
    def test_a_base_path_in_unequal_parts_is_refused(self, tokens: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="base path of q"):
            base_table(BasePath("q", tokens, ("a",), (), (), "stop", Answer("A", "parsed")))

    def test_the_same_rows_give_the_same_bytes(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            with open_writer(tmp_path / name) as writer:
                fill(writer)
                writer.finish({"seconds": 1.0})
        assert content(tmp_path / "one") == content(tmp_path / "two")

    def test_a_unit_holds_one_question_and_is_named_after_it(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "run") as writer:
            for rows in ([], rollouts("q2"), rollouts("q1") + rollouts("q2")):
                with pytest.raises(ValueError, match="unit"):
                    writer.put_rollouts(unit_name("q1", 0), rows)


class TestResume:
    def test_finished_units_are_known_again(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "run") as writer:
            fill(writer)
            units = writer.finished
        with open_writer(tmp_path / "run") as writer:
            assert writer.finished == units
            assert writer.notices == []
            assert writer.has(unit_name("q1", 2))
            assert not writer.has(unit_name("q1", 3))
            again = writer.base("q2")
            assert again is not None
            assert again.token_ids == (5, 7, 9)
            assert writer.base("q3") is None

    @pytest.mark.parametrize("finished", [False, True])
    def test_a_run_reads_the_same_before_and_after_it_is_finished(
        self, tmp_path: Path, finished: bool
    ) -> None:
        with open_writer(tmp_path / "run") as writer:
            fill(writer, questions=11, starts=1)
            if finished:
                writer.finish({})
        assert (tmp_path / "run" / "base.parquet").exists() == finished
        run = open_run(tmp_path / "run")
        assert run.question_ids == tuple(f"q{i}" for i in range(1, 12))
        assert run.base("q10").token_ids == (5, 7, 9)
        assert len(run.rollouts("q11")) == 3

    def test_more_questions_join_a_finished_run(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "run") as writer:
            fill(writer, questions=2)
            writer.finish({"seconds": 1.5, "note": "text is not summed"})
        with open_writer(tmp_path / "run") as writer:
            fill(writer, questions=3)
            writer.finish({"seconds": 2.0})
        with open_writer(tmp_path / "once") as writer:
            fill(writer, questions=3)
            writer.finish({})
        assert content(tmp_path / "run") == content(tmp_path / "once")
        manifest = open_run(tmp_path / "run").manifest
        assert manifest["spent"] == {"seconds": 3.5}
        assert manifest["collected"] == {
            "questions": 3, "base_paths": 3, "units": 9, "continuations": 27, "generated_tokens": 108,
        }  # fmt: skip
        assert [s["spent"]["seconds"] for s in manifest["sessions"]] == [1.5, 2.0]

    def test_parts_left_after_the_merge_are_no_doubles(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with open_writer(run) as writer:
            fill(writer)
            parts = {p: p.read_bytes() for p in [*(run / "base").iterdir(), *(run / "questions").iterdir()]}
            writer.finish({})
        after = content(run)
        for path, data in parts.items():  # as if killed between the merge and the removal of its parts
            path.write_bytes(data)
        assert open_run(run).question_ids == ("q1", "q2")
        assert open_run(run).base("q1").token_ids == (5, 7, 9)
        with open_writer(run) as writer:
            writer.finish({})
        assert content(run) == after

    def test_what_a_killed_writer_left_half_written_is_dropped(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with open_writer(run) as writer:
            fill(writer)
        (run / ".tmp" / f"{unit_name('q1', 9)}.parquet").write_bytes(b"PAR1half")
        with open_writer(run) as writer:
            assert not writer.has(unit_name("q1", 9))
            assert writer.notices == []
        assert list((run / ".tmp").iterdir()) == []

    def test_a_writer_killed_before_its_manifest_was_there_can_begin_again(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        (run / ".tmp").mkdir(parents=True)
        (run / ".tmp" / "manifest.json").write_text("{")
        (run / ".lock").write_text("1")
        with open_writer(run) as writer:
            fill(writer)
        assert open_run(run).question_ids == ("q1", "q2")

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"config": {**CONFIG, "samples": 4}}, r"samples \(3 there, 4 now\)"),
            (
                {"config": {"samples": 3, "sampling": {"temperature": 0.6, "top_k": None}}},
                r"sampling\.temperature",
            ),
            (
                {"config": {"samples": 3, "sampling": {"temperature": 1.0}}},
                r"sampling\.top_k \(null there, absent now",
            ),
            ({"config": {**CONFIG, "extra": [1]}}, r"extra \(absent there"),
            ({"engine": {"fingerprint": "g"}}, r"engine\.fingerprint"),
            ({"q": "another"}, "question set"),
        ],
    )
    def test_another_configuration_is_refused_and_named(
        self, tmp_path: Path, change: dict, named: str
    ) -> None:
        with open_writer(tmp_path / "run") as writer:
            fill(writer)
        before = content(tmp_path / "run")
        with pytest.raises(UsageError, match=named) as refused:
            open_writer(tmp_path / "run", **change)
        assert "\n" not in str(refused.value)
        assert content(tmp_path / "run") == before
        open_writer(tmp_path / "run").close()  # the refusal has let go of the lock

    def test_another_version_of_the_engine_is_told(self, tmp_path: Path) -> None:
        open_writer(tmp_path / "run").close()
        with open_writer(tmp_path / "run", engine={"version": "2"}) as writer:
            assert "version" in writer.notices[0]

    def test_failures_are_told_and_forgotten_on_resume(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "run") as writer:
            writer.put_failure("q1", "no\nroom")
            writer.put_failure("q2", "bad")
        with open(tmp_path / "run" / "failures.jsonl", "a") as file:
            file.write('{"question_id": "q3", "mess')  # killed in the middle of a line
        assert open_run(tmp_path / "run").failures == {"q1": "no\nroom", "q2": "bad"}
        open_writer(tmp_path / "run").close()
        assert open_run(tmp_path / "run").failures == {}

    def test_rollouts_of_a_base_path_that_was_lost_and_came_out_otherwise_are_set_aside(
        self, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        with open_writer(run) as writer:
            fill(writer)
            with pytest.raises(FpaError, match="another base path"):
                writer.put_base(base("q1", (5, 8)))
        damaged = run / "base" / f"{question_key('q1')}.parquet"
        damaged.write_bytes(damaged.read_bytes()[:-1])
        with open_writer(run) as writer:
            assert writer.base("q1") is None
            writer.put_base(base("q1", (5, 8)))
            assert {u for u in writer.finished if u.startswith(question_key("q1"))} == set()
            assert sum(u.startswith(question_key("q2")) for u in writer.finished) == 3
            assert len(writer.notices) == 4
        with open_writer(run) as writer:
            assert writer.notices == []


class TestDamage:
    def test_every_flipped_bit_of_a_part_is_seen(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "run") as writer:
            fill(writer, 1, 1)
        [path] = (tmp_path / "run" / "rollouts").iterdir()
        whole = path.read_bytes()
        rng = np.random.default_rng(11)
        for bit in rng.choice(len(whole) * 8, size=1500, replace=False):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << (bit % 8)
            path.write_bytes(flipped)
            for check in (part_metadata, check_part, read_part):
                with pytest.raises(DamagedPart):
                    check(path)
        path.write_bytes(whole)
        check_part(path)
        assert read_part(path).num_rows == 3

    def test_damaged_parts_are_set_aside_told_and_redone(self, tmp_path: Path) -> None:
        run, rng = tmp_path / "run", np.random.default_rng(5)
        with open_writer(run) as writer:
            fill(writer, questions=2, starts=6)
        whole = content(run)
        parts = sorted((run / "rollouts").iterdir())
        for path, size in zip(parts[:4], (0, 1, 40, -1), strict=True):
            path.write_bytes(path.read_bytes()[:size])
        flipped = bytearray(parts[4].read_bytes())
        flipped[rng.integers(len(flipped))] ^= 1 << rng.integers(8)
        parts[4].write_bytes(flipped)
        parts[5].write_bytes(parts[6].read_bytes())  # a sound part under another's name
        (run / "rollouts" / "notes.txt").write_text("mine")
        (run / "rollouts" / "stranger.parquet").write_bytes(b"PAR1PAR1")
        with pytest.raises(FpaError, match="q"):
            open_run(run).rollouts("q1")
        with open_writer(run) as writer:
            assert writer.finished == {p.stem for p in parts[6:]}
            assert len(writer.notices) == 8
            assert all("quarantine/" in notice for notice in writer.notices)
            assert len(list((run / "quarantine").iterdir())) == 8
            fill(writer, questions=2, starts=6)
        assert {k: v for k, v in content(run).items() if not k.startswith("quarantine")} == whole

    def test_a_part_damaged_twice_is_kept_twice(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        for _ in range(2):
            with open_writer(run) as writer:
                fill(writer, 1, 1)
            [path] = (run / "rollouts").iterdir()
            path.write_bytes(b"")
        open_writer(run).close()
        assert len(list((run / "quarantine").iterdir())) == 2

    @pytest.mark.parametrize("name", ["questions", "base"])
    def test_a_damaged_merged_file_is_set_aside_and_redone(self, tmp_path: Path, name: str) -> None:
        run = tmp_path / "run"
        with open_writer(run) as writer:
            fill(writer)
            writer.finish({})
        whole, path = content(run), run / f"{name}.parquet"
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 16
        path.write_bytes(data)
        with pytest.raises(FpaError, match="does not match"):
            open_run(run)
        with open_writer(run) as writer:
            assert name in writer.notices[0]
            assert len(writer.finished) == 6
            fill(writer)
            writer.finish({})
        assert {k: v for k, v in content(run).items() if not k.startswith("quarantine")} == whole

    def test_a_damaged_manifest_is_refused_and_touched_by_nobody(self, tmp_path: Path) -> None:
        open_writer(tmp_path / "run").close()
        manifest = tmp_path / "run" / "manifest.json"
        manifest.write_text(manifest.read_text()[:-10])
        for attempt in (open_writer, open_run):
            with pytest.raises(UsageError, match="cannot be read"):
                attempt(tmp_path / "run")

    def test_a_run_of_a_later_version_is_refused(self, tmp_path: Path) -> None:
        open_writer(tmp_path / "run").close()
        manifest = tmp_path / "run" / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema_version": 99}))
        with pytest.raises(UsageError, match="update fpa"):
            open_run(tmp_path / "run")


class TestRefusals:
    def test_a_second_writer_is_told_who_is_first(self, tmp_path: Path) -> None:
        with open_writer(tmp_path / "run"):
            with pytest.raises(FpaError, match=rf"another process \(pid {os.getpid()}\)"):
                open_writer(tmp_path / "run")
            script = textwrap.dedent(f"""
                from fpa.store import RunWriter
                from fpa.errors import FpaError
                try:
                    RunWriter.open({str(tmp_path / "run")!r}, {{}}, engine=None, questions_fingerprint="")
                except FpaError as error:
                    print(error)
            """)
            environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
            told = subprocess.run(
                [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
            )
            assert f"(pid {os.getpid()})" in told.stdout
        open_writer(tmp_path / "run").close()

    def test_a_folder_with_other_things_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(UsageError, match=r"thesis\.tex"):
            open_writer(tmp_path)
        with pytest.raises(UsageError, match="not a run"):
            open_run(tmp_path)

    @pytest.mark.parametrize("where", ["file", "file/run", "dev-full"])
    def test_a_path_that_is_no_folder_gives_one_line(self, tmp_path: Path, where: str) -> None:
        (tmp_path / "file").write_text("x")
        path = Path("/dev/full/run") if where == "dev-full" else tmp_path / where
        with pytest.raises(FpaError, match="cannot write") as refused:
            open_writer(path)
        assert "\n" not in str(refused.value)
        assert (tmp_path / "file").read_text() == "x"

    def test_a_read_only_folder_gives_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(FpaError, match="read-only: choose another folder"):
            open_writer(tmp_path / "run")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
    def test_a_full_disk_loses_nothing_and_is_told_in_one_line(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with open_writer(run) as writer:
            fill(writer, 1, 2)
            before = content(run)
            unit = unit_name("q1", 2)
            for name, put in (
                (f"{unit}.parquet", lambda: writer.put_rollouts(unit, rollouts("q1", 2))),
                (f"{question_key('q2')}.parquet", lambda: writer.put_base(base("q2"))),
                ("manifest.json", lambda: writer.spend({"seconds": 1})),
                ("base.parquet", lambda: writer.finish({})),
            ):
                (run / ".tmp" / name).symlink_to("/dev/full")  # writing the temporary file fails with ENOSPC
                with pytest.raises(FpaError, match="no space left") as told:
                    put()
                assert "\n" not in str(told.value)
                assert not (run / ".tmp" / name).exists()
            assert not writer.has(unit)
        kept = content(run)
        assert {k: v for k, v in kept.items() if not k.startswith("questions")} == {
            k: v for k, v in before.items() if not k.startswith("questions")
        }
        with open_writer(run) as writer:
            assert writer.notices == []
            fill(writer, 1, 3)
            writer.finish({})
            assert len(writer.finished) == 3


class TestReaders:
    def test_other_tools_read_the_parts_as_one_table_at_any_moment(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        glob = str(run / "rollouts" / "*.parquet")
        with open_writer(run) as writer:
            writer.put_question(question(), None)
            writer.put_base(base())
            for start in range(4):
                writer.put_rollouts(unit_name("q1", start), rollouts("q1", start))
                (run / ".tmp" / "half.parquet").write_bytes(b"PAR1")
                tables = [
                    duckdb.sql(f"select * from '{glob}'").df(),
                    pl.read_parquet(glob).to_pandas(),
                    pl.read_parquet(run / "rollouts").to_pandas(),
                    pd.read_parquet(run / "rollouts"),
                ]
                for table in tables:
                    assert len(table) == 3 * (start + 1)
                    assert not table.duplicated(["question_id", "start", "draw"]).any()
            writer.finish({})
        for name in ("questions", "base"):
            path = run / f"{name}.parquet"
            rows = pq.read_table(path).num_rows
            assert rows == len(pd.read_parquet(path)) == pl.read_parquet(path).height
            assert duckdb.sql(f"select count(*) from '{path}'").fetchall() == [(rows,)]

    def test_curves_and_forks_are_written_whole(self, tmp_path: Path) -> None:
        open_writer(tmp_path / "run").close()
        run = open_run(tmp_path / "run")
        curve = pd.DataFrame(
            {
                "question_id": ["q"],
                "method": ["full"],
                "t": [0],
                "category": ["A"],
                "p": [0.5],
                "lo": [0.1],
                "hi": [0.9],
            }
        )
        fork = pd.DataFrame(
            {"question_id": ["q"], "t": [3], "token_text": [" so"], "p_change": [None], "tv": [0.4]}
        )
        assert pd.read_parquet(run.save_curves("full", curve)).equals(curve.astype({"t": "int32"}))
        assert pd.read_parquet(run.save_forks("full", fork))["tv"].tolist() == [0.4]

    def test_the_manifest_is_strict_json(self, tmp_path: Path) -> None:
        config = {
            "a": np.float64(0.5),
            "b": (1, np.int64(2)),
            "c": math.inf,
            "d": {"e": math.nan},
            "f": Path("x"),
        }
        with open_writer(tmp_path / "run", config) as writer:
            writer.spend({"seconds": math.nan, "tokens": np.int64(3)})
        text = (tmp_path / "run" / "manifest.json").read_text()

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} in JSON")

        manifest = json.loads(text, parse_constant=refuse)
        assert manifest["config"] == {"a": 0.5, "b": [1, 2], "c": None, "d": {"e": None}, "f": "x"}
        assert manifest["spent"] == {"tokens": 3}
        open_writer(tmp_path / "run", config).close()  # and compares equal to itself

    @settings(max_examples=50)
    @given(
        st.recursive(
            st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=8
        )
    )
    def test_plain_values_survive_json(self, value: object) -> None:
        assert json.loads(json.dumps(plain(value), allow_nan=False)) == plain(value)

    def test_what_has_no_plain_form_is_refused(self) -> None:
        with pytest.raises(TypeError, match="no plain JSON form"):
            plain({"x": object()})


def test_a_folder_of_something_else_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"holds other files \(letters.txt\)"):
        open_writer(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["letters.txt"]
