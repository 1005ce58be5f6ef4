"""Attention maps as matrices: gathered by word, beside uniform attention and attention by distance, and their entropy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = ["by_words", "distance_map", "row_entropy", "uniform_map"]

Array = npt.NDArray[Any]


def by_words(attention: npt.ArrayLike, words: npt.ArrayLike, how: Literal["sum", "mean"] = "sum") -> Array:
    r"""Attention between words, (..., n_word, n_word), from that between tokens, (..., n_token, n_token).

    .. math:: G A G^T

    with G the tokens of each word. "sum" adds over the tokens of both words: the total is kept, and a row sums to the
    number of its word's tokens. "mean" averages over the tokens of the query word: rows sum to 1 as before.

    >>> by_words([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], [0, 1, 1]).tolist()
    [[1.0, 0.0], [0.75, 1.25]]
    """
    A, of = np.asarray(attention, dtype=np.float64), np.asarray(words)
    if A.shape[-2:] != (len(of), len(of)):
        raise InputError(f"{len(of)} tokens have words, the map has shape {A.shape}")
    if how not in ("sum", "mean"):
        raise InputError(f"how is sum or mean, not {how!r}")
    G = (np.arange(of.max() + 1)[:, None] == of).astype(np.float64)
    rows = G / G.sum(axis=1, keepdims=True) if how == "mean" else G
    return np.asarray(rows @ A @ G.T)


def uniform_map(n: int) -> Array:
    """Every token attends evenly to itself and all before it: (n, n)."""
    return np.asarray(np.tri(n) / np.arange(1, n + 1)[:, None])


def distance_map(attention: npt.ArrayLike, n_iter: int = 200) -> Array:
    r"""The map that depends on distance alone: what is left of a map (n, n) when content is averaged out.

    It is the maximum-likelihood map of the form

    .. math:: T_{ij} = (1 - A_{i0})\, w_{i-j} / \sum_{0 < l \le i} w_{i-l}, \quad j > 0

    with the first column, the attention sink, kept as it is. The weights w of distances are found by iterative
    scaling, so that each distance gets the mass it has in A. A map of this form is reproduced, uniform attention too.
    """
    A = np.asarray(attention, dtype=np.float64)
    n = len(A)
    mass = 1 - A[1:, 0]
    seen = np.array([np.diagonal(A, -d)[1:].sum() for d in range(n - 1)])  # the first entry is in the first column
    w = np.ones(n - 1)
    for _ in range(n_iter):
        share = mass / np.cumsum(w)  # query i has the distances 0 .. i - 1
        after = seen / np.maximum(np.cumsum(share[::-1])[::-1], 1e-300)
        after /= max(after.sum(), 1e-300)
        if np.abs(after - w).max() < 1e-12:
            break
        w = np.maximum(after, 1e-300)
    offsets = np.arange(n)[:, None] - np.arange(n)
    out = np.where(offsets >= 0, np.append(w, 0.0)[np.abs(offsets)], 0.0)
    out[:, 0] = 0.0
    out[1:] *= (mass / out[1:].sum(axis=1))[:, None]
    out[:, 0] = A[:, 0]
    return np.asarray(out)


def row_entropy(attention: npt.ArrayLike) -> Array:
    """Entropy of rows over log(i + 1), the most a causal row can have; mean over rows but the first: (...)."""
    A = np.asarray(attention, dtype=np.float64)
    n = A.shape[-1]
    if n < 2:
        raise InputError("a row with one key has entropy 0; the prompt has one token")
    logs = np.log(np.where(A > 0, A, 1.0))
    entropy = -(A * logs).sum(axis=-1)[..., 1:] / np.log(np.arange(2, n + 1))
    return np.asarray(entropy.mean(axis=-1))
