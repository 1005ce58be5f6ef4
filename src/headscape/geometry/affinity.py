"""Affinities between the slices of an array: cosine to start with, then from tree distances."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.checks import positive

__all__ = ["block_rows", "cosine_affinity", "cosine_of_blocks", "dual_affinity", "median_distance", "positive_median"]

FloatArray = npt.NDArray[np.float64]

_BLOCK = 2**24
"""Bytes of the array multiplied at a time, so that an unfolded copy never exists as a whole."""
_SAME = 1e-6
"""Cosines this close to 1 are 1: equal slices must not differ by float32 rounding."""


def cosine_affinity(X: npt.ArrayLike, axis: int) -> FloatArray:
    r"""Cosine of the angle between the slices along an axis, the questionnaire's first affinity (Algorithm 1, line 5).

    .. math:: G[i, j] = \max(0, \langle x_i, x_j \rangle / (\|x_i\| \|x_j\|))

    with x_i slice i as a vector; the diagonal is 1, also for a slice of zeros, which is then connected only to itself.
    Zeros are values, not missing entries: causal attention is full of them.

    Returns
    -------
    (n_axis, n_axis) float64, symmetric, entries in [0, 1].

    >>> cosine_affinity(np.array([[3.0, 4.0], [4.0, 3.0], [-3.0, 0.0], [0.0, 0.0]]), axis=0)
    array([[1.  , 0.96, 0.  , 0.  ],
           [0.96, 1.  , 0.  , 0.  ],
           [0.  , 0.  , 1.  , 0.  ],
           [0.  , 0.  , 0.  , 1.  ]])
    """
    values = np.asarray(X)
    slices = np.moveaxis(values, axis, 0)
    scale = max(float(values.max()), -float(values.min()))
    return cosine_of_blocks(lambda lo, hi: slices[:, lo:hi], slices.shape, slices.dtype, scale)


def cosine_of_blocks(
    read: Callable[[int, int], npt.NDArray[Any]], shape: tuple[int, ...], dtype: np.dtype[Any], scale: float
) -> FloatArray:
    """`cosine_affinity` of an array that is read in blocks: ``read(lo, hi)`` is ``slices[:, lo:hi]``.

    `shape` has the compared axis first; `scale` is the largest absolute value.
    """
    n = shape[0]
    single = np.float64 if dtype.itemsize > 4 else np.float32
    scale = scale or 1.0  # squares of very large or small entries exist then
    gram = np.zeros((n, n))
    rows = block_rows(shape)
    for lo in range(0, shape[1], rows):
        part: npt.NDArray[Any] = np.divide(read(lo, min(lo + rows, shape[1])), scale, dtype=single, order="C")
        part = part.reshape(n, -1)
        gram += part @ part.T
    norm = np.sqrt(np.diag(gram))
    norm[norm == 0] = 1.0
    affinity: FloatArray = np.clip(gram / norm / norm[:, None], 0.0, 1.0)
    affinity[affinity > 1.0 - _SAME] = 1.0
    np.fill_diagonal(affinity, 1.0)
    return affinity


def block_rows(shape: tuple[int, ...]) -> int:
    """How many indices of the second axis are multiplied at a time."""
    return max(1, _BLOCK // max(1, shape[0] * math.prod(shape[2:]) * 8))


def median_distance(distances: npt.ArrayLike) -> float:
    """Median of the off-diagonal distances; the smallest positive one if that is 0; 0 if all are.

    >>> median_distance([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])
    2.0
    """
    square = np.asarray(distances, dtype=np.float64)
    return positive_median(square[np.triu_indices(len(square), 1)])


def positive_median(values: FloatArray) -> float:
    """Median of values that are not negative; the smallest positive one if that is 0; 0 if all are."""
    if not values.any():
        return 0.0
    median = float(np.median(values))
    return median if median > 0 else float(values[values > 0].min())


def dual_affinity(distances: npt.ArrayLike, eps_scale: float = 1.0) -> FloatArray:
    """Affinity from distances, G = exp(-D / eps) with eps = eps_scale * median of the off-diagonal D.

    Where the median is 0, the smallest positive distance replaces it; if all distances are 0, G is all ones.

    >>> dual_affinity([[0.0, 2.0], [2.0, 0.0]]).round(3)
    array([[1.   , 0.368],
           [0.368, 1.   ]])
    """
    positive("eps_scale", eps_scale)
    square = np.asarray(distances, dtype=np.float64)
    scale = median_distance(square)
    if scale == 0:
        return np.ones_like(square)
    affinity: FloatArray = np.exp(square / (-eps_scale * scale))
    return affinity
