"""Tree distance: how far apart two slices of an array are, seen through the trees of its other axes.

The formula in four steps: weights of folders (`folder_weights`), tuples of folders in chunks (`chunks_of`), weighted
means of every slice over the tuples of a chunk (`fill_means`), and L1 distances between those (`add_pairwise_l1`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headscape.checks import finite, integer, positive
from headscape.compiled import n_threads
from headscape.errors import InputError
from headscape.geometry.arrays import LazyArray, as_lazy, as_values
from headscape.geometry.folder_means import Chunk, Slices, chunks_of, fill_means, folder_weights
from headscape.geometry.l1 import ROWS, add_cross_l1, add_pairwise_l1, symmetric
from headscape.geometry.scratch import Layouts, StoredSlices
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree

__all__ = ["DEFAULT_MEMORY", "check_range", "distance_tiles", "groups_within", "slice_distance", "tree_distance"]

FloatArray = npt.NDArray[np.float64]

DEFAULT_MEMORY = 4e9
"""Bytes of working memory allowed by default."""
_TILE = 8 * ROWS
"""Tiles are a multiple of this many slices where there is room: the kernel's own tile."""


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
        One per axis; that of `axis` itself is not used and may be None.
    axis
        The axis whose slices are compared.
    level_weight, size_weight
        alpha and beta above, the same on every axis.
    max_memory
        Bytes the weighted folder means may take at a time; they are computed and compared in tiles that fit. A larger
        array is copied to a scratch file with `axis` first and read from there. The result is the same to the last bit.
    threads
        How many; by default numba's setting. Any number gives the same bytes.

    Returns
    -------
    (n_axis, n_axis) float64, symmetric, zero on the diagonal.

    Raises
    ------
    InputError
        If a tree is missing or does not fit its axis, an entry is not finite, the smallest tile does not fit into
        `max_memory`, or the scratch file does not fit on the disk.

    >>> X = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 1.0]])
    >>> halves = hs.PartitionTree.dyadic(2)  # folders {0, 1} with weight 1, {0} and {1} with weight 1/2
    >>> hs.tree_distance(X, [None, halves], axis=0)
    array([[0., 2., 2.],
           [2., 0., 1.],
           [2., 1., 0.]])
    """
    lazy, names = as_lazy(X)
    shape, order = tuple(lazy.shape), len(lazy.shape)
    axis = integer("axis", axis, -order, order - 1) % order
    finite("level_weight", level_weight)
    finite("size_weight", size_weight)
    positive("max_memory", max_memory)
    others = _check_trees(trees, shape, names, axis)
    dtype = np.dtype(np.float64 if np.result_type(lazy.dtype, np.float32).itemsize > 4 else np.float32)
    count = n_threads(threads)
    if math.prod(shape) * dtype.itemsize <= max_memory:
        values, _ = as_values(lazy)
        slices = np.ascontiguousarray(np.moveaxis(values, axis, 0), dtype=dtype)
        D = slice_distance(slices, others, level_weight, size_weight, max_memory, count)
    else:
        with Layouts(lazy, names, None, max_memory, count, axes=[axis]) as files:
            stored = StoredSlices(files, axis, lambda part: part.astype(dtype, copy=False), dtype)
            D = slice_distance(stored, others, level_weight, size_weight, max_memory, count)
    check_range(D, 1.0, level_weight, size_weight)
    return D


def check_range(D: FloatArray, unit: float, level_weight: float, size_weight: float) -> None:
    """Raise an `InputError` where distances in this unit leave the range of float64."""
    if not math.isfinite(float(D.max()) * unit):
        found = (
            f"distances leave the range of float64 with level_weight {level_weight:g} and size_weight {size_weight:g}"
        )
        raise InputError(f"{found}; choose weights nearer 0, or scale the array")


def _check_trees(
    trees: Sequence[PartitionTree | None], shape: tuple[int, ...], names: tuple[str, ...], axis: int
) -> list[PartitionTree]:
    """Return the trees of the other axes, in axis order, after checking that they fit."""
    if len(trees) != len(shape):
        raise InputError(f"{len(trees)} trees given for an array of shape {shape}; give one per axis")
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


def slice_distance(
    slices: Slices,
    others: Sequence[PartitionTree],
    level_weight: float,
    size_weight: float,
    max_memory: float,
    threads: int,
    leaf_distance: FloatArray | None = None,
) -> FloatArray:
    """Tree distance of `slices`, which have the compared axis first, through the trees `others`; nothing is checked.

    Where level_weight is 0, tuples of single leaves add up to the L1 distance of the slices as they are, times
    prod_b n_b^-size_weight, whatever the trees. Give that distance as `leaf_distance`, (n, n), to save half the work.

    Chunks of folders are the same whatever the memory (`chunks_of`). Of slices on disk, as many chunks as fit are
    computed in one reading; a chunk that does not fit is computed and compared in tiles of slices. Each pair of slices
    has its sums added in the same order either way, so the result is the same to the last bit.

    Raises
    ------
    InputError
        If the smallest tile of a chunk does not fit into `max_memory`.
    """
    weights = [folder_weights(tree, level_weight, size_weight) / tree.sizes for tree in others]
    chunks = chunks_of(slices, others, weights, leaves=leaf_distance is None)
    n, itemsize = slices.shape[0], slices.dtype.itemsize
    rows = n + -n % ROWS
    total = np.zeros((rows, rows))
    at_most = 1 if isinstance(slices, np.ndarray) else None  # chunks together: an array in memory is read at no cost
    groups = list(groups_within(chunks, rows * itemsize, max_memory, at_most))
    sizes = [rows * sum(chunk.columns for chunk in group) for group in groups]
    largest = max((size for size in sizes if size * itemsize <= max_memory), default=0)
    buffer = np.empty(largest, dtype=slices.dtype)  # one for all, since fresh memory is slow
    for group, size in zip(groups, sizes, strict=True):
        if size > largest:
            _add_in_tiles(slices, group[0], total, _tile_height(slices, group[0], rows, max_memory), threads)
            continue
        ends = rows * np.cumsum([chunk.columns for chunk in group])
        means = [part.reshape(rows, -1) for part in np.split(buffer[:size], ends[:-1])]
        fill_means(slices, group, means, 0, threads)
        for array in means:
            add_pairwise_l1(array, total, threads)
    distances = symmetric(total[:n, :n])
    if leaf_distance is not None:
        with np.errstate(over="ignore", invalid="ignore"):  # see `check_range`
            distances += leaf_distance * math.prod(np.float64(tree.n_leaves) ** -size_weight for tree in others)
    return distances


def groups_within(
    chunks: Sequence[Chunk], column_bytes: int, memory: float, at_most: int | None = None
) -> Iterator[list[Chunk]]:
    """Consecutive chunks whose means fit into `memory` together, at least one at a time.

    `column_bytes` is what one column takes, over all slices.
    """
    group: list[Chunk] = []
    columns = 0
    for chunk in chunks:
        if group and ((columns + chunk.columns) * column_bytes > memory or len(group) == at_most):
            yield group
            group, columns = [], 0
        group.append(chunk)
        columns += chunk.columns
    if group:
        yield group


def _tile_height(slices: Slices, chunk: Chunk, rows: int, memory: float) -> int:
    """Slices of a tile, so that two tiles of this chunk's means fit into `memory`."""
    fits = int(memory / (2 * chunk.columns * slices.dtype.itemsize))
    height = fits // _TILE * _TILE or fits // ROWS * ROWS
    if height == 0:
        need = 2 * ROWS * chunk.columns * slices.dtype.itemsize
        what = f"the tree distance between {slices.shape[0]} slices of shape {slices.shape[1:]} needs {need:.3g} bytes"
        raise InputError(f"{what} at least, max_memory leaves {memory:.3g}; raise it, or shorten the axes")
    return min(height, rows)


def _add_in_tiles(slices: Slices, chunk: Chunk, total: FloatArray, height: int, threads: int) -> None:
    """Add the distances of one chunk, two tiles of slices at a time."""
    rows = len(total)
    buffer = np.empty((2 * height, chunk.columns), dtype=slices.dtype)
    for i in range(0, rows, height):
        n_i = min(height, rows - i)
        fill_means(slices, [chunk], [buffer[:n_i]], i, threads)
        inside = total[i : i + n_i, i : i + n_i].copy()
        add_pairwise_l1(buffer[:n_i], inside, threads)
        total[i : i + n_i, i : i + n_i] = inside
        for j in range(i + height, rows, height):
            n_j = min(height, rows - j)
            fill_means(slices, [chunk], [buffer[n_i : n_i + n_j]], j, threads)
            add_cross_l1(buffer[: n_i + n_j], n_i, total[i : i + n_i, j : j + n_j], threads)


def distance_tiles(
    slices: Slices, chunks: Sequence[Chunk], height: int, threads: int
) -> Iterator[tuple[int, int, FloatArray]]:
    """The distances in blocks of `height` x `height` pairs, never all of them: i <= j and D[i : i + .., j : j + ..].

    `height` is a multiple of `ROWS`. Folder means are computed again for every block, which costs little beside
    comparing several hundred slices with one another.
    """
    n = slices.shape[0]
    rows = n + -n % ROWS
    buffer = np.empty(2 * height * max(chunk.columns for chunk in chunks), dtype=slices.dtype)
    for i in range(0, rows, height):
        n_i = min(height, rows - i)
        for j in range(i, rows, height):
            n_j = min(height, rows - j)
            total = np.zeros((n_i, n_j))
            for chunk in chunks:
                both = buffer[: (n_i + n_j) * chunk.columns].reshape(n_i + n_j, -1)
                fill_means(slices, [chunk], [both[:n_i]], i, threads)
                if i == j:
                    add_pairwise_l1(both[:n_i], total, threads)
                    continue
                fill_means(slices, [chunk], [both[n_i:]], j, threads)
                add_cross_l1(both, n_i, total, threads)
            if i == j:
                total = symmetric(total)
            yield i, j, total[: n - i, : n - j]
