"""Moments of scores against Monte Carlo and closed cases; printed slips of the thesis fail the same checks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscape as hs
from headscape.statistics import bilinear as B

DRAWS = 1_000_000


def a_case(m=4, n=5, seed=0):
    """C, joint mean and covariance of (x, y)."""
    rng = np.random.default_rng(seed)
    root = 0.5 * rng.normal(size=(m + n, m + n))
    return rng.normal(size=(m, n)), rng.normal(size=m + n), root @ root.T + 0.1 * np.eye(m + n)


def parts(C, mean, S):
    m = len(C)
    return C, mean[:m], mean[m:], S[:m, :m], S[m:, m:]


def draws_of(C, mean, S, seed=1, n=DRAWS):
    z = np.random.default_rng(seed).multivariate_normal(mean, S, size=n, method="cholesky")
    m = len(C)
    return np.einsum("ki,ki->k", z[:, :m] @ C, z[:, m:])


def check(found, scores):
    """Mean, variance, skewness and kurtosis within five standard errors, these from 40 parts of the draws.

    Errors of the higher moments come from the tails and are themselves uncertain, hence five and not four.
    """
    measured = B.measured_moments(scores)
    pieces = np.array([B.measured_moments(part) for part in scores.reshape(40, -1)])
    tolerance = 5 * pieces.std(axis=0, ddof=1) / np.sqrt(40)
    assert (np.abs(np.array(found) - measured) < tolerance).all(), (found, measured, tolerance)
    return measured, tolerance


@pytest.fixture(scope="module")
def dependent():
    C, mean, S = a_case()
    return C, mean, S, draws_of(C, mean, S)


def test_moments_of_dependent_gaussians(dependent):
    C, mean, S, scores = dependent
    check(B.form_moments(*parts(C, mean, S), S[len(C) :, : len(C)]), scores)


def test_variance_term_by_term(dependent):
    """The five terms of the specification are the variance that the quadratic form on the joint vector gives."""
    C, mean, S, _ = dependent
    _, mx, my, Sx, Sy = parts(C, mean, S)
    Syx = S[len(C) :, : len(C)]
    expected_mean = mx @ C @ my + np.trace(C @ Syx)
    expected = (
        np.trace(C @ Sy @ C.T @ Sx)
        + np.trace(C @ Syx @ C @ Syx)
        + my @ C.T @ Sx @ C @ my
        + mx @ C @ Sy @ C.T @ mx
        + 2 * mx @ C @ Syx @ C @ my
    )
    found = B.form_moments(C, mx, my, Sx, Sy, Syx)
    assert found.mean == pytest.approx(expected_mean)
    assert found.variance == pytest.approx(expected)
    m, n = C.shape
    Q = np.block([[np.zeros((m, m)), C / 2], [C.T / 2, np.zeros((n, n))]])  # the slow twin: one form of both
    twin = B.quadratic_moments(Q, np.concatenate([mx, my]), np.block([[Sx, Syx.T], [Syx, Sy]]))
    np.testing.assert_allclose(found, twin, rtol=1e-9)


def test_the_printed_mean_fails_the_same_check():
    """tr(C S_XY) in place of tr(C S_YX), which needs a square C to be written at all."""
    C, mean, S = a_case(4, 4, seed=2)
    _, mx, my, Sx, Sy = parts(C, mean, S)
    found = B.form_moments(C, mx, my, Sx, Sy, S[4:, :4])
    scores = draws_of(C, mean, S)
    measured, tolerance = check(found, scores)
    printed = mx @ C @ my + np.trace(C @ S[:4, 4:])
    assert abs(printed - measured.mean) > 10 * tolerance[0]


def test_the_printed_variance_fails_for_dependent_tokens(dependent):
    """The three terms of (6.3), without those of the cross-covariance."""
    C, mean, S, scores = dependent
    _, mx, my, Sx, Sy = parts(C, mean, S)
    printed = np.trace(Sx @ C @ Sy @ C.T) + my @ C.T @ Sx @ C @ my + mx @ C @ Sy @ C.T @ mx
    measured, tolerance = check(B.form_moments(C, mx, my, Sx, Sy, S[len(C) :, : len(C)]), scores)
    assert abs(printed - measured.variance) > 5 * tolerance[1]


@given(st.integers(0, 500), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_independent_moments_are_those_of_the_joint_without_cross_covariance(seed, m, n):
    C, mean, S = a_case(m, n, seed)
    S[:m, m:] = S[m:, :m] = 0
    np.testing.assert_allclose(
        B.form_moments(*parts(C, mean, S)), B.form_moments(*parts(C, mean, S), np.zeros((n, m))), rtol=1e-8, atol=1e-8
    )


def test_cumulants_of_a_stack_are_those_one_by_one():
    cases = [a_case(3, 4, seed) for seed in range(5)]
    C, means, covariances = cases[0][0], np.stack([c[1] for c in cases]), np.stack([c[2] for c in cases])
    joint = B.by_cumulants(B.form_cumulants(C, means, covariances))
    blocks = means[:, :3], means[:, 3:], covariances[:, :3, :3], covariances[:, 3:, 3:]
    alone = B.by_cumulants(B.independent_cumulants(C, *blocks))
    for i, (_, mean, S) in enumerate(cases):
        np.testing.assert_allclose(joint[:, i], B.form_moments(*parts(C, mean, S), S[3:, :3]), rtol=1e-10)
        np.testing.assert_allclose(alone[:, i], B.form_moments(*parts(C, mean, S)), rtol=1e-10)
    weights = np.array([1.0, 2, 0, 3, 1])
    np.testing.assert_allclose(
        B.pooled(joint, weights), B.pooled_moments([B.Moments(*m) for m in joint.T], weights), rtol=1e-12
    )


def test_self_pairing():
    C, mean, S = a_case(4, 4, seed=3)
    mean, S = mean[:4], S[:4, :4]
    x = np.random.default_rng(4).multivariate_normal(mean, S, size=DRAWS, method="cholesky")
    found = B.self_moments(C, mean, S)
    check(found, np.einsum("ki,ki->k", x @ C, x))
    M = (C + C.T) / 2
    assert found.mean == pytest.approx(np.trace(C @ S) + mean @ C @ mean)
    assert found.variance == pytest.approx(2 * np.trace(M @ S @ M @ S) + 4 * mean @ M @ S @ M @ mean)
    both = B.form_moments(C, mean, mean, S, S, S)  # x and y the same vector: the joint is singular, and that is fine
    np.testing.assert_allclose(found, both, rtol=1e-9)


def test_kurtosis_of_centred_independent_vectors():
    C, mean, S = a_case(seed=5)
    _, _, _, Sx, Sy = parts(C, mean, S)
    zero = np.zeros(len(mean))
    closed = B.centred_kurtosis(C, Sx, Sy)
    assert closed == pytest.approx(B.form_moments(*parts(C, zero, S)).kurtosis)
    for r in (1, 3, 12):  # r equal directions: 6/r, from the product of two normals to nearly normal
        assert B.centred_kurtosis(np.eye(12)[:, :r] @ np.eye(12)[:r], np.eye(12), np.eye(12)) == pytest.approx(6 / r)


def test_measured_moments_are_those_of_scipy():
    from scipy.stats import kurtosis, skew

    x = np.random.default_rng(6).gamma(2.0, size=1000)
    assert B.measured_moments(x) == pytest.approx((x.mean(), x.var(), skew(x), kurtosis(x)))


@pytest.mark.parametrize("value", [0.1, 1.0, -1e30, 1 / 3])
@pytest.mark.parametrize("n", [1, 3, 1001])
def test_a_constant_has_no_skewness_and_no_kurtosis(value, n):
    """Their mean is rounded; what is left after it was once a variance of 1e-34 and a kurtosis of -2."""
    constant = B.measured_moments(np.full(n, value))
    assert constant[:2] == (pytest.approx(value), 0) and np.isnan(constant[2:]).all()
    pooled = B.pooled_moments([constant] * 3, [0.2, 0.5, 0.3])
    assert pooled[:2] == (pytest.approx(value), 0) and np.isnan(pooled[2:]).all()


@given(st.integers(0, 500), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_pooled_moments_are_those_of_the_scores_together(seed, n_groups):
    rng = np.random.default_rng(seed)
    groups = [rng.gamma(2.0, size=rng.integers(2, 30)) * rng.normal() + rng.normal() for _ in range(n_groups)]
    found = B.pooled_moments([B.measured_moments(g) for g in groups], [len(g) for g in groups])
    np.testing.assert_allclose(found, B.measured_moments(np.concatenate(groups)), rtol=1e-8, atol=1e-9)


# ---------------------------------------------------------------------- random matrices


def test_trace_of_the_product_of_random_matrices():
    """n^2 s^4; of 4,000 draws a variance errs by sqrt(2/4000) = 2.2 %, 10 % is over four times that."""
    n, s, draws = 20, 0.3, 4000
    rng = np.random.default_rng(7)
    A, M = s * rng.normal(size=(2, draws, n, n))
    traces = (A * M).sum(axis=(1, 2))
    assert traces.mean() == pytest.approx(0, abs=4 * n * s**2 / np.sqrt(draws))  # four standard errors
    assert traces.var() == pytest.approx(n**2 * s**4, rel=0.1)
    singular = np.linalg.svd(A[0], compute_uv=False), np.linalg.svd(M[0], compute_uv=False)
    assert B.trace_variance(*singular, (n, n)) == pytest.approx(n**2 * s**4, rel=0.3)  # energies of one draw vary


def test_only_the_energies_of_edited_spectra_count():
    """Random bases, given spectra: aligned or reversed, the variance is the same; the printed one is not."""
    from scipy.stats import ortho_group

    n, draws = 6, 4000
    a, b = np.array([5.0, 2, 1, 0.5, 0.2, 0.1]), np.array([4.0, 1, 1, 1, 0.1, 0.1])
    U, V, P, Q = (ortho_group.rvs(n, size=draws, random_state=seed) for seed in range(4))
    for spectrum in (b, b[::-1]):
        traces = np.einsum("kij,j,klj,kim,m,klm->k", U, a, V, P, spectrum, Q, optimize=True)
        found = B.trace_variance(a, spectrum, (n, n))
        assert traces.var() == pytest.approx(found, rel=0.12)  # as above; tails are a little heavier than normal
        printed = (a**2 * spectrum**2).sum() / n
        assert abs(printed / traces.var() - 1) > 0.5


def test_angles_are_in_covariances_not_in_variances():
    """C with entries of variance 1/n: Var(v^T C w) = 1/n at every angle; Cov(x^T C y, x^T C y') = <y, y'>/n."""
    n, draws = 16, 20_000
    C = np.random.default_rng(8).normal(size=(draws, n, n)) / np.sqrt(n)
    x, y = np.eye(n)[0], np.eye(n)[1]
    tolerance = 4 * np.sqrt(2 / draws) / n  # of a variance of 1/n
    for angle in (0.0, 0.5, 1.2, np.pi / 2):
        w = np.cos(angle) * x + np.sin(angle) * y
        scores = np.einsum("kij,i,j->k", C, x, w)
        assert B.random_form_covariance(x, w, x, w, 1 / n) == pytest.approx(1 / n)
        assert scores.var() == pytest.approx(1 / n, abs=tolerance)
        other = np.einsum("kij,i,j->k", C, x, x)
        expected = B.random_form_covariance(x, w, x, x, 1 / n)
        assert expected == pytest.approx(np.cos(angle) / n)
        assert np.cov(scores, other)[0, 1] == pytest.approx(expected, abs=tolerance)
    printed = np.cos(0.0) ** 2 / n + (n - 1) / n**2  # eq. 6.47 at angle 0, where it is nearly 2/n
    assert abs(printed - 1 / n) > 3 * tolerance


def test_the_bound_holds_and_the_printed_one_does_not():
    rng = np.random.default_rng(9)
    violated, n = [], 20
    for _ in range(300):
        Wq, Wk = rng.normal(size=(2, n, n)) / np.sqrt(n)
        x, y = rng.normal(size=(2, n))
        score, bound = abs((Wq @ x) @ (Wk @ y)), B.score_bound(Wq, Wk, x, y)
        assert score <= bound
        cosine = abs(x @ y) / np.linalg.norm(x) / np.linalg.norm(y)
        violated.append(
            score > np.linalg.norm(Wq, 2) * np.linalg.norm(Wk, 2) * np.linalg.norm(x) * np.linalg.norm(y) * cosine
        )
    assert 0.05 < np.mean(violated) < 0.5
    u, _, vt = np.linalg.svd(Wq.T @ Wk)
    assert abs((Wq @ u[:, 0]) @ (Wk @ vt[0])) == pytest.approx(B.score_bound(Wq, Wk, u[:, 0], vt[0]))  # attained


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: B.form_moments(np.eye(2), np.zeros(3), np.zeros(2), np.eye(2), np.eye(2)), "means of 2 and 2"),
        (lambda: B.form_moments(np.eye(2), *np.zeros((2, 2)), np.eye(2), np.eye(2), np.eye(3)), r"must be \(2, 2\)"),
        (lambda: B.quadratic_moments([[0, 1], [0, 0]], np.zeros(2), np.eye(2)), "symmetric"),
        (lambda: B.quadratic_moments(np.eye(3), np.zeros(2), np.eye(2)), "do not fit"),
        (lambda: B.measured_moments([]), "no scores"),
        (lambda: B.pooled_moments([B.Moments(0, 1, 0, 0)], [0.0]), "not all 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(hs.InputError, match=message):
        call()
