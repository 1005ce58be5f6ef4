"""Random bilinear forms against draws written out one by one."""

import numpy as np
import pytest

from headscape.statistics.bilinear import trace_variance
from headscape.statistics.random_forms import aligned_traces, bound_ratios, scores_by_angle, traces_of_spectra


def test_scores_by_angle_are_those_of_each_matrix():
    found = scores_by_angle(6, [-0.5, 1.0], 3, 4)
    rng = np.random.default_rng(4)
    for i in range(3):
        C = rng.standard_normal((6, 6)) / np.sqrt(6)
        x, across = np.linalg.qr(rng.standard_normal((6, 2)))[0].T
        z = np.random.default_rng(int(rng.integers(2**32))).standard_normal(6)
        z /= np.linalg.norm(z)
        for k, cosine in enumerate((-0.5, 1.0)):
            y = cosine * x + np.sqrt(1 - cosine**2) * across
            assert x @ y == pytest.approx(cosine)
            assert found.squares[k, i] == pytest.approx(6 * (x @ C @ y) ** 2)
            assert found.products[k, i] == pytest.approx(6 * (z @ C @ x) * (z @ C @ y))


def test_the_bound_is_reached_by_no_score_and_by_many_with_the_printed_factor():
    right, printed = bound_ratios(12, 4, 200)
    assert right.max() < 1 and (printed >= right).all() and (printed > 1).mean() > 0.05
    rng = np.random.default_rng(0)  # the first of them, written out
    Wq, Wk = rng.standard_normal((2, 4, 12)) / np.sqrt(12)
    x, y = np.random.default_rng(int(rng.integers(2**32))).standard_normal((2, 12))
    lengths = np.linalg.norm(x) * np.linalg.norm(y)
    bound = np.linalg.svd(Wq)[1][0] * np.linalg.svd(Wk)[1][0] * lengths
    assert right[0] == pytest.approx(abs(x @ Wq.T @ Wk @ y) / bound)
    assert printed[0] == pytest.approx(abs(x @ Wq.T @ Wk @ y) / (bound * abs(x @ y) / lengths))


def test_traces_are_those_of_matrices_with_these_bases():
    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((2, 5, 5))
    (U, _, Vt), (_, b, _) = np.linalg.svd(A), np.linalg.svd(B)
    found = aligned_traces(5, 1, 0)
    assert found["unrelated"][0] == pytest.approx(np.trace(A.T @ B) / 25)
    assert found["aligned, paired by rank"][0] == pytest.approx(np.trace(A.T @ ((U * b) @ Vt)) / 25)
    assert 0.6 < aligned_traces(40, 5)["aligned, paired at random"].mean() < 0.8


def test_the_order_of_spectra_does_not_matter():
    spectrum = np.array([3.0, 1.0, 0.5, 0.1])
    for other in (spectrum, spectrum[::-1]):
        drawn = traces_of_spectra(spectrum, other, 4000)
        assert drawn.var() == pytest.approx(trace_variance(spectrum, other, (4, 4)), rel=0.15)
