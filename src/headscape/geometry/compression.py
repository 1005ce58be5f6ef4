"""Compression: how much sparser the Haar coefficients are than on the same trees with shuffled leaves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headscape.geometry.folder_means import Slices
from headscape.tree import PartitionTree
from headscape.wavelets.haar import haar_transform

__all__ = ["CompressionSample"]

_ENTRIES = 2**17
"""Entries of the sample: it takes milliseconds, whatever the size of the array."""
_SHUFFLES = 2


class CompressionSample:
    """A random part of an array on which trees can be compared; of d axes, each is cut to at most 2^(17/d) leaves.

    Raw l1 norms are not comparable between trees of different shape; their ratio to those of the same trees on shuffled
    leaves is. Sample and shuffles are drawn once, so rounds of the questionnaire are compared on equal terms.
    """

    def __init__(self, values: Slices, random_state: int | None) -> None:
        rng = np.random.default_rng(random_state)
        longest = int(_ENTRIES ** (1 / len(values.shape)))
        self._leaves = [np.sort(rng.choice(n, min(n, longest), replace=False)) for n in values.shape]
        moves = [[rng.permutation(len(kept)) for kept in self._leaves] for _ in range(_SHUFFLES)]
        first, *rest = self._leaves
        part = np.stack([values[i][np.ix_(*rest)] for i in first])
        self._stack = np.stack([part, *(part[np.ix_(*move)] for move in moves)])

    def compression(self, trees: Sequence[PartitionTree]) -> float:
        """l1 norm of the Haar coefficients over its mean for shuffled leaves; 1 for an array of zeros."""
        small = [tree.restrict(kept) for tree, kept in zip(trees, self._leaves, strict=True)]
        coefficients = haar_transform(self._stack, [None, *small])
        organized, *shuffled = (float(np.abs(part).sum()) for part in coefficients)
        null = sum(shuffled) / len(shuffled)
        return organized / null if null > 0 else 1.0
