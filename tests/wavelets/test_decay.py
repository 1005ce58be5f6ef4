"""Decay curves of arrays large enough that selecting is not sorting."""

import numpy as np
import pytest

import headscape as hs
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import decay_curve, reconstruct, top_energy

SHAPE = (64, 32, 8)
TREES = [PartitionTree.dyadic(n) for n in SHAPE]


@pytest.fixture(scope="module")
def drawn():
    X = np.random.default_rng(0).normal(size=SHAPE)
    return X, np.abs(hs.haar_transform(X, TREES)), np.abs(hs.haar_transform(X, [*TREES[:2], None]))


@pytest.mark.parametrize("n", [1, 2, 50, 400, 2047, 2048, 5000])
def test_the_largest_coefficients_are_the_largest(drawn, n):
    X, C, heads = drawn
    np.testing.assert_allclose(decay_curve(X, TREES, n=n), np.sort(C, axis=None)[::-1][:n], rtol=1e-12)
    by_head = -np.sort(-heads.reshape(-1, SHAPE[2]), axis=0)
    np.testing.assert_allclose(decay_curve(X, TREES, per="head", n=n), by_head[:n], rtol=1e-12)


def test_all_of_them_are_as_many_as_entries(drawn):
    X, _, _ = drawn
    assert decay_curve(X, TREES, n=None).shape == (X.size,)
    assert decay_curve(X, TREES, per="head", n=None).shape == (64 * 32, 8)
    assert decay_curve(X[:, :, 0], TREES[:2], per="head", n=3).shape == (3, 1)
    assert decay_curve(X, TREES).shape == (400,)


@pytest.mark.parametrize("k", [0, 1, 777, 16383, 16384])
def test_what_is_kept_is_the_largest_k_and_no_more(drawn, k):
    X, C, _ = drawn
    kept = hs.haar_transform(reconstruct(X, TREES, k), TREES)
    cut = np.sort(C, axis=None)[::-1][k] if k < C.size else -1.0
    np.testing.assert_allclose(kept, np.where(cut < C, hs.haar_transform(X, TREES), 0), atol=1e-12)


def test_ties_are_kept_by_index(drawn):
    one = PartitionTree.dyadic(4)
    b = np.array([1.0, 2.0, -2.0, 2.0])
    found = hs.haar_transform(reconstruct(hs.inverse_haar_transform(b, [one]), [one], 2), [one])
    kept = np.flatnonzero(np.abs(found) > 1e-9)
    assert len(kept) == 2 and 0 not in kept


@pytest.mark.parametrize("fraction", [1e-6, 0.01, 0.5, 1.0])
def test_the_share_of_the_largest_is_that_of_the_sorted_squares(drawn, fraction):
    X, C, _ = drawn
    for constant in (True, False):
        squares = C.reshape(-1)[0 if constant else 1 :] ** 2
        k = int(np.ceil(fraction * len(squares)))
        truth = np.sort(squares)[::-1][:k].sum() / squares.sum()
        assert top_energy(X, TREES, fraction, constant) == pytest.approx(truth, rel=1e-12)
    assert top_energy(X, TREES) == top_energy(X, TREES, 0.01, True)
