"""Does the cosine of two embeddings tell how much attention one token pays the other?"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from headscape.errors import InputError

__all__ = ["RankCorrelations", "cosines", "rank_correlations"]

Array = npt.NDArray[Any]
AT_ONCE = 10
"""Permutations whose correlations are one product of matrices."""


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


def rank_correlations(
    maps: npt.ArrayLike, cosine: npt.ArrayLike, permutations: int, random_state: int = 0, *, causal: bool = True
) -> RankCorrelations:
    r"""Spearman's rank correlation of maps (n_map, n, n) with cosines (n, n), also with distance held fixed.

    .. math:: (r_{ac} - r_{ad} r_{cd}) / \sqrt{(1 - r_{ad}^2)(1 - r_{cd}^2)}

    for ranks a of attention, c of cosines, d of distances |i - j|, over all pairs j < i, or i != j where maps are not
    causal. In a permutation of the tokens the cosines lose their places, both axes alike.
    """
    A, C = np.asarray(maps, dtype=np.float64), np.asarray(cosine, dtype=np.float64)
    n = len(C)
    if A.shape[1:] != C.shape or n < 3:
        raise InputError(f"maps of shape {A.shape} and cosines of {C.shape}: both must be of the same 3 tokens or more")
    i, j = np.tril_indices(n, -1) if causal else np.nonzero(~np.eye(n, dtype=bool))
    ranks = np.zeros((n, n))
    ranks[i, j] = _standard(rankdata(C[i, j]))
    if causal:
        ranks += ranks.T  # any order of the tokens has the same set of values, so the same mean and length
    known = np.zeros((len(A) + 1, n, n))
    known[:-1, i, j], known[-1, i, j] = _standard(rankdata(A[:, i, j], axis=1)), _standard(rankdata(np.abs(i - j)))
    flat = known.reshape(len(known), -1)
    rng = np.random.default_rng(random_state)
    turns = [np.arange(n), *(rng.permutation(n) for _ in range(permutations))]
    found = []
    for start in range(0, len(turns), AT_ONCE):  # all together would not fit into memory for a long text
        moved = [ranks[turn][:, turn].ravel() for turn in turns[start : start + AT_ONCE]]
        found.append(flat @ np.transpose(moved))
    together = np.concatenate(found, axis=1)
    ac, cd, ad = together[:-1], together[-1], (flat[:-1] @ flat[-1])[:, None]
    partial = (ac - ad * cd) / np.sqrt(np.maximum((1 - ad**2) * (1 - cd**2), 1e-30))
    return RankCorrelations(ac[:, 0], partial)


def _standard(ranks: Array) -> Array:
    """Rows centred and of length 1, so that products of two are correlations."""
    centred = ranks - ranks.mean(axis=-1, keepdims=True)
    size = np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.asarray(centred / np.where(size > 0, size, 1))
