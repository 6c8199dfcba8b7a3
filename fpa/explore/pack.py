"""How the pages' data is written: small, and loadable from disk.

A page opened from disk may not fetch files, but may load scripts. Each data file is therefore a script
of one call that hands over gzipped JSON in base64: nothing in it is ever read as code or as markup.
Probabilities are whole thousandths, as differences from one position to the next, which compress to well
under a byte each.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

SCALE = 1000
"""Steps between probability 0 and 1; a plot 300 pixels high shows about as many."""


def deltas(values: ArrayLike) -> list[int]:
    """Whole numbers as their first and the differences after it."""
    return np.diff(np.asarray(values, np.int64), prepend=0).tolist()


def quantised(values: ArrayLike) -> list[int]:
    """(n,) probabilities in thousandths, as ``deltas``."""
    return deltas(np.rint(np.clip(np.asarray(values, float), 0.0, 1.0) * SCALE))


def columns(table: ArrayLike) -> list[list[int]]:
    """(n, K) probabilities as K lists of ``quantised`` ones."""
    return [quantised(column) for column in np.asarray(table, float).T]


def rounded(values: ArrayLike, digits: int = 4) -> list[float | None]:
    """Numbers for display; None for what is not finite."""
    return [round(float(v), digits) if np.isfinite(v) else None for v in np.asarray(values, float)]


def write_data(path: Path, name: str, content: Any) -> None:
    """Write one data script; the same content gives the same bytes."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    packed = gzip.compress(text.encode("utf-8", "surrogatepass"), compresslevel=9, mtime=0)
    encoded = base64.b64encode(packed).decode("ascii")
    path.write_text(f'fpaData({json.dumps(name)},"{encoded}");\n', encoding="ascii")
