"""Building the explorer: one page, and a few data files per question, loaded when they are looked at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from fpa.errors import FpaError, UsageError
from fpa.explore.pack import write_data
from fpa.explore.view import Options, View, build_view
from fpa.run import Run, open_run
from smoothing import MODELS

ASSETS = (
    "index.html",
    "style.css",
    *(
        f"{name}.js"
        for name in ("theme", "data", "dom", "chart", "overview", "inspector", "question", "main")
    ),
)
CARDS = 200
"""Excerpts and small multiples to a file: the overview loads them as they scroll into view."""
PREFERRED = ("auto", "full", "raw")
MARKER = "explorer.txt"

Progress = Callable[[int, int], None]


def explore(
    run: Run | str | os.PathLike[str],
    out: str | os.PathLike[str],
    reference: Run | str | os.PathLike[str] | None = None,
    methods: Sequence[str] | None = None,
    *,
    samples: Sequence[int] | None = None,
    every: Sequence[int] | None = None,
    threshold: float = Options.threshold,
    level: float = Options.level,
    examples: int = Options.examples,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write a run as static pages into the folder ``out``; open the page it returns in a browser.

    Args:
        run: a run directory, finished or not.
        out: an empty or new folder, or an explorer built earlier, which is replaced.
        reference: a densely sampled run of the same base paths, drawn beside the estimates.
        methods: models to show, the first in front; those of ``PREFERRED`` that there are when left out.
            ``raw`` is always among them.
        samples: draws per position that the slider offers besides all of them; some by default.
        every: strides that the other slider offers besides 1, in sampled positions; some by default. Those that
            would leave fewer than three positions are left out, as are ``samples`` that a question does not have.
        threshold: total variation of a fork.
        level: of the bands.
        examples: rollouts to read per next token, where the run kept their texts.
        workers: processes to share the questions; as many as there are cores when left out.
        progress: called with the number of questions done and of all, as they are done.

    Returns:
        The path of ``index.html``.

    Raises:
        UsageError: an option cannot be met, ``out`` holds something else, or the reference is of other paths.
        FpaError: ``out`` cannot be written.
    """
    source = run if isinstance(run, Run) else open_run(run)
    target = reference if isinstance(reference, Run) or reference is None else open_run(reference)
    options = Options(
        _methods(methods),
        None if samples is None else tuple(samples),
        Options.every if every is None else tuple(every),
        threshold,
        level,
        examples,
    )
    folder = Path(out)
    try:
        _prepare(folder)
        _build(source, target, folder, options, workers or os.cpu_count() or 1, progress)
    except OSError as error:
        raise FpaError(f"{folder} cannot be written: {error.strerror or error}") from error
    return folder / "index.html"


def _methods(methods: Sequence[str] | None) -> tuple[str, ...]:
    chosen = [m for m in PREFERRED if m in MODELS] if methods is None else [*methods]
    return tuple(dict.fromkeys([*chosen, "raw"]))


def _prepare(folder: Path) -> None:
    """Make the folder, or clear an earlier explorer out of it; nothing else is ever removed."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder to write the pages into")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / MARKER).exists():
        raise UsageError(f"{folder} holds other files; name a new folder, or an explorer built earlier")
    (folder / MARKER).write_text("Pages written by `fpa explore`; open index.html.\n", encoding="utf-8")
    shutil.rmtree(folder / "data", ignore_errors=True)
    (folder / "data").mkdir()
    for name in ASSETS:
        content = files("fpa.explore").joinpath("static", name).read_bytes()
        (folder / name).write_bytes(content)


def _build(
    run: Run, reference: Run | None, folder: Path, options: Options, workers: int, progress: Progress | None
) -> None:
    ids = run.question_ids
    vocabulary = _vocabulary(run)
    work = partial(_one, run, reference, folder / "data", options, vocabulary)
    rows: list[dict[str, Any]] = []
    cards: list[dict[str, Any]] = []
    for row, card in _spread(work, ids, min(workers, len(ids))):
        rows.append(row)
        cards.append(card)
        if progress is not None:
            progress(len(rows), len(ids))
    for i in range(0, len(cards), CARDS):
        name = f"cards-{i // CARDS}"
        write_data(folder / "data" / f"{name}.js", name, cards[i : i + CARDS])
    index = {
        "run": _about(run),
        "reference": None if reference is None else reference.path.resolve().name,
        "methods": list(options.methods),
        "threshold": options.threshold,
        "level": options.level,
        "cards": CARDS,
        "columns": _columns(rows),
    }
    write_data(folder / "data" / "index.js", "index", index)


def _one(
    run: Run,
    reference: Run | None,
    folder: Path,
    options: Options,
    vocabulary: dict[int, str],
    question_id: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write one question's files; its row and its card are for the overview."""
    view: View = build_view(run, reference, question_id, options, vocabulary)
    for suffix, content in (("", view.core), (".cells", view.cells), (".texts", view.texts)):
        if content is not None:
            write_data(folder / f"{view.key}{suffix}.js", view.key + suffix, content)
    return view.row, view.card


def _spread(work: Callable[[str], Any], ids: Sequence[str], workers: int) -> Iterator[Any]:
    if workers <= 1:
        yield from map(work, ids)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(work, ids)


def _vocabulary(run: Run) -> dict[int, str]:
    """Texts of token ids, as far as the run tells them: from base paths, and the likeliest tokens beside them.

    A token that is part of a character has no text of its own where it stands.
    """
    known: dict[int, str] = {}
    for question_id in run.question_ids:
        try:
            table = run.base_table(question_id)
        except UsageError:  # not collected yet
            continue
        pairs = [zip(table["token_id"].to_pylist(), table["token_text"].to_pylist(), strict=True)]
        if "top_texts" in table.column_names:  # older runs have none
            listed = zip(table["top_ids"].to_pylist(), table["top_texts"].to_pylist(), strict=True)
            pairs += [zip(ids or (), texts or (), strict=False) for ids, texts in listed]
        for token, text in chain.from_iterable(pairs):
            if text:
                known.setdefault(token, text)
    return known


def _about(run: Run) -> dict[str, Any]:
    config, engine = run.config, run.manifest["engine"] or {}
    wanted = ("strategy", "samples", "every", "unit", "temperature", "cont_temperature", "track")
    return {
        "name": run.path.resolve().name,
        "model": engine.get("model") or config.get("model"),
        "engine": engine.get("name"),
        **{name: config[name] for name in wanted if name in config},
    }


def _columns(rows: Iterable[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, which take a third of the room."""
    table = list(rows)
    names = dict.fromkeys(name for row in table for name in row)
    return {name: [row.get(name) for row in table] for name in names}
