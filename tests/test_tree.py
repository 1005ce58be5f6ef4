"""PartitionTree: structure, round trips, and refusals."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy

from headscape.errors import InputError
from headscape.tree import PartitionTree
from reference import QUICK, child_sets, folder_levels, folder_list, parse_newick, random_labels, random_tree, trees


@given(trees())
@QUICK
def test_canonical_form(tree):
    assert (tree.level(0) == 0).all()
    assert sorted(tree.level(-1)) == list(range(tree.n_leaves))
    assert sorted(tree.order) == list(range(tree.n_leaves))
    assert (tree.order[tree.leaf_position] == np.arange(tree.n_leaves)).all()
    for level in range(tree.n_levels):
        along = tree.level(level)[tree.order]
        assert along[0] == 0
        assert set(np.diff(along)) <= {0, 1}  # contiguous, numbered along the leaf order
        assert tree.counts[level] == along[-1] + 1
        if level:
            assert tree.counts[level] > tree.counts[level - 1]  # refines and never repeats
            for label in range(tree.counts[level]):
                assert len(set(tree.level(level - 1)[tree.level(level) == label])) == 1


@given(trees())
@QUICK
def test_folders_are_the_distinct_sets_of_the_levels(tree):
    expected, levels = folder_list(tree), folder_levels(tree)
    folders = tree.folders()
    found = [frozenset(tree.order[a:b].tolist()) for a, b in zip(folders.start, folders.stop, strict=True)]
    assert found == expected
    assert folders.level.tolist() == [levels[f] for f in expected]
    assert tree.sizes.tolist() == [len(f) for f in expected]
    assert tree.parent[0] == -1
    for i, folder in enumerate(expected):
        children = sorted(child_sets(folder, expected), key=lambda c: min(tree.leaf_position[list(c)]))
        assert [expected[c] for c in tree.children(i)] == children
        assert all(tree.parent[c] == i for c in tree.children(i))


@given(st.integers(1, 25), st.integers(0, 5), st.integers(2, 4), st.integers(0, 2**32 - 1))
@QUICK
def test_labels_round_trip(n, n_levels, branching, seed):
    labels = random_labels(np.random.default_rng(seed), n, n_levels, branching)
    tree = PartitionTree.from_labels(labels)
    partitions = {tuple(map(tuple, row[:, None] == row)) for row in [*labels, np.zeros(n), np.arange(n)]}
    assert {tuple(map(tuple, row[:, None] == row)) for row in tree.labels} == partitions
    assert PartitionTree.from_labels(tree.labels, tree.order) == tree
    assert PartitionTree.from_labels(tree.labels) == tree  # canonical labels carry the order
    assert pickle.loads(pickle.dumps(tree)) == tree


@given(trees())
@QUICK
def test_newick_round_trip(tree):
    names = [f"it's (leaf_{i})" if i % 2 else f"leaf{i}" for i in range(tree.n_leaves)]
    found = {
        frozenset(names.index(name) for name in leaves): depth for leaves, depth in parse_newick(tree.to_newick(names))
    }
    assert found == folder_levels(tree)
    in_text = [leaves[0] for leaves, _ in parse_newick(tree.to_newick()) if len(leaves) == 1]
    assert in_text == [str(leaf) for leaf in tree.order]


@given(trees(min_leaves=2))
@QUICK
def test_linkage_round_trip(tree):
    Z = tree.to_linkage()
    assert hierarchy.is_valid_linkage(Z)
    assert hierarchy.is_monotonic(Z)
    assert hierarchy.dendrogram(Z, no_plot=True)["leaves"] == tree.order.tolist()
    assert PartitionTree.from_linkage(Z, tree.counts) == tree
    for level in range(tree.n_levels):  # the height of a cut is the level it belongs to
        flat = hierarchy.fcluster(Z, tree.n_levels - 1 - level, "distance")
        assert ((flat[:, None] == flat) == (tree.level(level)[:, None] == tree.level(level))).all()


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
@QUICK
def test_from_linkage_cuts_where_scipy_cuts(n, seed):
    Z = hierarchy.linkage(np.random.default_rng(seed).normal(size=(n, 3)), "average")
    tree = PartitionTree.from_linkage(Z)
    assert tree.counts.tolist() == [*(2**e for e in range(10) if 2**e < n), n]
    assert tree.order.tolist() == hierarchy.leaves_list(Z).tolist()
    for count, labels in zip(tree.counts, tree.labels, strict=True):
        flat = hierarchy.cut_tree(Z, n_clusters=int(count)).ravel()
        assert ((flat[:, None] == flat) == (labels[:, None] == labels)).all()


@given(trees(min_leaves=2), st.data())
@QUICK
def test_restrict_intersects_folders(tree, data):
    leaves = data.draw(st.lists(st.integers(0, tree.n_leaves - 1), min_size=1, unique=True))
    part = tree.restrict(leaves)
    where = {leaf: i for i, leaf in enumerate(leaves)}
    cut = {frozenset(where[leaf] for leaf in folder if leaf in where) for folder in folder_levels(tree)} - {frozenset()}
    assert set(folder_levels(part)) == cut
    assert [leaves[i] for i in part.order] == [leaf for leaf in tree.order if leaf in where]


@given(trees(), st.integers(0, 2**32 - 1))
@QUICK
def test_permute_follows_the_array(tree, seed):
    perm = np.random.default_rng(seed).permutation(tree.n_leaves)
    moved = tree.permute(perm)
    assert (moved.labels == tree.labels[:, perm]).all()
    assert (perm[moved.order] == tree.order).all()
    assert moved.permute(np.argsort(perm)) == tree


@given(st.integers(1, 70))
@QUICK
def test_dyadic_halves(n):
    tree = PartitionTree.dyadic(n)
    assert (tree.order == np.arange(n)).all()
    assert tree.n_levels == int(np.ceil(np.log2(n))) + 1
    for i, size in enumerate(tree.sizes):
        assert tree.sizes[tree.children(i)].tolist() == ([(size + 1) // 2, size // 2] if size > 1 else [])


@given(trees(max_leaves=12))
@QUICK
def test_common_size_is_the_smallest_shared_folder(tree):
    size = tree.common_size()
    for i in range(tree.n_leaves):
        for j in range(tree.n_leaves):
            assert size[i, j] == min(len(f) for f in folder_levels(tree) if i in f and j in f)


def test_one_leaf():
    for tree in (
        PartitionTree.from_labels([[5]]),
        PartitionTree.dyadic(1),
        PartitionTree.from_linkage(np.empty((0, 4))),
        PartitionTree.dyadic(6).restrict([4]),
    ):
        assert (tree.n_leaves, tree.n_levels) == (1, 1)
        assert tree.to_newick(["a"]) == "a;"
        assert tree.to_linkage().shape == (0, 4)
        assert tree.children(0).size == 0
        assert repr(tree) == "PartitionTree(1 leaf, 1 level of 1 folders)"


def test_a_tree_of_many_levels_prints_the_first_four_and_the_last_three():
    assert repr(PartitionTree.dyadic(128)).endswith("8 levels of 1, 2, 4, 8, 16, 32, 64, 128 folders)")
    assert repr(PartitionTree.dyadic(256)).endswith("9 levels of 1, 2, 4, 8, .., 64, 128, 256 folders)")


def test_a_deep_tree_is_no_problem():
    n = 1500  # deeper than the interpreter's recursion limit
    cuts = np.tri(n, dtype=bool)
    tree = PartitionTree(cuts, np.arange(n))
    assert tree.n_levels == n
    assert tree.to_newick().count("(") == n - 1
    assert PartitionTree.from_linkage(tree.to_linkage(), tree.counts) == tree


def test_arrays_are_read_only_and_trees_compare_by_structure_and_order():
    tree = PartitionTree.dyadic(6)
    for array in (tree.labels, tree.order, tree.leaf_position, *tree.folders()):
        assert not array.flags.writeable
    assert tree == PartitionTree.from_labels(tree.labels)
    assert tree != PartitionTree.dyadic(7)
    assert tree != PartitionTree.dyadic(6, [1, 0, 2, 3, 4, 5])
    assert tree != "tree"
    with pytest.raises(TypeError):
        hash(tree)


def test_a_leaf_order_given_is_kept():
    assert (PartitionTree.from_labels([[0, 0, 1, 0]], [2, 0, 3, 1]).order == [2, 0, 3, 1]).all()
    order = np.array([3, 1, 0, 2])
    tree = PartitionTree.dyadic(4, order)
    assert (tree.level(1)[order] == [0, 0, 1, 1]).all()
    order[:] = 0
    assert (tree.order == [3, 1, 0, 2]).all()  # a copy, not a view


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PartitionTree.from_labels([[0, 0, 1], [0, 1, 1]]), "level 1 does not refine level 0: folder 1"),
        (lambda: PartitionTree.from_labels([[0, 1, 0]], [0, 1, 2]), "folder of level 0 is not contiguous"),
        (lambda: PartitionTree.from_labels([[0, 1, 0]], [0, 1, 1]), "permutation of 0 to 2"),
        (lambda: PartitionTree.from_labels([0, 1, 0]), r"labels of shape \(3,\)"),
        (lambda: PartitionTree.from_labels([[0.5, 1.0]]), "dtype float64"),
        (lambda: PartitionTree.from_labels(np.empty((1, 0), int)), "at least one leaf"),
        (lambda: PartitionTree.dyadic(0), "the number of leaves must be at least 1, not 0"),
        (lambda: PartitionTree.dyadic(2.5), "the number of leaves must be a whole number, not 2.5"),
        (lambda: PartitionTree(np.ones((2, 3), bool), [1, 0]), r"cuts of shape \(2, 3\) do not fit 2 leaves"),
        (lambda: PartitionTree([[1, 1, 0], [1, 0, 1]], [0, 1, 2]), "level 1 does not refine"),
        (lambda: PartitionTree.from_linkage(np.zeros((2, 3))), r"\(n_leaves - 1, 4\)"),
        (lambda: PartitionTree.from_linkage([[0, 3, 1, 2], [1, 2, 1, 3]]), "not a linkage of 3 leaves"),
        (lambda: PartitionTree.from_linkage([[0, 1, 1, 2]], [3]), "counts from 1 to 2"),
        (lambda: PartitionTree.dyadic(4).restrict([]), "at least one index"),
        (lambda: PartitionTree.dyadic(4).restrict([0, 0]), "distinct"),
        (lambda: PartitionTree.dyadic(4).restrict([4]), "between 0 and 3"),
        (lambda: PartitionTree.dyadic(4).permute([0, 1]), "permutation of 0 to 3"),
        (lambda: PartitionTree.dyadic(4).level(3), "levels 0 to 2"),
        (lambda: PartitionTree.dyadic(4).to_newick("abc"), "3 names given for 4 leaves"),
    ],
)
def test_refusals_say_what_is_wrong(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_restrict_takes_a_mask():
    tree = random_tree(np.random.default_rng(0), 9)
    mask = np.arange(9) % 2 == 0
    assert tree.restrict(mask) == tree.restrict(np.flatnonzero(mask))
