"""The chain of Wertich (2024), head by head: weights and tokens make scores, scores an entropy, an entropy mixes tokens.

Of one row of n keys, the sink (first key) left out: scores of variance v make two probabilities differ by the factor
exp(+-sqrt(2 v)) (5.3), leave the row an entropy H(n, v) (5.1), and a row of entropy H averages about e^H tokens, which
shrinks what they differ by to e^(-H/2) (7). Every link is predicted from the measured one before and from the weights.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.interpolate import RegularGridInterpolator
from scipy.special import xlogy

from headscape.statistics.softmax import softmax_entropy

__all__ = [
    "COLUMNS",
    "MEDIAN",
    "expected_entropy",
    "measured_links",
    "mixed_by",
    "mixing",
    "row_variance_predicted",
    "rows_and_keys",
]

Array = npt.NDArray[Any]
LEAST_KEYS = 8
"""Fewest keys of a row that is measured."""
MEDIAN = 0.9539  # of |x - y| for two unit normals
_GRID = (2.0 ** np.arange(3, 12), np.r_[0:1:0.05, 1:12.5:0.5])  # keys, and standard deviations of scores
_DRAWS = 64
COLUMNS = (
    *("row_variance", "row_variance_predicted", "temperature"),
    *("row_ratio", "row_ratio_from_variance", "row_ratio_predicted"),
    *("row_entropy", "row_entropy_from_variance", "row_entropy_predicted"),
    *("mixing", "mixing_from_entropy", "mixing_predicted"),
)
"""Mean over rows. row_variance of the scores over keys, and predicted from the Gaussians of queries and keys;
temperature, its root: by how much a head sharpens. row_ratio: median |log p_i / p_j|. row_entropy over log n. mixing: what
outputs differ by over what values differ by. *_from_*: predicted from the measured link before; *_predicted: from the
weights and the Gaussian of the inputs alone."""


@lru_cache(maxsize=1)
def _table() -> RegularGridInterpolator:
    """Mean entropy of softmax of n normal scores, over log n, on a grid of n and standard deviations; drawn once."""
    sizes, deviations = _GRID
    draws = np.random.default_rng(0).standard_normal((_DRAWS, int(sizes[-1])))
    shares = [[float(softmax_entropy(s * draws[:, : int(n)]).mean() / np.log(n)) for s in deviations] for n in sizes]
    return RegularGridInterpolator((np.log(sizes), deviations), np.array(shares), bounds_error=False, fill_value=None)


def expected_entropy(n: npt.ArrayLike, variance: npt.ArrayLike) -> Array:
    """Mean entropy of softmax over n independent normal scores of a variance, over log n.

    1 - v / (2 log n) for small v; near 0 from v = 2 log n on, where few keys take all (random energy model).

    >>> expected_entropy(256, [0.0, 0.5, 60.0]).round(2)
    array([1.  , 0.96, 0.14])
    """
    n, s = np.broadcast_arrays(np.log(np.asarray(n, dtype=float)), np.sqrt(np.asarray(variance, dtype=float)))
    low, high = np.log(_GRID[0][[0, -1]])
    return np.clip(_table()((np.clip(n, low, high), np.minimum(s, _GRID[1][-1]))), 0.0, 1.0)


def row_variance_predicted(forms: Array, mean_q: Array, cov_q: Array, mean_k: Array, cov_k: Array) -> Array:
    """Variance over keys of the scores q C k of a query, mean over queries: tr(C S_k C^T M), M = S_q + mu_q mu_q^T.

    With one form C for each distance (n_form, dim, dim), also what their different means add. Means (..., dim) and
    covariances (..., dim, dim) may be stacks.
    """
    M = cov_q + mean_q[..., :, None] * mean_q[..., None, :]
    apart = [mean_k @ C.T for C in forms - forms.mean(axis=0)]
    own = [((C @ cov_k) * (M @ C)).sum(axis=(-2, -1)) for C in forms]
    return np.asarray(np.mean(own, axis=0) + np.mean([(a * (M @ a[..., None])[..., 0]).sum(-1) for a in apart], axis=0))


def rows_and_keys(n: int, content: slice, causal: bool) -> Array:
    """Which keys (n, n) each row is measured on: content tokens, up to the query if causal; rows with few keys have none."""
    inside = np.zeros(n, dtype=bool)
    inside[content] = True
    keys = inside[:, None] & inside & (np.tri(n, dtype=bool) if causal else True)
    return np.asarray(keys & (keys.sum(axis=1) >= LEAST_KEYS)[:, None])


def measured_links(scores: Array, probs: Array, keys: Array) -> dict[str, Array]:
    """Variance, ratio and entropy of the rows of one input: scores and probs (n_head, n, n), keys of `rows_and_keys`.

    variance and entropy (over log n) are (n_head, n_row), of rows that have keys; ratio (n_head,) is the median of
    |log p_i / p_j| over pairs of keys in one row, each key paired with one other.
    """
    rows = keys.any(axis=1)
    kept, x, p = keys[rows], scores[:, rows].astype(float), probs[:, rows] * keys[rows].astype(float)
    count = kept.sum(axis=1)
    off = (x - ((x * kept).sum(axis=-1) / count)[..., None]) * kept
    p /= np.maximum(p.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
    other = np.random.default_rng(0).permutation(len(keys))
    pairs = kept & kept[:, other] & (other != np.arange(len(keys)))
    return {
        "variance": (off**2).sum(axis=-1) / (count - 1),
        "ratio": np.median(np.abs(x - x[..., other])[:, pairs], axis=1),
        "entropy": -xlogy(p, p).sum(axis=-1) / np.log(count),
    }


def mixing(values: Array, outputs: Array, keys: Array) -> Array:
    """How much the outputs (n_head, n, dim) of the measured rows differ, relative to their values: (n_head,)."""
    rows = keys.any(axis=1)
    after, before = (np.sqrt(x[:, rows].astype(float).var(axis=1).sum(axis=-1)) for x in (outputs, values))
    return np.asarray(np.divide(after, before, out=np.full(len(values), np.nan), where=before > 0))


def mixed_by(entropy: Array, count: Array) -> Array:
    """How far rows of an entropy (over log n) shrink the differences of n independent tokens: e^(-H/2), mean over rows."""
    return np.asarray((count ** (-entropy / 2)).mean(axis=-1))
