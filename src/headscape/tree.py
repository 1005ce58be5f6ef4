"""PartitionTree: nested partitions of an axis, kept as arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.checks import integer
from headscape.errors import InputError

__all__ = ["Folders", "PartitionTree"]

IntArray = npt.NDArray[np.intp]

# A Newick name with other characters needs quotes; so does "_", which readers turn into a blank.
_PLAIN_NEWICK_NAME = re.compile(r"[A-Za-z0-9.+\-]+")


class Folders(NamedTuple):
    """Every distinct folder of a tree once, parents before children, sorted by (level, start)."""

    start: IntArray  # first position in the leaf order; the folder is ``order[start:stop]``
    stop: IntArray
    level: IntArray  # the coarsest level at which the folder occurs
    parent: IntArray  # index of the smallest folder that strictly contains it, -1 for the root


class PartitionTree:
    """Nested partitions of {0, .., n-1}: level 0 is one folder, the last level is all singletons.

    A folder is a cluster of leaves, in the paper's word. Every level refines the one above it, no level repeats it, and
    in the leaf order every folder of every level is a contiguous range. A folder carried unchanged through several
    levels is one folder. Trees are made by `from_labels`, `from_linkage` or `dyadic`; the arrays are read-only.

    Parameters
    ----------
    cuts
        (n_levels, n_leaves) booleans; ``cuts[l, p]`` says that a folder of level l starts at position p of the order.
        Root and singletons are added, repeated levels dropped.
    order
        The leaf order, a permutation of the leaves.

    Attributes
    ----------
    labels
        (n_levels, n_leaves); folder of each leaf at each level, numbered along the leaf order.
    order
        (n_leaves,); leaf at each position.

    >>> tree = hs.PartitionTree.from_labels([[0, 1, 0, 1, 1]])
    >>> tree
    PartitionTree(5 leaves, 3 levels of 1, 2, 5 folders)
    >>> tree.level(1)
    array([0, 1, 0, 1, 1])
    >>> tree.order
    array([0, 2, 1, 3, 4])
    >>> tree.to_newick("abcde")
    '((a:1,c:1):1,(b:1,d:1,e:1):1);'
    """

    labels: IntArray
    order: IntArray
    _cuts: npt.NDArray[np.bool_]

    def __init__(self, cuts: npt.ArrayLike, order: npt.ArrayLike) -> None:
        self.order = _as_permutation(order, "leaf order")
        n = len(self.order)
        if n == 0:
            raise InputError("a partition tree needs at least one leaf, none were given")
        cuts = np.asarray(cuts, dtype=bool)
        if cuts.ndim != 2 or cuts.shape[1] != n:
            raise InputError(f"cuts of shape {cuts.shape} do not fit {n} leaves; give (n_levels, {n})")
        root, singletons = np.arange(n) == 0, np.ones(n, dtype=bool)
        cuts = np.vstack([root, cuts, singletons])
        cuts[:, 0] = True
        merged = np.flatnonzero((cuts[:-1] & ~cuts[1:]).any(axis=1))
        if merged.size:
            raise InputError(f"level {merged[0]} does not refine the level above it: it joins two of its folders")
        self._cuts = cuts[np.concatenate([[True], (cuts[1:] != cuts[:-1]).any(axis=1)])]
        self.labels = np.empty(self._cuts.shape, dtype=np.intp)
        self.labels[:, self.order] = self._cuts.cumsum(axis=1) - 1
        for array in (self._cuts, self.labels, self.order):
            array.flags.writeable = False

    # ------------------------------------------------------------------ makers

    @classmethod
    def from_labels(cls, labels_per_level: npt.ArrayLike, order: npt.ArrayLike | None = None) -> PartitionTree:
        """Make a tree from one label per leaf and level, coarse to fine.

        Parameters
        ----------
        labels_per_level
            (n_levels, n_leaves) integers, any numbering; the root and the singletons may be left out.
        order
            A leaf order in which every folder is contiguous. By default leaves are sorted by their label at the
            coarsest level, then at the next, ..., then by index.

        Raises
        ------
        InputError
            If a level does not refine the one above it, or a folder is not contiguous in `order`.

        >>> PartitionTree.from_labels([[0, 0, 1, 1], [0, 1, 2, 2]]).to_newick("abcd")  # two folders, then three
        '((a:1,b:1):1,(c:2,d:2):1);'
        """
        labels = np.asarray(labels_per_level)
        if labels.ndim != 2 or (labels.size and labels.dtype.kind not in "iub"):
            found = f"labels of shape {labels.shape} and dtype {labels.dtype}"
            raise InputError(f"{found}; give whole numbers (n_levels, n_leaves)")
        if labels.shape[1] == 0:
            raise InputError("a partition tree needs at least one leaf, none were given")
        if order is None:
            order = np.lexsort((np.arange(labels.shape[1]), *labels[::-1]))
        order = _as_permutation(order, "leaf order", labels.shape[1])
        along = labels[:, order]
        cuts = np.ones(labels.shape, dtype=bool)
        cuts[:, 1:] = along[:, 1:] != along[:, :-1]
        whole = np.array([cut.sum() == len(np.unique(row)) for cut, row in zip(cuts, labels, strict=True)], dtype=bool)
        if not (whole.all() and (cuts[:-1] <= cuts[1:]).all()):
            _check_refined(labels)
            raise InputError(f"a folder of level {np.argmin(whole)} is not contiguous in the leaf order given")
        return cls(cuts, order)

    @classmethod
    def from_linkage(cls, Z: npt.ArrayLike, n_folders: Iterable[int] | None = None) -> PartitionTree:
        """Cut a scipy linkage into nested levels.

        The partition into c folders undoes the last c - 1 merges, in the order of the rows.

        Parameters
        ----------
        Z
            (n_leaves - 1, 4) linkage matrix.
        n_folders
            How many folders each level has; by default 2, 4, 8, ... The leaf order is the linkage's, left to right.

        Raises
        ------
        InputError
            If `Z` is not a linkage or a count lies outside 1 .. n_leaves.

        >>> from scipy.cluster.hierarchy import linkage
        >>> PartitionTree.from_linkage(linkage([[0.0], [1.0], [5.0], [7.0]])).level(1)
        array([0, 0, 1, 1])
        """
        Z = np.asarray(Z, dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != 4:
            raise InputError(f"a linkage has shape (n_leaves - 1, 4), this one {Z.shape}")
        n = len(Z) + 1
        pairs = Z[:, :2].astype(np.intp)
        if not np.array_equal(np.sort(pairs, axis=None), np.arange(2 * n - 2)) or (
            n > 1 and (pairs.max(axis=1) >= n + np.arange(n - 1)).any()
        ):
            raise InputError(f"not a linkage of {n} leaves: each node is merged once, after it was made")
        counts = [2**e for e in range(1, n.bit_length())] if n_folders is None else sorted({int(c) for c in n_folders})
        counts = [c for c in counts if c < n] if n_folders is None else counts
        if counts and not 1 <= counts[0] <= counts[-1] <= n:
            raise InputError(f"cannot cut {n} leaves into levels of {counts} folders; use counts from 1 to {n}")

        sizes = np.ones(2 * n - 1, dtype=np.intp)
        for row, (left, right) in enumerate(pairs):
            sizes[n + row] = sizes[left] + sizes[right]
        start = np.zeros(2 * n - 1, dtype=np.intp)
        for row in range(n - 2, -1, -1):
            left, right = pairs[row]
            start[left] = start[n + row]
            start[right] = start[n + row] + sizes[left]
        cuts = np.zeros((len(counts), n), dtype=bool)
        for level, count in enumerate(counts):
            cuts[level, start[pairs[n - count :, 1]]] = True  # a merge is the cut before its right part
        return cls(cuts, np.argsort(start[:n]))

    @classmethod
    def dyadic(cls, n: int, order: npt.ArrayLike | None = None) -> PartitionTree:
        """Halve {0, .., n-1} repeatedly; the first half gets the extra leaf.

        >>> PartitionTree.dyadic(5).labels
        array([[0, 0, 0, 0, 0],
               [0, 0, 0, 1, 1],
               [0, 0, 1, 2, 3],
               [0, 1, 2, 3, 4]])
        """
        integer("the number of leaves", n, 1, 2**31)
        cuts = [np.arange(n) == 0]
        while not cuts[-1].all():
            start = np.flatnonzero(cuts[-1])
            sizes = np.diff(start, append=n)
            finer = cuts[-1].copy()
            finer[(start + (sizes + 1) // 2)[sizes > 1]] = True
            cuts.append(finer)
        return cls(np.array(cuts), np.arange(n) if order is None else _as_permutation(order, "leaf order", n))

    # ------------------------------------------------------------------ what it is

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int(self.labels.shape[1])

    @property
    def n_levels(self) -> int:
        """Number of levels, root and singletons included; 1 for a single leaf."""
        return int(self.labels.shape[0])

    @property
    def counts(self) -> IntArray:
        """Folders of each level, shape (n_levels,)."""
        counts: IntArray = self._cuts.sum(axis=1, dtype=np.intp)
        return counts

    def level(self, l: int) -> IntArray:  # noqa: E741 - the paper's letter
        """Label of every leaf at level `l`; 0 is the root, -1 the singletons."""
        if not -self.n_levels <= l < self.n_levels:
            raise InputError(f"level {l} does not exist, the tree has levels 0 to {self.n_levels - 1}")
        row: IntArray = self.labels[l]
        return row

    @cached_property
    def leaf_position(self) -> IntArray:
        """Position of each leaf in the leaf order."""
        return _read_only(np.argsort(self.order))

    def folders(self) -> Folders:
        """Every distinct folder once, at its coarsest level, parents before children."""
        return self._folders

    @property
    def sizes(self) -> IntArray:
        """Leaves in each folder of `folders()`."""
        return self._folders.stop - self._folders.start

    @property
    def parent(self) -> IntArray:
        """Parent of each folder of `folders()`, -1 for the root."""
        return self._folders.parent

    def children(self, i: int) -> IntArray:
        """Return the indices of the children of folder `i`, along the leaf order; empty for a leaf.

        >>> tree = PartitionTree.dyadic(4)
        >>> tree.sizes  # of the folders: the root, two halves, four leaves
        array([4, 2, 2, 1, 1, 1, 1])
        >>> tree.children(0)
        array([1, 2])
        """
        first, count = self.child_ranges
        return np.arange(first[i], first[i] + count[i], dtype=np.intp)

    @cached_property
    def _folders(self) -> Folders:
        n = self.n_leaves
        level, start = np.nonzero(self._cuts[1:])  # all folders below the root, level by level
        stop = np.append(start[1:], n)
        stop[np.flatnonzero(np.diff(level))] = n
        ends = np.pad(self._cuts, ((0, 0), (0, 1)), constant_values=True)
        new = ~(
            ends[level, start] & ends[level, stop]
        )  # else both ends were ends already: the same folder as one level up
        index = np.where(new, np.cumsum(new), 0)
        # by level and position the folder that holds it: the last that was new, and indices rise with the level
        holder = np.maximum.accumulate(np.repeat(index, stop - start).reshape(-1, n), axis=0)
        above = np.concatenate([np.zeros((1, n), np.intp), holder])[level, start]
        columns = ((0, start), (n, stop), (0, level + 1), (-1, above))
        return Folders(*(_read_only(np.append(root, found[new]).astype(np.intp)) for root, found in columns))

    @cached_property
    def child_ranges(self) -> tuple[IntArray, IntArray]:
        """For each folder the index of its first child and how many it has.

        A folder splits at one level, so its children are neighbours in `folders()`.
        """
        parent = self._folders.parent
        count = np.bincount(parent[1:], minlength=len(parent)).astype(np.intp)
        first = np.zeros(len(parent), dtype=np.intp)
        first[parent[:0:-1]] = np.arange(len(parent) - 1, 0, -1)  # the last write, the smallest index, stays
        return _read_only(first), _read_only(count)

    def common_size(self) -> IntArray:
        """Size of the smallest folder that holds both leaves, shape (n_leaves, n_leaves)."""
        n = self.n_leaves
        along = np.empty((n, n), dtype=np.intp)
        folders = self.folders()
        for start, stop in zip(folders.start, folders.stop, strict=True):
            along[start:stop, start:stop] = stop - start
        return along[np.ix_(self.leaf_position, self.leaf_position)]

    # ------------------------------------------------------------------ trees from it

    def restrict(self, leaves: npt.ArrayLike) -> PartitionTree:
        """Return the tree on a subset; leaf i of the result is ``leaves[i]`` of this tree.

        `leaves` are distinct indices or a boolean mask. Levels that become equal are dropped.

        >>> PartitionTree.dyadic(4).restrict([0, 1, 3]).to_newick()
        '((0:1,1:1):1,2:1);'
        """
        chosen = np.asarray(leaves)
        if chosen.dtype == bool and chosen.shape == (self.n_leaves,):
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
            raise InputError(
                f"leaves of shape {chosen.shape} and dtype {chosen.dtype}; give indices or a mask, at least one index"
            )
        if chosen.min() < 0 or chosen.max() >= self.n_leaves or len(np.unique(chosen)) != len(chosen):
            raise InputError(f"leaves must be distinct and between 0 and {self.n_leaves - 1}")
        return PartitionTree.from_labels(self.labels[:, chosen], np.argsort(self.leaf_position[chosen]))

    def permute(self, perm: npt.ArrayLike) -> PartitionTree:
        """Return the tree of ``X[perm]``: leaf i of the result is leaf ``perm[i]`` of this tree.

        >>> PartitionTree.dyadic(4).permute([2, 3, 0, 1]).order
        array([2, 3, 0, 1])
        """
        return self.restrict(_as_permutation(perm, "perm", self.n_leaves))

    # ------------------------------------------------------------------ other notations

    def to_newick(self, names: Sequence[Any] | None = None) -> str:
        """Write the tree in Newick format; a branch is as long as the levels between a folder and its parent.

        Children come in leaf order; `names` are those of the leaves (by default their indices), quoted where needed.
        """
        names = range(self.n_leaves) if names is None else names
        if len(names) != self.n_leaves:
            raise InputError(f"{len(names)} names given for {self.n_leaves} leaves")
        folders, sizes = self.folders(), self.sizes
        text = [""] * len(sizes)
        for i in range(len(sizes) - 1, -1, -1):
            if sizes[i] == 1:
                name = str(names[int(self.order[folders.start[i]])])
                text[i] = name if _PLAIN_NEWICK_NAME.fullmatch(name) else "'" + name.replace("'", "''") + "'"
            else:
                text[i] = "(" + ",".join(text[c] for c in self.children(i)) + ")"
            if i:
                text[i] += f":{folders.level[i] - folders.level[folders.parent[i]]}"
        return text[0] + ";"

    def to_linkage(self) -> npt.NDArray[np.float64]:
        """Write the tree as a scipy linkage, (n_leaves - 1, 4), for `scipy.cluster.hierarchy.dendrogram`.

        The height of a folder is the number of levels below the finest one it survives to, so singletons lie at 0 and
        the root at n_levels - 1. A merge of more than two children becomes several at the same height, left to right;
        the dendrogram's leaves come in the leaf order. ``from_linkage(tree.to_linkage(), tree.counts)`` restores it.
        """
        n = self.n_leaves
        folders, sizes = self.folders(), self.sizes
        node = np.where(sizes == 1, self.order[folders.start], -1)
        first, count = self.child_ranges
        splits_at = folders.level[first]
        inner = np.flatnonzero(count)
        rows: list[tuple[float, float, float, float]] = []
        for i in inner[np.argsort(-splits_at[inner], kind="stable")]:
            merged, size = node[first[i]], sizes[first[i]]
            for child in self.children(i)[1:]:
                size += sizes[child]
                rows.append((merged, node[child], self.n_levels - splits_at[i], size))
                merged = n + len(rows) - 1
            node[i] = merged
        return np.array(rows, dtype=np.float64).reshape(n - 1, 4)

    # ------------------------------------------------------------------ manners

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionTree):
            return NotImplemented
        return np.array_equal(self.order, other.order) and np.array_equal(self.labels, other.labels)

    __hash__ = None  # type: ignore[assignment]  # equality looks at whole arrays

    def __reduce__(self) -> tuple[type[PartitionTree], tuple[npt.NDArray[np.bool_], IntArray]]:
        return PartitionTree, (self._cuts, self.order)  # made anew, so that the arrays are read-only there too

    def __repr__(self) -> str:
        counts = [str(c) for c in self.counts]
        shown = counts if len(counts) <= 8 else [*counts[:4], "..", *counts[-3:]]
        leaves, levels = ("leaf" if self.n_leaves == 1 else "leaves"), ("level" if self.n_levels == 1 else "levels")
        return f"PartitionTree({self.n_leaves} {leaves}, {self.n_levels} {levels} of {', '.join(shown)} folders)"


def _read_only(array: IntArray) -> IntArray:
    array.flags.writeable = False
    return array


def _check_refined(labels: npt.NDArray[Any]) -> None:
    """Refuse labels of which a level does not refine the one above it."""
    for level in range(1, len(labels)):
        pairs = np.unique(labels[level - 1 : level + 1], axis=1)
        folders, parents = np.unique(pairs[1], return_counts=True)
        if (parents > 1).any():
            folder = f"folder {folders[parents > 1][0]} of level {level}"
            raise InputError(f"level {level} does not refine level {level - 1}: {folder} lies in two of its folders")


def _as_permutation(values: npt.ArrayLike, what: str, n: int | None = None) -> IntArray:
    """Check that `values` is a permutation (of n things) and copy it."""
    array = np.asarray(values)
    n = array.size if n is None else n
    if array.ndim != 1 or (n and array.dtype.kind not in "iu") or not np.array_equal(np.sort(array), np.arange(n)):
        raise InputError(f"the {what} must be a permutation of 0 to {n - 1}, got shape {array.shape}")
    return np.array(array, dtype=np.intp)
