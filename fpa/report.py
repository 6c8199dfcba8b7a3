"""A short HTML report of a run, one file, readable without a network."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from fpa.parts import replacing

_TEMPLATE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
  img { width: 100%; background: white; border-radius: 6px; }
  table { border-collapse: collapse; width: 100%; font-size: .9rem; }
  th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #8884; }
  td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
  .path { font-family: ui-monospace, monospace; font-size: .85rem; white-space: pre-wrap;
          background: #8881; padding: .6rem; border-radius: 6px; }
  mark { background: #E69F00; color: black; border-radius: 3px; padding: 0 .15em; }
</style>
<h1>{{ title }}</h1>
<p>{{ summary }}</p>
<img src="data:image/png;base64,{{ figure }}" alt="Outcome curves over the positions of each base path">
{% if scores_note %}
<h2>Scores</h2>
<p>{{ scores_note }}</p>
{% endif %}
{% if scores %}
<table><tr>{% for c in scores[0] %}<th{% if not loop.first %} class="n"{% endif %}>{{ c }}</th>{% endfor %}</tr>
{% for row in scores %}<tr>{% for v in row.values() %}<td{% if not loop.first %} class="n"{% endif %}>{{ v }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endif %}
{% for q in questions %}
<h2>{{ q.title }}</h2>
<p>{{ q.text }}<br>{% for c in q.choices %}{{ c }}<br>{% endfor %}</p>
<p>Base path answers <b>{{ q.outcome }}</b>{% if q.answer %}; correct is <b>{{ q.answer }}</b>{% endif %}.
{{ q.forks|length or "No" }} forking token{{ "" if q.forks|length == 1 else "s" }}.</p>
<div class="path">{% for token, fork in q.tokens %}{% if fork %}<mark>{{ token }}</mark>{% else %}{{ token }}{% endif %}{% endfor %}</div>
{% if q.forks %}<table><tr><th>position<th>token<th>before<th>after<th class="n">change</tr>
{% for f in q.forks %}<tr><td>{{ f.t }}<td>{{ f.token_text }}<td>{{ f.before }} {{ "%.0f"|format(100 * f.p_before) }} %
<td>{{ f.after }} {{ "%.0f"|format(100 * f.p_after) }} %<td class="n">{{ "%.2f"|format(f.tv) }}</tr>{% endfor %}</table>{% endif %}
{% endfor %}
</html>
"""


@dataclass(frozen=True)
class QuestionReport:
    """What the report says of one question; ``tokens`` are ``(text, is a fork)``."""

    title: str
    text: str
    choices: Sequence[str]
    answer: str | None
    outcome: str
    tokens: Sequence[tuple[str, bool]]
    forks: Sequence[Mapping[str, Any]]


def write_report(
    path: Path,
    title: str,
    summary: str,
    figure: Path,
    questions: Sequence[QuestionReport],
    scores: pd.DataFrame | None = None,
    scores_note: str = "",
) -> None:
    """Write the report whole or not at all; all text from models and questions is escaped."""
    environment = jinja2.Environment(autoescape=True)
    html = environment.from_string(_TEMPLATE).render(
        title=title,
        summary=summary,
        figure=base64.b64encode(figure.read_bytes()).decode(),
        questions=questions,
        scores=[] if scores is None else scores.to_dict("records"),
        scores_note=scores_note,
    )
    with replacing(path) as temporary:
        temporary.write_text(html, encoding="utf-8")
