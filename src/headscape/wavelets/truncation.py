"""Arrays from few numbers: the largest Haar coefficients, those of the largest supports, or the largest singular values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from headscape.tree import PartitionTree
from headscape.wavelets.haar import haar_support, haar_transform, inverse_haar_transform

__all__ = ["truncated", "truncated_svd"]

FloatArray = npt.NDArray[np.float64]


def truncated(
    X: npt.ArrayLike,
    trees: Sequence[PartitionTree],
    counts: Sequence[int],
    by: Literal["magnitude", "support"] = "magnitude",
) -> Iterator[FloatArray]:
    """The array from so many of its Haar coefficients, for each of `counts`; ties go to the first index.

    "magnitude" is the best choice for every count; "support" takes the largest supports, whatever the array holds: the
    sparse grid, for which a mixed alpha-Hölder array has an error of k^-alpha up to logarithms.

    >>> X = np.kron([[1.0, 5.0], [2.0, 2.0]], np.ones((2, 2)))
    >>> [bool(np.allclose(found, X)) for found in truncated(X, [PartitionTree.dyadic(4)] * 2, (2, 4))]
    [False, True]
    """
    C = haar_transform(X, trees)
    worth = np.abs(C)
    if by == "support":
        worth = np.ones(())
        for tree in trees:
            worth = np.multiply.outer(worth, haar_support(tree).support)
    order = np.argsort(-worth.reshape(-1), kind="stable")
    for count in counts:
        kept = np.zeros_like(C).reshape(-1)
        kept[order[:count]] = C.reshape(-1)[order[:count]]
        yield inverse_haar_transform(kept.reshape(C.shape), trees)


def truncated_svd(X: npt.ArrayLike, counts: Sequence[int]) -> Iterator[FloatArray]:
    """The same for singular values of the heads of (n_query, n_key, n_head): as many numbers kept as `counts` say.

    A singular value with its two vectors takes n_query + n_key + 1 numbers; the largest of all heads are kept.
    """
    heads = np.moveaxis(np.asarray(X, dtype=np.float64), 2, 0)
    U, s, V = np.linalg.svd(heads, full_matrices=False)
    order = np.argsort(-s.reshape(-1), kind="stable")
    for count in counts:
        kept = np.zeros_like(s).reshape(-1)
        chosen = order[: count // (sum(heads.shape[1:]) + 1)]
        kept[chosen] = s.reshape(-1)[chosen]
        yield np.moveaxis((U * kept.reshape(s.shape)[:, None]) @ V, 0, 2)
