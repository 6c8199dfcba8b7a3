"""Question sets: the demo set, tinyMMLU, files of every form, and the one line each wrong row gets."""

from __future__ import annotations

import builtins
import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fpa.data import data_path
from fpa.errors import FpaError, UsageError
from fpa.questions import load_questions, load_tinymmlu
from fpa.records import LETTERS, Question

ROW = {"id": "a", "question": "Which is red?", "choices": ["sky", "rust", "grass"], "answer": "B"}


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def answer_of(folder: Path, answer: Any, choices: list[Any] | None = None) -> str | None:
    row = {"question": "Which?", "choices": choices or ["sky", "rust", "grass"], "answer": answer}
    return load_questions(write_jsonl(folder / "q.jsonl", [row])).questions[0].answer


def complaint(folder: Path, *rows: dict[str, Any]) -> str:
    source = write_jsonl(folder / "bad.jsonl", list(rows))
    with pytest.raises(UsageError) as caught:
        load_questions(source)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_demo_set() -> None:
    demo = load_questions("demo")
    assert demo.name == "demo"
    assert len(demo.questions) >= 12
    assert all(len(question.choices) == 4 and question.answer in "ABCD" for question in demo.questions)
    assert len({question.question_id for question in demo.questions}) == len(demo.questions)
    # The right answer is not always the same letter.
    assert {question.answer for question in demo.questions} == set("ABCD")


def test_shipped_files_are_found_in_a_checkout_and_in_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_path("demo_questions.jsonl").parent.name == "data"
    installed = tmp_path / "site-packages" / "fpa"
    (installed / "_data").mkdir(parents=True)
    (installed / "_data" / "demo_questions.jsonl").touch()
    monkeypatch.setattr("fpa.data._PACKAGE", installed)
    assert data_path("demo_questions.jsonl") == installed / "_data" / "demo_questions.jsonl"
    with pytest.raises(FpaError, match="install fpa again"):
        data_path("nothing.jsonl")


@pytest.mark.shared
def test_tinymmlu_as_a_jsonl_file(shared: Path) -> None:
    loaded = load_questions(str(shared / "data" / "tinymmlu.jsonl"))
    assert len(loaded.questions) == 100
    assert loaded.questions[0].question_id == "tinymmlu-000"
    assert loaded.questions[0].answer == "D"
    assert all(len(question.choices) == 4 for question in loaded.questions)


# ------------------------------------------------------------------------------------------------- file forms


def test_the_three_forms_of_file_hold_the_same_questions(tmp_path: Path) -> None:
    rows = [
        {
            "id": "a",
            "question": 'Which, of "these", is red?',
            "choices": ["sky", "rust, old", "grass"],
            "answer": "B",
        },
        {"id": "b", "question": "两行\n第二行?", "choices": ["一", "二"], "answer": "A"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    flat = [{**row, "choices": json.dumps(row["choices"])} for row in rows]
    columns = [
        {"id": row["id"], "question": row["question"], "answer": row["answer"]}
        | {letter: (row["choices"][i] if i < len(row["choices"]) else "") for i, letter in enumerate("ABC")}
        for row in rows
    ]
    sets = [
        load_questions(write_jsonl(tmp_path / "q.jsonl", rows)),
        load_questions(str(tmp_path / "q.parquet")),
        load_questions(write_csv(tmp_path / "q.csv", flat)),
        load_questions(write_csv(tmp_path / "columns.csv", columns)),
    ]
    assert sets[0].questions == (
        Question("a", 'Which, of "these", is red?', ("sky", "rust, old", "grass"), "B"),
        Question("b", "两行\n第二行?", ("一", "二"), "A"),
    )
    assert all(other.questions == sets[0].questions for other in sets)
    assert len({other.fingerprint for other in sets}) == 1
    assert sets[0].name == "q.jsonl"


@pytest.mark.parametrize(
    "names", ["ABC", "abc", ["choice_a", "choice_b", "choice_c"], ["option_A", "option_B", "option_C"]]
)
def test_choices_in_columns(tmp_path: Path, names: list[str]) -> None:
    row = {"question": "Which?", **dict(zip(names, ["x", "y", "z"], strict=True)), "answer": "z"}
    (question,) = load_questions(write_csv(tmp_path / "q.csv", [row])).questions
    assert (question.choices, question.answer) == (("x", "y", "z"), "C")


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\ufeff" + json.dumps(ROW) + "\n\n", encoding="utf-8")
    assert len(load_questions(str(path)).questions) == 1


def test_numbers_as_choices_become_text(tmp_path: Path) -> None:
    row = {"question": "1 + 1?", "choices": [1, 2, 2.5], "answer": "B"}
    assert load_questions(write_jsonl(tmp_path / "q.jsonl", [row])).questions[0].choices == ("1", "2", "2.5")


# --------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("answer", "letter"),
    [("B", "B"), ("b", "B"), (" (C) ", "C"), ("A)", "A"), (0, "A"), (2, "C"), (1.0, "B"), ("1", "B"), ("rust", "B"),
     (None, None), ("", None)],
)  # fmt: skip
def test_how_an_answer_may_be_written(tmp_path: Path, answer: Any, letter: str | None) -> None:
    assert answer_of(tmp_path, answer) == letter


def test_a_missing_answer_is_unknown(tmp_path: Path) -> None:
    row = {key: value for key, value in ROW.items() if key != "answer"}
    assert load_questions(write_jsonl(tmp_path / "q.jsonl", [row])).questions[0].answer is None


def test_a_missing_answer_in_a_parquet_file_of_indices_is_unknown(tmp_path: Path) -> None:
    rows = [
        {"question": f"{i}?", "choices": ["x", "y"], "answer": answer}
        for i, answer in enumerate([1, None, 0])
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "q.parquet")
    assert [q.answer for q in load_questions(str(tmp_path / "q.parquet")).questions] == ["B", None, "A"]


def test_a_number_in_a_string_is_an_index_unless_it_can_only_be_a_text(tmp_path: Path) -> None:
    assert answer_of(tmp_path, "12", ["9", "12"]) == "B"
    assert answer_of(tmp_path, "1", ["0", "1"]) == "B"
    assert answer_of(tmp_path, 1, ["1", "2"]) == "B"
    with pytest.raises(UsageError, match="index of one choice and the text of another"):
        answer_of(tmp_path, "1", ["1", "2"])


@pytest.mark.parametrize("answer", ["D", 3, -1, "blue", 1.5, True, ["A"], "3"])
def test_an_answer_that_names_no_choice_is_refused(tmp_path: Path, answer: Any) -> None:
    with pytest.raises(UsageError, match=r"^q\.jsonl line 1: the answer"):
        answer_of(tmp_path, answer)


# --------------------------------------------------------------------------------------------- ids, selection


def test_made_ids_are_stable_and_depend_on_the_content_alone(tmp_path: Path) -> None:
    one = {"question": "One?", "choices": ["x", "y"]}
    two = {"question": "Two?", "choices": ["x", "y"]}
    first = load_questions(write_jsonl(tmp_path / "q.jsonl", [one, two])).questions
    again = load_questions(
        write_jsonl(tmp_path / "r.jsonl", [two, {**one, "answer": "A", "subject": "s"}])
    ).questions
    assert {q.question: q.question_id for q in first} == {q.question: q.question_id for q in again}
    assert first[0].question_id != first[1].question_id


def test_repeated_ids_are_refused_with_both_lines(tmp_path: Path) -> None:
    message = complaint(tmp_path, ROW, {**ROW, "id": "b"}, {**ROW, "question": "Another?"})
    assert message.startswith("bad.jsonl line 3: the id a repeats that of line 1")


def test_repeated_questions_without_ids_are_refused(tmp_path: Path) -> None:
    row = {"question": "Which?", "choices": ["x", "y"]}
    assert "line 2" in complaint(tmp_path, row, {**row, "answer": "A"})


def test_numbers_as_ids_become_text(tmp_path: Path) -> None:
    loaded = load_questions(write_jsonl(tmp_path / "q.jsonl", [{**ROW, "id": 7}, {**ROW, "id": 8}]))
    assert [question.question_id for question in loaded.questions] == ["7", "8"]


def test_limit_and_ids_select_and_leave_the_fingerprint(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "q.jsonl", [{**ROW, "id": name} for name in "abcd"])
    whole = load_questions(source)
    assert [q.question_id for q in load_questions(source, limit=2).questions] == ["a", "b"]
    assert [q.question_id for q in load_questions(source, ids=["d", "b"]).questions] == ["b", "d"]
    assert [q.question_id for q in load_questions(source, limit=1, ids=["d", "b"]).questions] == ["b"]
    assert load_questions(source, limit=9).questions == whole.questions
    assert load_questions(source, limit=2).fingerprint == whole.fingerprint
    assert load_questions(write_jsonl(tmp_path / "r.jsonl", [ROW])).fingerprint != whole.fingerprint


def test_an_unknown_id_and_a_senseless_limit_are_refused(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "q.jsonl", [ROW])
    with pytest.raises(UsageError, match="no question with the id zz"):
        load_questions(source, ids=["a", "zz"])
    with pytest.raises(UsageError, match="at least 1"):
        load_questions(source, limit=0)


# -------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"question": ""}, "the question is missing"),
        ({"question": None}, "the question is missing"),
        ({"choices": ["only"]}, "2 to 10 choices, this one has 1"),
        ({"choices": [str(i) for i in range(11)]}, "this one has 11"),
        ({"choices": ["x", " "]}, "choice B is empty"),
        ({"choices": ["x", None]}, "a choice is no text"),
        ({"choices": {"x": 1}}, "the choices are missing"),
        ({"choices": None}, "the choices are missing"),
        ({"choices": "x or y"}, "no JSON list"),
        ({"choices": ["3", "3"]}, "choices A and B are equal"),
        ({"choices": ["x", "3", " 3"]}, "choices B and C are equal"),
        ({"choices": ["x", 3, "3"]}, "choices B and C are equal"),
        ({"id": "a\nb"}, "printable"),
        ({"id": ""}, "leave id out for none"),
        ({"id": " "}, "leave id out for none"),
        ({"id": None, "question_id": ""}, "leave question_id out for none"),
    ],
)
def test_a_wrong_row_is_named_with_what_is_wrong(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    message = complaint(tmp_path, {**ROW, "id": "ok"}, {**ROW, **change})
    assert message.startswith("bad.jsonl line 2: ")
    assert reason in message


def test_an_empty_id_in_a_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("id,question,A,B\n1,x,a,b\n,y,a,b\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.csv line 3: the id must be"):
        load_questions(str(path))


def test_ten_choices_are_taken(tmp_path: Path) -> None:
    row = {"question": "Which?", "choices": [f"thing {i}" for i in range(10)], "answer": 9}
    (question,) = load_questions(write_jsonl(tmp_path / "q.jsonl", [row])).questions
    assert question.answer == "J"
    assert question.categories == (*LETTERS, "Other")


def test_lines_that_are_no_json_object_are_named(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(ROW) + "\n{oops\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.jsonl line 2: not JSON"):
        load_questions(str(path))
    path.write_text("[1]\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.jsonl line 1: a JSON object"):
        load_questions(str(path))


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"x": ' + "[" * 5000 + "]" * 5000 + "}", '{"id": ' + "1" * 5000 + "}"]
)
def test_json_that_python_cannot_hold_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text(json.dumps(ROW) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.jsonl line 2: nested too deep, or a number too long"):
        load_questions(str(file))


def test_choices_nested_too_deep_are_named(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "q.jsonl", [{**ROW, "choices": "[" * 100_000}])
    with pytest.raises(UsageError, match=r"q\.jsonl line 1: choices is no JSON list"):
        load_questions(file)


def test_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "q.csv"
    file.write_text("id,id,question,A,B\n1,2,Which?,sky,rust\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.csv line 1: the header names the column id more than once"):
        load_questions(str(file))


@pytest.mark.parametrize("name", [b"\xff", ["a"], {"a": 1}])
def test_an_id_that_is_no_text_or_number_is_refused(tmp_path: Path, name: Any) -> None:
    file = tmp_path / "q.parquet"
    pq.write_table(pa.Table.from_pylist([{**ROW, "id": name}]), file)
    with pytest.raises(UsageError, match=r"q\.parquet row 0: the id must be a text or a number"):
        load_questions(str(file))


def test_csv_rows_are_named_by_the_line_they_begin_at(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('question,A,B,answer\n"two\nlines?",x,y,A\nnext?,x,y,Z\n', encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.csv line 4: the answer"):
        load_questions(str(path))
    path.write_text("question,A,B\nwhich, of these?,x,y\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.csv line 2: more fields than the header"):
        load_questions(str(path))
    path.write_text("prompt,A,B\nx,y,z\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"q\.csv line 1: the header has no column named question"):
        load_questions(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"question": "caf\xe9"}\n')
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 not really")
    for source, reason in [
        (latin, "not UTF-8"),
        (empty, "no questions"),
        (broken, "not a readable Parquet file"),
        (tmp_path / "missing.jsonl", "no such file"),
        (tmp_path / "q.xlsx", r"ends in \.jsonl, \.csv or \.parquet"),
        ("mmlu", r"give demo, tinymmlu, or a file"),
    ]:
        with pytest.raises(UsageError, match=reason):
            load_questions(str(source))


# -------------------------------------------------------------------------------------------------- tinyMMLU


@pytest.fixture
def tinymmlu_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out like the dataset on the hub: one configuration, ``all``, with the splits test and dev."""
    pytest.importorskip("datasets", reason="the package datasets (extra hub) is not installed")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "tinyBenchmarks" / "tinyMMLU"
    (folder / "all").mkdir(parents=True)
    schema = pa.schema(
        [("question", pa.string()), ("subject", pa.string()), ("choices", pa.list_(pa.string())),
         ("answer", pa.int64()), ("input_formatted", pa.string())]
    )  # fmt: skip
    for split, count in (("test", 100), ("dev", 285)):
        rows = [
            {"question": f"{split} {i}?", "subject": "anatomy", "choices": [f"{i}{c}" for c in "wxyz"], "answer": i % 4,
             "input_formatted": f"The following are … {i}"}
            for i in range(count)
        ]  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / "all" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: all\n  data_files:\n  - split: test\n    path: all/test-*\n"
        "  - split: dev\n    path: all/dev-*\n---\n"
    )
    return folder


def check_tinymmlu(questions: tuple[Question, ...]) -> None:
    assert len(questions) == 100
    assert questions[6] == Question("tinymmlu-006", "test 6?", ("6w", "6x", "6y", "6z"), "C", "anatomy")


def test_tinymmlu_loads_through_datasets(tinymmlu_copy: Path) -> None:
    check_tinymmlu(load_tinymmlu(str(tinymmlu_copy)))
    assert load_questions(str(tinymmlu_copy)).name == "tinyMMLU"


def test_a_folder_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the package datasets (extra hub) is not installed")
    (tmp_path / "notes.txt").write_text("no questions")
    with pytest.raises(UsageError, match="holds no copy of tinyMMLU"):
        load_questions(str(tmp_path))


def test_what_is_wrong_with_a_folder_is_said_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("datasets", reason="the package datasets (extra hub) is not installed")
    for name in ("one", "two"):
        pq.write_table(pa.table({name: [1, 2]}), tmp_path / f"{name}.parquet")
    with pytest.raises(UsageError, match="holds no copy of tinyMMLU"):
        load_questions(str(tmp_path))
    assert capfd.readouterr() == ("", "")


def test_tinymmlu_by_name_asks_for_the_test_split_of_the_hub_dataset(
    tinymmlu_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The package takes a folder of the dataset's id, relative to where it runs, for the dataset itself.
    monkeypatch.chdir(tinymmlu_copy.parent.parent)
    loaded = load_questions("tinymmlu", limit=100)
    assert loaded.name == "tinymmlu"
    check_tinymmlu(loaded.questions)


def test_tinymmlu_without_a_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets (extra hub) is not installed")

    def unreachable(*args: object, **kwargs: object) -> None:
        assert "trust_remote_code" not in kwargs
        raise ConnectionError("Couldn't reach the Hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(FpaError, match=r"Couldn't reach the Hub at all.*network.*local copy") as caught:
        load_questions("tinymmlu")
    assert "\n" not in str(caught.value)


def test_tinymmlu_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_datasets(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(FpaError, match=r"pip install 'fpa\[hub\]'"):
        load_questions("tinymmlu")


def test_a_folder_without_the_fields_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the package datasets (extra hub) is not installed")
    (tmp_path / "other").mkdir()
    write_jsonl(tmp_path / "other" / "test.jsonl", [{"text": "x"}])
    with pytest.raises(UsageError, match="row 0: the question is missing"):
        load_questions(str(tmp_path / "other"))


@pytest.mark.parametrize("inside", ["\u2028", "\x0b", "\x0c", "\x1c", "\x85"])
def test_csv_fields_may_hold_what_ends_lines_elsewhere(tmp_path: Path, inside: str) -> None:
    path = tmp_path / "q.csv"
    text = f"question,A,B,answer\r\nWhat is{inside}this?,a,b,A\r\n"
    path.write_bytes(text.encode())
    [question] = load_questions(str(path)).questions
    assert question.question == f"What is{inside}this?"
    path.write_bytes((text + "What else?,a\r\n").encode())
    with pytest.raises(UsageError, match="line 3"):
        load_questions(str(path))


@pytest.mark.parametrize(
    "field", [{"question": "bad \ud800 here"}, {"choices": ["x", "\udfff"]}, {"id": "\ud83d"}, {"\ud800": 1}]
)
def test_half_a_character_is_refused_with_its_line(tmp_path: Path, field: dict[str, Any]) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps({**ROW, "id": "b", **field}) + "\n")
    with pytest.raises(UsageError, match=r"q.jsonl line 2: .*half of a character"):
        load_questions(str(path))
