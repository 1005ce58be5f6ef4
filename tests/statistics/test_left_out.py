"""Gaussians with each input left out are those fitted to the others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.statistics.gaussian import fit_gaussian
from headscape.statistics.left_out import folds, gaussians_left_out, means_left_out, without


@given(n_input=st.integers(1, 5), n=st.integers(3, 30), dim=st.integers(1, 6), seed=st.integers(0, 99))
def test_each_is_the_fit_of_the_other_inputs(n_input, n, dim, seed):
    x = np.random.default_rng(seed).normal(size=(n_input, n, dim)) * 3 + 100
    found = gaussians_left_out(x)
    assert len(found) == len(folds(n_input))
    for fold, gaussian in enumerate(found):
        expected = fit_gaussian(without(x, fold).reshape(-1, dim), max(0.0, found[0].shrinkage))
        assert gaussian.n_samples == expected.n_samples and gaussian.shrinkage == found[0].shrinkage
        np.testing.assert_allclose(gaussian.mean, expected.mean, rtol=1e-9)
        np.testing.assert_allclose(gaussian.covariance, expected.covariance, atol=1e-7)


def test_means_of_the_first_inputs():
    x = np.array([1.0, 2.0, 6.0])
    assert means_left_out(x, 4) == [3.0, 4.0, 3.5, 1.5, 3.0]  # the fourth input is not among them
    assert means_left_out(x[:1], 1) == [1.0]
    assert means_left_out(np.ones((2, 3)), 2)[1].shape == (3,) and pytest.approx(1) == means_left_out(np.ones(2), 2)[0]
