"""Gaussians against Monte Carlo, closed cases and scikit-learn; printed slips of the thesis fail the same checks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf as reference_ledoit_wolf

import headscape as hs
from headscape.statistics import gaussian as G

DRAWS = 400_000


def a_gaussian(dim, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    root = 0.5 * rng.normal(size=(dim, dim)) / np.sqrt(dim) + np.eye(dim)
    return G.Gaussian(rng.normal(size=dim), scale * root @ root.T)


def mean_and_error(values):
    """Mean of draws and four standard errors: a right formula misses it once in 15,000 times."""
    return values.mean(), 4 * values.std(ddof=1) / np.sqrt(len(values))


# ---------------------------------------------------------------------- fitting


@pytest.mark.parametrize(("n", "dim"), [(5, 30), (60, 20), (300, 64)])
def test_shrinkage_is_that_of_ledoit_and_wolf(n, dim):
    """By scikit-learn, and written out: mean squared distance of x x^T from S over n, over that of S from a multiple of I."""
    X = np.random.default_rng(n).normal(size=(n, dim)) * np.linspace(0.1, 3, dim) + 5
    covariance, shrinkage = reference_ledoit_wolf(X)
    found = G.fit_gaussian(X)
    centred = X - X.mean(axis=0)
    S = centred.T @ centred / n
    noise = np.mean([((np.outer(x, x) - S) ** 2).sum() for x in centred]) / n
    spread = ((S - np.trace(S) / dim * np.eye(dim)) ** 2).sum()
    assert found.shrinkage == pytest.approx(shrinkage) == pytest.approx(min(noise, spread) / spread)
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-12)
    np.testing.assert_allclose(found.mean, X.mean(axis=0))
    assert found.n_samples == n


def test_many_samples_are_not_shrunk_and_few_are():
    rng = np.random.default_rng(0)
    many, few = rng.normal(size=(50, 5)), rng.normal(size=(49, 5))
    np.testing.assert_allclose(G.fit_gaussian(many).covariance, np.cov(many.T, bias=True))
    assert G.fit_gaussian(many).shrinkage == 0 < G.fit_gaussian(few).shrinkage
    assert "shrinkage 0.5" in repr(G.fit_gaussian(many, 0.5))


def test_fewer_samples_than_dimensions_have_an_entropy_only_when_shrunk():
    X = np.random.default_rng(1).normal(size=(8, 20))
    assert np.isfinite(G.entropy(G.fit_gaussian(X)))
    with pytest.raises(hs.InputError, match="singular: rank 7 in 20 dimensions.*shrinkage.*subspace of at most 7"):
        G.entropy(G.fit_gaussian(X, shrinkage=0.0))


@pytest.mark.parametrize("seed", range(8))
def test_two_samples_are_fitted_only_with_a_given_shrinkage(seed):
    """Both have the same outer product, so their noise is 0 but for rounding, and once came out as -1.3e-16."""
    X = np.random.default_rng(seed).normal(size=(2, 4))
    with pytest.raises(hs.InputError, match="two samples show no noise"):
        G.fit_gaussian(X)
    assert np.isfinite(G.entropy(G.fit_gaussian(X, 0.3)))
    assert G.fit_gaussian(X[:, :1]).shrinkage == 0  # a single variance needs none
    assert 0 < G.fit_gaussian(np.vstack([X, X[0] + X[1]])).shrinkage <= 1


@pytest.mark.parametrize("variances", [(1e-12, 1e6), (1e-200, 1e100), (1e-30, 1.0, 1e30)])
def test_units_do_not_make_a_covariance_singular(variances):
    p = G.Gaussian(np.zeros(len(variances)), np.diag(variances))
    expected = sum(0.5 * np.log(2 * np.pi * np.e * v) for v in variances)
    assert G.entropy(p) == pytest.approx(expected)  # -4.07 for the first
    assert G.kl_divergence(p, p) == pytest.approx(0, abs=1e-9)
    x = np.sqrt(np.array(variances))[None]
    assert p.log_density(x)[0] == pytest.approx(-0.5 * (len(x[0]) + sum(np.log(2 * np.pi * v) for v in variances)))
    close = np.diag(variances).astype(float)
    close[0, 1] = close[1, 0] = np.sqrt(variances[0] * variances[1])  # correlation 1: singular in any units
    with pytest.raises(hs.InputError, match="singular"):
        G.log_determinant(close)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: G.fit_gaussian(np.zeros((1, 3))), "two or more rows"),
        (lambda: G.fit_gaussian([[0.0], [np.nan]]), "1 of the samples' entries are NaN"),
        (lambda: G.fit_gaussian(np.zeros((5, 3)), 1.5), "between 0 and 1"),
        (lambda: G.fit_gaussian(np.random.default_rng(0).normal(size=(2, 5))), "two samples show no noise.*shrinkage="),
        (lambda: G.Gaussian(np.zeros(2), np.eye(3)), "does not fit"),
        (lambda: G.Gaussian(np.zeros(2), [[1, np.nan], [np.nan, 1]]), "2 entries of the covariance are NaN"),
        (lambda: G.Gaussian(np.zeros(2), [[1, 0.5], [0.2, 1]]), "symmetric.*differ from their mirror by up to 0.3"),
        (lambda: G.log_determinant([[1, np.inf], [np.inf, 1]]), "NaN or infinite"),
        (lambda: G.log_determinant([[1, 0.5], [0.2, 1]]), "symmetric"),
        (lambda: G.entropy(G.fit_gaussian(np.ones((50, 3)))), "rank 0"),
        (lambda: G.entropy(G.Gaussian(np.zeros(2), [[1, 1], [1, 1]])), "rank 1 in 2"),
        (lambda: G.entropy(G.Gaussian(np.zeros(2), [[1, 2], [2, 1]])), "singular"),
        (lambda: G.kl_divergence(a_gaussian(2, 0), a_gaussian(3, 0)), "2 and 3 dimensions"),
        (lambda: G.jensen_shannon(a_gaussian(2, 0), a_gaussian(2, 1), n=1), "two draws"),
        (lambda: G.mutual_information(a_gaussian(3, 0), 3), "between 1 and 2"),
        (lambda: G.linear_map(a_gaussian(3, 0), np.eye(2)), "3 dimensions"),
        (lambda: G.principal_subspace(np.ones((5, 3))), "all equal"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(hs.InputError, match=message):
        call()


# ---------------------------------------------------------------------- information


def test_entropy_and_cross_entropy_are_means_of_log_densities():
    p, q = a_gaussian(4, 0), a_gaussian(4, 1, 2.0)
    x = p.sample(DRAWS)
    for found, draws in ((G.entropy(p), -p.log_density(x)), (G.cross_entropy(p, q), -q.log_density(x))):
        mean, tolerance = mean_and_error(draws)
        assert found == pytest.approx(mean, abs=tolerance)
    from scipy.stats import multivariate_normal  # the density itself

    np.testing.assert_allclose(q.log_density(x[:50]), multivariate_normal(q.mean, q.covariance).logpdf(x[:50]))


def printed_cross_entropy(p, q):
    """As the thesis prints it, with (2 pi e)^d."""
    inverse = np.linalg.inv(q.covariance)
    d = p.mean - q.mean
    log = p.dim * np.log(2 * np.pi * np.e) + np.linalg.slogdet(q.covariance)[1]
    return 0.5 * (log + np.trace(inverse @ p.covariance) + d @ inverse @ d)


def test_the_printed_cross_entropy_fails_the_same_check():
    p, q = a_gaussian(4, 0), a_gaussian(4, 1, 2.0)
    mean, tolerance = mean_and_error(-q.log_density(p.sample(DRAWS)))
    assert abs(printed_cross_entropy(p, q) - mean) > 10 * tolerance
    assert printed_cross_entropy(p, p) - G.entropy(p) == pytest.approx(p.dim / 2)  # a divergence from itself


@given(st.integers(1, 6), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_divergences_are_positive_and_zero_for_the_same(dim, seed):
    p, q = a_gaussian(dim, seed), a_gaussian(dim, seed + 1)
    assert G.kl_divergence(p, q) > 0
    assert G.kl_divergence(p, p) == pytest.approx(0, abs=1e-9)


def test_kl_divergence_of_two_numbers():
    """KL(N(0,1) || N(1,4)) = log 2 + (1 + 1)/8 - 1/2."""
    p, q = G.Gaussian([0], [[1]]), G.Gaussian([1], [[4]])
    assert G.kl_divergence(p, q) == pytest.approx(np.log(2) - 0.25)


def test_jensen_shannon_and_its_error():
    """Against a quadrature in one dimension, by the error it states; 0 for the same, log 2 for strangers."""
    p, q = G.Gaussian([0], [[1]]), G.Gaussian([1.5], [[0.5]])
    x = np.linspace(-12, 12, 200_001)[:, None]
    dp, dq = np.exp(p.log_density(x)), np.exp(q.log_density(x))
    m = (dp + dq) / 2
    exact = np.trapezoid(0.5 * dp * np.log(dp / m) + 0.5 * dq * np.log(dq / m), x[:, 0])
    found = G.jensen_shannon(p, q, 50_000)
    assert found.value == pytest.approx(exact, abs=4 * found.error)
    assert 0 < found.error < 0.005
    assert G.jensen_shannon(p, p, 100).value == pytest.approx(0, abs=1e-12)
    assert G.jensen_shannon(p, G.Gaussian([1e3], [[1]]), 100).value == pytest.approx(np.log(2))


def test_mutual_information_is_a_divergence_from_independence():
    joint = a_gaussian(5, 3)
    apart = joint.covariance.copy()
    apart[:2, 2:] = apart[2:, :2] = 0
    independent = G.Gaussian(joint.mean, apart)
    assert G.mutual_information(joint, 2) == pytest.approx(G.kl_divergence(joint, independent))
    x = joint.sample(DRAWS)
    mean, tolerance = mean_and_error(joint.log_density(x) - independent.log_density(x))
    assert G.mutual_information(joint, 2) == pytest.approx(mean, abs=tolerance)
    shifted = G.Gaussian(joint.mean + 7, joint.covariance)  # inputs are centred: means do not count
    assert G.mutual_information(shifted, 2) == G.mutual_information(joint, 2)


# ---------------------------------------------------------------------- linear maps


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_invertible_maps_keep_information_and_move_entropy(seed):
    rng = np.random.default_rng(seed)
    p, q, joint = a_gaussian(3, seed), a_gaussian(3, seed + 1), a_gaussian(6, seed + 2)
    L = rng.normal(size=(3, 3)) + 2 * np.eye(3)
    assert G.entropy(G.linear_map(p, L)) == pytest.approx(G.entropy(p) + np.linalg.slogdet(L)[1], abs=1e-7)
    assert G.kl_divergence(G.linear_map(p, L), G.linear_map(q, L)) == pytest.approx(G.kl_divergence(p, q), rel=1e-6)
    both = np.kron(np.eye(2), L)
    assert G.mutual_information(G.linear_map(joint, both), 3) == pytest.approx(G.mutual_information(joint, 3), rel=1e-6)


def test_a_linear_map_that_loses_rank_lowers_mutual_information():
    """'Only non-linear maps change it', the thesis says: two of three dimensions of every token are dropped here."""
    joint = a_gaussian(6, 4)
    lossy = np.kron(np.eye(2), np.array([[1.0, 0, 0]]))
    assert G.mutual_information(G.linear_map(joint, lossy), 1) < 0.7 * G.mutual_information(joint, 3)


def test_a_map_of_the_fit_is_the_fit_of_the_mapped():
    """Why scores may be predicted from Gaussians of queries and keys: they are those of the inputs, mapped."""
    rng = np.random.default_rng(5)
    X, W, b = rng.normal(size=(200, 12)) * np.arange(1, 13), rng.normal(size=(4, 12)), rng.normal(size=4)
    mapped, direct = G.linear_map(G.fit_gaussian(X, 0.0), W, b), G.fit_gaussian(X @ W.T + b, 0.0)
    np.testing.assert_allclose(mapped.mean, direct.mean, atol=1e-10)
    np.testing.assert_allclose(mapped.covariance, direct.covariance, atol=1e-10)


def test_marginal_and_sample():
    p = a_gaussian(4, 6)
    assert p.marginal([2, 0]).mean.tolist() == p.mean[[2, 0]].tolist()
    assert p.marginal(slice(1, 3)).covariance.tolist() == p.covariance[1:3, 1:3].tolist()
    x = p.sample(DRAWS)  # entries of the covariance err by about 2 |S| / sqrt(n) = 0.01
    np.testing.assert_allclose(np.cov(x.T), p.covariance, atol=0.03)
    flat = G.Gaussian(np.zeros(2), [[1, 1], [1, 1]]).sample(100)  # singular, and no obstacle
    np.testing.assert_allclose(flat[:, 0], flat[:, 1], atol=1e-7)


def test_draws_do_not_turn_over_with_the_signs_of_eigenvectors(monkeypatch):
    A = np.random.default_rng(5).normal(size=(4, 4))
    p = G.Gaussian(np.arange(4.0), A @ A.T)
    draws, plain = p.sample(50), np.linalg.eigh

    def turned(S):
        values, vectors = plain(S)
        return values, vectors * [1, -1, -1, 1]

    monkeypatch.setattr(np.linalg, "eigh", turned)
    np.testing.assert_allclose(p.sample(50), draws, atol=1e-12)


def test_determinants_at_once_are_those_one_by_one():
    rng = np.random.default_rng(3)
    S = np.stack([A @ A.T for A in rng.normal(size=(4, 5, 5)) * [[[1e-6]], [[1]], [[1e6]], [[1]]]])
    np.testing.assert_allclose(G.log_determinants(S), [np.linalg.slogdet(one)[1] for one in S], rtol=1e-9)
    S[2, 0] = S[2, :, 0] = 0
    with pytest.raises(hs.InputError, match="rank 4 in 5 dimensions"):
        G.log_determinants(S)


def test_principal_subspace_is_that_of_the_svd():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(50, 6)) * [5, 3, 2, 1, 0.5, 0.1] + 3
    found = G.principal_subspace(X, 3)
    _, s, vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found.basis @ vt[:3].T), np.eye(3), atol=1e-8)
    assert found.kept == pytest.approx((s[:3] ** 2).sum() / (s**2).sum())
    np.testing.assert_allclose(found.project(X).mean(axis=0), 0, atol=1e-12)
    assert (found.basis[np.arange(3), np.abs(found.basis).argmax(axis=1)] > 0).all()
    assert G.principal_subspace(X[:4], 32).dim == 3  # four samples span three directions
    assert G.principal_subspace(X @ np.diag([1, 1, 0, 0, 0, 0.0]), 32).dim == 2
