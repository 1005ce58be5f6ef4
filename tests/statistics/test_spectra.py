"""Spectra: singular values, the law of Marchenko and Pastur, and base alignment under random rotations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import ks_2samp, kurtosis, norm, ortho_group

import headscape as hs
from headscape.statistics.alignment import (
    align,
    alignment_z,
    random_corners,
    rotation_test,
    rotations_of,
    score_spectrum,
    symmetric_share,
)
from headscape.statistics.spectra import (
    COLUMNS,
    MarchenkoPastur,
    describe_spectrum,
    energy_rank,
    fit_marchenko_pastur,
    participation_ratio,
    random_participation,
    singular_values,
    stable_rank,
)

SHAPES = [(256, 256), (1024, 256), (4096, 1024)]


def noise(shape, sd=0.7, seed=0):
    return sd * np.random.default_rng(seed).normal(size=shape)


# --- singular values -------------------------------------------------------------------------------------------------


@given(m=st.integers(1, 12), n=st.integers(1, 12), rank=st.integers(1, 12), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_both_methods_give_numpys_singular_values(m, n, rank, seed):
    """Also of rank-deficient matrices, where the Gram matrix loses half of the digits of small values."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n))
    expected = np.linalg.svd(W, compute_uv=False)
    np.testing.assert_allclose(singular_values(W, "svd"), expected, atol=1e-12 * expected[0])
    found = singular_values(W, "gram")
    assert (np.diff(found) <= 0).all() and found.shape == (min(m, n),)
    np.testing.assert_allclose(found, expected, atol=1e-7 * expected[0])


@pytest.mark.parametrize("shape", [(3000, 200), (200, 3000)])
def test_the_gram_matrix_is_summed_over_blocks(shape):
    W = noise(shape).astype(np.float32)
    np.testing.assert_allclose(singular_values(W), singular_values(W, "svd"), rtol=1e-9)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 3)), r"shape \(0, 3\)"),
        (np.array([[1.0, np.nan]]), "nan at row 0, column 1"),
        (np.array([[1.0], [np.inf]]), "inf at row 1"),
    ],
)
def test_what_has_no_spectrum(matrix, message):
    with pytest.raises(hs.InputError, match=message):
        singular_values(matrix)
    with pytest.raises(hs.InputError, match="method is auto, svd or gram"):
        singular_values(np.eye(2), "fast")


def test_ranks_of_known_spectra():
    s = np.array([2.0, 1.0, 1.0, 0.0])
    assert stable_rank(s) == 6 / 4
    assert participation_ratio(s) == 36 / 18
    assert [energy_rank(s, share) for share in (0.5, 4 / 6, 0.7, 5 / 6, 1.0)] == [1, 1, 2, 2, 3]
    assert stable_rank([0.0]) == participation_ratio([0.0]) == energy_rank([0.0, 0.0]) == 0
    with pytest.raises(hs.InputError, match="share of energy"):
        energy_rank(s, 0)


@pytest.mark.parametrize("shape", [(40, 40), (30, 90), (90, 30)])
def test_participation_of_noise(shape):
    """E tr (W W^T)^2 = mn(m + n + 1) for standard normal entries; 200 draws leave the mean within 1 %."""
    m, n = shape
    draws = [np.linalg.svd(noise(shape, 1, seed), compute_uv=False) for seed in range(200)]
    assert np.mean([(s**4).sum() for s in draws]) == pytest.approx(m * n * (m + n + 1), rel=0.01)
    assert np.mean([participation_ratio(s) for s in draws]) == pytest.approx(random_participation(m, n), rel=0.01)


# --- Marchenko and Pastur --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(50, 50), (50, 80), (300, 20)])
def test_density_and_cdf_are_one_law(shape):
    law = MarchenkoPastur(*shape, 0.3)
    low, high = law.edges
    assert law.density([low - 1e-6, high + 1e-6]).tolist() == [0, 0]
    assert law.cdf([low - 1, high + 1]).tolist() == [0, 1]

    def integral(f, a, b):  # x = low + (high - low) sin^2 takes the roots out of the edges
        def g(u):
            x = low + (high - low) * np.sin(u) ** 2
            return f(x) * float(law.density(x)) * (high - low) * np.sin(2 * u)

        to_u = [np.arcsin(np.sqrt((x - low) / (high - low))) for x in (a, b)]
        return quad(g, *to_u)[0]

    for x in np.linspace(low, high, 7)[1:]:
        assert float(law.cdf(x)) == pytest.approx(integral(lambda _: 1.0, low, x), abs=1e-7)
    assert integral(lambda x: x, low, high) == pytest.approx(0.3 * max(shape), rel=1e-7)
    for share in (0.0, 0.1, 0.5, 0.99, 1.0):
        assert float(law.cdf(law.quantile(share))) == pytest.approx(share, abs=1e-9)


def test_the_law_does_not_ask_which_side_is_which():
    assert MarchenkoPastur(20, 50, 2.0).edges == pytest.approx(MarchenkoPastur(50, 20, 2.0).edges)
    assert MarchenkoPastur(20, 50, 2.0).bounds == pytest.approx(MarchenkoPastur(50, 20, 2.0).bounds)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_matrices_follow_the_law(shape):
    s = singular_values(noise(shape))
    law, truth = fit_marchenko_pastur(s, shape), MarchenkoPastur(*shape, 0.49)
    assert law.edges[1] == pytest.approx(truth.edges[1], rel=0.02)
    assert s[0] ** 2 == pytest.approx(truth.edges[1], rel=0.05)  # where the largest value of noise really is
    assert sum(law.outside(s)) < 0.005 * len(s)
    strict = (s**2 > law.edges[1]) | (s**2 < law.edges[0])  # also without the room for fluctuations
    assert strict.mean() < 0.005
    assert law.distance(s) < 3 / np.sqrt(len(s)) / 5  # values repel each other: far closer than independent draws
    np.testing.assert_allclose(law.expected, s, atol=0.05 * s[0])
    printed = truth.variance * 4  # the thesis prints 4 s^2 for the edge of a square matrix
    assert abs(law.edges[1] / printed - 1) > 10


@pytest.mark.parametrize("shape", SHAPES)
def test_a_planted_spike_of_rank_5_is_5_outliers(shape):
    rng = np.random.default_rng(3)
    m, n = shape
    U, V = (np.linalg.qr(rng.normal(size=(size, 5)))[0] for size in (m, n))
    spikes = np.linspace(1.6, 4, 5) * 0.7 * (np.sqrt(m) + np.sqrt(n))
    s = singular_values(noise(shape) + U * spikes @ V.T)
    law = fit_marchenko_pastur(s, shape)
    assert law.outside(s) == (0, 5)
    assert law.edges[1] == pytest.approx(MarchenkoPastur(m, n, 0.49).edges[1], rel=0.02)
    own = describe_spectrum(s, shape)
    assert own["above"] == 5 and own["variance"] > law.variance


def test_one_matrix_in_a_hundred_has_an_outlier_by_chance():
    """The bounds are the 99 % points; up to 11 of 400 is the 99.9 % range of a binomial with mean 4, at each edge."""
    above = below = 0
    law = MarchenkoPastur(60, 150, 1.0)
    for seed in range(400):
        found = law.outside(np.linalg.svd(noise((60, 150), 1, seed), compute_uv=False))
        below, above = below + found[0], above + found[1]
    assert above <= 11 and below <= 11
    inner = MarchenkoPastur(60, 150, 0.93)  # bounds a little further in are exceeded often: they are not idle
    assert sum(inner.outside(np.linalg.svd(noise((60, 150), 1, s), compute_uv=False))[1] for s in range(100)) > 5


def test_a_spectrum_that_is_no_noise_with_spikes_keeps_the_plain_median():
    s = np.exp(-np.linspace(0, 6, 100))
    law = fit_marchenko_pastur(s, (100, 100))
    assert law.variance == pytest.approx(np.median(s**2) / MarchenkoPastur(100, 100, 1).quantile(0.5))
    assert law.outside(s)[1] > 10 and law.distance(s) > 0.2


def test_degenerate_laws():
    assert fit_marchenko_pastur(np.zeros(4), (4, 9)).variance == 0
    found = describe_spectrum(np.zeros(4), (4, 9))
    assert tuple(found) == COLUMNS and all(np.isfinite(v) for v in found.values())
    assert (MarchenkoPastur(4, 9, 0).expected == 0).all()
    one = describe_spectrum([2.0], (1, 1))
    assert one["stable_rank"] == 1 and np.isfinite(one["distance"])
    with pytest.raises(hs.InputError, match="has 4 singular values, 3 were given"):
        fit_marchenko_pastur(np.ones(3), (4, 9))
    with pytest.raises(hs.InputError, match="no such law"):
        MarchenkoPastur(0, 3, 1.0)


def test_description_in_numbers():
    W = noise((30, 50), 0.2)
    s = singular_values(W)
    found = describe_spectrum(s, W.shape)
    assert found["variance"] == pytest.approx((W**2).mean())
    assert found["energy"] == pytest.approx((W**2).sum() / (30 * 50 * 2 / 80))
    assert found["evenness"] == pytest.approx(1, abs=0.05)
    assert found["largest_over_law"] == pytest.approx(s[0] / ((W**2).mean() ** 0.5 * (30**0.5 + 50**0.5)))
    scaled = describe_spectrum(3 * s, W.shape)
    for name in ("stable_rank", "participation", "evenness", "rank90", "above", "below", "above_own", "distance"):
        assert scaled[name] == pytest.approx(found[name])  # free of units


# --- base alignment --------------------------------------------------------------------------------------------------


def decaying(n_head, dim, d, rate, seed=0):
    """Weights whose singular values fall by `rate`: few of them carry the matrix."""
    rng = np.random.default_rng(seed)
    values = rate ** np.arange(dim)
    U = np.stack([ortho_group.rvs(dim, random_state=rng) for _ in range(n_head)])
    V = np.stack([ortho_group.rvs(d, random_state=rng)[:dim] for _ in range(n_head)])
    return (U * values) @ V


def test_alignment_pairs_a_query_head_with_the_key_head_of_its_group():
    q, k = noise((6, 4, 10)), noise((2, 4, 10), seed=1)
    expected = []
    for h in range(6):
        C = q[h].T @ k[h // 3]
        expected.append(np.trace(C) / (np.linalg.norm(q[h]) * np.linalg.norm(k[h // 3]) / np.sqrt(10 * 4)))
    np.testing.assert_allclose(alignment_z(q, k), expected)
    wrong = [np.trace(q[h].T @ k[h % 2]) for h in range(6)]  # the pairing of the thesis under grouped queries
    assert not np.allclose(np.sign(wrong), np.sign(expected))
    for bad in (k[:, :3], k[0], np.zeros((4, 4, 10))):
        with pytest.raises(hs.InputError, match="heads"):
            alignment_z(q, bad)


def test_the_same_matrix_is_fully_aligned():
    W = noise((1, 6, 20))
    found = align(W, W, 199)
    assert found.z[0] == pytest.approx(np.sqrt(6 * 20)) and found.p[0] == 1 / 200
    assert align(W, -W, 199).p[0] == 1 / 200  # two-sided
    assert align(np.zeros((1, 6, 20)), W, 9).z[0] == 0 == align(np.zeros((1, 6, 20)), W, 9).z[0]
    with pytest.raises(hs.InputError, match="at least one rotation"):
        align(W, W, 0)


@pytest.mark.parametrize(("r", "d"), [(3, 3), (3, 4), (3, 9)])
def test_corners_are_those_of_uniform_rotations(r, d):
    """Against rotations drawn whole; Kolmogorov-Smirnov on entries, squares' sums and determinants."""
    n = 1500
    ours = random_corners(n, r, d, np.random.default_rng(0))
    whole = ortho_group.rvs(d, size=n, random_state=np.random.default_rng(1))[:, :r, :r]
    for what in (lambda X: X[:, 0, 0], lambda X: X[:, 2, 1], lambda X: (X**2).sum(axis=(1, 2)), np.linalg.det):
        assert ks_2samp(what(ours), what(whole)).pvalue > 1e-3 or np.allclose(np.abs(what(ours)), np.abs(what(whole)))
    if r == d:
        np.testing.assert_allclose(ours @ ours.swapaxes(1, 2), np.broadcast_to(np.eye(r), ours.shape), atol=1e-12)


def test_rotated_traces_are_those_of_matrices_turned_one_by_one():
    q, k = decaying(1, 4, 9, 0.6), decaying(1, 4, 9, 0.8, seed=1)
    s, t = (np.linalg.svd(w, compute_uv=False) for w in (q, k))
    ours = np.concatenate(list(rotations_of(s, t, 9, 3000)))[:, 0]
    rng = np.random.default_rng(5)
    left, right = ortho_group.rvs(4, 3000, random_state=rng), ortho_group.rvs(9, 3000, random_state=rng)
    slow = np.einsum("ij,rjk,kl,rli->r", q[0].T, left, k[0], right)
    assert ks_2samp(ours, slow).pvalue > 1e-3
    size = np.sqrt((s**2).sum() * (t**2).sum() / 36)
    assert ours.mean() == pytest.approx(0, abs=4 * size / np.sqrt(3000))
    assert ours.std() == pytest.approx(size, rel=0.06)  # variance |Wq|^2 |Wk|^2 / (d dim), exactly


def test_the_order_of_the_spectra_does_not_matter():
    """The thesis has the variance (1/n) sum sa_i^2 sb_i^2, so that sorting one against the other changes it."""
    n = 6
    a, b = 0.5 ** np.arange(n), 0.5 ** np.arange(n)
    same, opposed = (np.concatenate(list(rotations_of(a[None], x[None], n, 4000))).std() for x in (b, b[::-1]))
    true = np.sqrt((a**2).sum() * (b**2).sum() / n**2)
    assert same == pytest.approx(true, rel=0.08) and opposed == pytest.approx(true, rel=0.08)
    printed = [np.sqrt((a**2 * x**2).sum() / n) for x in (b, b[::-1])]
    assert abs(printed[0] / true - 1) > 0.5 and abs(printed[1] / true - 1) > 0.5


def test_few_singular_values_give_heavy_tails_and_honest_p_values():
    s = t = 0.3 ** np.arange(8.0)[None]
    null = np.concatenate(list(rotations_of(s, t, 24, 20000)))[:, 0]
    null /= np.sqrt((s**2).sum() * (t**2).sum() / (8 * 24))
    assert kurtosis(null) > 1  # a normal law has 0
    p, beyond = rotation_test(np.array([3.0]), s, t, 24, 4000, random_state=1)
    assert p[0] > 3 * 2 * norm.sf(3) and beyond[0] == pytest.approx((np.abs(null) > 3).mean(), abs=0.006)
    rng = np.random.default_rng(0)
    W = decaying(100, 8, 24, 0.5)
    turned = np.einsum("hij,hjk,hkl->hil", ortho_group.rvs(8, 100, rng), W, ortho_group.rvs(24, 100, rng))
    p = align(W, turned, 400).p  # unrelated pairs: p uniform, 2 to 22 of 100 below 0.1 is the 99.9 % range
    assert 2 <= (p <= 0.1).sum() <= 22 and (p <= 0.5).mean() == pytest.approx(0.5, abs=0.17)


@pytest.mark.parametrize("n_kv", [1, 2, 4])
def test_symmetric_energy_and_scores_without_the_large_matrix(n_kv):
    q, k = noise((4, 3, 11)), noise((n_kv, 3, 11), seed=2)
    for h in range(4):
        C = q[h].T @ k[h // (4 // n_kv)]
        sym, anti = (C + C.T) / 2, (C - C.T) / 2
        total = (C**2).sum()
        assert (sym**2).sum() / total == pytest.approx(symmetric_share(q, k)[h])
        assert (anti**2).sum() / total == pytest.approx(1 - symmetric_share(q, k)[h])
        np.testing.assert_allclose(score_spectrum(q, k)[h], np.linalg.svd(C, compute_uv=False)[:3], atol=1e-12)
    assert symmetric_share(q, q).tolist() == pytest.approx([1] * 4)
    turn = np.kron(np.eye(2), [[0, 1], [-1, 0]])
    skew = np.stack([turn @ w for w in noise((1, 4, 11))])
    assert symmetric_share(noise((1, 4, 11)), skew)[0] == pytest.approx(0)
    assert symmetric_share(np.zeros((1, 3, 11)), k[:1])[0] == 0.5
