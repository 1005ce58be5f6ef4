"""Gaussians with each input left out are those fitted to the others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headscape as hs
from headscape.statistics.bilinear import by_cumulants, measured_moments
from headscape.statistics.gaussian import fit_gaussian
from headscape.statistics.left_out import (
    cumulants_left_out,
    folds,
    gaussians_left_out,
    joined,
    means_left_out,
    pairs_left_out,
    without,
)


@given(n_input=st.integers(1, 5), n=st.integers(3, 30), dim=st.integers(1, 6), seed=st.integers(0, 99))
def test_each_is_the_fit_of_the_other_inputs(n_input, n, dim, seed):
    x = np.random.default_rng(seed).normal(size=(n_input, n, dim)) * 3 + 100
    found = gaussians_left_out(x)
    assert len(found.mean) == len(found.covariance) == len(folds(n_input))
    assert found.shrinkage == pytest.approx(fit_gaussian(x.reshape(-1, dim)).shrinkage)
    for fold, (mean, covariance) in enumerate(zip(found.mean, found.covariance, strict=True)):
        expected = fit_gaussian(without(x, fold).reshape(-1, dim), max(0.0, found.shrinkage))
        np.testing.assert_allclose(mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(covariance, expected.covariance, atol=1e-7)


@given(n_input=st.integers(1, 4), n=st.integers(7, 40), dim=st.integers(1, 3), seed=st.integers(0, 99))
def test_pairs_from_shared_sums_are_those_of_the_joined_rows(n_input, n, dim, seed):
    """With and without shrinkage, keys before and behind their queries."""
    x, y = np.random.default_rng(seed).normal(size=(2, n_input, n, dim)) * [[[[3]]], [[[1]]]] + 10
    offsets = [-4, -1, 0, 1, 3]
    for r, found in zip(offsets, pairs_left_out(x, y, offsets), strict=True):
        rows = [(i, i - r) for i in range(n) if 0 <= i - r < n]
        together = np.stack([np.concatenate([x[:, i], y[:, j]], axis=1) for i, j in rows], axis=1)
        np.testing.assert_array_equal(joined(x, y, r), together)
        slow = gaussians_left_out(together)
        assert found.shrinkage == slow.shrinkage
        np.testing.assert_allclose(found.mean, slow.mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariance, slow.covariance, atol=1e-9)


def test_samples_that_are_not_finite_are_refused():
    x = np.zeros((3, 50, 2))
    x[1, 4, 0] = np.nan
    for call in (lambda: gaussians_left_out(x), lambda: pairs_left_out(x, np.ones_like(x), [0, 1])):
        with pytest.raises(hs.InputError, match="NaN or infinite"):
            call()


@given(n_input=st.integers(1, 5), n=st.integers(2, 30), seed=st.integers(0, 99))
def test_cumulants_with_each_input_left_out(n_input, n, seed):
    x = np.random.default_rng(seed).gamma(1.0, size=(n_input, n)) + 20
    found = by_cumulants(cumulants_left_out(x))
    assert found.shape == (4, len(folds(n_input)))
    for fold in folds(n_input):
        np.testing.assert_allclose(found[:, fold], measured_moments(without(x, fold)), rtol=1e-5, atol=1e-6)


def test_what_is_constant_without_one_input_has_no_skewness():
    x = np.full((3, 5), 0.1)
    x[0, 0] = 7.3
    found = by_cumulants(cumulants_left_out(x))
    assert found[1, 1] == 0 and np.isnan(found[2:, 1]).all() and np.isfinite(found[:, [0, 2, 3]]).all()


def test_means_of_the_first_inputs():
    x = np.array([1.0, 2.0, 6.0])
    assert means_left_out(x, 4) == [3.0, 4.0, 3.5, 1.5, 3.0]  # the fourth input is not among them
    assert means_left_out(x[:1], 1) == [1.0]
    assert means_left_out(np.ones((2, 3)), 2)[1].shape == (3,) and pytest.approx(1) == means_left_out(np.ones(2), 2)[0]
