"""The Haar basis of partition trees: transform, inverse, and what each basis function looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.tensor import AXES, AttentionTensor, check_finite
from headscape.tree import IntArray, PartitionTree

__all__ = [
    "HaarSupport",
    "LargestSupports",
    "haar_support",
    "haar_transform",
    "inverse_haar_transform",
    "largest_supports",
]

FloatArray = npt.NDArray[np.float64]
Trees = PartitionTree | Sequence[PartitionTree | None]
F = TypeVar("F", bound=Callable[..., Any])

# Vectors lifted together. Long enough to fill wide registers, short enough for a tile of a 256-long axis to stay in the
# second-level cache; 16 and 64 were slower. Compiled kernels of other modules keep the old value and the old `lift`
# until their own file changes or their __pycache__ is removed.
LANES = 32


def kernel(function: F) -> F:
    """Compile for one thread, without fast math: sums keep their order, and equal parts cancel to an exact zero."""
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))


def parallel_kernel(function: F) -> F:
    """Compile for several threads; one of them does each unit of work whole, so bytes do not depend on their number."""
    return cast(F, numba.njit(cache=True, error_model="numpy", parallel=True)(function))


class HaarSupport(NamedTuple):
    """What each basis function of a tree looks like, in index order; all arrays have shape (n_leaves,)."""

    support: IntArray
    """Number of non-zero entries."""
    folder: IntArray
    """The folder of `tree.folders()` whose children it tells apart; the root for the constant."""
    level: IntArray
    """The coarsest level at which that folder occurs."""
    l1: FloatArray
    """Sum of absolute values: 2 sqrt(a b / (a + b)) for parts of a and b leaves, sqrt(n) for the constant."""
    scale: IntArray
    """floor(log2(n_leaves / support)): 0 for functions that reach more than half of the leaves."""


class Lifting(NamedTuple):
    """The transform as rotations of pairs of rows, in place and without a basis matrix.

    A row holds sum / sqrt(size) of a set of leaves. Step t joins two sets: the left row becomes the union's, the right
    row becomes coefficient t + 1. The steps run from the last to the first; each is its own inverse.
    """

    steps: IntArray
    """(n - 1, 2): left and right row."""
    gains: FloatArray
    """(n - 1, 2): sqrt(size / union) of the left and the right set."""
    place: IntArray
    """(n,): index of the coefficient that each row ends up with."""


class _Splits(NamedTuple):
    """Step t + 1 tells child `left` from its later siblings; one row per basis function after the constant."""

    left: IntArray
    next: IntArray  # the first of the later siblings
    left_size: IntArray
    later_size: IntArray


def _splits(tree: PartitionTree) -> tuple[_Splits, IntArray]:
    """List the basis functions in index order, and the largest child of every folder (-1 for leaves)."""
    sizes, parent = tree.sizes, tree.parent
    folders = np.arange(1, len(sizes))
    kids = folders[np.lexsort((folders, -sizes[1:], parent[1:]))]  # by parent, then size descending, then stored order
    largest = np.full(len(sizes), -1, dtype=np.intp)
    largest[parent[kids[::-1]]] = kids[::-1]
    through = np.cumsum(sizes[kids])  # leaves of all kids up to and including this one
    before = np.zeros(len(sizes), dtype=np.intp)
    is_first = largest[parent[kids]] == kids
    before[parent[kids[is_first]]] = (through - sizes[kids])[is_first]
    later = sizes[parent[kids]] + before[parent[kids]] - through
    has_later = np.flatnonzero(later)
    left = kids[has_later]
    return _Splits(left, kids[has_later + 1] if len(left) else left, sizes[left], later[has_later]), largest


def lifting(tree: PartitionTree) -> Lifting:
    """Work out the rotations that make up the transform on `tree`, about as many as it has leaves."""
    splits, largest = _splits(tree)
    start, order, chosen = tree.folders().start.tolist(), tree.order.tolist(), largest.tolist()
    row = [0] * len(chosen)
    for i in range(len(chosen) - 1, -1, -1):  # a folder's sum gathers in the row of its largest child
        row[i] = order[start[i]] if chosen[i] < 0 else row[chosen[i]]
    rows = np.array(row, dtype=np.intp)
    steps = np.stack([rows[splits.left], rows[splits.next]], axis=1)
    sizes = np.stack([splits.left_size, splits.later_size], axis=1)
    gains = np.sqrt(sizes / sizes.sum(axis=1, keepdims=True))
    place = np.zeros(tree.n_leaves, dtype=np.intp)
    place[steps[:, 1]] = np.arange(1, tree.n_leaves)
    return Lifting(steps, gains, place)


def haar_support(tree: PartitionTree) -> HaarSupport:
    """Describe every basis function of a tree: support, folder, level, l1 norm, scale.

    >>> haar_support(PartitionTree.from_labels([[0, 0, 0, 1]])).support
    array([4, 4, 3, 2])
    """
    n = tree.n_leaves
    splits, _ = _splits(tree)
    folder = np.concatenate([[0], tree.parent[splits.left]]).astype(np.intp)
    both = splits.left_size + splits.later_size
    support = np.concatenate([[n], both]).astype(np.intp)
    l1 = np.concatenate([[np.sqrt(n)], 2 * np.sqrt(splits.left_size * splits.later_size / both)])
    scale = np.frexp(n // support)[1].astype(np.intp) - 1
    return HaarSupport(support, folder, tree.folders().level[folder], l1, scale)


class LargestSupports(NamedTuple):
    """Basis indices sorted by (support descending, index)."""

    indices: IntArray
    """(k, n_axes)."""
    support: IntArray
    """(k,): product of the factors' non-zero counts."""
    n_ties: int
    """How many functions share the support at which the list was cut; 0 if the cut separates different supports."""


def largest_supports(supports: Sequence[IntArray], k: int) -> LargestSupports:
    """Find the k product basis functions with the largest support, without forming all products.

    With every axis sorted, a function at ranks r_0, r_1, .. (from 0) has prod (r_a + 1) - 1 others at least as large,
    so only ranks with prod (r_a + 1) <= k need a look: about k log(k)^(d-1) of them.

    >>> found = largest_supports([np.array([4, 4, 2, 2]), np.array([2, 2])], 5)
    >>> found.indices.tolist(), found.n_ties
    ([[0, 0], [0, 1], [1, 0], [1, 1], [2, 0]], 4)
    """
    if k < 1:
        raise InputError(f"at least one basis function must be kept, not {k}")
    k = int(min(k, np.prod([len(s) for s in supports], dtype=float)))
    rank_product, support = np.ones(1, dtype=np.intp), np.ones(1, dtype=np.intp)
    index = np.empty((1, 0), dtype=np.intp)
    for counts in supports:
        ranked = np.argsort(-counts, kind="stable")
        room = np.minimum(k // rank_product, len(counts))
        origin = np.repeat(np.arange(len(room)), room)
        rank = np.arange(len(origin)) - np.repeat(np.cumsum(room) - room, room)
        rank_product = rank_product[origin] * (rank + 1)
        support = support[origin] * counts[ranked[rank]]
        index = np.column_stack([index[origin], ranked[rank]])
    cut = int(np.partition(support, len(support) - k)[len(support) - k])
    above = support > cut
    n_equal, equal = _equal_supports([s.tolist() for s in supports], cut, k - int(above.sum()))
    index = np.concatenate([index[above], equal])
    support = np.concatenate([support[above], np.full(len(equal), cut)])
    by_support = np.lexsort((*index.T[::-1], -support))
    return LargestSupports(index[by_support], support[by_support], n_equal if n_equal > len(equal) else 0)


def _equal_supports(supports: list[list[int]], support: int, k: int) -> tuple[int, IntArray]:
    """Count the index tuples whose support is exactly this, and list the first k in index order."""
    last = len(supports) - 1
    tallies = [{value: axis.count(value) for value in set(axis)} for axis in supports]

    @cache
    def count(axis: int, product: int) -> int:
        if axis == last:
            return tallies[axis].get(product, 0)
        return sum(n * count(axis + 1, product // v) for v, n in tallies[axis].items() if product % v == 0)

    def first(axis: int, product: int, k: int) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        if axis == last:
            found += [(i,) for i, v in enumerate(supports[axis]) if v == product]
            return found[:k]
        for i, v in enumerate(supports[axis]):
            if len(found) < k and product % v == 0 and count(axis + 1, product // v):
                found += [(i, *rest) for rest in first(axis + 1, product // v, k - len(found))]
        return found

    listed = np.array(first(0, support, k), dtype=np.intp).reshape(-1, len(supports))
    return count(0, support), listed


def haar_transform(X: npt.ArrayLike, trees: Trees, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Expand an array in the tensor product of the Haar bases of its axes' trees.

    C[i, j, ..] = sum over entries of X[q, k, ..] psi_i(q) psi_j(k) .. (section 2.4 of the paper). On one axis psi_0 is
    n^-1/2; then, folder by folder from the root, for children ordered by size descending (ties in leaf order) and
    i = 1 .. c-1: constant and positive on child i, constant on the union of the later children, zero mean, unit norm.
    Cost: about one rotation a leaf and vector; no basis is ever written down.

    Parameters
    ----------
    X
        Real array of any order >= 1, or an `AttentionTensor`.
    trees
        One tree an axis (for an array of order 1 the tree itself will do); None leaves an axis as it is.
    dtype
        float64 or float32 of the result; arithmetic along an axis is float64 either way.

    Raises
    ------
    InputError
        If a tree does not fit its axis, or an entry is NaN or infinite.

    >>> tree = PartitionTree.dyadic(4)
    >>> haar_transform([1.0, 1.0, 3.0, 3.0], tree).round(6)
    array([ 4., -2.,  0.,  0.])
    """
    values, names = as_floats(X)
    check_finite(values, names)
    return transform_axes(values, list(enumerate(match_trees(values.shape, trees, names))), dtype)


def inverse_haar_transform(C: npt.ArrayLike, trees: Trees, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Rebuild the array from its coefficients; the arguments are those of `haar_transform`.

    >>> tree = PartitionTree.dyadic(4)
    >>> inverse_haar_transform(haar_transform([1.0, 2.0, 4.0, 8.0], tree), tree).round(6)
    array([1., 2., 4., 8.])
    """
    values, names = as_floats(C)
    check_finite(values, names)
    return transform_axes(values, list(enumerate(match_trees(values.shape, trees, names))), dtype, inverse=True)


def as_floats(X: npt.ArrayLike) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Return `X` as a contiguous float32 or float64 array, with the names of its axes."""
    values = np.asarray(X)
    if values.ndim == 0 or values.dtype.kind not in "fiub":
        raise InputError(f"give a real array with at least one axis, not shape {values.shape} and dtype {values.dtype}")
    names = AXES if isinstance(X, AttentionTensor) else tuple(f"axis{a}" for a in range(values.ndim))
    single = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    return np.ascontiguousarray(values, dtype=np.float32 if single else np.float64), names


def match_trees(shape: tuple[int, ...], trees: Trees, names: Sequence[str]) -> list[PartitionTree | None]:
    """Return one tree an axis, having checked that each covers its axis."""
    listed: list[PartitionTree | None] = [trees] if isinstance(trees, PartitionTree) else list(trees)
    if len(listed) != len(shape):
        raise InputError(f"{len(listed)} trees given, an array of shape {shape} needs {len(shape)}, one an axis")
    for tree, n, name in zip(listed, shape, names, strict=True):
        if n == 0:
            raise InputError(f"axis '{name}' of the array of shape {shape} is empty")
        if tree is not None and not isinstance(tree, PartitionTree):
            raise InputError(f"on axis '{name}' a PartitionTree is needed, not {type(tree).__name__}")
        if tree is not None and tree.n_leaves != n:
            raise InputError(f"tree on axis '{name}' covers {tree.n_leaves} leaves, the tensor has {n}")
    return listed


def transform_axes(
    values: npt.NDArray[Any],
    trees: Sequence[tuple[int, PartitionTree | None]],
    dtype: npt.DTypeLike = np.float64,
    inverse: bool = False,
) -> npt.NDArray[Any]:
    """Transform along the axes given as (axis, tree) pairs, arguments unchecked; always returns a new array."""
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise InputError(f"the result is float32 or float64, not {np.dtype(dtype)}")
    out = np.empty(values.shape, dtype=dtype)
    source = values
    for axis, tree in trees:
        if tree is None or tree.n_leaves == 1:
            continue
        n = values.shape[axis]
        steps, gains, place = lifting(tree)
        read, write = (place, np.arange(n)) if inverse else (np.arange(n), place)
        inner = int(np.prod(values.shape[axis + 1 :]))
        workers = numba.get_num_threads()
        if inner == 1:
            _along_last(source.reshape(-1, n), out.reshape(-1, n), steps, gains, read, write, inverse, workers)
        else:
            folded = (-1, n, inner)
            _along_middle(source.reshape(folded), out.reshape(folded), steps, gains, read, write, inverse, workers)
        source = out
    return values.astype(dtype) if source is values else out


@kernel
def lift(tile: FloatArray, steps: IntArray, gains: FloatArray) -> None:
    """Turn the rows of `tile`, (n, LANES), into coefficients, in place."""
    for t in range(steps.shape[0] - 1, -1, -1):
        left, right = tile[steps[t, 0]], tile[steps[t, 1]]
        g, h = gains[t, 0], gains[t, 1]
        for v in range(LANES):
            x, y = left[v], right[v]
            left[v] = g * x + h * y
            right[v] = h * x - g * y


@kernel
def unlift(tile: FloatArray, steps: IntArray, gains: FloatArray) -> None:
    """Undo `lift`: the same rotations, first to last."""
    for t in range(steps.shape[0]):
        left, right = tile[steps[t, 0]], tile[steps[t, 1]]
        g, h = gains[t, 0], gains[t, 1]
        for v in range(LANES):
            x, y = left[v], right[v]
            left[v] = g * x + h * y
            right[v] = h * x - g * y


@parallel_kernel
def _along_middle(
    source: npt.NDArray[Any],
    out: npt.NDArray[Any],
    steps: IntArray,
    gains: FloatArray,
    read: IntArray,
    write: IntArray,
    inverse: bool,
    workers: int,
) -> None:
    """Transform the middle axis of (outer, n, inner), LANES neighbours of the last at a time; out may be source."""
    outer, n, inner = source.shape
    blocks = (inner + LANES - 1) // LANES
    for worker in numba.prange(workers):
        tile = np.zeros((n, LANES))
        for task in range(worker, outer * blocks, workers):
            o, v0 = task // blocks, task % blocks * LANES
            width = min(LANES, inner - v0)
            for r in range(n):
                if width == LANES:  # a loop of known length is several times quicker
                    for v in range(LANES):
                        tile[r, v] = source[o, read[r], v0 + v]
                else:
                    for v in range(width):
                        tile[r, v] = source[o, read[r], v0 + v]
            if inverse:
                unlift(tile, steps, gains)
            else:
                lift(tile, steps, gains)
            for r in range(n):
                for v in range(width):
                    out[o, write[r], v0 + v] = tile[r, v]


@parallel_kernel
def _along_last(
    source: npt.NDArray[Any],
    out: npt.NDArray[Any],
    steps: IntArray,
    gains: FloatArray,
    read: IntArray,
    write: IntArray,
    inverse: bool,
    workers: int,
) -> None:
    """Transform the last axis of (outer, n), LANES rows at a time, transposed in the tile; out may be source."""
    outer, n = source.shape
    for worker in numba.prange(workers):
        tile = np.zeros((n, LANES))
        for task in range(worker, (outer + LANES - 1) // LANES, workers):
            o = task * LANES
            width = min(LANES, outer - o)
            for v in range(width):
                for r in range(n):
                    tile[r, v] = source[o + v, read[r]]
            if inverse:
                unlift(tile, steps, gains)
            else:
                lift(tile, steps, gains)
            for v in range(width):
                for r in range(n):
                    out[o + v, write[r]] = tile[r, v]
