"""Does the cosine of two embeddings tell how much attention one token pays the other?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = ["PermutedCosines", "RankCorrelations", "cosines", "rank_correlations"]

Array = npt.NDArray[Any]
AT_ONCE = 10
"""Permutations whose correlations are one product of matrices."""
KEPT_BYTES = 1 << 25
"""Permuted ranks up to this size are kept from one layer to the next."""


def cosines(vectors: npt.ArrayLike) -> Array:
    """Cosines of all pairs of vectors (..., n, dim): (..., n, n); 0 with a vector that is 0.

    >>> cosines([[1, 0], [0, 2]]).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    V = np.asarray(vectors, dtype=np.float64)
    size = np.linalg.norm(V, axis=-1, keepdims=True)
    V = V / np.where(size > 0, size, 1)
    return np.asarray(V @ V.swapaxes(-1, -2))


class RankCorrelations(NamedTuple):
    """Of n maps: Spearman's rho (n,), and the partial one (n, 1 + n_permutation), as it is and with tokens permuted."""

    rho: Array
    partial: Array

    @property
    def p(self) -> Array:
        """Share of permutations with a partial correlation at least as large in absolute value: (n,)."""
        size = np.abs(self.partial)
        return np.asarray((1 + (size[:, 1:] >= size[:, :1] - 1e-12).sum(axis=1)) / size.shape[1])


class PermutedCosines:
    """Ranks of the cosines (n, n) of tokens over pairs j < i, or i != j, as they are and with the tokens permuted.

    In a permutation the cosines lose their places, both axes alike. Made once, it serves the maps of all layers.
    """

    def __init__(self, cosine: npt.ArrayLike, permutations: int, random_state: int = 0, *, causal: bool = True) -> None:
        C = np.asarray(cosine, dtype=np.float64)
        n = self.n = len(C)
        self.i, self.j = np.tril_indices(n, -1) if causal else np.nonzero(~np.eye(n, dtype=bool))
        self.distance = _standard(_ranks(np.abs(self.i - self.j)[None]))
        self.ranks = np.zeros((n, n))
        self.ranks[self.i, self.j] = _standard(_ranks(C[self.i, self.j][None]))[0]
        if causal:
            self.ranks += (
                self.ranks.T
            )  # any order of the tokens has the same set of values, so the same mean and length
        rng = np.random.default_rng(random_state)
        self.turns = [np.arange(n), *(rng.permutation(n) for _ in range(permutations))]

    def _moved(self, start: int) -> Array:
        """Ranks (n_pair, AT_ONCE) of some of the permutations."""
        flat = self.ranks.ravel()
        turns = self.turns[start : start + AT_ONCE]
        return np.stack([flat[turn[self.i] * self.n + turn[self.j]] for turn in turns]).T

    @cached_property
    def _kept(self) -> list[Array]:
        return [self._moved(start) for start in range(0, len(self.turns), AT_ONCE)]

    def chunks(self) -> Iterator[Array]:
        """Ranks (n_pair, n) of all permutations, some at a time: all together may not fit into memory for a long text."""
        if len(self.turns) * len(self.i) * 8 <= KEPT_BYTES:
            yield from self._kept
        else:
            yield from (self._moved(start) for start in range(0, len(self.turns), AT_ONCE))


def rank_correlations(maps: npt.ArrayLike, permuted: PermutedCosines) -> RankCorrelations:
    r"""Spearman's rank correlation of maps (n_map, n, n) with cosines, also with distance held fixed.

    .. math:: (r_{ac} - r_{ad} r_{cd}) / \sqrt{(1 - r_{ad}^2)(1 - r_{cd}^2)}

    for ranks a of attention, c of cosines, d of distances |i - j|.
    """
    A = np.asarray(maps)
    n = permuted.n
    if A.shape[1:] != (n, n) or n < 3:
        raise InputError(f"maps of shape {A.shape} and cosines of {n} tokens: both need the same tokens, at least 3")
    known = np.concatenate([_standard(_ranks(A[:, permuted.i, permuted.j])), permuted.distance])
    together = np.concatenate([known @ moved for moved in permuted.chunks()], axis=1)
    ac, cd, ad = together[:-1], together[-1], (known[:-1] @ known[-1])[:, None]
    partial = (ac - ad * cd) / np.sqrt(np.maximum((1 - ad**2) * (1 - cd**2), 1e-30))
    return RankCorrelations(ac[:, 0], partial)


def _ranks(values: Array) -> Array:
    """Ranks of each row, equal values sharing their mean rank; `scipy.stats.rankdata` takes ten times as long."""
    n_row, n = values.shape
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    new = np.ones((n_row, n), dtype=bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = np.flatnonzero(new)
    sizes = np.diff(starts, append=n_row * n)
    shared = np.repeat((starts % n) + (sizes + 1) / 2, sizes).reshape(n_row, n)
    ranks = np.empty((n_row, n))
    np.put_along_axis(ranks, order, shared, axis=1)
    return ranks


def _standard(ranks: Array) -> Array:
    """Rows centred and of length 1, so that products of two are correlations."""
    centred = ranks - ranks.mean(axis=-1, keepdims=True)
    size = np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.asarray(centred / np.where(size > 0, size, 1))
