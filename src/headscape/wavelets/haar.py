"""The Haar basis of partition trees: transform, inverse, and what each basis function looks like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.checks import check_finite, integer
from headscape.compiled import compiled_in_order, n_threads, run_tasks
from headscape.errors import InputError
from headscape.tensor import AXES, AttentionTensor
from headscape.tree import IntArray, PartitionTree

__all__ = ["HaarSupport", "haar_support", "haar_transform", "inverse_haar_transform", "largest_supports"]

FloatArray = npt.NDArray[np.float64]
Trees = PartitionTree | Sequence[PartitionTree | None]

# Vectors lifted together. Long enough to fill wide registers, short enough for a tile of a 256-long axis to stay in the
# second-level cache; 16 and 64 were slower. Compiled kernels of other modules keep the old value and the old `lift`
# until their own file changes or their __pycache__ is removed.
LANES = 32
ENTRIES = 2**18  # of an array that are worth another thread: a millisecond of work


class HaarSupport(NamedTuple):
    """What each basis function of a tree looks like, in order of its index; all arrays have shape (n_leaves,)."""

    support: IntArray
    """Number of non-zero entries."""
    folder: IntArray
    """The folder of `tree.folders()` whose children it contrasts; the root for the constant."""
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

    steps: IntArray  # (n - 1, 2): left and right row
    gains: FloatArray  # (n - 1, 2): sqrt(size / union) of the left and the right set
    place: IntArray  # (n,): index of the coefficient that each row ends up with


def _splits(tree: PartitionTree) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """The basis functions after the constant: function t + 1 contrasts folder left[t] with its later siblings.

    Returns left, the first of the later siblings, and the leaves that these have together, (n - 1,) each; and the
    largest child of every folder, -1 for leaves.
    """
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
    return left, kids[has_later + 1] if len(left) else left, later[has_later], largest


def lifting(tree: PartitionTree) -> Lifting:
    """The rotations that make up the transform on `tree`, one fewer than it has leaves."""
    left, following, later, largest = _splits(tree)
    start, order, chosen = tree.folders().start.tolist(), tree.order.tolist(), largest.tolist()
    row = [0] * len(chosen)
    for i in range(len(chosen) - 1, -1, -1):  # a folder's sum gathers in the row of its largest child
        row[i] = order[start[i]] if chosen[i] < 0 else row[chosen[i]]
    rows = np.array(row, dtype=np.intp)
    steps = np.stack([rows[left], rows[following]], axis=1)
    sizes = np.stack([tree.sizes[left], later], axis=1)
    gains = np.sqrt(sizes / sizes.sum(axis=1, keepdims=True))
    place = np.zeros(tree.n_leaves, dtype=np.intp)
    place[steps[:, 1]] = np.arange(1, tree.n_leaves)
    return Lifting(steps, gains, place)


def haar_support(tree: PartitionTree) -> HaarSupport:
    """Describe every basis function of a tree: support, folder, level, l1 norm, scale.

    >>> hs.haar_support(hs.PartitionTree.from_labels([[0, 0, 0, 1]])).support
    array([4, 4, 3, 2])
    """
    n = tree.n_leaves
    left, _, later, _ = _splits(tree)
    folder = np.concatenate([[0], tree.parent[left]]).astype(np.intp)
    own, both = tree.sizes[left], tree.sizes[left] + later
    support = np.concatenate([[n], both]).astype(np.intp)
    l1 = np.concatenate([[np.sqrt(n)], 2 * np.sqrt(own * later / both)])
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
    k = int(min(integer("the number of basis functions", k, low=1), math.prod(len(s) for s in supports)))
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
    The cost is about one rotation per leaf and vector; no basis matrix is ever formed.

    Parameters
    ----------
    X
        Real array of any order >= 1, or an `AttentionTensor`.
    trees
        One tree per axis (for an array of order 1 the tree itself will do); None leaves an axis as it is.
    dtype
        float64 or float32 of the result; arithmetic along an axis is float64 either way.

    Raises
    ------
    InputError
        If a tree does not fit its axis, or an entry is NaN, infinite or beyond 1e300.

    >>> tree = hs.PartitionTree.dyadic(4)
    >>> hs.haar_transform([1.0, 1.0, 3.0, 3.0], tree).round(6)
    array([ 4., -2.,  0.,  0.])
    """
    return _checked_transform(X, trees, dtype, inverse=False)


def inverse_haar_transform(C: npt.ArrayLike, trees: Trees, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[Any]:
    """Rebuild the array from its coefficients; the arguments are those of `haar_transform`.

    >>> tree = hs.PartitionTree.dyadic(4)
    >>> hs.inverse_haar_transform(hs.haar_transform([1.0, 2.0, 4.0, 8.0], tree), tree).round(6)
    array([1., 2., 4., 8.])
    """
    return _checked_transform(C, trees, dtype, inverse=True)


def _checked_transform(X: npt.ArrayLike, trees: Trees, dtype: npt.DTypeLike, inverse: bool) -> npt.NDArray[Any]:
    values, names = as_floats(X)
    check_finite(values, names)
    return transform_axes(values, list(enumerate(match_trees(values.shape, trees, names))), dtype, inverse)


def as_floats(X: npt.ArrayLike) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Return `X` as a contiguous float32 or float64 array, with the names of its axes."""
    values = np.asarray(X)
    if values.ndim == 0 or values.dtype.kind not in "fiub":
        raise InputError(f"give a real array with at least one axis, not shape {values.shape} and dtype {values.dtype}")
    names = AXES if isinstance(X, AttentionTensor) else tuple(f"axis{a}" for a in range(values.ndim))
    single = values.dtype.kind == "f" and values.dtype.itemsize <= 4
    return np.ascontiguousarray(values, dtype=np.float32 if single else np.float64), names


def listed(trees: Trees) -> list[PartitionTree | None]:
    """A tree by itself as a list of one."""
    return [trees] if isinstance(trees, PartitionTree) else list(trees)


def match_trees(shape: tuple[int, ...], trees: Trees, names: Sequence[str]) -> list[PartitionTree | None]:
    """Return one tree per axis, having checked that each covers its axis."""
    axes = listed(trees)
    if len(axes) != len(shape):
        raise InputError(f"{len(axes)} trees given, an array of shape {shape} needs {len(shape)}, one per axis")
    for tree, n, name in zip(axes, shape, names, strict=True):
        if n == 0:
            raise InputError(f"axis '{name}' of the array of shape {shape} is empty")
        if tree is not None and not isinstance(tree, PartitionTree):
            raise InputError(f"on axis '{name}' a PartitionTree is needed, not {type(tree).__name__}")
        if tree is not None and tree.n_leaves != n:
            raise InputError(f"tree on axis '{name}' covers {tree.n_leaves} leaves, the tensor has {n}")
    return axes


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
        n, inner = values.shape[axis], int(np.prod(values.shape[axis + 1 :]))
        steps, gains, place = lifting(tree)
        places = (place, np.arange(n)) if inverse else (np.arange(n), place)
        folded = [array.reshape(-1, n, inner) for array in (source, out)]
        if inner == 1:  # vectors are then neighbours along the axes before it
            folded = [array[..., 0].T[None] for array in folded]
        workers = min(n_threads(), 1 + values.size // ENTRIES)
        shared = (*folded, (steps, gains), places, inverse)
        run_tasks(_along_middle, [(*shared, worker, workers) for worker in range(workers)], workers)
        source = out
    return values.astype(dtype) if source is values else out


@compiled_in_order
def load(row: npt.NDArray[Any], into: FloatArray) -> None:
    """Copy a row of up to LANES entries; a loop of known length is several times quicker."""
    if len(row) == LANES:
        for v in range(LANES):
            into[v] = row[v]
    else:
        for v in range(len(row)):
            into[v] = row[v]


@compiled_in_order
def lift(tile: FloatArray, steps: IntArray, gains: FloatArray, inverse: bool) -> None:
    """Turn the rows of `tile`, (n, LANES), into coefficients in place, or back: the same rotations, first to last."""
    n = len(steps)
    for k in range(n):
        t = k if inverse else n - 1 - k
        left, right = tile[steps[t, 0]], tile[steps[t, 1]]
        g, h = gains[t, 0], gains[t, 1]
        for v in range(LANES):
            x, y = left[v], right[v]
            left[v] = g * x + h * y
            right[v] = h * x - g * y


@compiled_in_order
def _along_middle(
    source: npt.NDArray[Any],
    out: npt.NDArray[Any],
    rotations: tuple[IntArray, FloatArray],
    places: tuple[IntArray, IntArray],
    inverse: bool,
    worker: int,
    workers: int,
) -> None:
    """Transform the middle axis of (outer, n, inner), LANES neighbours of the last at a time; out may be source.

    One of `workers` takes every `workers`-th tile and does it whole.
    """
    (steps, gains), (read, write) = rotations, places
    outer, n, inner = source.shape
    blocks = (inner + LANES - 1) // LANES
    tile = np.zeros((n, LANES))
    for task in range(worker, outer * blocks, workers):
        o, v0 = task // blocks, task % blocks * LANES
        width = min(LANES, inner - v0)
        for r in range(n):
            load(source[o, read[r], v0 : v0 + width], tile[r])
        lift(tile, steps, gains, inverse)
        for r in range(n):
            row = out[o, write[r], v0 : v0 + width]
            for v in range(width):
                row[v] = tile[r, v]
