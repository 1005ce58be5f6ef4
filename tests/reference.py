"""Slow, obvious twins of the fast paths, and the random trees they are compared on."""

from __future__ import annotations

import itertools
import re

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from headscape.tree import PartitionTree

QUICK = settings(max_examples=60, deadline=None)
FEW = settings(max_examples=25, deadline=None)


# ---------------------------------------------------------------------- trees


def random_labels(rng, n, n_levels, branching):
    """Nested labels, coarse to fine, with arbitrary label values: each level splits some folders of the one above."""
    rows = [np.zeros(n, dtype=int)]
    for _ in range(n_levels):
        rows.append(rows[-1] * branching + rng.integers(0, branching, n) * (rows[-1] % 3 != rng.integers(3)))
    return np.array(rows)


def random_tree(rng, n, n_levels=3, branching=3):
    labels = random_labels(rng, n, n_levels, branching)
    return PartitionTree.from_labels(labels, np.lexsort((rng.permutation(n), *labels[::-1])))


@st.composite
def trees(draw, min_leaves=1, max_leaves=20):
    """Random partition trees, ragged, of any depth, in random leaf order."""
    n = draw(st.integers(min_leaves, max_leaves))
    n_levels, branching = draw(st.integers(0, 5)), draw(st.integers(2, 5))
    return random_tree(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), n, n_levels, branching)


@st.composite
def arrays_on_trees(draw, min_order=1, max_order=4, max_leaves=7):
    """A random array and one random tree an axis."""
    order = draw(st.integers(min_order, max_order))
    axes = [draw(trees(max_leaves=max_leaves)) for _ in range(order)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.normal(size=tuple(t.n_leaves for t in axes)), axes


def folder_levels(tree):
    """Every distinct folder as a set of leaves, with the coarsest level at which it occurs."""
    found = {}
    for level in range(tree.n_levels):
        labels = tree.level(level)
        for label in labels:
            found.setdefault(frozenset(np.flatnonzero(labels == label).tolist()), level)
    return found


def folder_list(tree):
    """Distinct folders sorted by (coarsest level, first position in the leaf order)."""
    levels = folder_levels(tree)
    return sorted(levels, key=lambda folder: (levels[folder], min(tree.leaf_position[list(folder)])))


def child_sets(folder, folders):
    """The largest folders strictly inside `folder`."""
    inside = [f for f in folders if f < folder]
    return [f for f in inside if not any(f < g for g in inside)]


def parse_newick(text):
    """Read a Newick string with branch lengths: [(leaf names of the node, distance from the root)]."""
    tokens = re.findall(r"'(?:[^']|'')*'|[(),:;]|[^(),:;']+", text)
    nodes, stack, depth_below = [], [], []
    for i, token in enumerate(tokens):
        if token == "(":
            stack.append(len(nodes))
        elif token == ")":
            first = stack.pop()
            leaves = [name for names, _ in nodes[first:] if len(names) == 1 for name in names]
            nodes.append([leaves, 0])
            depth_below.append((first, len(nodes) - 1))
        elif token == ":":
            last = len(nodes) - 1
            first = next((a for a, b in depth_below if b == last), last)
            for node in nodes[first : last + 1]:
                node[1] += int(tokens[i + 1])
        elif token not in ",;" and tokens[i - 1] != ":":
            nodes.append([[token[1:-1].replace("''", "'") if token[0] == "'" else token], 0])
    return [(tuple(leaves), depth) for leaves, depth in nodes]


# ---------------------------------------------------------------------- Haar


def dense_haar(tree):
    """The Haar basis as the rows of an n x n matrix, each written out from its definition."""
    n = tree.n_leaves
    rows = [np.full(n, n**-0.5)]
    folders = folder_list(tree)
    for folder in folders:
        children = sorted(child_sets(folder, folders), key=lambda c: (-len(c), min(tree.leaf_position[list(c)])))
        for i in range(len(children) - 1):
            psi = np.zeros(n)
            psi[list(children[i])] = 1 / len(children[i])
            later = [leaf for child in children[i + 1 :] for leaf in child]
            psi[later] = -1 / len(later)
            rows.append(psi / np.linalg.norm(psi))
    return np.array(rows)


def dense_transform(X, axes):
    """Multiply every axis by its dense basis; None leaves an axis alone."""
    C = np.asarray(X, dtype=np.float64)
    for axis, tree in enumerate(axes):
        if tree is not None:
            C = np.moveaxis(np.tensordot(dense_haar(tree), C, axes=(1, axis)), 0, axis)
    return C


def dense_supports(axes):
    """Support of every product basis function: non-zero entries of the factors, multiplied."""
    counts = [np.count_nonzero(dense_haar(tree), axis=1) for tree in axes]
    support = np.empty([len(c) for c in counts], dtype=int)
    for index in itertools.product(*(range(len(c)) for c in counts)):
        support[index] = np.prod([c[i] for c, i in zip(counts, index, strict=True)])
    return support


def sorted_supports(axes):
    """All index tuples sorted by (support descending, index)."""
    support = dense_supports(axes)
    return sorted(np.ndindex(*support.shape), key=lambda index: (-support[index], index))


def slow_entropies(C, axes, n_basis):
    """The entropies of one coefficient array, one formula after the other."""
    support, total = dense_supports(axes), C.size
    listed = sorted_supports(axes)
    cut = min(n_basis, total)
    at_cut = support[listed[cut - 1]]
    split = cut < total and support[listed[cut]] == at_cut
    constant = (0,) * C.ndim
    rest = np.array([C[i] for i in listed if i != constant])
    share = C**2 / (C**2).sum() if C.any() else np.zeros_like(C)
    bases = [np.count_nonzero(dense_haar(tree), axis=1) for tree in axes]
    scales = 1 + sum(max(0, int(np.log2(tree.n_leaves)) - 1) for tree in axes)
    l1_scale = np.zeros(scales)
    for index in listed:
        if index != constant:
            scale = sum(int(np.log2(len(b) / b[i])) for b, i in zip(bases, index, strict=True))
            l1_scale[scale] += abs(C[index])
    return {
        "l1_top": sum(abs(C[index]) for index in listed[:cut]),
        "l1_all": np.abs(C).sum(),
        "dc": C[constant],
        "l1_rel": np.abs(rest).sum() / np.linalg.norm(rest) if rest.any() else 0.0,
        "shannon": -sum(p * np.log(p) for p in share.ravel() if p > 0),
        **{f"l1_scale_{s}": value for s, value in enumerate(l1_scale)},
        "n_ties": int((support == at_cut).sum()) if split else 0,
    }
