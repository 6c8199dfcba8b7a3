"""Question sets: the shipped demo questions, tinyMMLU from the Hugging Face hub, or the user's own file.

A file is JSONL, CSV or Parquet. Every row has

- ``question``: text;
- ``choices``: a list of 2 to 10 different texts (in CSV a JSON list), or one column for each, named ``A``, ``B``, … or
  ``choice_a``, ``choice_b``, …;
- ``answer``, optional: a letter, a 0-based index, or the text of the choice. A number is always an index; so is
  a number written as a string, as all are in CSV, unless no choice has that index and one has that text;
- ``id`` (or ``question_id``), optional: made from the row's content where there is none;
- ``subject``, optional.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpa.data import data_path
from fpa.errors import FpaError, UsageError
from fpa.records import LETTERS, Question

TINYMMLU = "tinyBenchmarks/tinyMMLU"

Row = dict[str, Any]
IDS = ("id", "question_id")


@dataclass(frozen=True)
class QuestionSet:
    """Questions to collect.

    Attributes:
        name: ``demo``, ``tinymmlu``, or the file's name.
        questions: those selected, in the order of the source.
        fingerprint: SHA-256 of the content of the whole source, selected or not: collecting more of the same
            source goes on with the same set.
    """

    name: str
    questions: tuple[Question, ...]
    fingerprint: str


def load_questions(source: str, limit: int | None = None, ids: Sequence[str] | None = None) -> QuestionSet:
    """Load a question set.

    Args:
        source: ``demo``, ``tinymmlu``, the path of a JSONL, CSV or Parquet file, or the folder of a local copy
            of tinyMMLU.
        limit: only the first so many questions (of those named by ``ids``, where given).
        ids: only the questions of these ids.

    Raises:
        UsageError: if there is no such source, a row is wrong, ids repeat, or an id is unknown.
        FpaError: if the hub cannot be reached, or the package for it is missing.
    """
    path = Path(source)
    if source == "demo":
        name, path = source, data_path("demo_questions.jsonl")
        questions = _parse(path.name, _jsonl_rows(path))
    elif source.lower() in ("tinymmlu", TINYMMLU.lower()):
        name, questions = "tinymmlu", load_tinymmlu()
    elif not source:
        raise UsageError("--questions is empty: give demo, tinymmlu, or a JSONL, CSV or Parquet file")
    elif path.is_dir():
        name, questions = path.name, load_tinymmlu(str(path))
    else:
        name, questions = path.name, _parse(path.name, _file_rows(path))
    if not questions:
        raise UsageError(f"{source}: there are no questions in it")
    content = [[q.question_id, q.question, q.choices, q.answer, q.subject] for q in questions]
    fingerprint = hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()
    return QuestionSet(name, _select(questions, limit, ids), fingerprint)


def load_tinymmlu(path: str = TINYMMLU) -> tuple[Question, ...]:
    """The 100 questions of tinyMMLU (Polo et al. 2024, arXiv 2402.14992), its ``test`` split.

    Args:
        path: the dataset's id on the Hugging Face hub, or a folder that holds a copy of it.

    Raises:
        FpaError: if the package ``datasets`` is missing, or the data cannot be had.
        UsageError: if a folder holds no such data, or a row has not the fields ``question``, ``choices`` and
            ``answer``.
    """
    kind = "a folder, read as a copy of tinyMMLU" if Path(path).is_dir() else "tinyMMLU"
    try:
        import datasets
    except ImportError:
        raise FpaError(
            f"{path} is {kind}, which needs the package datasets: "
            "install it with  pip install 'fpa[hub]'  or give --questions "
            "a JSONL, CSV or Parquet file"
        ) from None
    if Path(path).is_dir():  # nothing is downloaded; what else the package would say is in the error
        datasets.disable_progress_bars()
        datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        rows = datasets.load_dataset(path, split="test")
    except Exception as error:  # the package raises whatever its file systems and the network raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if Path(path).is_dir():
            raise UsageError(
                f"{path} holds no copy of tinyMMLU ({reason}): name its folder, or a JSONL, CSV or Parquet file"
            ) from error
        raise FpaError(
            f"cannot load {path}: {reason}. Connect to the network once, so that it is kept for later, or give "
            "--questions the folder of a local copy, or a JSONL, CSV or Parquet file"
        ) from error
    numbered = ((f"row {i}", {**row, "id": f"tinymmlu-{i:03d}"}) for i, row in enumerate(rows))
    return _parse(path, numbered)


# --------------------------------------------------------------------------------------------------- reading

Numbered = Iterable[tuple[str, Row]]


def _file_rows(path: Path) -> Numbered:
    readers: dict[str, Callable[[Path], Numbered]] = {
        ".jsonl": _jsonl_rows,
        ".ndjson": _jsonl_rows,
        ".csv": _csv_rows,
        ".parquet": _parquet_rows,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"no question set {str(path)!r}: give demo, tinymmlu, or a file that ends in .jsonl, .csv or .parquet"
        )
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    return reader(path)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path.name} line {number}: not JSON ({error.msg} at {error.colno})") from None
        except (RecursionError, ValueError):  # brackets too deep, or a number of thousands of digits
            raise UsageError(f"{path.name} line {number}: nested too deep, or a number too long") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path.name} line {number}: a JSON object is wanted, with question and choices")
        yield f"line {number}", row


def _csv_rows(path: Path) -> Iterator[tuple[str, Row]]:
    # Lines as CSV knows them: texts may hold other characters that Python takes for the end of one.
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
    line = 1
    try:
        if not reader.fieldnames or "question" not in reader.fieldnames:
            raise UsageError(f"{path.name} line 1: the header has no column named question")
        doubled = [name for name, count in Counter(reader.fieldnames).items() if name and count > 1]
        if doubled:
            raise UsageError(f"{path.name} line 1: the header names the column {doubled[0]} more than once")
        line = reader.line_num + 1
        for row in reader:
            if None in row:
                raise UsageError(
                    f"{path.name} line {line}: more fields than the header: quote fields with commas"
                )
            # An empty field is none, but an id that is missing among others is a mistake.
            given = {k: v for k, v in row.items() if v or (v == "" and k in IDS)}
            yield f"line {line}", given
            line = reader.line_num + 1
    except csv.Error as error:
        raise UsageError(f"{path.name} line {line}: not CSV ({error})") from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(
            f"{path}: not a readable Parquet file ({' '.join(str(error).split())[:120]})"
        ) from None
    for number, row in enumerate(rows):
        yield f"row {number}", row


# --------------------------------------------------------------------------------------------------- parsing


def _parse(name: str, rows: Numbered) -> tuple[Question, ...]:
    questions: list[Question] = []
    places: dict[str, str] = {}
    for place, row in rows:
        try:
            _check_characters(row)
            question = _question(row)
        except ValueError as error:
            raise UsageError(f"{name} {place}: {error}") from None
        except RecursionError:
            raise UsageError(f"{name} {place}: nested too deep, or a number too long") from None
        if question.question_id in places:
            raise UsageError(
                f"{name} {place}: the id {question.question_id} repeats that of {places[question.question_id]}: "
                "give every question its own id"
            )
        places[question.question_id] = place
        questions.append(question)
    return tuple(questions)


def _check_characters(value: Any) -> None:
    """Refuse halves of characters, which JSON can write and no UTF-8 file can hold."""
    if isinstance(value, dict):
        for key, held in value.items():
            _check_characters(key)
            _check_characters(held)
    elif isinstance(value, list | tuple):
        for held in value:
            _check_characters(held)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = ord(value[error.start])
            raise ValueError(
                f"\\u{half:04x} is half of a character: write the whole one, or leave it out"
            ) from None


def _question(row: Row) -> Question:
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("the question is missing or no text")
    choices = _choices(row)
    subject = row.get("subject")
    return Question(
        _id(row, question, choices),
        question,
        choices,
        _answer(row.get("answer"), choices),
        str(subject) if _given(subject) else None,
    )


def _choices(row: Row) -> tuple[str, ...]:
    listed = row.get("choices")
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (RecursionError, ValueError):  # no JSON, brackets too deep, or a number of thousands of digits
            raise ValueError(
                'choices is no JSON list: write it as ["…", "…"], or use columns A, B, …'
            ) from None
    if listed is None:
        listed = _choice_columns(row)
    if not isinstance(listed, list | tuple):
        raise ValueError("the choices are missing: give a list, or columns A, B, …")
    texts = tuple(_plain(choice) for choice in listed)
    if not 2 <= len(texts) <= len(LETTERS):
        raise ValueError(f"a question has 2 to {len(LETTERS)} choices, this one has {len(texts)}")
    if not all(text.strip() for text in texts):
        raise ValueError(f"choice {LETTERS[[bool(text.strip()) for text in texts].index(False)]} is empty")
    seen: dict[str, str] = {}
    for letter, text in zip(LETTERS, texts, strict=False):
        first = seen.setdefault(" ".join(text.split()), letter)
        if first != letter:
            raise ValueError(f"choices {first} and {letter} are equal: {text.strip()!r}")
    return texts


def _choice_columns(row: Row) -> list[Any] | None:
    for pattern in ("{}", "choice_{}", "option_{}"):
        for letters in (LETTERS, LETTERS.lower()):
            columns = [pattern.format(letter) for letter in letters]
            given = [_given(row.get(column)) for column in columns]
            if any(given):
                count = len(given) - given[::-1].index(True)
                return [row.get(column, "") for column in columns[:count]]
    return None


def _plain(choice: Any) -> str:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, bool | int | float) and _given(choice):
        return str(choice)
    raise ValueError(f"a choice is no text: {choice!r}")


def _given(value: Any) -> bool:
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def _answer(value: Any, choices: tuple[str, ...]) -> str | None:
    """The letter that an answer names."""
    letters = LETTERS[: len(choices)]
    if not _given(value):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < len(choices):
            return letters[value]
        raise ValueError(
            f"the answer {value} is no index of a choice: they count from 0 to {len(choices) - 1}"
        )
    if isinstance(value, str):
        return _written_answer(value.strip(), choices)
    raise ValueError(f"the answer {value!r} is no letter, index or text of a choice")


def _written_answer(text: str, choices: tuple[str, ...]) -> str:
    letters = LETTERS[: len(choices)]
    bare = text.strip("().: ").upper()
    if len(bare) == 1 and bare in letters:
        return bare
    same = [letter for letter, choice in zip(letters, choices, strict=True) if choice.strip() == text]
    index = int(text) if text.isascii() and text.isdigit() else None
    indexed = letters[index] if index is not None and index < len(choices) else None
    if indexed is not None and same and same != [indexed]:
        raise ValueError(
            f'the answer "{text}" is the index of one choice and the text of another: give its letter'
        )
    if indexed is not None:
        return indexed
    if same:
        return same[0]
    raise ValueError(
        f'the answer "{text}" is no letter ({letters[0]} to {letters[-1]}), index or text of a choice'
    )


def _id(row: Row, question: str, choices: tuple[str, ...]) -> str:
    for key in IDS:
        if row.get(key) == "" or _given(row.get(key)):
            if isinstance(row[key], bytes | list | tuple | dict):
                raise ValueError(f"the {key} must be a text or a number, not {row[key]!r:.40}")
            name = str(row[key]).strip()
            if not name or len(name) > 200 or not name.isprintable():
                raise ValueError(
                    "the id must be 1 to 200 printable characters"
                    + ("" if name else f"; leave {key} out for none")
                )
            return name
    content = json.dumps([question, choices], ensure_ascii=False)
    return f"q-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def _select(
    questions: tuple[Question, ...], limit: int | None, ids: Sequence[str] | None
) -> tuple[Question, ...]:
    if ids is not None:
        known = {question.question_id for question in questions}
        unknown = [name for name in ids if name not in known]
        if unknown:
            raise UsageError(
                f"no question with the id {', '.join(unknown)}: the first is {questions[0].question_id}"
            )
        questions = tuple(question for question in questions if question.question_id in set(ids))
    if limit is not None and limit < 1:
        raise UsageError(f"the limit must be at least 1, got {limit}")
    return questions[:limit]
