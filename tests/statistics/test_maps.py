"""Attention maps as matrices: by word, uniform, by distance, and their entropy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscape as hs
from headscape.statistics.maps import by_words, distance_map, row_entropy, uniform_map


def a_map(n, seed=0, heads=None):
    scores = 2 * np.random.default_rng(seed).normal(size=(*([heads] if heads else []), n, n))
    weights = np.exp(scores) * np.tri(n)
    return weights / weights.sum(axis=-1, keepdims=True)


@given(n=st.integers(2, 30), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_word_aggregation_keeps_the_total_mass(n, seed):
    A = a_map(n, seed, heads=2).astype(np.float32)
    words = np.cumsum(np.random.default_rng(seed).integers(2, size=n)) if n > 1 else np.zeros(n, int)
    words -= words[0]
    total = by_words(A, words)
    np.testing.assert_allclose(total.sum(axis=(1, 2)), A.sum(axis=(1, 2), dtype=np.float64), atol=1e-6)
    mean = by_words(A, words, "mean")
    np.testing.assert_allclose(mean.sum(axis=2), 1, atol=1e-6)
    for a in range(words[-1] + 1):
        for b in range(words[-1] + 1):
            block = A[1][np.ix_(words == a, words == b)].astype(np.float64)
            assert total[1, a, b] == pytest.approx(block.sum())
            assert mean[1, a, b] == pytest.approx(block.sum(axis=1).mean())


def test_word_aggregation_of_bad_input():
    with pytest.raises(hs.InputError, match="3 tokens have words, the map has shape"):
        by_words(np.eye(4), [0, 1, 1])
    with pytest.raises(hs.InputError, match="sum or mean"):
        by_words(np.eye(2), [0, 1], "max")


def test_the_map_of_distances():
    """Maps of its form are found again, even attention too; others keep each distance's mass and lose content."""
    n = 12
    offsets = np.arange(n)[:, None] - np.arange(n)
    A = np.where(offsets >= 0, 0.7 ** np.abs(offsets), 0.0)
    A[:, 0] = 0
    A = A / np.maximum(A.sum(axis=1, keepdims=True), 1e-9) * 0.6
    A[:, 0] = 0.4
    A[0] = np.eye(n)[0]
    for known in (A, uniform_map(n)):
        np.testing.assert_allclose(distance_map(known), known, atol=1e-6)
    other = a_map(n, 3)
    smooth = distance_map(other)
    np.testing.assert_allclose(smooth.sum(axis=1), 1)
    np.testing.assert_array_equal(smooth[:, 0], other[:, 0])
    for d in range(n - 1):
        assert np.diagonal(smooth, -d)[1:].sum() == pytest.approx(np.diagonal(other, -d)[1:].sum(), rel=1e-3)
    np.testing.assert_allclose(smooth[11, 3:12] / smooth[11, 11], smooth[9, 1:10] / smooth[9, 9])  # one profile
    np.testing.assert_allclose(distance_map(np.eye(5)), np.eye(5), atol=1e-12)


def test_entropy_of_rows():
    assert row_entropy(uniform_map(20)) == pytest.approx(1) and row_entropy(np.eye(20)) == 0
    A = a_map(9, 1, heads=3)
    expected = [[-(r[: i + 1] * np.log(r[: i + 1])).sum() / np.log(i + 1) for i, r in enumerate(P) if i] for P in A]
    np.testing.assert_allclose(row_entropy(A), np.mean(expected, axis=1))
    with pytest.raises(hs.InputError, match="one token"):
        row_entropy([[1.0]])
