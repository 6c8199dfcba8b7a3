"""Import of the released rollouts: every record, exactly, and damaged ones by name."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores import imported

from fpa.errors import UsageError
from fpa.published import MIXTURE_SEEDS, curve_of, decode_pieces, import_published, read_record
from fpa.run import open_run

pytestmark = [pytest.mark.shared, pytest.mark.xdist_group("published")]


def records(shared: Path) -> list[Path]:
    return sorted((shared / "data" / "forking-fast").rglob("*.json.gz"))


def store_of(file: Path) -> tuple[str, str]:
    """Run name and question id of a record's file."""
    return f"{file.parent.parent.name}-{file.parent.name}", file.name[:6]


def test_every_record_is_imported_into_the_run_of_its_track_and_size(shared: Path) -> None:
    folder, report = imported(shared)
    expected: dict[str, list[str]] = {}
    for file in records(shared):
        run, question_id = store_of(file)
        expected.setdefault(run, []).append(question_id)
    assert report.skipped == {}
    assert {path.name: sorted(ids) for path, ids in report.runs.items()} == expected
    assert {path.parent for path in report.runs} == {folder}


def test_curves_of_all_records_come_out_of_the_runs_to_six_decimals(shared: Path) -> None:
    folder, _ = imported(shared)
    for file in records(shared):
        name, question_id = store_of(file)
        record = read_record(file)
        positions, curve, categories = open_run(folder / name).curve(question_id)
        assert positions.tolist() == record["idxs"]
        assert list(categories) == record["categories"]
        assert np.abs(curve - np.array(record["o_t_full"])).max() < 1e-6


@pytest.mark.parametrize("which", [0, 55, 100])
def test_a_run_holds_all_that_its_record_does(shared: Path, which: int) -> None:
    folder, _ = imported(shared)
    file = records(shared)[which]
    name, question_id = store_of(file)
    record, run = read_record(file), open_run(folder / name)
    base = run.base(question_id)
    assert base.token_ids == tuple(record["base"]["gen_ids"])
    assert base.finish_reason == record["base"]["finish_reason"]
    assert run.question(question_id).answer == record["meta"]["answer_letter"]
    table = run.rollouts(question_id)
    assert table["n_tokens"].sum() == sum(sum(b["cont_lens"]) for b in record["branches"])
    for b in record["branches"][:: len(record["branches"]) // 7]:
        rows = table[(table["start"] == b["t"]) & (table["first_token"] == b["tok_id"])].sort_values("draw")
        assert rows["outcome"].tolist() == b["answers"]
        assert rows["n_tokens"].tolist() == b["cont_lens"]
        assert set(rows["first_token_p"]) == {b["tok_p"]}  # 64 bits, untouched
        assert base.distributions[b["t"]].p.tolist() == sorted(
            (o["tok_p"] for o in record["branches"] if o["t"] == b["t"]), reverse=True
        )


@pytest.mark.parametrize("track", ["llama", "deepseek"])
def test_mixture_draws_follow_the_published_streams(shared: Path, track: str) -> None:
    folder, _ = imported(shared)
    record = read_record(shared / "data" / "forking-fast" / "s200" / track / "row007.json.gz")
    draws = open_run(folder / f"s200-{track}").draws("row007")
    for i, t in enumerate(record["idxs"]):
        branches = [b for b in record["branches"] if b["t"] == t]
        p = np.array([b["tok_p"] for b in branches])
        rng = np.random.default_rng([MIXTURE_SEEDS[track], 7, t])
        picks = rng.choice(len(branches), size=200, p=p / p.sum())
        streams = [iter(b["answers"]) for b in branches]
        expected = [record["categories"].index(next(streams[w])) for w in picks]
        assert draws.outcomes[i].tolist() == expected


def test_texts_are_text(shared: Path) -> None:
    folder, _ = imported(shared)
    for name in ("s200-llama", "s200-deepseek"):
        run = open_run(folder / name)
        texts = ["".join(run.base(q).token_texts) for q in run.question_ids[:20]]
        assert not any(mark in text for text in texts for mark in "ĠĊ")
        assert sum(" the " in text for text in texts) > 15
    deepseek = open_run(folder / "s200-deepseek")
    answered = [deepseek.base(q).answer for q in deepseek.question_ids]
    assert sum(answer.status == "parsed" for answer in answered) > 10


def test_certainty_is_known_at_every_token_or_not_claimed(shared: Path) -> None:
    folder, _ = imported(shared)
    assert open_run(folder / "s200-llama").observations("row003").step_p is not None
    sentences = open_run(folder / "s200-deepseek").observations("row003", grid="sampled")
    assert sentences.step_p is None
    assert sentences.divergence is None


def test_importing_again_changes_nothing(shared: Path, tmp_path: Path) -> None:
    source = tmp_path / "records"
    source.mkdir()
    [(file, _)] = [(f, n) for f in records(shared) if (n := store_of(f)) == ("s200-deepseek", "row004")]
    (source / file.name).write_bytes(file.read_bytes())
    import_published(source, tmp_path / "out")
    before = {p: p.read_bytes() for p in (tmp_path / "out").rglob("*.parquet")}
    report = import_published(source, tmp_path / "out")
    assert list(report.runs.values()) == [["row004"]]
    assert {p: p.read_bytes() for p in (tmp_path / "out").rglob("*.parquet")} == before


def _drop(key: str) -> Callable[[dict], None]:
    return lambda record: record.pop(key)


def _one_answer(record: dict[str, Any]) -> None:
    answers = record["branches"][3]["answers"]
    answers[:] = ["A" if a != "A" else "B" for a in answers]


def _set(*path: Any) -> Callable[[dict], None]:
    def change(record: Any) -> None:
        for key in path[:-2]:
            record = record[key]
        record[path[-2]] = path[-1]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_drop("branches"), "not a whole record"),
        (_drop("meta"), "not a whole record"),
        (_drop("config"), "not a whole record"),
        (_one_answer, "recorded curve is off"),
        (_set("o_t_full", 2, [0.2] * 5, ), "recorded curve is off"),
        (_set("o_t_full", []), "not a whole record"),
        (_set("branches", 0, "answers", ["A"] * 3), "has not its 200 draws"),
        (_set("branches", 0, "answers", ["Z"] * 200), "out of range"),
        (_set("branches", 0, "tok_p", float("nan")), "out of range"),
        (_set("branches", 0, "is_base", False), "base branch"),
        (_set("branches", 0, "t", 1), ""),
        (_set("idxs", [5, 3]), "increasing positions"),
        (_set("idxs", []), "not a whole record"),
        (_set("base", "token_texts", ["a"]), "unequal parts"),
        (_set("categories", ["A", "B", "Other"]), "not those of its choices"),
        (_set("meta", "choices", None), "not a whole record"),
        (_set("meta", "row_id", "../../etc"), ""),
        (_set("meta", "track", "../up"), "no name"),
    ],
)  # fmt: skip
def test_a_record_that_contradicts_itself_is_skipped_and_named(
    shared: Path, tmp_path: Path, change: Callable[[dict], None], says: str
) -> None:
    record = read_record(shared / "data" / "forking-fast" / "s200" / "deepseek" / "row040.json.gz")
    change(record)
    source = tmp_path / "records"
    source.mkdir()
    with gzip.open(source / "bad.json.gz", "wt") as file:
        json.dump(record, file)
    report = import_published(source, tmp_path / "out")
    assert report.runs == {}
    assert list(report.skipped) == [source / "bad.json.gz"]
    assert says in report.skipped[source / "bad.json.gz"]
    assert not list(tmp_path.glob("out/*/rollouts/*.parquet"))


def test_foreign_and_broken_files_are_named_and_do_not_stop_the_others(shared: Path, tmp_path: Path) -> None:
    source = tmp_path / "records"
    (source / "deep").mkdir(parents=True)
    good = (shared / "data" / "forking-fast" / "s200" / "deepseek" / "row040.json.gz").read_bytes()
    flipped = bytearray(good)
    flipped[len(flipped) // 2] ^= 4
    files = {
        "README.md": b"hello",
        "half.json.gz": good[: len(good) // 2],
        "flip.json.gz": bytes(flipped),
        "text.json.gz": b"{}",
        "list.json.gz": gzip.compress(b"[1]"),
        "empty.json.gz": b"",
        "deep/row040.json.gz": good,
        "deep/zagain.json.gz": good,
    }
    for name, data in files.items():
        (source / name).write_bytes(data)
    report = import_published(source, tmp_path / "out")
    assert list(report.runs.values()) == [["row040"]]
    assert {p.relative_to(source).as_posix() for p in report.skipped} == set(files) - {"deep/row040.json.gz"}
    assert "earlier file" in report.skipped[source / "deep" / "zagain.json.gz"]
    assert all("\n" not in reason for reason in report.skipped.values())


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no files"):
        import_published(tmp_path, tmp_path / "out")


def test_byte_pieces_are_decoded_across_characters() -> None:
    assert decode_pieces(["ĠHi", "Ċ", "ä½ł", "å", "¥½"]) == (" Hi", "\n", "你", "", "好")
    assert decode_pieces([" plain", " Ġ text"]) == (" plain", " Ġ text")
    assert decode_pieces([]) == ()


def test_the_curve_of_a_record_weighs_its_branches() -> None:
    record = {
        "categories": ["A", "Other"],
        "idxs": [0],
        "branches": [
            {"t": 0, "tok_p": 0.6, "answers": ["A", "A"]},
            {"t": 0, "tok_p": 0.2, "answers": ["A", "Other"]},
        ],
    }
    assert np.allclose(curve_of(record), [[0.875, 0.125]])
