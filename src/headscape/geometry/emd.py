"""Tree distance: how far apart two slices of an array are, seen through the trees of its other axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.geometry._compiled import compiled, n_threads, run_tasks
from headscape.geometry.arrays import as_values
from headscape.geometry.l1 import ROWS, add_pairwise_l1, symmetric
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree

__all__ = ["CHUNK", "DEFAULT_MEMORY", "folder_weights", "slice_distance", "tree_distance"]

Floats = npt.NDArray[Any]  # float32 or float64
IntArray = npt.NDArray[np.intp]

DEFAULT_MEMORY = 4e9
"""Bytes of working memory allowed unless told otherwise."""
CHUNK = 64e6
"""Bytes of folder means made at a time: few enough that fresh memory costs little, enough for long rows."""
_STRIP = 64
"""Columns of a slice summed at a time: the sums of some hundred folders stay in the second-level cache."""


def folder_weights(tree: PartitionTree, level_weight: float, size_weight: float) -> npt.NDArray[np.float64]:
    """Weight of each folder, (|F|/n)^size_weight 2^(-level_weight level(F)), in the order of ``tree.folders()``."""
    share = tree.sizes / tree.n_leaves
    weights: npt.NDArray[np.float64] = share**size_weight * np.exp2(-level_weight * tree.folders().level)
    return weights


def tree_distance(
    X: AttentionTensor | npt.ArrayLike,
    trees: Sequence[PartitionTree | None],
    axis: int,
    level_weight: float = 0.0,
    size_weight: float = 1.0,
    max_memory: float = DEFAULT_MEMORY,
    threads: int | None = None,
) -> npt.NDArray[np.float64]:
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
        Bytes the weighted folder means may take at a time. They are made and compared in chunks that fit.
    threads
        How many; by default numba's setting. Any number gives the same bytes.

    Returns
    -------
    (n_axis, n_axis) float64, symmetric, zero on the diagonal.

    Raises
    ------
    InputError
        If a tree is missing or does not fit its axis, an entry is not finite, or not even one folder's means fit in
        `max_memory`.

    >>> from headscape.tree import PartitionTree
    >>> X = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0]])
    >>> halves = PartitionTree.dyadic(2)                   # folders {0, 1} with weight 1, {0} and {1} with weight 1/2
    >>> tree_distance(X, [None, halves], axis=0)
    array([[0., 2., 2.],
           [2., 0., 1.],
           [2., 1., 0.]])
    """
    values, names = as_values(X)
    order = values.ndim
    if not -order <= axis < order:
        raise InputError(f"axis {axis} does not exist, the array of shape {values.shape} has axes 0 to {order - 1}")
    axis %= order
    others = _check_trees(trees, values.shape, names, axis)
    dtype = np.float64 if np.result_type(values, np.float32).itemsize > 4 else np.float32
    slices = np.ascontiguousarray(np.moveaxis(values, axis, 0), dtype=dtype)
    return slice_distance(slices, others, level_weight, size_weight, max_memory, n_threads(threads))


def slice_distance(
    slices: Floats,
    others: Sequence[PartitionTree],
    level_weight: float,
    size_weight: float,
    max_memory: float,
    threads: int,
) -> npt.NDArray[np.float64]:
    """Tree distance with everything at hand: `slices` is contiguous with the compared axis first, `others` fit."""
    weights = [folder_weights(tree, level_weight, size_weight) / tree.sizes for tree in others]
    n, n_first = len(slices), len(weights[0])
    rows = n + -n % ROWS
    width = math.prod(len(w) for w in weights[1:])  # columns that one folder of the first other axis makes
    need = rows * width * slices.itemsize
    if need > max_memory:
        raise InputError(
            f"the tree distance between {n} slices of shape {slices.shape[1:]} needs {need:.3g} bytes at least, "
            f"max_memory is {max_memory:.3g}; raise it, or shorten the axes"
        )
    chunk = min(n_first, max(1, int(min(max_memory, CHUNK)) // need))
    buffer = np.zeros(rows * width * chunk, dtype=slices.dtype)
    total = np.zeros((rows, rows))
    for lo in range(0, n_first, chunk):
        part = slice(lo, min(lo + chunk, n_first))
        means = buffer[: rows * width * (part.stop - lo)].reshape(rows, -1)
        means[n:] = 0
        _fill_folder_means(slices, others, weights, part, means, threads)
        add_pairwise_l1(means, total, threads)
    return symmetric(total[:n, :n])


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


def _fill_folder_means(
    slices: Floats,
    others: Sequence[PartitionTree],
    weights: list[npt.NDArray[np.float64]],
    part: slice,
    means: Floats,
    threads: int,
) -> None:
    """Write the weighted means of every slice over all tuples of folders, `part` of the first axis's, to `means`.

    The first axis is summed first and laid last, so that sums along the others run over contiguous numbers.
    """
    first, inner = others[0], part.stop - part.start
    folders = first.folders()
    cut = (part.start, first.order, folders.start, folders.stop, *first.child_ranges, weights[0])
    leaves = math.prod(slices.shape[2:])
    leaf = [np.where(tree.sizes == 1, tree.order[tree.folders().start], -1) for tree in others]

    def fill(p: int) -> None:
        current = np.empty((leaves, inner), dtype=slices.dtype) if len(others) > 1 else means[p, None]
        _sum_leaves(slices[p].reshape(first.n_leaves, leaves), *cut, current)
        outer, width = 1, leaves * inner
        for b in range(1, len(others)):
            tree, count = others[b], len(weights[b])
            width //= tree.n_leaves
            shape = (outer, count, width)
            result = means[p].reshape(shape) if b == len(others) - 1 else np.empty(shape, dtype=slices.dtype)
            _sum_children(current.reshape(outer, tree.n_leaves, width), leaf[b], *tree.child_ranges, weights[b], result)
            current, outer = result, outer * count

    run_tasks(fill, [(p,) for p in range(len(slices))], threads)


@compiled
def _sum_leaves(
    rows: Floats,
    begin: int,
    order: IntArray,
    start: IntArray,
    stop: IntArray,
    first: IntArray,
    count: IntArray,
    weight: npt.NDArray[np.float64],
    out: Floats,
) -> None:
    """out[k, f] = weight[g] * sum of rows[order[start[g]:stop[g]], k] with g = begin + f, in float64.

    A folder is summed from its children where they are among those asked for, else from its leaves.
    """
    width, n_folders = out.shape
    total = np.empty((n_folders, _STRIP))
    for lo in range(0, width, _STRIP):
        n = min(_STRIP, width - lo)
        for f in range(n_folders - 1, -1, -1):
            g = begin + f
            mine = total[f]
            if count[g] > 0 and first[g] + count[g] <= begin + n_folders:
                child = total[first[g] - begin]
                for k in range(n):
                    mine[k] = child[k]
                for c in range(first[g] + 1 - begin, first[g] + count[g] - begin):
                    child = total[c]
                    for k in range(n):
                        mine[k] += child[k]
            else:
                row = rows[order[start[g]], lo : lo + n]
                for k in range(n):
                    mine[k] = row[k]
                for p in range(start[g] + 1, stop[g]):
                    row = rows[order[p], lo : lo + n]
                    for k in range(n):
                        mine[k] += row[k]
        for k in range(n):
            row = out[lo + k]
            for f in range(n_folders):
                row[f] = weight[begin + f] * total[f, k]


@compiled
def _sum_children(
    rows: Floats, leaf: IntArray, first: IntArray, count: IntArray, weight: npt.NDArray[np.float64], out: Floats
) -> None:
    """out[o, f] = weight[f] * sum over the leaves of f of rows[o, leaf].

    Children stand behind their parent, so going backwards they are ready; they get their weight once they are summed.
    """
    n_folders, width = out.shape[1], out.shape[2]
    for o in range(len(rows)):
        for f in range(n_folders - 1, -1, -1):
            mine = out[o, f]
            if leaf[f] >= 0:
                row = rows[o, leaf[f]]
                for k in range(width):
                    mine[k] = row[k]
                continue
            for c in range(first[f], first[f] + count[f]):
                child, w = out[o, c], out.dtype.type(weight[c])
                if c == first[f]:
                    for k in range(width):
                        mine[k] = child[k]
                        child[k] *= w
                else:
                    for k in range(width):
                        mine[k] += child[k]
                        child[k] *= w
        w = out.dtype.type(weight[0])
        for k in range(width):
            out[o, 0, k] *= w
