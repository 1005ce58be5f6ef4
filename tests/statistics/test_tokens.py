"""Gaussians of tokens: windows, pairs at a distance, and the next token, against processes that are known."""

import numpy as np
import pytest

import headscape as hs
from headscape.statistics import gaussian as G
from headscape.statistics import tokens as T

DRAWS = 400_000


def autoregressive(n_sequences, n_tokens, dim, a, seed=0):
    """x_{i+1} = a x_i + sqrt(1 - a^2) noise: every entry has correlation a^r at distance r."""
    rng = np.random.default_rng(seed)
    x = np.empty((n_sequences, n_tokens, dim))
    x[:, 0] = rng.normal(size=(n_sequences, dim))
    for i in range(1, n_tokens):
        x[:, i] = a * x[:, i - 1] + np.sqrt(1 - a * a) * rng.normal(size=(n_sequences, dim))
    return x


def test_information_by_distance_of_a_known_process():
    """-dim/2 log(1 - a^{2r}): less the null it is met within four of its standard errors."""
    a, dim, distances = 0.8, 4, [1, 2, 4, 16]
    found = T.information_by_distance(list(autoregressive(8, 1500, dim, a)), distances, 32)
    expected = -dim / 2 * np.log(1 - a ** (2 * np.array(distances)))
    assert (np.abs(found.excess - expected) < 4 * found.error + 1e-3).all()
    assert (found.error < 0.05).all() and (found.shrinkage == 0).all()
    assert found.subspace.kept == pytest.approx(1) and found.subspace.dim == dim
    assert found.null.max() < 0.01 and (np.diff(found.information) < 0).all()


def test_shuffled_pairs_show_what_few_samples_pretend():
    """Independent tokens, 300 pairs in 2 x 10 dimensions: the bias is about dim^2 / 2n, and the null finds it."""
    x = np.random.default_rng(1).normal(size=(1, 301, 10))
    found = T.information_by_distance(list(x), [1], 10, n_shuffles=20)
    assert found.information[0] > 0.1
    assert found.null[0] == pytest.approx(10**2 / (2 * 300), rel=0.25)  # the next term of the bias is a tenth of it
    assert abs(found.excess[0]) < 0.08
    assert np.isnan(found.error[0])  # one sequence


def test_joint_gaussian_of_a_window():
    """Blocks S_ij of an autoregressive process are a^|i-j| I.

    Its 12,000 tokens count as 12,000 (1 - a^2)/(1 + a^2) = 2,600: an entry errs by up to sqrt(2/2600) = .028, and .12
    is four times that.
    """
    a = 0.8
    found = T.window_gaussian(list(autoregressive(8, 1500, 3, a)), 4, 3)
    turn = found.subspace.basis
    for i in range(4):
        for j in range(4):
            np.testing.assert_allclose(turn.T @ found.block(i, j) @ turn, a ** abs(i - j) * np.eye(3), atol=0.12)
    assert found.gaussian.dim == 12 and found.gaussian.shrinkage == 0
    short = T.window_gaussian([np.random.default_rng(0).normal(size=(40, 8))] * 2, 4, 8)
    assert short.gaussian.shrinkage > 0  # 74 windows in 32 dimensions, and it says so


def test_window_is_the_windows_one_by_one():
    sequences = [np.random.default_rng(s).normal(size=(7 + s, 4)) for s in range(3)]
    found = T.window_gaussian(sequences, 3, 2, shrinkage=0.1)
    rows = [
        np.concatenate([found.subspace.project(s[i + k]) for k in range(3)])
        for s in sequences
        for i in range(len(s) - 2)
    ]
    slow = G.fit_gaussian(np.array(rows), 0.1)
    np.testing.assert_allclose(found.gaussian.covariance, slow.covariance, atol=1e-12)


def test_next_token_mixture_is_the_covariance_of_draws():
    rng = np.random.default_rng(8)
    v, p = rng.normal(size=(5, 12)), np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    found = T.next_token_mixture(v, 3 * p)  # scaled to sum to 1
    drawn = v[rng.choice(5, size=DRAWS, p=p)]
    np.testing.assert_allclose(found.mean, drawn.mean(axis=0), atol=0.01)  # sd of an entry about 1, / sqrt(n) = .0016
    np.testing.assert_allclose(found.covariance, np.cov(drawn.T), atol=0.02)
    np.testing.assert_allclose(found.spectrum, np.linalg.eigvalsh(found.covariance)[::-1][:5], atol=1e-12)
    assert np.linalg.matrix_rank(found.covariance) == 4 and found.spectrum[-1] == pytest.approx(0, abs=1e-12)


def test_the_printed_mixture_covariance_fails_the_same_check():
    rng = np.random.default_rng(8)
    v, p = rng.normal(size=(5, 12)), np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    printed = np.einsum("i,ij,ik->jk", p**2, v, v)  # lambda^2, not centred
    drawn = v[rng.choice(5, size=DRAWS, p=p)]
    assert np.abs(printed - np.cov(drawn.T)).max() > 10 * 0.02
    assert np.linalg.matrix_rank(printed) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: T.window_gaussian([np.zeros((4, 2))], 5), "no sequence has 5 tokens"),
        (lambda: T.information_by_distance([np.zeros((4, 2))], [3]), "between 1 and 2"),
        (lambda: T.next_token_mixture(np.eye(2), [1.0]), "do not fit"),
        (lambda: T.next_token_mixture(np.eye(2), [0.0, 0.0]), "probabilities"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(hs.InputError, match=message):
        call()
