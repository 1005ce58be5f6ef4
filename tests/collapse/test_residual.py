"""Residuals, norms and effective rank against their definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import headscape as hs
from headscape.collapse.residual import effective_rank, norm_1, norm_1inf, norm_inf, relative_residual, residual

numbers = st.floats(-1e3, 1e3, allow_nan=False, width=32)
matrices = arrays(np.float64, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=numbers)


def sums(A):
    """Column and row sums of absolute values, entry by entry."""
    n, m = A.shape
    columns = [sum(abs(A[i, j]) for i in range(n)) for j in range(m)]
    rows = [sum(abs(A[i, j]) for j in range(m)) for i in range(n)]
    return max(columns), max(rows)


@given(matrices)
@settings(deadline=None, max_examples=60)
def test_norms_are_the_largest_sums(A):
    columns, rows = sums(A)
    assert norm_1(A) == pytest.approx(columns)
    assert norm_inf(A) == pytest.approx(rows)
    assert norm_1inf(A) == pytest.approx((columns * rows) ** 0.5)
    # the operator norms they are: no vector is stretched by more
    x = np.random.default_rng(0).normal(size=A.shape[1])
    assert np.abs(A @ x).sum() <= norm_1(A) * np.abs(x).sum() * (1 + 1e-9)
    assert np.abs(A @ x).max() <= norm_inf(A) * np.abs(x).max() * (1 + 1e-9)


@given(matrices, st.integers(1, 6), st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_the_composite_is_submultiplicative(A, width, seed):
    B = np.random.default_rng(seed).normal(size=(A.shape[1], width))
    assert norm_1inf(A @ B) <= norm_1inf(A) * norm_1inf(B) * (1 + 1e-9) + 1e-12


@given(matrices)
@settings(deadline=None, max_examples=60)
def test_the_residual_is_the_nearest_to_equal_rows(X):
    R = residual(X)
    np.testing.assert_allclose(R.sum(axis=0), 0, atol=1e-9 * (1 + np.abs(X).sum()))
    other = np.random.default_rng(1).normal(size=X.shape[1])
    assert np.linalg.norm(R) <= np.linalg.norm(X - X.mean(axis=0) - other) + 1e-9
    np.testing.assert_allclose(residual(X + other), R, atol=1e-9 * (1 + np.abs(X).max()))


def test_stacks_are_measured_one_by_one():
    X = np.random.default_rng(0).normal(size=(3, 2, 6, 4))
    for measure in (relative_residual, effective_rank, norm_1inf):
        found = measure(X)
        assert found.shape == (3, 2)
        for i in np.ndindex(3, 2):
            assert found[i] == pytest.approx(float(measure(X[i])), rel=1e-12)


def test_the_metric_sees_what_float32_loses():
    rng = np.random.default_rng(0)
    X = 1 + 1e-10 * rng.normal(size=(50, 20))
    expected = norm_1inf(X - X.mean(axis=0)) / norm_1inf(X)
    assert relative_residual(X) == pytest.approx(expected, rel=1e-9) and 1e-11 < expected < 1e-9
    assert relative_residual(X.astype(np.float32)) == 0  # rounded before it came: nothing left
    wide = (3 + 1e-7 * rng.normal(size=(50, 20))).astype(np.float32)
    assert 1e-8 < relative_residual(wide) < 5e-7


def test_zeros_and_equal_rows():
    assert relative_residual(np.zeros((4, 3))) == 0 and effective_rank(np.zeros((4, 3))) == 0
    assert relative_residual(np.ones((1, 3))) == 0
    assert relative_residual([[1.0, -1.0], [-1.0, 1.0]]) == pytest.approx(1.0)


@given(st.integers(1, 6), st.integers(0, 20))
@settings(deadline=None, max_examples=30)
def test_effective_rank_counts_equal_singular_values(k, seed):
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.normal(size=(8, 8)))[0][:, :k] for _ in range(2))
    assert effective_rank(3.0 * U @ V.T) == pytest.approx(k)
    X = rng.normal(size=(8, 5))
    s = np.linalg.svd(X)[1]
    p = s / s.sum()
    assert effective_rank(X) == pytest.approx(np.exp(-sum(q * np.log(q) for q in p)))
    assert effective_rank(7 * X) == pytest.approx(float(effective_rank(X)))


def test_bad_tokens_are_refused():
    with pytest.raises(hs.InputError, match="shape \\(3,\\)"):
        residual(np.ones(3))
    with pytest.raises(hs.InputError, match="with something in it"):
        relative_residual(np.ones((0, 3)))
    X = np.ones((2, 3, 4))
    X[1, 2, 0] = np.nan
    with pytest.raises(hs.InputError, match="nan at axis 0 1, token 2, feature 0"):
        relative_residual(X)
