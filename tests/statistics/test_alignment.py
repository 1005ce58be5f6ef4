"""Base alignment of queries and keys, and its p-values under random rotations."""

import numpy as np
import pytest
from scipy.stats import ks_2samp, kurtosis, norm, ortho_group

import headscape as hs
from headscape.statistics.alignment import (
    alignment_z,
    random_corners,
    rotation_test,
    rotations_of,
    score_spectrum,
    shared_directions,
    symmetric_share,
)


def noise(shape, sd=0.7, seed=0):
    return sd * np.random.default_rng(seed).normal(size=shape)


def p_values(queries, keys, n_rotations):
    """P-values of every head against a key head of its own."""
    s, t = (np.linalg.svd(w, compute_uv=False) for w in (queries, keys))
    return rotation_test(alignment_z(queries, keys), s, t, queries.shape[2], n_rotations)[0]


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
        with pytest.raises(hs.InputError, match="head"):
            alignment_z(q, bad)


def test_the_same_matrix_is_fully_aligned():
    W = noise((1, 6, 20))
    assert alignment_z(W, W)[0] == pytest.approx(np.sqrt(6 * 20))
    assert p_values(W, W, 199)[0] == p_values(W, -W, 199)[0] == 1 / 200  # two-sided
    assert alignment_z(np.zeros((1, 6, 20)), W)[0] == 0 and p_values(np.zeros((1, 6, 20)), W, 9)[0] == 1
    with pytest.raises(hs.InputError, match="at least one rotation"):
        p_values(W, W, 0)


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
    p = p_values(W, turned, 400)  # unrelated pairs: p uniform, 2 to 22 of 100 below 0.1 is the 99.9 % range
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


def test_shared_directions_are_1_for_one_subspace_and_0_for_orthogonal_ones():
    low, high = noise((3, 8, 20)), noise((3, 8, 20), seed=1)
    low[:, :, 10:] = high[:, :, :10] = 0  # inputs 0 to 9, and 10 to 19
    np.testing.assert_allclose(shared_directions(low, 2 * low), 1)
    np.testing.assert_allclose(shared_directions(low, high), 0, atol=1e-12)
    np.testing.assert_allclose(
        shared_directions(noise((400, 8, 20), seed=2), noise((400, 8, 20), seed=3)).mean(), 4 / 20, atol=0.01
    )
