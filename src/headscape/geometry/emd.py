"""Tree distance: how far apart two slices of an array are, seen through the trees of its other axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.compiled import n_threads
from headscape.geometry.arrays import LazyArray, as_lazy, as_values
from headscape.geometry.folder_means import Slices, chunks_of, folder_weights
from headscape.geometry.l1 import ROWS, symmetric
from headscape.geometry.scratch import Layouts
from headscape.geometry.tiles import add_chunks
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree

__all__ = ["DEFAULT_MEMORY", "slice_distance", "tree_distance"]

FloatArray = npt.NDArray[np.float64]

DEFAULT_MEMORY = 4e9
"""Bytes of working memory allowed unless told otherwise."""


def tree_distance(
    X: AttentionTensor | LazyArray | npt.ArrayLike,
    trees: Sequence[PartitionTree | None],
    axis: int,
    level_weight: float = 0.0,
    size_weight: float = 1.0,
    max_memory: float = DEFAULT_MEMORY,
    threads: int | None = None,
) -> FloatArray:
    r"""Distances between the slices of an array along one axis, through the trees of the other axes.

    .. math::
        D[p, j] = \sum_{(F_b)_{b \ne a}} \prod_b (|F_b| / n_b)^\beta 2^{-\alpha\, level(F_b)}
                  \left| \mathrm{mean}_{\prod F_b} (A_p - A_j) \right|

    with alpha = `level_weight`, beta = `size_weight`, the sum over all tuples of folders, one of each other axis's
    tree, every distinct folder once at its coarsest level. This is the paper's eq. 15 with the absolute value that is
    missing in print, and with the trees of the other two axes whichever slice is compared.

    Parameters
    ----------
    X
        Array of order two or more. float64 (and wide integers) are computed in float64; the rest in float32, with
        float64 between chunks.
    trees
        One a axis; the entry of `axis` itself is not looked at and may be None.
    axis
        The axis whose slices are compared.
    level_weight, size_weight
        alpha and beta above, the same on every axis.
    max_memory
        Bytes the weighted folder means may take at a time. They are made and compared in tiles that fit. A larger array
        is copied to a scratch file with `axis` first and read from there; the result is the same to the last bit.
    threads
        How many; by default numba's setting. Any number gives the same bytes.

    Returns
    -------
    (n_axis, n_axis) float64, symmetric, zero on the diagonal.

    Raises
    ------
    InputError
        If a tree is missing or does not fit its axis, an entry is not finite, not even the smallest tile fits into
        `max_memory`, or the scratch file not on the disk.

    >>> from headscape.tree import PartitionTree
    >>> X = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0]])
    >>> halves = PartitionTree.dyadic(2)                   # folders {0, 1} with weight 1, {0} and {1} with weight 1/2
    >>> tree_distance(X, [None, halves], axis=0)
    array([[0., 2., 2.],
           [2., 0., 1.],
           [2., 1., 0.]])
    """
    lazy, names = as_lazy(X)
    shape, order = tuple(lazy.shape), len(lazy.shape)
    if not -order <= axis < order:
        raise InputError(f"axis {axis} does not exist, the array of shape {shape} has axes 0 to {order - 1}")
    axis %= order
    others = _check_trees(trees, shape, names, axis)
    dtype = np.dtype(np.float64 if np.result_type(lazy.dtype, np.float32).itemsize > 4 else np.float32)
    count = n_threads(threads)
    if math.prod(shape) * dtype.itemsize <= max_memory:
        values, _ = as_values(lazy)
        slices = np.ascontiguousarray(np.moveaxis(values, axis, 0), dtype=dtype)
        return slice_distance(slices, others, level_weight, size_weight, max_memory, count)
    with Layouts(lazy, names, None, max_memory, count, axes=[axis]) as files:
        stored = files.slices(axis, lambda part: part.astype(dtype, copy=False), dtype)
        return slice_distance(stored, others, level_weight, size_weight, max_memory, count)


def slice_distance(
    slices: Slices,
    others: Sequence[PartitionTree],
    level_weight: float,
    size_weight: float,
    max_memory: float,
    threads: int,
    leaf_distance: FloatArray | None = None,
) -> FloatArray:
    """Tree distance with everything at hand: `slices` has the compared axis first, `others` fit.

    Where level_weight is 0, tuples of single leaves add up to the L1 distance of the slices as they are, times
    prod_b n_b^-size_weight, whatever the trees. Give that distance as `leaf_distance`, (n, n), to save half the work.

    Chunks of folders are the same whatever the memory (`chunks_of`). Of slices on disk as many chunks as fit are made
    with one reading; a chunk that does not fit is made and compared in tiles of slices. Each pair of slices has its
    sums added in the same order every way, so the result is the same to the last bit.
    """
    weights = [folder_weights(tree, level_weight, size_weight) / tree.sizes for tree in others]
    n = slices.shape[0]
    rows = n + -n % ROWS
    total = np.zeros((rows, rows))
    add_chunks(slices, chunks_of(slices, others, weights, leaves=leaf_distance is None), total, max_memory, threads)
    distances = symmetric(total[:n, :n])
    if leaf_distance is not None:
        distances += leaf_distance * math.prod(tree.n_leaves**-size_weight for tree in others)
    return distances


def _check_trees(
    trees: Sequence[PartitionTree | None], shape: tuple[int, ...], names: tuple[str, ...], axis: int
) -> list[PartitionTree]:
    """Return the trees of the other axes, in axis order, after checking that they fit."""
    if len(trees) != len(shape):
        raise InputError(f"{len(trees)} trees given for an array of shape {shape}; give one a axis")
    others = []
    for b, (tree, size, name) in enumerate(zip(trees, shape, names, strict=True)):
        if b == axis:
            continue
        if tree is None:
            raise InputError(f"the distance on axis '{names[axis]}' needs a tree on axis '{name}', None was given")
        if tree.n_leaves != size:
            raise InputError(f"tree on axis '{name}' covers {tree.n_leaves} leaves, the tensor has {size}")
        others.append(tree)
    return others
