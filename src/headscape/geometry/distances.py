"""What a matrix of distances says as a whole: whether it follows another one (Mantel), and whether it has two modes (dip)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from headscape.compiled import compiled_in_order

__all__ = ["THICK", "dip", "mantel", "mantel_permuted", "pairs_of", "ring_dips"]

FloatArray = npt.NDArray[np.float64]
CELLS = 100
"""Cells of the distribution in which the dip is found."""
THICK = 0.15
"""How far points of a ring of diameter 1 lie off it, in dimensions of their own."""


def pairs_of(distances: npt.ArrayLike) -> FloatArray:
    """The distances of all pairs, each once: (n (n - 1) / 2,)."""
    D = np.asarray(distances, dtype=float)
    return np.asarray(D[np.triu_indices(len(D), 1)])


def _ranks(distances: npt.ArrayLike) -> FloatArray:
    """Ranks of the pairs as a symmetric matrix of mean 0 and length 1 over pairs; 0 where all are tied."""
    D = np.asarray(distances, dtype=float)
    ranks = rankdata(pairs_of(D))
    ranks -= ranks.mean()
    found = np.zeros(D.shape)
    found[np.triu_indices(len(D), 1)] = ranks / max(float(np.linalg.norm(ranks)), 1e-300)
    return found + found.T


def mantel(one: npt.ArrayLike, other: npt.ArrayLike) -> float:
    """Spearman correlation of two matrices of distances over all pairs (Mantel, 1967).

    >>> mantel([[0, 1, 2], [1, 0, 4], [2, 4, 0]], [[0, 3, 5], [3, 0, 9], [5, 9, 0]])
    1.0
    """
    return float(np.round((_ranks(one) * _ranks(other)).sum() / 2, 12))


def mantel_permuted(one: npt.ArrayLike, other: npt.ArrayLike, draws: int, random_state: int) -> FloatArray:
    """The same with the points of one of them permuted at random, (draws,): what unrelated distances give."""
    rng = np.random.default_rng(random_state)
    own, ranks = _ranks(one), _ranks(other)
    moves = (rng.permutation(len(own)) for _ in range(draws))
    return np.array([(own * ranks[np.ix_(move, move)]).sum() / 2 for move in moves])


def dip(values: npt.ArrayLike, cells: int = CELLS) -> float:
    """How far a distribution is from having one mode (Hartigan and Hartigan, 1985), on a grid of cells: 0 to 1/4.

    Half the smallest of sup |F - G| over distributions G that are convex up to a mode and concave beyond it.

    >>> dip(np.linspace(0, 1, 1001)) < 0.01, 0.2 < dip([0.0] * 500 + [1.0] * 500) <= 0.25
    (True, True)
    """
    x = np.sort(np.asarray(values, dtype=float).ravel())
    if len(x) < 2 or x[0] == x[-1]:
        return 0.0
    F = np.searchsorted(x, np.linspace(x[0], x[-1], cells + 1), side="right") / len(x)
    F = np.concatenate([[0.0], F])  # the distribution begins before its smallest value
    below, above = _above_hull(F), _above_hull(-F[::-1])[::-1]
    return float(np.min(np.maximum(below, above)) / 2)


@compiled_in_order
def _above_hull(y: FloatArray) -> FloatArray:
    """How far y[: m + 1] rises above the greatest convex function below it on its grid, for every m."""
    found = np.zeros(len(y))
    kept = np.zeros(len(y), dtype=np.int64)
    n = 0
    for m in range(len(y)):  # the corners of the hull up to m are some of those up to m - 1, and m
        while n > 1 and (y[kept[n - 1]] - y[kept[n - 2]]) * (m - kept[n - 1]) >= (y[m] - y[kept[n - 1]]) * (
            kept[n - 1] - kept[n - 2]
        ):
            n -= 1
        kept[n] = m
        n += 1
        for k in range(n - 1):
            a, b = kept[k], kept[k + 1]
            for i in range(a + 1, b):
                found[m] = max(found[m], y[i] - y[a] - (y[b] - y[a]) * (i - a) / (b - a))
    return found


def ring_dips(n: int, draws: int, random_state: int) -> FloatArray:
    """Dips of the distances of n points at random about a ring, (draws,).

    Of continuous shapes (a cloud, a line, an arc) a ring of some thickness has distances that come nearest to two modes.
    """
    return np.array([dip(distances) for distances in _rings(n, draws, random_state)])


def _rings(n: int, draws: int, random_state: int) -> Iterator[FloatArray]:
    rng = np.random.default_rng(random_state)
    for _ in range(draws):
        turn = rng.uniform(0, np.pi, n)
        yield pairs_of(np.hypot(np.sin(turn[:, None] - turn), THICK))
