"""Softmax statistics against Monte Carlo; two printed slips of the thesis fail the same checks."""

import numpy as np
import pytest
from scipy.special import softmax

import headscape as hs
from headscape.statistics import softmax as S

DRAWS = 400_000


def mean_and_error(values):
    """Mean of draws and four standard errors."""
    return values.mean(), 4 * values.std(ddof=1) / np.sqrt(len(values))


@pytest.mark.parametrize(("mean", "variance"), [(0.3, 1.16), (-1.0, 0.25)])
def test_lognormal_moments(mean, variance):
    draws = np.exp(np.random.default_rng(0).normal(mean, np.sqrt(variance), DRAWS))
    found = S.lognormal_moments(mean, variance)
    centre, tolerance = mean_and_error(draws)
    assert found.mean == pytest.approx(centre, abs=tolerance)
    printed = np.exp((mean + variance) / 2)
    assert abs(printed - centre) > 10 * tolerance  # the thesis' mean fails the same check
    centre, tolerance = mean_and_error((draws - found.mean) ** 2)
    assert found.variance == pytest.approx(centre, abs=tolerance)


def test_the_numbers_of_the_specification():
    assert S.lognormal_moments(0.3, 1.16).mean == pytest.approx(np.exp(0.88))
    assert S.sphere_ratio(50, 3.0).mean == pytest.approx(1.197, abs=5e-4)


def test_ratio_of_two_probabilities():
    rng = np.random.default_rng(1)
    x = rng.multivariate_normal([0.2, -0.1, 0.4], [[0.5, 0.2, 0], [0.2, 0.3, 0], [0, 0, 0.4]], DRAWS)
    p = softmax(x, axis=1)  # the third score takes part in the sum, and drops out
    ratio = p[:, 0] / p[:, 1]
    found = S.ratio_moments(0.2, -0.1, 0.5, 0.3, 0.2)
    centre, tolerance = mean_and_error(ratio)
    assert found.mean == pytest.approx(centre, abs=tolerance)
    centre, tolerance = mean_and_error((ratio - found.mean) ** 2)
    assert found.variance == pytest.approx(centre, abs=tolerance)


def test_ratio_on_a_sphere():
    """exp(l^2/n) at l = 3, n = 50; coordinates of a sphere are not quite normal, for which .002 is left."""
    p = softmax(S.on_sphere(50, 40_000, 3.0), axis=1)
    ratios = np.mean(p[:, :25] / p[:, 25:], axis=1)
    centre, tolerance = mean_and_error(ratios)
    assert S.sphere_ratio(50, 3.0).mean == pytest.approx(centre, abs=tolerance + 0.002)
    printed = np.exp(3 / 50)  # l/n where it is l^2/n
    assert abs(printed - centre) > 10 * (tolerance + 0.002)


def test_coordinates_of_a_sphere_are_uncorrelated():
    """Cov(x_i, x_j) = 0, not -l^2/(n(n-1)): the error of one entry is (l^2/n)/sqrt(draws)."""
    n, l, draws = 5, 2.0, 200_000
    x = S.on_sphere(n, draws, l)
    np.testing.assert_allclose(np.linalg.norm(x, axis=1), l)
    off = np.cov(x.T)[~np.eye(n, dtype=bool)]
    tolerance = 5 * l**2 / n / np.sqrt(draws)
    assert np.abs(off).max() < tolerance < l**2 / (n * (n - 1)) / 10


def test_entropy_by_radius():
    """log n - l^2/(2n) to second order: what is left out is of the order (l^2/n)^2, under 1 % of the drop here."""
    n = 200
    found = S.entropy_by_radius(n, [0.01, 1.0, 2.0, 1e4], 2000)
    small = slice(0, 3)
    drop = np.log(n) - found.predicted[small]
    assert (np.abs(found.measured - found.predicted)[small] < 0.02 * drop + 4 * found.error[small]).all()
    assert found.measured[0] == pytest.approx(np.log(n), abs=1e-6)  # uniform
    assert found.measured[-1] < 0.02  # one-hot: the two largest of 200 rarely come within 1e-3 of each other
    assert (np.diff(found.measured) < 0).all()


def test_entropy_on_a_sphere_never_falls_below_zero():
    """Beyond l^2 = 2 n log n the random energy model is frozen: a few entries have all the weight, at any size."""
    assert S.entropy_of_sphere(100, 100.0) == 0
    edge = np.sqrt(2 * 100 * np.log(100))
    assert S.entropy_of_sphere(100, edge * 0.99) > 0 == S.entropy_of_sphere(100, edge * 1.01)
    found = S.entropy_by_radius(1000, [0.5 * np.sqrt(2000 * np.log(1000)), 1e4], 500)
    assert np.abs(found.measured - found.predicted).max() < 0.15 * np.log(1000)


def test_softmax_entropy():
    assert S.softmax_entropy(np.zeros((3, 8))).tolist() == pytest.approx([np.log(8)] * 3)
    assert S.softmax_entropy([1e5, 0, 0]) == 0
    p = softmax([0.3, -1, 2.0])
    assert S.softmax_entropy([0.3, -1, 2.0]) == pytest.approx(-(p * np.log(p)).sum())


def test_slerp_walks_on_the_sphere():
    v, w = S.on_sphere(6, 2, 3.0)
    np.testing.assert_allclose(S.slerp(v, w, 0), v)
    np.testing.assert_allclose(S.slerp(v, w, 1), w)
    angle = np.arccos(v @ w / 9)
    for t in (0.2, 0.7):
        x = S.slerp(v, w, t)
        assert np.linalg.norm(x) == pytest.approx(3)
        assert np.arccos(x @ v / 9) == pytest.approx(t * angle)


@pytest.mark.parametrize(("radius", "expected", "within"), [(1.0, 0.015, 0.004), (10.0, 0.114, 0.015)])
def test_the_slerp_conjecture_is_an_approximation(radius, expected, within):
    """The specification's errors at n = 100; the range is that of other seeds and numbers of steps."""
    found = S.slerp_experiment(100, radius)
    assert found.relative_error == pytest.approx(expected, abs=within)
    assert found.mean_error < found.relative_error
    assert found.measured[-1] == pytest.approx(0, abs=1e-12) and (np.diff(found.measured) < 0).all()
    assert found.predicted[0] == pytest.approx(radius**2 / 100)


def test_the_error_of_the_slerp_conjecture_is_a_share():
    """At radius 1000 softmax is one-hot; a pair with one and the same largest entry has a curve of height 1e-20."""
    found = S.slerp_experiment(100, 1000.0)
    assert 0.5 < found.relative_error <= 1 and 0.5 < found.mean_error <= 1


def test_one_pair_of_the_slerp_experiment_written_out():
    found = S.slerp_experiment(30, 2.0, pairs=2, steps=3)
    draws = S.on_sphere(30, 4, 1.0)
    values = []
    for v, w in zip(draws[:2], draws[2:], strict=True):
        w = w - (w @ v) * v
        w /= np.linalg.norm(w)
        p, q = softmax(2 * w), softmax(2 * (v + w) / np.sqrt(2))  # half-way
        values.append((p * np.log(p / q)).sum())
    assert found.measured[1] == pytest.approx(np.mean(values))


def test_exp_of_a_combination():
    """What is left of the right form is of third order, (sum |lambda v|)^3/6; the printed one is off by 2 (n - 1)."""
    rng = np.random.default_rng(2)
    v, weights = 0.3 * rng.normal(size=(4, 50)), np.array([0.4, 0.3, 0.2, 0.1])
    found = S.combination(v, weights)
    third = np.exp(np.abs(weights[:, None] * v).sum(axis=0)).max() * np.abs(weights[:, None] * v).sum(axis=0).max() ** 3
    assert found.second_order < third / 6 < found.shifted < 0.1
    exact = np.exp(weights @ v)
    printed = (len(v) - 1) + np.exp(weights[:, None] * v).sum(axis=0)
    assert np.abs(exact - printed).min() > 5  # + (n - 1): far from any error of the right form
    shifted = sum(np.exp(w * x) for w, x in zip(weights, v, strict=True)) - 3
    assert found.shifted == pytest.approx(np.abs(exact - shifted).max())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: S.lognormal_moments(0, -1), "not negative"),
        (lambda: S.on_sphere(1, 5, 1.0), "two dimensions"),
        (lambda: S.slerp([1.0, 0], [0, 2.0], 0.5), "the same length"),
        (lambda: S.slerp([1.0, 0], [-1.0, 0], 0.5), "parallel"),
        (lambda: S.slerp_experiment(10, 1.0, pairs=1), "two pairs"),
        (lambda: S.slerp_experiment(10, 0.0), "a radius above 0"),
        (lambda: S.slerp_experiment(10, -1.0), "a radius above 0"),
        (lambda: S.combination(np.eye(2), [1.0]), "do not fit"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(hs.InputError, match=message):
        call()
