"""Affinities against their formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.geometry.affinity import cosine_affinity, dual_affinity, median_distance
from reference import QUICK
from reference_geometry import slow_cosine


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 2**32 - 1), st.data())
@QUICK
def test_cosine_equals_the_pairwise_one(shape, seed, data):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=shape) * (rng.random(shape) < 0.7)  # zeros count as numbers
    axis = data.draw(st.integers(0, len(shape) - 1))
    np.testing.assert_allclose(cosine_affinity(X, axis), slow_cosine(X, axis), atol=2e-6)
    np.testing.assert_allclose(cosine_affinity(X.astype("f4"), axis), slow_cosine(X, axis), atol=2e-6)
    np.testing.assert_allclose(cosine_affinity(1e200 * X, axis), cosine_affinity(X, axis), atol=1e-12)
    np.testing.assert_allclose(cosine_affinity(1e-200 * X, axis), cosine_affinity(X, axis), atol=1e-12)


def test_cosine_over_several_blocks():
    X = np.random.default_rng(0).normal(size=(3, 900, 1100)).astype(np.float32)  # more than one block of 16 MB
    flat = X.reshape(3, -1).astype(np.float64)
    norm = np.linalg.norm(flat, axis=1)
    np.testing.assert_allclose(cosine_affinity(X, 0), np.maximum(flat @ flat.T / np.outer(norm, norm), 0), atol=2e-6)


def test_a_zero_slice_is_connected_to_itself_alone():
    X = np.ones((3, 4))
    X[1] = 0
    assert np.array_equal(cosine_affinity(X, 0), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])


def test_dual_affinity():
    D = np.array([[0, 1, 2], [1, 0, 4], [2, 4, 0]], dtype=float)
    np.testing.assert_allclose(dual_affinity(D), np.exp(-D / 2))
    np.testing.assert_allclose(dual_affinity(D, eps_scale=3), np.exp(-D / 6))
    assert median_distance(D) == 2


def test_median_zero_takes_the_smallest_positive_distance():
    D = np.zeros((4, 4))
    D[3, :3] = D[:3, 3] = [5, 6, 7]
    assert median_distance(D) == 2.5  # of 0, 0, 0, 5, 6, 7
    D[3, 0] = D[0, 3] = 0
    assert median_distance(D) == 6
    assert np.array_equal(dual_affinity(np.zeros((3, 3))), np.ones((3, 3)))
    assert np.array_equal(dual_affinity(np.zeros((1, 1))), [[1.0]])


def test_eps_scale_must_be_positive():
    with pytest.raises(InputError, match="eps_scale must be positive, not 0"):
        dual_affinity(np.zeros((2, 2)), eps_scale=0)
