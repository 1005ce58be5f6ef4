"""The Haar transform on trees against dense bases, and its invariants."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree
from headscape.wavelets import haar
from headscape.wavelets.haar import haar_support, haar_transform, inverse_haar_transform
from reference import (
    FEW,
    QUICK,
    arrays_on_trees,
    dense_haar,
    dense_transform,
    folder_levels,
    folder_list,
    random_tree,
    trees,
)


@given(trees(max_leaves=40))
@QUICK
def test_basis_is_orthonormal_complete_and_the_dense_one(tree):
    basis = haar_transform(np.eye(tree.n_leaves), (tree, None))
    np.testing.assert_allclose(basis, dense_haar(tree), atol=1e-13)
    np.testing.assert_allclose(basis @ basis.T, np.eye(tree.n_leaves), atol=1e-13)


@given(arrays_on_trees())
@QUICK
def test_transform_is_the_dense_product(case):
    X, axes = case
    C = haar_transform(X, axes)
    np.testing.assert_allclose(C, dense_transform(X, axes), atol=1e-12)
    np.testing.assert_allclose((C**2).sum(), (X**2).sum(), rtol=1e-12)  # Parseval
    np.testing.assert_allclose(inverse_haar_transform(C, axes), X, atol=1e-12)


@pytest.mark.parametrize("shape", [(1,), (2,), (12,), (300,), (40, 33), (33, 40, 3), (3, 1, 70), (5, 4, 3, 65)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_shapes_around_the_lane_width(shape, dtype):
    rng = np.random.default_rng(len(shape))
    axes = [random_tree(rng, n) for n in shape]
    X = rng.normal(size=shape).astype(dtype)
    C = haar_transform(X, axes)
    assert C.dtype == np.float64
    np.testing.assert_allclose(C, dense_transform(X, axes), atol=1e-11)
    np.testing.assert_allclose(inverse_haar_transform(C, axes), X, atol=1e-11)
    single = haar_transform(X, axes, dtype=np.float32)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, C, atol=2e-5)
    np.testing.assert_allclose(inverse_haar_transform(single, axes, dtype=np.float32), X, atol=2e-5)


@given(arrays_on_trees(max_order=3), st.integers(0, 2**32 - 1))
@FEW
def test_permuting_an_axis_changes_no_coefficient(case, seed):
    X, axes = case
    perm = np.random.default_rng(seed).permutation(X.shape[0])
    moved = haar_transform(X[perm], [axes[0].permute(perm), *axes[1:]])
    np.testing.assert_allclose(moved, haar_transform(X, axes), atol=1e-12)


@given(arrays_on_trees(max_order=3), st.floats(-5, 5))
@FEW
def test_a_constant_has_one_coefficient(case, value):
    X, axes = case
    C = haar_transform(np.full(X.shape, value), axes)
    np.testing.assert_allclose(C.ravel()[0], value * np.sqrt(X.size), atol=1e-12)
    np.testing.assert_allclose(C.ravel()[1:], 0, atol=1e-13)


def test_equal_halves_cancel_exactly():
    C = haar_transform(np.full((16, 8), 0.1), (PartitionTree.dyadic(16), PartitionTree.dyadic(8)))
    assert np.count_nonzero(C) == 1


@given(trees(max_leaves=30))
@QUICK
def test_support_describes_the_basis(tree):
    basis, listed, levels = dense_haar(tree), folder_list(tree), folder_levels(tree)
    about = haar_support(tree)
    assert about.support.tolist() == np.count_nonzero(basis, axis=1).tolist()
    np.testing.assert_allclose(about.l1, np.abs(basis).sum(axis=1), rtol=1e-12)
    for i in range(tree.n_leaves):
        folder = listed[about.folder[i]]
        assert set(np.flatnonzero(basis[i])) <= folder
        assert about.level[i] == levels[folder]
        assert 2.0 ** about.scale[i] <= tree.n_leaves / about.support[i] < 2.0 ** (about.scale[i] + 1)
    assert (np.diff(about.folder) >= 0).all()  # from the root down
    assert len(set(about.folder[1:])) == (tree.sizes > 1).sum()  # every folder that splits has functions


def test_children_are_taken_by_size_with_ties_in_leaf_order():
    tree = PartitionTree.from_labels([[0, 1, 1, 1, 2, 2, 2, 3]], [0, 4, 5, 6, 1, 2, 3, 7])
    first, second, third = haar_transform(np.eye(8), (tree, None))[1:4]
    assert set(np.flatnonzero(first > 0)) == {4, 5, 6}  # of the two with three leaves the first in the leaf order
    assert set(np.flatnonzero(second > 0)) == {1, 2, 3}
    assert set(np.flatnonzero(third > 0)) == {0}
    assert set(np.flatnonzero(third < 0)) == {7}


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.uint8, bool])
def test_other_dtypes_and_layouts(dtype):
    rng = np.random.default_rng(1)
    X = (rng.random((6, 10, 8)) * 3).astype(dtype)
    axes = [random_tree(rng, n) for n in X.shape]
    expected = dense_transform(X, axes)
    for layout in (X, np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2]):
        np.testing.assert_allclose(haar_transform(layout, axes), expected, atol=1e-12)


def test_the_input_is_left_alone():
    X = np.random.default_rng(0).normal(size=(4, 5))
    X.flags.writeable = False
    axes = (PartitionTree.dyadic(4), PartitionTree.dyadic(5))
    assert not np.shares_memory(haar_transform(X, axes), X)
    assert not np.shares_memory(haar_transform(X, (None, None)), X)
    np.testing.assert_array_equal(haar_transform(X, (None, None)), X)


def test_threads_change_no_byte(monkeypatch):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30, 21, 70)).astype(np.float32)
    axes = [random_tree(rng, n) for n in X.shape]
    monkeypatch.setattr(haar, "ENTRIES", 1000)
    found = set()
    for threads in (1, 2, 5):
        monkeypatch.setattr(haar, "n_threads", lambda threads=threads: threads)
        found.add((haar_transform(X, axes).tobytes(), inverse_haar_transform(X, axes).tobytes()))
    assert len(found) == 1


AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
import numpy as np, headscape as hs
X = np.random.default_rng(4).normal(size=(64, 48, 40))
axes = [hs.PartitionTree.dyadic(n) for n in X.shape]
expected = hs.haar_transform(X, axes)
with ThreadPoolExecutor(4) as pool:
    found = list(pool.map(lambda _: hs.haar_transform(X, axes), range(12)))
assert all(np.array_equal(expected, one) for one in found)
"""


def test_python_threads_may_transform_at_the_same_time():
    """Numba's own pool aborts the process here, where it has neither OpenMP nor TBB."""
    environment = os.environ | {"NUMBA_THREADING_LAYER": "workqueue"}
    subprocess.run([sys.executable, "-c", AT_ONCE], env=environment, check=True, capture_output=True)


def test_refusals_say_what_is_wrong():
    dyadic = PartitionTree.dyadic
    X = np.zeros((4, 16, 2))
    with pytest.raises(InputError, match="tree on axis 'axis1' covers 12 leaves, the tensor has 16"):
        haar_transform(X, (dyadic(4), dyadic(12), dyadic(2)))
    with pytest.raises(InputError, match="tree on axis 'key' covers 12 leaves, the tensor has 16"):
        haar_transform(AttentionTensor(X), (dyadic(4), dyadic(12), dyadic(2)))
    with pytest.raises(InputError, match=r"2 trees given, an array of shape \(4, 16, 2\) needs 3"):
        haar_transform(X, (dyadic(4), dyadic(16)))
    with pytest.raises(InputError, match="PartitionTree is needed, not int"):
        haar_transform([1.0, 2.0], [3])
    with pytest.raises(InputError, match="float32 or float64, not int64"):
        haar_transform([1.0, 2.0], dyadic(2), dtype=int)
    with pytest.raises(InputError, match="dtype complex128"):
        haar_transform([1j], dyadic(1))
    with pytest.raises(InputError, match="at least one axis"):
        haar_transform(1.0, dyadic(1))
    with pytest.raises(InputError, match=r"axis0' of the array of shape .* is empty"):
        haar_transform(np.zeros((0, 2)), (None, dyadic(2)))
    X[1, 2, 0] = np.nan
    with pytest.raises(InputError, match="nan at query 1, key 2, head 0"):
        haar_transform(AttentionTensor(X), (dyadic(4), dyadic(16), dyadic(2)))
    X[1, 2, 0] = np.inf
    with pytest.raises(InputError, match="inf at axis0 1, axis1 2, axis2 0"):
        inverse_haar_transform(X, (dyadic(4), dyadic(16), dyadic(2)))
    X = np.full((4, 4), np.finfo(np.float64).max)
    with pytest.raises(InputError, match=r"e\+308 at axis0 0, axis1 0 .* scale the array first"):
        haar_transform(X, (dyadic(4), dyadic(4)))
