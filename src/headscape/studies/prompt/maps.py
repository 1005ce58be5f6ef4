"""What a map of attention says about a few-shot prompt: by word, by shot, beside its baselines, and beside cosines."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from headscape.errors import InputError
from headscape.studies.prompt.text import Layout

__all__ = [
    "MEASURES",
    "CosineTest",
    "by_words",
    "cosine_test",
    "cosines",
    "distance_map",
    "measure_map",
    "row_entropy",
    "uniform_map",
]

Array = npt.NDArray[Any]
FAINT = 0.1
"""An entry below this share of the uniform weight counts as nothing."""

MEASURES = ("self", "within", "cross", "first", "rest", "dropped", "entropy", "head_entropy", "sparsity", "largest")
"""What `measure_map` says of a layer.

self is the mean weight of a token on itself, the first token left out. Of tokens of words and clues: within is the
weight on other tokens of the same shot, cross on those of earlier shots, first on the first token, rest on the
instruction and what stands between; dropped is what a picture of words and clues alone leaves out, first and rest.
entropy is that of the rows over log(i + 1), head_entropy the mean of the same over heads, sparsity the share of entries
below a tenth of the uniform weight, largest the largest entry off the first column.
"""


def by_words(attention: npt.ArrayLike, words: npt.ArrayLike, how: Literal["sum", "mean"] = "sum") -> Array:
    r"""Attention between words, (..., n_word, n_word), from that between tokens, (..., n_token, n_token).

    .. math:: G A G^T

    with G the words' tokens. "sum" adds over the tokens of both words: the total is kept, and a row sums to the number
    of its word's tokens. "mean" takes the mean over the query word's tokens: rows sum to 1 as before.

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
    r"""The map that knows distances alone: what is left of a map (n, n) when content is averaged away.

    It is the likeliest of the form

    .. math:: T_{ij} = (1 - A_{i0})\, w_{i-j} / \sum_{0 < l \le i} w_{i-l}, \quad j > 0

    with the first column, where attention rests, kept as it is. The weights w of distances are found by iterative
    scaling: each so that its distance gets the mass it has in A. A map that is of this form is found again, even
    attention too.
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
        raise InputError("a row with one key has no entropy to speak of; the prompt has one token")
    logs = np.log(np.where(A > 0, A, 1.0))
    entropy = -(A * logs).sum(axis=-1)[..., 1:] / np.log(np.arange(2, n + 1))
    return np.asarray(entropy.mean(axis=-1))


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
    parts = {
        "self": float(np.diagonal(A)[1:].mean()),
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


class CosineTest(NamedTuple):
    """Of every map: Spearman's rho with the cosines, the same with distance held fixed, and its p by permutation."""

    rho: Array
    partial: Array
    p: Array


def cosines(vectors: npt.ArrayLike) -> Array:
    """Cosines between all rows (n, d): (n, n)."""
    V = np.asarray(vectors, dtype=np.float64)
    size = np.linalg.norm(V, axis=1, keepdims=True)
    V = np.divide(V, size, out=np.zeros_like(V), where=size > 0)
    return np.asarray(V @ V.T)


def cosine_test(
    maps: npt.ArrayLike,
    cosine: npt.ArrayLike,
    permutations: int = 500,
    random_state: int = 0,
    *,
    skip_first: bool = False,
) -> CosineTest:
    r"""Whether the cosine of two embeddings tells how much attention one token pays the other.

    Spearman's rank correlation over all pairs j < i for each map, and its partial form with the distance i - j held
    fixed,

    .. math:: (r_{ac} - r_{ad} r_{cd}) / \sqrt{(1 - r_{ad}^2)(1 - r_{cd}^2)}

    for ranks a of attention, c of cosines, d of distances. p is the share of permutations of the tokens, by which the
    cosines lose their places (both axes alike), with a partial correlation at least as large in absolute value.

    Parameters
    ----------
    maps
        (n_map, n, n), or one map (n, n).
    cosine
        (n, n).
    skip_first
        Leave out pairs with the first token, where attention rests whatever it is.
    """
    A, C = np.asarray(maps, dtype=np.float64), np.asarray(cosine, dtype=np.float64)
    A = A[None] if A.ndim == 2 else A
    n = len(C)
    if A.shape[1:] != C.shape or n < 4:
        raise InputError(
            f"maps of shape {A.shape[1:]} and cosines of {C.shape}: both must be of the same 4 tokens or more"
        )
    start = int(skip_first)
    i, j = (index + start for index in np.tril_indices(n - start, -1))
    a = np.stack([_standard(rankdata(m[i, j])) for m in A])
    d = _standard(rankdata(i - j))
    ranks = np.zeros((n, n))
    ranks[i, j] = rankdata(C[i, j])
    ranks += ranks.T  # permuting tokens permutes the same set of values
    r_ad = a @ d

    def correlate(order: Array) -> tuple[Array, Array]:
        c = _standard(ranks[order[i], order[j]])
        r_ac, r_cd = a @ c, float(c @ d)
        below = np.sqrt(np.maximum((1 - r_ad**2) * (1 - r_cd**2), 1e-30))
        return r_ac, (r_ac - r_ad * r_cd) / below

    rho, partial = correlate(np.arange(n))
    rng = np.random.default_rng(random_state)
    reached = np.zeros(len(A))
    for _ in range(permutations):
        order = np.concatenate([np.arange(start), start + rng.permutation(n - start)])
        reached += np.abs(correlate(order)[1]) >= np.abs(partial) - 1e-12
    return CosineTest(rho, partial, (reached + 1) / (permutations + 1))


def _standard(x: Array) -> Array:
    centred = np.asarray(x, dtype=np.float64) - np.mean(x)
    size = np.linalg.norm(centred)
    return np.asarray(centred / size if size > 0 else centred)
