"""Reading a run directory: lazily, one question at a time, finished or not."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fpa.draws import NEVER, UNKNOWN, Draws, Rows, mixture, padded, weights
from fpa.errors import FpaError, UsageError
from fpa.parts import Merged, check_part, read_part, write_part, writing
from fpa.records import BasePath, Question
from fpa.schemas import CURVES, FORKS, ROLLOUTS, SURVIVAL, base_from_table, conform, question_from_row
from fpa.store import natural_order, question_key, read_manifest
from fpa.strategies import WITHOUT_CURVE, steers
from smoothing import Observations

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Grid = Literal["token", "sampled"]


@dataclass(frozen=True)
class _Loaded:
    draws: Draws
    curve: tuple[IntArray, FloatArray, tuple[str, ...]]


class Run:
    """A run directory opened for reading; made by ``open_run``.

    Attributes:
        path: the run directory.
        manifest: the content of ``manifest.json``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self._questions = self._locate("questions")
        self._bases = self._locate("base")
        self._parts: dict[str, list[Path]] = {}
        for part in sorted((path / "rollouts").glob("*.parquet")):
            match = re.fullmatch(r"(.+-[0-9a-f]{12})-t\d{7}(-.+)?", part.stem)
            if match:
                self._parts.setdefault(match[1], []).append(part)
        self._whole()
        self._last: tuple[str, _Loaded] | None = None

    def _whole(self) -> None:
        """Refuse a finished run from which files have been taken since: its figures would be of other draws."""
        there = {
            "questions": len(self._questions),
            "base_paths": len(self._bases),
            "units": sum(map(len, self._parts.values())),
        }
        where = {"questions": "questions.parquet", "base_paths": "base.parquet", "units": "rollouts"}
        for name, found in there.items():
            wanted = self.manifest["collected"].get(name, 0)
            if self.manifest["finished"] and found < wanted:
                raise FpaError(
                    f"{self.path / where[name]}: {wanted - found} of {wanted} {name.replace('_', ' ')} are missing: "
                    "run the command that made this run again, which redoes them"
                )

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {len(self.question_ids)} questions)"

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was collected with."""
        return self.manifest["config"]

    @property
    def has_curve(self) -> bool:
        """Whether its rollouts begin at positions along the base paths."""
        return self.config.get("strategy") not in WITHOUT_CURVE

    @property
    def question_ids(self) -> tuple[str, ...]:
        """Ids of all questions stored, collected or not, in natural order."""
        return tuple(sorted(self._questions, key=natural_order))

    @property
    def collected_ids(self) -> tuple[str, ...]:
        """Ids of the questions that have rollouts."""
        return tuple(q for q in self.question_ids if question_key(q) in self._parts)

    @property
    def failures(self) -> dict[str, str]:
        """Question id -> what went wrong with it, as of the last collecting session."""
        path, found = self.path / "failures.jsonl", {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").split("\n"):
                try:
                    entry = json.loads(line)
                except ValueError:  # the writer was killed in the middle of this line
                    continue
                found[entry["question_id"]] = entry["message"]
        return found

    def question(self, question_id: str) -> Question:
        """One question."""
        return question_from_row(self._row(question_id))

    def prompt_ids(self, question_id: str) -> tuple[int, ...] | None:
        """Token ids of a question's prompt; None where they are unknown."""
        ids = self._row(question_id)["prompt_token_ids"]
        return None if ids is None else tuple(ids)

    def base(self, question_id: str) -> BasePath:
        """The base path of one question.

        Raises:
            UsageError: there is none yet, or no such question.
        """
        return base_from_table(self.base_table(question_id))

    def base_table(self, question_id: str) -> pa.Table:
        """The base path of one question as its rows of ``base.parquet``."""
        self._known(question_id)
        if question_id not in self._bases:
            raise UsageError(f"{self.path}: {question_id} has no base path yet; resume the collection")
        return _read(self._bases[question_id], question_id)

    def rollouts(self, question_id: str, columns: list[str] | None = None) -> pd.DataFrame:
        """The rollouts of one question, a row each, by position and then as stored."""
        return self._rollout_table(question_id, columns).to_pandas()

    def statuses(self, question_id: str) -> dict[str, int]:
        """How many rollouts of a question have each status; they add up to all of its draws."""
        table = self._rollout_table(question_id, ["status"])
        return {c["values"]: c["counts"] for c in table["status"].value_counts().to_pylist()}

    def counts(self, question_id: str) -> tuple[IntArray, IntArray, tuple[str, ...]]:
        """Outcome counts of one question.

        Returns:
            positions (n,), counts (n, K), the K category names. In branch form the counts are of mixture
            draws (see ``draws``).
        """
        draws = self.draws(question_id)
        return draws.positions, draws.counts(), draws.categories

    def curve(self, question_id: str) -> tuple[IntArray, FloatArray, tuple[str, ...]]:
        """The raw outcome curve from all draws: positions (n,), probabilities (n, K), the K category names.

        In branch form it is the exact weighted one, ``Σ_w p(w)·o_{t,w}`` with ``p`` renormalised over the
        branches kept (Bigelow et al. 2024, arXiv 2412.07961).
        """
        return self._load(question_id).curve

    def branches(self, question_id: str) -> Iterator[tuple[int, IntArray, FloatArray, FloatArray]]:
        """What follows each kept next token, at the positions in branch form.

        Yields:
            The position, the (w,) tokens, their (w,) probabilities as stored, and the (w, K) shares of outcomes.
        """
        categories = self.question(question_id).categories
        tokens = self.base_table(question_id)["token_id"].to_pylist()
        for start, rows in self._rows(question_id, categories).by_position():
            kept = rows.branches(tokens[start]) or []
            if kept:
                shares = [np.bincount(b.outcomes, minlength=len(categories)) / len(b) for b in kept]
                ids, p = np.array([b.token[0] for b in kept]), np.array([b.p[0] for b in kept])
                yield start, ids, p, np.array(shares)

    def draws(self, question_id: str) -> Draws:
        """All draws of one question as arrays.

        In branch form (every kept next token forced in turn) each position yields *mixture draws*: branches
        are picked with their renormalised probabilities, and each pick consumes that branch's next draw.
        There are as many of them as a branch has draws, and ``step_p`` is renormalised in the same way.

        Raises:
            UsageError: the run holds no curve: all its rollouts begin at the prompt.
        """
        if not self.has_curve:
            raise UsageError(
                f"{self.path}: with strategy {self.config['strategy']} all rollouts begin at the prompt, which makes "
                "no curve over positions; fpa pass says how often they are right"
            )
        return self._load(question_id).draws

    def same_streams(self, other: Run) -> bool:
        """Whether draws of equal identity in both runs are the same: of one model, or one released store."""
        mine, others = self.manifest["engine"], other.manifest["engine"]
        if mine is None or others is None:
            same = [self.config.get(k) == other.config.get(k) for k in ("track", "model")]
            return mine is others and all(same)
        return mine.get("fingerprint") == others.get("fingerprint")

    def observations(
        self,
        question_id: str,
        samples: int | None = None,
        every: int = 1,
        replicate: int = 0,
        grid: Grid = "token",
    ) -> Observations:
        """What the smoothers take, from all draws of a question or a part of them.

        Args:
            question_id: the question.
            samples: draws per position; all of them when left out.
            every: use every ``every``-th of the sampled positions.
            replicate: use draws ``[replicate·samples, (replicate+1)·samples)``.
            grid: predict at every ``token`` of the base path, or at the positions ``sampled`` in the run.

        Raises:
            UsageError: the draws asked for are not there.
        """
        everything = self.draws(question_id)
        try:
            chosen = everything.select(samples, every, replicate)
        except UsageError as error:
            raise UsageError(f"{self.path}, {question_id}: {error}") from None
        places = everything.positions if grid == "sampled" else np.arange(everything.length)
        if not len(places):
            raise UsageError(f"{self.path}: no position of {question_id} was sampled; use the grid of tokens")
        return chosen.observations(places)

    def save_curves(self, name: str, curves: pd.DataFrame) -> Path:
        """Write curves (columns as in ``fpa.schemas.CURVES``) to ``curves/<name>.parquet``."""
        return self._save("curves", name, curves, CURVES)

    def save_forks(self, name: str, forks: pd.DataFrame) -> Path:
        """Write forks (columns as in ``fpa.schemas.FORKS``) to ``forks/<name>.parquet``."""
        return self._save("forks", name, forks, FORKS)

    def save_survival(self, name: str, survival: pd.DataFrame) -> Path:
        """Write survival (columns as in ``fpa.schemas.SURVIVAL``) to ``survival/<name>.parquet``."""
        return self._save("survival", name, survival, SURVIVAL)

    def _save(self, folder: str, name: str, frame: pd.DataFrame, schema: pa.Schema) -> Path:
        target = self.path / folder / f"{name}.parquet"
        with writing(target):
            for needed in (target.parent, self.path / ".tmp"):
                needed.mkdir(exist_ok=True)
        table = pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False)
        write_part(target, table.replace_schema_metadata(None), self.path / ".tmp", {"fpa.unit": name})
        return target

    def _locate(self, name: str) -> dict[str, Path | Merged]:
        """Question id -> the merged file that holds it, or its own part."""
        merged = self.path / f"{name}.parquet"
        if merged.exists():
            check_part(merged)
        whole = Merged(merged)
        found: dict[str, Path | Merged] = dict.fromkeys(whole.ids, whole)
        for part in sorted((self.path / name).glob("*.parquet")):
            found[read_part(part, columns=["question_id"])["question_id"][0].as_py()] = part
        return found

    def _known(self, question_id: str) -> None:
        if question_id not in self._questions:
            ids = self.question_ids
            some = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
            raise UsageError(f"{self.path} has no question {question_id!r}; it has: {some or 'none yet'}")

    def _row(self, question_id: str) -> dict[str, Any]:
        self._known(question_id)
        return _read(self._questions[question_id], question_id).to_pylist()[0]

    def _rollout_table(self, question_id: str, columns: list[str] | None) -> pa.Table:
        self._known(question_id)
        parts = self._parts.get(question_key(question_id), [])
        schema = ROLLOUTS if columns is None else pa.schema([ROLLOUTS.field(c) for c in columns])
        tables = [conform(read_part(part, columns), schema) for part in parts]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _rows(self, question_id: str, categories: tuple[str, ...]) -> Rows:
        table = self._rollout_table(question_id, [*Rows.COLUMNS, "parent"])
        # What split from another rollout is no draw of its own.
        return Rows.of(table.filter(pc.is_null(table["parent"])), categories)

    def _load(self, question_id: str) -> _Loaded:
        """A question's draws and curve, read together; those of the last question are kept."""
        if self._last is None or self._last[0] != question_id:
            self._last = question_id, self._read_question(question_id)
        return self._last[1]

    def _read_question(self, question_id: str) -> _Loaded:
        categories = self.question(question_id).categories
        base = self.base_table(question_id)
        tokens, p = base["token_id"].to_pylist(), base["p"].to_numpy(zero_copy_only=False).astype(float)
        told = bool(self.config.get("divergence_recorded", True))
        if steers(self.config.get("strategy", "")):
            told, p = False, np.full_like(p, np.nan)  # its draws leave the base path by other odds than ``p``
        positions, kept, curve = [], [], []
        forced, forced_tokens = [np.zeros((0, 2), np.int64)], 0
        for start, rows in self._rows(question_id, categories).by_position():
            branches = rows.branches(tokens[start])
            if branches is None:
                free, tied = rows[rows.token < 0].in_draw_order(), rows[rows.token >= 0]
                forced.append(np.stack([tied.start, tied.outcomes], axis=1))
                forced_tokens += int(tied.tokens.sum())
                if not len(free):
                    continue
                groups, shares = [free], np.ones(1)
            else:
                free = mixture(branches, self._rng(question_id, start))
                groups, shares = branches, weights(branches)
                p[start] = sum(w for w, b in zip(shares, groups, strict=True) if b.token[0] == tokens[start])
            positions.append(start)
            kept.append(free)
            each = [np.bincount(g.outcomes, minlength=len(categories)) / len(g) for g in groups]
            curve.append(shares @ np.array(each))
        diverge_at = padded([r.diverge_at for r in kept], NEVER)
        last = base["finish_reason"][0].as_py()
        unread = self.manifest["engine"] is None and base["status"][0].as_py() != "parsed"
        draws = Draws(
            np.array(positions, np.int64),
            padded([r.outcomes for r in kept], -1),
            diverge_at if told else np.full_like(diverge_at, UNKNOWN),
            padded([r.tokens for r in kept], 0),
            padded([r.identity for r in kept], 0),
            np.concatenate(forced),
            forced_tokens,
            categories,
            len(tokens),
            p,
            # A path cut off at its last token has no answer yet; a store that was imported does not tell an
            # answer that was read out.
            None if last == "length" or unread else categories.index(base["outcome"][0].as_py()),
        )
        return _Loaded(draws, (draws.positions, np.array(curve).reshape(-1, len(categories)), categories))

    def _rng(self, question_id: str, start: int) -> np.random.Generator:
        """The stream that mixes one position's branches; released stores bring a seed and row numbers."""
        seed, numbered = self.config.get("mixture_seed", 0), re.fullmatch(r"row(\d+)", question_id)
        if seed and numbered:
            return np.random.default_rng([seed, int(numbered[1]), start])
        number = int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:4], "big")
        return np.random.default_rng([seed, number, start])


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run directory for reading, finished or not.

    Raises:
        UsageError: it is not a run.
        FpaError: a file of it is damaged.
    """
    return Run(Path(path))


def _read(source: Path | Merged, question_id: str) -> pa.Table:
    return read_part(source) if isinstance(source, Path) else source.read(question_id)
