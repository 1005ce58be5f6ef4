"""Embedding cosines against attention: rank correlations, also with distance held fixed."""

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

import headscape as hs
from headscape.statistics.cosines import PermutedCosines, _ranks, cosines, rank_correlations


def a_map(n, seed=0, heads=None):
    scores = 2 * np.random.default_rng(seed).normal(size=(*([heads] if heads else []), n, n))
    weights = np.exp(scores) * np.tri(n)
    return weights / weights.sum(axis=-1, keepdims=True)


def test_rank_correlations_against_scipy():
    n = 14
    A, V = np.stack([a_map(n, 1), a_map(n, 2)]), np.random.default_rng(0).normal(size=(n, 5))
    C = cosines(V)
    np.testing.assert_allclose(C[3, 5], V[3] @ V[5] / np.linalg.norm(V[3]) / np.linalg.norm(V[5]))
    for start in (0, 1):
        found = rank_correlations(A[:, start:, start:], PermutedCosines(C[start:, start:], 20))
        pairs = [(i, j) for i in range(start, n) for j in range(start, i)]
        c, d = (np.array([f(i, j) for i, j in pairs]) for f in (lambda i, j: C[i, j], lambda i, j: i - j))
        for k in range(2):
            a = np.array([A[k, i, j] for i, j in pairs])
            assert found.rho[k] == pytest.approx(spearmanr(a, c)[0])
            residuals = []
            for x in (a, c):
                line = np.polyfit(rankdata(d), rankdata(x), 1)
                residuals.append(rankdata(x) - np.polyval(line, rankdata(d)))
            assert found.partial[k, 0] == pytest.approx(np.corrcoef(*residuals)[0, 1])
    for maps, cosine in ((A[:, :2, :2], C[:2, :2]), (A[0], C)):
        with pytest.raises(hs.InputError, match="the same tokens, at least 3"):
            rank_correlations(maps, PermutedCosines(cosine, 5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_ranks_are_those_of_scipy(dtype):
    rng = np.random.default_rng(0)
    values = np.stack([rng.integers(0, 9, 60), rng.permutation(60), np.zeros(60)]).astype(dtype)
    np.testing.assert_array_equal(_ranks(values), rankdata(values, axis=1))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_permutations_at_once_are_those_one_at_a_time(causal, kept, monkeypatch):
    """The slow twin: cosines of permuted tokens ranked anew, a line in the ranks of distances taken out of both sides."""
    n, permutations = 11, 23  # not a multiple of how many are taken at once
    A, C = np.exp(a_map(n, 5, heads=3)), cosines(np.random.default_rng(6).normal(size=(n, 4)))
    monkeypatch.setattr("headscape.statistics.cosines.KEPT_BYTES", 1 << 20 if kept else 0)
    permuted = PermutedCosines(C, permutations, 8, causal=causal)
    found = rank_correlations(A, permuted)
    np.testing.assert_allclose(rank_correlations(A[::-1], permuted).partial, found.partial[::-1], atol=1e-14)
    i, j = np.tril_indices(n, -1) if causal else np.nonzero(~np.eye(n, dtype=bool))
    rng, d = np.random.default_rng(8), rankdata(np.abs(i - j))
    for k in range(1 + permutations):
        turn = rng.permutation(n) if k else np.arange(n)
        for head in range(3):
            ranks = [rankdata(A[head, i, j]), rankdata(C[turn[i], turn[j]])]
            left = [x - np.polyval(np.polyfit(d, x, 1), d) for x in ranks]
            assert found.partial[head, k] == pytest.approx(np.corrcoef(*left)[0, 1])


def test_maps_that_are_not_causal_are_compared_both_ways():
    n = 9
    A, C = (
        np.random.default_rng(3).dirichlet(np.ones(n), size=(2, n)),
        cosines(np.random.default_rng(4).normal(size=(n, 4))),
    )
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    found = rank_correlations(A, PermutedCosines(C, 3, causal=False))
    for k in range(2):
        assert found.rho[k] == pytest.approx(spearmanr([A[k, i, j] for i, j in pairs], [C[i, j] for i, j in pairs])[0])


def test_cosines_of_a_stack_and_of_zero():
    V = np.random.default_rng(1).normal(size=(3, 5, 4))
    V[1, 2] = 0
    found = cosines(V)
    assert found.shape == (3, 5, 5) and not found[1, 2].any()
    np.testing.assert_allclose(found[2, 0, 1], V[2, 0] @ V[2, 1] / np.linalg.norm(V[2, 0]) / np.linalg.norm(V[2, 1]))


def test_permutations_tell_a_planted_relation_from_none():
    n = 24
    C = cosines(np.random.default_rng(0).normal(size=(n, 6)))
    planted = np.exp(4 * C) * np.tri(n)
    planted /= planted.sum(axis=1, keepdims=True)
    found = rank_correlations(planted[None], PermutedCosines(C, 199))
    assert found.p[0] == 1 / 200 and found.partial[0, 0] > 0.5
    nothing = rank_correlations(np.stack([a_map(n, seed) for seed in range(100, 160)]), PermutedCosines(C, 99))
    assert 0.01 <= (nothing.p <= 0.1).mean() <= 0.25  # 0.1 expected of 60
    near = np.tri(n) / np.arange(1, n + 1)[:, None] * 0.5 ** np.abs(np.arange(n)[:, None] - np.arange(n))
    recent = np.exp(-0.3 * np.abs(np.arange(n)[:, None] - np.arange(n)))
    # both follow distance: nothing is left when it is held fixed
    only_distance = rank_correlations(near[None], PermutedCosines(recent, 9))
    assert only_distance.rho[0] > 0.5 > abs(only_distance.partial[0, 0])
