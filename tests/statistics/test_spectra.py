"""Spectra: singular values, and the law of Marchenko and Pastur."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

import headscape as hs
from headscape.statistics.spectra import (
    MarchenkoPastur,
    describe_spectrum,
    energy_rank,
    fit_marchenko_pastur,
    participation_ratio,
    random_participation,
    rounding_variance,
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


@pytest.mark.parametrize("shape", [(20, 20), (12, 30)])
def test_the_values_of_noise_are_quantiles_of_the_law(shape):
    law, p = MarchenkoPastur(*shape, 0.3), min(shape)
    shares = [(p - i - 0.5) / p for i in range(p)]
    np.testing.assert_allclose(law.expected**2, [law.quantile(share) for share in shares], rtol=1e-8)


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
    assert all(np.isfinite(v) for v in found.values()) and found["distance"] == 0
    assert (MarchenkoPastur(4, 9, 0).expected == 0).all()
    nothing = MarchenkoPastur(10, 5, 0.0)  # all of the law lies at 0
    assert nothing.cdf([-1.0, 0.0, 1e-9, 1.0]).tolist() == [0, 1, 1, 1]
    assert nothing.density([-1.0, 0.0, 1.0]).tolist() == [0, np.inf, 0]
    assert nothing.distance([0, 0, 0, 0, 1.0]) == pytest.approx(0.2)
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


def test_rounding_is_measured_from_the_weights_alone():
    """Weights stored in blocks of 32 with 16 levels each, as Q4_1: the error of rounding is known here."""
    W = np.random.default_rng(0).standard_normal((64, 96)) * np.geomspace(0.1, 1, 64)[:, None]
    blocks = W.reshape(-1, 32)
    low, step = blocks.min(axis=1, keepdims=True), np.ptp(blocks, axis=1, keepdims=True) / 15
    stored = (low + step * np.rint((blocks - low) / step)).reshape(W.shape).astype(np.float32)
    assert rounding_variance(stored) == pytest.approx(((stored - W) ** 2).mean(), rel=0.1)
