"""The run directory's tables: explicit Parquet schemas, and records to rows and back.

Version 1. Probabilities and seeds are 64-bit, ids and positions 32-bit; null is unknown or not applicable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pyarrow as pa

from fpa.records import Answer, AttentionSignals, BasePath, Distribution, Question, Rollout

SCHEMA_VERSION = 1

ATTENTION = ("attention_entropy", "attention_varentropy", "agreement", "interaction")
"""Columns of ``records.AttentionSignals``, in the order of its fields."""
TRACE = ("parent", "shared", "states", "peak_entropy")
"""Columns of ``records.Trace``."""

QUESTIONS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        ("question", pa.string()),
        ("choices", pa.list_(pa.string())),
        ("answer", pa.string()),
        ("subject", pa.string()),
        ("prompt_token_ids", pa.list_(pa.int32())),
    ]
)

# finish_reason, outcome and status are the base path's own, the same in each of its rows.
BASE = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("t", pa.int32(), nullable=False),
        ("token_id", pa.int32()),
        ("token_text", pa.string()),
        ("p", pa.float64()),
        ("entropy", pa.float64()),
        ("varentropy", pa.float64()),
        ("tail_mass", pa.float64()),
        ("top_ids", pa.list_(pa.int32())),
        ("top_p", pa.list_(pa.float64())),
        ("top_texts", pa.list_(pa.string())),
        ("top_entropy", pa.float64()),
        ("attention_entropy", pa.float64()),
        ("attention_varentropy", pa.float64()),
        ("agreement", pa.float64()),
        ("interaction", pa.float64()),
        ("sentence", pa.int32()),
        ("finish_reason", pa.string()),
        ("outcome", pa.string()),
        ("status", pa.string()),
    ]
)

ROLLOUTS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("start", pa.int32(), nullable=False),
        pa.field("draw", pa.int32(), nullable=False),
        ("first_token", pa.int32()),
        ("first_token_p", pa.float64()),
        ("seed", pa.int64()),
        ("outcome", pa.string()),
        ("status", pa.string()),
        ("diverge_at", pa.int32()),
        ("n_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("parent", pa.int32()),
        ("shared", pa.int32()),
        ("states", pa.string()),
        ("peak_entropy", pa.float64()),
    ]
)

CURVES = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        ("method", pa.string()),
        ("t", pa.int32()),
        ("category", pa.string()),
        ("p", pa.float64()),
        ("lo", pa.float64()),
        ("hi", pa.float64()),
    ]
)

FORKS = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        ("t", pa.int32()),
        ("token_text", pa.string()),
        ("p_change", pa.float64()),
        ("tv", pa.float64()),
    ]
)

SURVIVAL = pa.schema(
    [
        pa.field("question_id", pa.string(), nullable=False),
        ("t", pa.int32()),
        ("survival", pa.float64()),
    ]
)


def question_table(question: Question, prompt_ids: Sequence[int] | None) -> pa.Table:
    """One row of ``questions.parquet``."""
    row = {
        "question_id": question.question_id,
        "question": question.question,
        "choices": list(question.choices),
        "answer": question.answer,
        "subject": question.subject,
        "prompt_token_ids": None if prompt_ids is None else [int(i) for i in prompt_ids],
    }
    return pa.Table.from_pylist([row], schema=QUESTIONS)


def question_from_row(row: dict) -> Question:
    """The question of one row of ``questions.parquet``."""
    return Question(row["question_id"], row["question"], tuple(row["choices"]), row["answer"], row["subject"])


def base_table(base: BasePath) -> pa.Table:
    """The T rows of one base path.

    ``p`` is null where it is unknown: the base token is not listed and the listing's ``tail_mass`` is NaN.

    Raises:
        ValueError: the path is empty, or its parts differ in length.
    """
    length = len(base.token_ids)
    parts = (base.token_texts, base.distributions, base.sentences)
    if length == 0 or any(len(part) != length for part in parts):
        raise ValueError(
            f"base path of {base.question_id}: {length} tokens with {', '.join(str(len(p)) for p in parts)} "
            "texts, distributions and sentences; there must be as many of each, and at least one"
        )
    rows = base.distributions
    p = [
        None if math.isnan(d.tail_mass) and token not in d.ids else float(value)
        for token, d, value in zip(base.token_ids, rows, base.p, strict=True)
    ]
    columns = [
        pa.array([base.question_id] * length, pa.string()),
        pa.array(range(length), pa.int32()),
        pa.array(base.token_ids, pa.int32()),
        pa.array(base.token_texts, pa.string()),
        pa.array(p, pa.float64()),
        pa.array([_finite(d.entropy) for d in rows], pa.float64()),
        pa.array([_finite(d.varentropy) for d in rows], pa.float64()),
        pa.array([_finite(d.tail_mass) for d in rows], pa.float64()),
        pa.array([np.asarray(d.ids, np.int32) for d in rows], pa.list_(pa.int32())),
        pa.array([np.asarray(d.p, np.float64) for d in rows], pa.list_(pa.float64())),
        pa.array([list(d.texts) for d in rows], pa.list_(pa.string())),
        pa.array([_finite(d.top_entropy) for d in rows], pa.float64()),
        *(
            pa.array(
                [None if d.attention is None else getattr(d.attention, field.name) for d in rows],
                pa.float64(),
            )
            for field in fields(AttentionSignals)
        ),
        pa.array(base.sentences, pa.int32()),
        pa.array([base.finish_reason] * length, pa.string()),
        pa.array([base.answer.outcome] * length, pa.string()),
        pa.array([base.answer.status] * length, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=BASE)


def base_from_table(table: pa.Table) -> BasePath:
    """The base path of its T rows; what was null is NaN."""
    rows = table.sort_by("t").to_pylist()
    return BasePath(
        question_id=rows[0]["question_id"],
        token_ids=tuple(r["token_id"] for r in rows),
        token_texts=tuple(r["token_text"] for r in rows),
        distributions=tuple(
            Distribution(
                ids=np.array(r["top_ids"], np.int32),
                p=np.array(r["top_p"], np.float64),
                tail_mass=_nan(r["tail_mass"]),
                entropy=_nan(r["entropy"]),
                varentropy=_nan(r["varentropy"]),
                texts=tuple(r.get("top_texts") or ()),
                top_entropy=_nan(r.get("top_entropy")),
                attention=_attention(r),
            )
            for r in rows
        ),
        sentences=tuple(r["sentence"] for r in rows),
        finish_reason=rows[0]["finish_reason"],
        answer=Answer(rows[0]["outcome"], rows[0]["status"]),
    )


def rollout_table(rows: Sequence[Rollout]) -> pa.Table:
    """One row of ``rollouts/*.parquet`` for each rollout, in the order given."""
    columns = [
        pa.array(
            [_trace_of(row, f.name) if f.name in TRACE else getattr(row, f.name) for row in rows], f.type
        )
        for f in ROLLOUTS
    ]
    return pa.Table.from_arrays(columns, schema=ROLLOUTS)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """A table with just the schema's columns; those that it lacks, from before they were there, are null."""
    return pa.Table.from_arrays(
        [
            table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
            for f in schema
        ],
        schema=schema,
    )


def _trace_of(row: Rollout, name: str) -> int | float | str | None:
    value = None if row.trace is None else getattr(row.trace, name)
    return None if isinstance(value, float) and math.isnan(value) else value


def _attention(row: dict) -> AttentionSignals | None:
    values = [row[name] for name in ATTENTION if row.get(name) is not None]
    return AttentionSignals(*values) if len(values) == len(ATTENTION) else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _nan(value: float | None) -> float:
    return math.nan if value is None else value
