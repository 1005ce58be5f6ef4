"""A covariance between what was measured and a multiple of the identity."""

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.statistics.gaussian import SAMPLES_PER_DIMENSION, fit_gaussian


@pytest.mark.parametrize("s", [0.0, 0.3, 1.0])
def test_the_shrinkage_given_is_the_one_used_ends_included(s):
    X = np.random.default_rng(0).normal(size=(7, 4)) @ np.diag([1, 2, 3, 4.0]) + 5
    S = np.cov(X.T, bias=True)
    found = fit_gaussian(X, shrinkage=s)
    np.testing.assert_allclose(found.covariance, (1 - s) * S + s * np.trace(S) / 4 * np.eye(4), atol=1e-12)
    np.testing.assert_allclose(found.mean, X.mean(axis=0))
    assert found.shrinkage == s and found.n_samples == 7


@pytest.mark.parametrize("s", [-1e-9, 1 + 1e-9, np.nan])
def test_outside_it_is_refused(s):
    with pytest.raises(InputError, match="shrinkage lies between 0 and 1"):
        fit_gaussian(np.eye(3), shrinkage=s)


def test_it_ends_where_samples_are_many():
    rng = np.random.default_rng(0)
    enough = rng.normal(size=(3 * SAMPLES_PER_DIMENSION, 3))
    assert fit_gaussian(enough).shrinkage == 0 < fit_gaussian(enough[:-1]).shrinkage


def test_two_samples_are_enough_and_one_is_not():
    assert fit_gaussian([[0.0, 0.0], [2.0, 0.0]], shrinkage=0.0).covariance.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    for bad in ([[1.0, 2.0]], [1.0, 2.0], np.zeros((2, 2, 2))):
        with pytest.raises(InputError, match="two or more rows"):
            fit_gaussian(bad)
