"""What is measured of a map of attention in a few-shot prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.statistics.maps import by_words, row_entropy, uniform_map
from headscape.studies.prompt.text import Layout

__all__ = ["MEASURES", "measure_map"]

Array = npt.NDArray[Any]
FAINT = 0.1
"""An entry below this share of the uniform weight counts as nothing."""

MEASURES = (
    *("self", "drawn_self", "within", "cross", "first", "rest", "dropped"),
    *("entropy", "head_entropy", "sparsity", "largest"),
)
"""What `measure_map` returns for a layer.

self is the mean weight of a token on itself, the first token excluded. drawn_self is the same on the map that Wertich
(2024) draws: of what a word gives to words and clues, the share that stays on the word itself, the first word excluded.
For tokens of words and clues: within is the weight on other tokens of the same shot, cross on those of earlier shots,
first on the first token, rest on the instruction and separators; dropped is what a picture of words and clues
alone leaves out, first and rest. entropy is that of the rows over log(i + 1), head_entropy the mean of the same over
heads, sparsity the share of entries below a tenth of the uniform weight, largest the largest entry off the first column.
"""


def measure_map(attention: npt.ArrayLike, layout: Layout, head_entropy: float = float("nan")) -> dict[str, float]:
    """The `MEASURES` of one map (n, n), the mean over heads."""
    A = np.asarray(attention, dtype=np.float64)
    n = len(A)
    content = layout.content
    queries = np.flatnonzero(content & (np.arange(n) > 0))
    same = (layout.shots[:, None] == layout.shots) & content
    other = (layout.shots[:, None] != layout.shots) & content
    itself = np.eye(n, dtype=bool)
    inner = np.tri(n, dtype=bool)
    inner[:, 0] = False
    drawn = by_words(A, layout.words)[np.ix_(*[np.flatnonzero(layout.content_words())] * 2)][1:]
    on_itself = np.diagonal(drawn, 1) / np.maximum(drawn.sum(axis=1), 1e-300)
    parts = {
        "self": float(np.diagonal(A)[1:].mean()),
        "drawn_self": float(on_itself.mean()) if len(on_itself) else float("nan"),
        "within": _mass(A, same & ~itself & inner, queries),
        "cross": _mass(A, other & inner, queries),
        "first": float(A[queries, 0].mean()),
    }
    own = float(np.diagonal(A)[queries].mean())
    parts["rest"] = float(A[queries].sum(axis=1).mean()) - own - parts["within"] - parts["cross"] - parts["first"]
    kept = float(A[np.ix_(queries, np.flatnonzero(content))].sum(axis=1).mean())
    lower = A[inner]
    threshold = FAINT * uniform_map(n)[inner]
    return parts | {
        "dropped": float(A[queries].sum(axis=1).mean()) - kept,
        "entropy": float(row_entropy(A)),
        "head_entropy": head_entropy,
        "sparsity": float((lower < threshold).mean()),
        "largest": float(lower.max()),
    }


def _mass(A: Array, keys: Array, queries: Array) -> float:
    return float(np.where(keys, A, 0.0)[queries].sum(axis=1).mean())
