"""Two distributions that show collapse: how alike tokens are (rank), and how spread out attention is (entropy)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from headscape.collapse.residual import as_tokens
from headscape.errors import InputError

__all__ = [
    "ALIKE",
    "BINS",
    "Similarity",
    "attention_entropy",
    "histogram",
    "layer_histograms",
    "points_of",
    "shown_layers",
    "summary_of",
    "token_similarities",
]

ALIKE = 0.99
"""Two tokens with at least this cosine count as alike."""
BINS = 400
"""Bins of a histogram over [-1, 1]; `ALIKE` is the edge of one."""
_MODE_BINS = 100
"""The mode is the fullest of these bins: wide enough (0.02) that a few pairs do not make one."""
SHOWN = 9
"""Violins in a row that are still distinguishable."""


def token_similarities(X: npt.ArrayLike, labels: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
    """Cosine of every pair of positions i < j of tokens (n_token, width); a token of zeros has none.

    Parameters
    ----------
    labels
        One per token, such as its id: pairs with equal labels are left out. The same word twice is alike from the start.

    >>> token_similarities([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    array([1., 0., 0.])
    >>> token_similarities([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]], labels=["a", "a", "b"])
    array([0., 0.])
    """
    tokens = as_tokens(X)
    if tokens.ndim != 2:
        raise InputError(f"similarities are between tokens (n_token, width), this array has shape {tokens.shape}")
    length = np.linalg.norm(tokens, axis=1)
    unit = tokens / np.where(length > 0, length, 1.0)[:, None]
    first, second = np.triu_indices(len(tokens), k=1)
    kept = (length[first] > 0) & (length[second] > 0)
    if labels is not None:
        names = np.asarray(labels)
        if names.shape != (len(tokens),):
            raise InputError(f"{names.shape} labels given for {len(tokens)} tokens")
        kept &= names[first] != names[second]
    cosines: npt.NDArray[np.float64] = np.clip((unit @ unit.T)[first[kept], second[kept]], -1.0, 1.0)
    return cosines


def histogram(similarities: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Counts of similarities in `BINS` equal bins over [-1, 1]; histograms of several inputs add up."""
    counts = np.histogram(np.asarray(similarities, dtype=np.float64), bins=BINS, range=(-1.0, 1.0))[0]
    return counts.astype(np.int64)


def layer_histograms(states: npt.ArrayLike, labels: npt.ArrayLike | None = None) -> npt.NDArray[np.int64]:
    """Histograms (n_layer, `BINS`) of the `token_similarities` of the states (n_layer, n_token, width) by layer."""
    return np.stack([histogram(token_similarities(tokens, labels)) for tokens in as_tokens(states)])


class Similarity(NamedTuple):
    """Mode, median and mean of similarities, and the share of pairs at or above `ALIKE`."""

    mode: float
    median: float
    mean: float
    share: float


def summary_of(counts: npt.ArrayLike) -> Similarity:
    """Mode, median, mean and share of a histogram (`BINS`,), to the width of a bin; NaN where no pair was counted.

    The mode is the middle of the fullest of 100 bins: among floats that are all different none is the most frequent.

    >>> summary_of(histogram([0.306] * 7 + [0.994] * 3))
    Similarity(mode=0.31, median=0.3075, mean=0.513, share=0.3)
    """
    n = np.asarray(counts, dtype=np.float64)
    total = n.sum()
    if total == 0:
        return Similarity(*[float("nan")] * 4)
    middles = _middles(BINS)
    mode = _middles(_MODE_BINS)[n.reshape(_MODE_BINS, -1).sum(axis=1).argmax()]
    median = middles[np.searchsorted(n.cumsum(), total / 2)]
    share = n[round((1 + ALIKE) / 2 * BINS) :].sum() / total
    return Similarity(*(round(float(v), 10) for v in (mode, median, n @ middles / total, share)))


def _middles(bins: int) -> npt.NDArray[np.float64]:
    return (np.arange(bins) + 0.5) * 2 / bins - 1


def points_of(counts: npt.ArrayLike, n: int = 200) -> npt.NDArray[np.float64]:
    """`n` values with the distribution of a histogram (`BINS`,), evenly spread within a bin; for violins.

    >>> points_of(histogram([0.5] * 10), n=2).round(3)
    array([0.501, 0.504])
    """
    edges = np.linspace(-1.0, 1.0, BINS + 1)
    grown = np.concatenate([[0.0], np.cumsum(np.asarray(counts, dtype=np.float64))])
    if grown[-1] == 0:
        return np.empty(0)
    wanted = (np.arange(n) + 0.5) / n * grown[-1]
    last = np.searchsorted(grown, wanted)  # not np.interp, which jumps over empty bins at a tie
    points: npt.NDArray[np.float64] = edges[last] - (grown[last] - wanted) / np.diff(grown)[last - 1] * 2 / BINS
    return points


def shown_layers(n: int) -> list[int]:
    """The layers of n to draw as violins: at most `SHOWN`, at equal distances, and the last.

    >>> shown_layers(7), shown_layers(31)
    ([0, 1, 2, 3, 4, 5, 6], [0, 4, 8, 12, 16, 20, 24, 28, 30])
    """
    step = -(-(n - 1) // (SHOWN - 1)) or 1
    return sorted({*range(0, n, step), n - 1})


def attention_entropy(probs: npt.ArrayLike, present: npt.ArrayLike | None = None) -> npt.NDArray[np.float64]:
    """Entropy of attention rows divided by the logarithm of their number of keys: 1 is uniform, 0 a single key.

    Parameters
    ----------
    probs
        Attention (..., n_query, n_key), rows that sum to 1.
    present
        Which entries exist (n_query, n_key), by default all: row i of causal attention has i + 1 keys.

    Returns
    -------
    array (..., n_query)
        NaN for rows with fewer than two keys, such as the first of causal attention.

    >>> attention_entropy([[1.0, 0.0], [0.5, 0.5]], np.tri(2))
    array([nan,  1.])
    """
    p: npt.NDArray[Any] = np.asarray(probs, dtype=np.float64)
    if p.ndim < 2:
        raise InputError(f"attention is an array (..., n_query, n_key), not of shape {p.shape}")
    there = np.ones(p.shape[-2:], dtype=bool) if present is None else np.asarray(present, dtype=bool)
    if there.shape != p.shape[-2:]:
        raise InputError(f"present has shape {there.shape}, the maps are {p.shape[-2:]}")
    n_keys = there.sum(axis=1)
    most = np.where(n_keys > 1, np.log(np.maximum(n_keys, 2)), np.nan)
    found: npt.NDArray[np.float64] = entr(p).sum(axis=-1) / most
    return found
