"""The tree distance against the direct sum over all folder tuples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.geometry.emd import tree_distance
from headscape.geometry.folder_means import folder_weights
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree
from reference import QUICK, arrays_on_trees, random_tree
from reference_geometry import slow_tree_distance

weights = st.sampled_from([(0.0, 1.0), (1.0, 0.0), (0.0, 0.5), (0.5, 2.0), (-1.0, 0.25)])


@given(arrays_on_trees(min_order=2, max_order=4), weights, st.data())
@QUICK
def test_equals_the_direct_sum(case, weight, data):
    X, trees = case
    axis = data.draw(st.integers(0, X.ndim - 1))
    truth = slow_tree_distance(X, trees, axis, *weight)
    np.testing.assert_allclose(tree_distance(X, trees, axis, *weight), truth, rtol=1e-10, atol=1e-12)
    single = X.astype(np.float32)
    truth = slow_tree_distance(single, trees, axis, *weight)
    scale = truth.max(initial=0)
    np.testing.assert_allclose(tree_distance(single, trees, axis, *weight), truth, rtol=1e-5, atol=1e-6 * scale)


@pytest.mark.parametrize("shape", [(70, 41), (41, 70), (37, 50, 20), (20, 9, 67), (6, 30, 5, 11)])
def test_equals_the_direct_sum_beyond_one_tile(shape):
    rng = np.random.default_rng(sum(shape))
    X = rng.normal(size=shape)
    trees = [random_tree(rng, n, n_levels=2) for n in shape]
    for axis in range(len(shape)):
        truth = slow_tree_distance(X, trees, axis)
        np.testing.assert_allclose(tree_distance(X, trees, axis), truth, rtol=1e-10)
        np.testing.assert_allclose(tree_distance(X.astype("f4"), trees, axis), truth, rtol=1e-5)


def test_sums_over_long_axes_stay_precise():
    rng = np.random.default_rng(11)
    X = rng.random((3, 20_000, 2))
    star, pair = PartitionTree.from_labels(np.zeros((1, 20_000), dtype=int)), PartitionTree.dyadic(2)
    truth = tree_distance(X, [None, star, pair], 0)
    np.testing.assert_allclose(tree_distance(X.astype(np.float32), [None, star, pair], 0), truth, rtol=1e-5)


@given(arrays_on_trees(min_order=2, max_order=3), weights, st.integers(-1000, 1000))
@QUICK
def test_is_a_metric_that_ignores_shifts(case, weight, shift):
    X, trees = case
    D = tree_distance(X, trees, 0, *weight)
    assert np.array_equal(D, D.T)
    assert not np.diag(D).any()
    assert (D[:, None, :] <= D[:, :, None] + D[None, :, :] + 1e-12).all()  # over the middle point
    np.testing.assert_allclose(tree_distance(X + shift, trees, 0, *weight), D, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(tree_distance(-3 * X, trees, 0, *weight), 3 * D, rtol=1e-10, atol=1e-12)


@given(arrays_on_trees(min_order=2, max_order=3), st.integers(0, 2**32 - 1))
@QUICK
def test_permuting_axes_with_their_trees_permutes_the_distance(case, seed):
    X, trees = case
    rng = np.random.default_rng(seed)
    moves = [rng.permutation(n) for n in X.shape]
    moved = [tree.permute(move) for tree, move in zip(trees, moves, strict=True)]
    D = tree_distance(X, trees, 0)
    np.testing.assert_allclose(tree_distance(X[np.ix_(*moves)], moved, 0), D[np.ix_(moves[0], moves[0])], rtol=1e-12)


def test_chunks_and_threads():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(33, 40, 21)).astype(np.float32)
    trees = [random_tree(rng, n) for n in X.shape]
    whole = tree_distance(X, trees, 0, threads=1)
    for threads in (2, 5):
        assert np.array_equal(tree_distance(X, trees, 0, threads=threads), whole)
    columns = len(trees[1].sizes) * len(trees[2].sizes)
    for rows in (8, 9, 20, 64):  # two tiles of four slices each at least
        for threads in (1, 4):
            assert np.array_equal(tree_distance(X, trees, 0, max_memory=rows * columns * 4, threads=threads), whole)
    with pytest.raises(InputError, match="max_memory leaves"):
        tree_distance(X, trees, 0, max_memory=8 * columns * 4 - 1)


def test_a_single_folder_weighs_as_the_formula_says():
    tree = PartitionTree.from_labels([[0, 0, 0, 1], [0, 0, 1, 2]])
    np.testing.assert_allclose(folder_weights(tree, 1.0, 2.0), [1, 9 / 32, 1 / 32, 1 / 16, 1 / 64, 1 / 128, 1 / 128])


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.int64, np.uint16, bool, np.longdouble])
def test_any_real_dtype_and_layout(dtype):
    rng = np.random.default_rng(5)
    X = rng.integers(0, 2, size=(6, 5, 4)).astype(dtype)
    trees = [random_tree(rng, n) for n in X.shape]
    truth = slow_tree_distance(X, trees, 1)
    np.testing.assert_allclose(tree_distance(X, trees, 1), truth, rtol=1e-5)
    np.testing.assert_allclose(tree_distance(np.asfortranarray(X), trees, 1), truth, rtol=1e-5)
    strided = np.repeat(X, 2, axis=2)[:, :, ::2]
    np.testing.assert_allclose(tree_distance(strided, trees, 1), truth, rtol=1e-5)


def test_says_what_does_not_fit():
    X = AttentionTensor(np.ones((3, 16, 2)))
    three, twelve = PartitionTree.dyadic(3), PartitionTree.dyadic(12)
    with pytest.raises(InputError, match="tree on axis 'key' covers 12 leaves, the tensor has 16"):
        tree_distance(X, [three, twelve, None], axis=2)
    with pytest.raises(InputError, match="needs a tree on axis 'head'"):
        tree_distance(X, [three, PartitionTree.dyadic(16), None], axis=0)
    with pytest.raises(InputError, match="2 trees given"):
        tree_distance(X, [three, twelve], axis=2)
    with pytest.raises(InputError, match="axis must be a whole number from -3 to 2, not 3"):
        tree_distance(X, [three, twelve, None], axis=3)
    with pytest.raises(InputError, match="order 2 or more"):
        tree_distance(np.ones(4), [None], axis=0)
    with pytest.raises(InputError, match="dtype complex"):
        tree_distance(np.ones((2, 2), dtype=complex), [None, three], axis=0)
    with pytest.raises(InputError, match="'axis1' of the array of shape .* is empty"):
        tree_distance(np.ones((2, 0)), [None, three], axis=0)
