"""Weighted means over tuples of folders: the features whose L1 distance is the tree distance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headscape.compiled import compiled, run_tasks
from headscape.geometry.l1 import ROWS
from headscape.tree import PartitionTree

__all__ = ["CHUNK", "Chunk", "Slices", "chunks_of", "fill_means", "folder_weights"]

Floats = npt.NDArray[Any]  # float32 or float64
IntArray = npt.NDArray[np.intp]

CHUNK = 64e6
"""Bytes of folder means in a chunk: few enough that fresh memory costs little, enough for long rows."""
_SLICES = 8
"""Slices of a task: enough that handing it over costs little beside it."""
_STRIP = 128
"""Columns of a slice summed at a time: the sums of some hundred folders stay in the second-level cache."""


class Slices(Protocol):
    """Slices of an array along one axis: an ndarray with that axis first, or what reads them from disk."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # (n_slices, other axes ..)
    @property
    def dtype(self) -> np.dtype[Any]: ...  # float32 or float64
    def __getitem__(self, i: int, /) -> Floats: ...  # slice `i`, C-contiguous


def folder_weights(tree: PartitionTree, level_weight: float, size_weight: float) -> npt.NDArray[np.float64]:
    """Weight of each folder, (|F|/n)^size_weight 2^(-level_weight level(F)), in the order of ``tree.folders()``."""
    share = tree.sizes / tree.n_leaves
    with np.errstate(over="ignore"):  # distances are checked, `emd.check_range`
        weights: npt.NDArray[np.float64] = share**size_weight * np.exp2(-level_weight * tree.folders().level)
    return weights


class Choice(NamedTuple):
    """Some folders of a tree, as the kernels need them; arrays but the first are over all folders of the tree."""

    folders: IntArray  # indices into ``tree.folders()`` of those chosen, ascending
    slot: IntArray  # place of each folder among those chosen, or -1
    leaf: IntArray  # the leaf of a folder that is one, or -1
    order: IntArray  # of the tree's leaves
    start: IntArray
    stop: IntArray
    first: IntArray  # the first child
    children: IntArray  # number of children, which follow the first
    weight: npt.NDArray[np.float64]

    def only(self, folders: IntArray) -> Choice:
        """Choose these folders instead."""
        slot = np.full(len(self.leaf), -1, dtype=np.intp)
        slot[folders] = np.arange(len(folders))
        return self._replace(folders=folders, slot=slot)


def choose(tree: PartitionTree, weight: npt.NDArray[np.float64], which: str) -> Choice:
    """Choose all folders, the leaves, or the larger ones."""
    folders = tree.folders()
    leaf = np.where(tree.sizes == 1, tree.order[folders.start], -1)
    wanted = {"all": np.ones_like(leaf, dtype=bool), "leaves": leaf >= 0, "larger": leaf < 0}[which]
    arrays = (leaf, tree.order, folders.start, folders.stop, *tree.child_ranges, weight)
    return Choice(leaf, leaf, *arrays).only(np.flatnonzero(wanted))


class Chunk(NamedTuple):
    """Some folders of the first axis with some of each of the others: their means are computed together."""

    chosen: list[Choice]

    @property
    def columns(self) -> int:
        """Tuples of folders: columns of the means."""
        return math.prod(len(choice.folders) for choice in self.chosen)


def chunks_of(
    slices: Slices, others: Sequence[PartitionTree], weights: Sequence[npt.NDArray[np.float64]], leaves: bool
) -> list[Chunk]:
    """All tuples of folders in chunks of about `CHUNK` bytes, at least one folder of the first axis each.

    Where they are cut does not depend on the memory available: float32 sums start again with each chunk, so the last
    bits of the result would depend on it too.

    Parameters
    ----------
    slices
        Only shape and dtype are used.
    others, weights
        Trees of the other axes, and for each folder what to multiply the sum of its leaves by.
    leaves
        Whether to include tuples of single leaves.
    """
    n, m = slices.shape[0], len(others)
    rows = n + -n % ROWS
    # the tuples that are not all leaves are sorted by the first axis that has a larger folder
    larger = [["leaves"] * b + ["larger"] + ["all"] * (m - b - 1) for b in range(m)]
    groups = [["all"] * m] if leaves else larger
    chunks = []
    for group in groups:
        chosen = [choose(*given) for given in zip(others, weights, group, strict=True)]
        n_first = len(chosen[0].folders)
        width = math.prod(len(choice.folders) for choice in chosen[1:])  # columns for one folder of the first axis
        if not n_first * width:
            continue
        step = min(n_first, max(1, int(CHUNK) // (rows * width * slices.dtype.itemsize)))
        chunks += [
            Chunk([chosen[0].only(chosen[0].folders[lo : lo + step]), *chosen[1:]]) for lo in range(0, n_first, step)
        ]
    return chunks


def fill_means(slices: Slices, chunks: Sequence[Chunk], means: Sequence[Floats], start: int, threads: int) -> None:
    """Write the weighted means of slices start, start + 1, .. over the tuples of each chunk to its array of `means`.

    Each array has one row per slice; rows beyond the last slice become zeros. A slice is read once for all chunks.
    """
    n = max(0, min(slices.shape[0] - start, len(means[0])))
    for array in means:
        array[n:] = 0

    def fill(begin: int, end: int) -> None:
        for p in range(begin, end):
            one = slices[start + p]
            for chunk, array in zip(chunks, means, strict=True):
                _slice_means(one, chunk.chosen, array[p])

    run_tasks(fill, [(begin, min(begin + _SLICES, n)) for begin in range(0, n, _SLICES)], threads)


def _slice_means(one: Floats, chosen: list[Choice], means: Floats) -> None:
    """Write the means of one slice.

    The first axis is summed first and laid last, so that sums along the others run over contiguous numbers.
    """
    first, inner = one.shape[0], len(chosen[0].folders)
    leaves = math.prod(one.shape[1:])
    current = np.empty((leaves, inner), dtype=one.dtype) if len(chosen) > 1 else means[None]
    _sum_first(one.reshape(first, leaves), chosen[0], current)
    outer, width = 1, leaves * inner
    for b, choice in enumerate(chosen[1:], start=1):
        n_leaves, count = one.shape[b], len(choice.folders)
        width //= n_leaves
        shape = (outer, count, width)
        result = means.reshape(shape) if b == len(chosen) - 1 else np.empty(shape, dtype=one.dtype)
        _sum_next(current.reshape(outer, n_leaves, width), choice, result)
        current, outer = result, outer * count


@compiled
def _sum_first(rows: Floats, choice: Choice, out: Floats) -> None:
    """out[k, slot[f]] = weight[f] * sum over the leaves of f of rows[leaf, k].

    Children stand behind their parent, so going backwards their sums are ready; those not chosen are summed again.
    """
    folders, slot, leaf, order, start, stop, first, count, weight = choice
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
def _sum_next(rows: Floats, choice: Choice, out: Floats) -> None:
    """out[o, slot[f]] = weight[f] * sum over the leaves of f of rows[o, leaf].

    Of the children of a chosen folder those that are not leaves are chosen too. They get their weight once the parent
    has their sum.
    """
    folders, slot, leaf, _, _, _, first, count, weight = choice
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
