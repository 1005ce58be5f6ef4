"""Tree distance: how far apart two slices of an array are, seen through the trees of its other axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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
_SLICES = 8
"""Slices of a task: enough that handing it over costs little beside it."""
_STRIP = 128
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
    leaf_distance: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.float64]:
    """Tree distance with everything at hand: `slices` is contiguous with the compared axis first, `others` fit.

    Where level_weight is 0, tuples of single leaves add up to the L1 distance of the slices as they are, times
    prod_b n_b^-size_weight, whatever the trees. Give that distance as `leaf_distance`, (n, n), to save half the work.
    """
    weights = [folder_weights(tree, level_weight, size_weight) / tree.sizes for tree in others]
    n, m = len(slices), len(others)
    rows = n + -n % ROWS
    if leaf_distance is None:
        groups = [["all"] * m]
    else:  # the tuples that are not all leaves, by the first axis that has a larger folder
        groups = [["leaves"] * b + ["larger"] + ["all"] * (m - b - 1) for b in range(m)]
    total = np.zeros((rows, rows))
    for group in groups:
        chosen = [_choose(*given) for given in zip(others, weights, group, strict=True)]
        n_first = len(chosen[0].folders)
        width = math.prod(len(choice.folders) for choice in chosen[1:])  # columns for one folder of the first axis
        need = rows * width * slices.itemsize
        if need > max_memory:
            raise InputError(
                f"the tree distance between {n} slices of shape {slices.shape[1:]} needs {need:.3g} bytes at least, "
                f"max_memory is {max_memory:.3g}; raise it, or shorten the axes"
            )
        if not n_first * width:
            continue
        chunk = min(n_first, max(1, int(min(max_memory, CHUNK)) // need))
        buffer = np.zeros(rows * width * chunk, dtype=slices.dtype)
        for lo in range(0, n_first, chunk):
            part = chosen[0].part(lo, lo + chunk)
            means = buffer[: rows * width * len(part.folders)].reshape(rows, -1)
            means[n:] = 0
            _fill_folder_means(slices, [part, *chosen[1:]], means, threads)
            add_pairwise_l1(means, total, threads)
    distances = symmetric(total[:n, :n])
    if leaf_distance is not None:
        distances += leaf_distance * math.prod(tree.n_leaves**-size_weight for tree in others)
    return distances


class _Choice(NamedTuple):
    """Some folders of a tree, as the kernels want them; arrays but the first are over all folders of the tree."""

    folders: IntArray
    """Indices into ``tree.folders()`` of those chosen, ascending."""
    slot: IntArray
    """Place of each folder among those chosen, or -1."""
    leaf: IntArray
    """The leaf of a folder that is one, or -1."""
    order: IntArray
    start: IntArray
    stop: IntArray
    first: IntArray
    """First child."""
    children: IntArray
    """Number of children, which follow the first."""
    weight: npt.NDArray[np.float64]

    def part(self, lo: int, hi: int) -> _Choice:
        """Choose only folders lo..hi of those chosen."""
        return _with_slots(self, self.folders[lo:hi])


def _choose(tree: PartitionTree, weight: npt.NDArray[np.float64], which: str) -> _Choice:
    """Choose all folders, the leaves, or the larger ones."""
    folders = tree.folders()
    leaf = np.where(tree.sizes == 1, tree.order[folders.start], -1)
    wanted = {"all": np.ones_like(leaf, dtype=bool), "leaves": leaf >= 0, "larger": leaf < 0}[which]
    arrays = (leaf, tree.order, folders.start, folders.stop, *tree.child_ranges, weight)
    return _with_slots(_Choice(leaf, leaf, *arrays), np.flatnonzero(wanted))


def _with_slots(choice: _Choice, folders: IntArray) -> _Choice:
    slot = np.full(len(choice.leaf), -1, dtype=np.intp)
    slot[folders] = np.arange(len(folders))
    return choice._replace(folders=folders, slot=slot)


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


def _fill_folder_means(slices: Floats, chosen: list[_Choice], means: Floats, threads: int) -> None:
    """Write the weighted means of every slice over all tuples of the chosen folders to `means`.

    The first axis is summed first and laid last, so that sums along the others run over contiguous numbers.
    """
    first, inner = slices.shape[1], len(chosen[0].folders)
    leaves = math.prod(slices.shape[2:])

    def fill(begin: int, end: int) -> None:
        scratch = np.empty((leaves, inner), dtype=slices.dtype)
        for p in range(begin, end):
            current = scratch if len(chosen) > 1 else means[p, None]
            _sum_first(slices[p].reshape(first, leaves), *chosen[0], current)
            outer, width = 1, leaves * inner
            for b, choice in enumerate(chosen[1:], start=1):
                n_leaves, count = slices.shape[b + 1], len(choice.folders)
                width //= n_leaves
                shape = (outer, count, width)
                result = means[p].reshape(shape) if b == len(chosen) - 1 else np.empty(shape, dtype=slices.dtype)
                _sum_next(current.reshape(outer, n_leaves, width), *choice, result)
                current, outer = result, outer * count

    n = len(slices)
    run_tasks(fill, [(begin, min(begin + _SLICES, n)) for begin in range(0, n, _SLICES)], threads)


@compiled
def _sum_first(
    rows: Floats,
    folders: IntArray,
    slot: IntArray,
    leaf: IntArray,
    order: IntArray,
    start: IntArray,
    stop: IntArray,
    first: IntArray,
    count: IntArray,
    weight: npt.NDArray[np.float64],
    out: Floats,
) -> None:
    """out[k, slot[f]] = weight[f] * sum over the leaves of f of rows[leaf, k].

    Children stand behind their parent, so going backwards their sums are ready; those not chosen are summed anew.
    """
    width = rows.shape[1]
    scale = weight[folders].astype(rows.dtype)
    # 16 more, or the columns read below would share a few cache lines
    total = np.empty((len(folders), _STRIP + 16), dtype=rows.dtype)
    for lo in range(0, width, _STRIP):
        n = min(_STRIP, width - lo)
        for s in range(len(folders) - 1, -1, -1):
            f = folders[s]
            mine = total[s]
            if leaf[f] >= 0:
                row = rows[leaf[f], lo : lo + n]
                for k in range(n):
                    mine[k] = row[k]
                continue
            for k in range(n):
                mine[k] = 0
            for c in range(first[f], first[f] + count[f]):
                if slot[c] >= 0:
                    child = total[slot[c]]
                    for k in range(n):
                        mine[k] += child[k]
                else:
                    for p in range(start[c], stop[c]):
                        row = rows[order[p], lo : lo + n]
                        for k in range(n):
                            mine[k] += row[k]
        for k in range(n):
            line = out[lo + k]
            for s in range(len(folders)):
                line[s] = scale[s] * total[s, k]


@compiled
def _sum_next(
    rows: Floats,
    folders: IntArray,
    slot: IntArray,
    leaf: IntArray,
    order: IntArray,
    start: IntArray,
    stop: IntArray,
    first: IntArray,
    count: IntArray,
    weight: npt.NDArray[np.float64],
    out: Floats,
) -> None:
    """out[o, slot[f]] = weight[f] * sum over the leaves of f of rows[o, leaf].

    Of the children of a chosen folder those that are not leaves are chosen too. They get their weight once the parent
    has their sum.
    """
    width = rows.shape[2]
    for o in range(len(rows)):
        for s in range(len(folders) - 1, -1, -1):
            f = folders[s]
            mine = out[o, s]
            if leaf[f] >= 0:
                row, w = rows[o, leaf[f]], out.dtype.type(weight[f])
                for k in range(width):
                    mine[k] = w * row[k]
                continue
            for k in range(width):
                mine[k] = 0
            for c in range(first[f], first[f] + count[f]):
                if leaf[c] >= 0:
                    row = rows[o, leaf[c]]
                    for k in range(width):
                        mine[k] += row[k]
                else:
                    child, w = out[o, slot[c]], out.dtype.type(weight[c])
                    for k in range(width):
                        mine[k] += child[k]
                        child[k] *= w
        if len(folders) > 0 and leaf[folders[0]] < 0:  # the root has no parent
            w = out.dtype.type(weight[folders[0]])
            for k in range(width):
                out[o, 0, k] *= w
