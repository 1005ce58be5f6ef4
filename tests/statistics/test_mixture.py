"""Mixtures of tokens: propagation against Monte Carlo, and the uniform embedding mixture with its counterexample."""

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal

import headscape as hs
from headscape.statistics import mixture as M
from headscape.statistics.gaussian import Gaussian, entropy, mutual_information

DRAWS = 400_000
N, D = 3, 2


def a_joint(n=N, dim=D, seed=0):
    rng = np.random.default_rng(seed)
    root = 0.5 * rng.normal(size=(n * dim, n * dim)) / np.sqrt(dim) + np.eye(n * dim)
    return Gaussian(rng.normal(size=n * dim), root @ root.T)


def some_weights(n=N, dim=D, seed=1):
    rng = np.random.default_rng(seed)
    return softmax(rng.normal(size=(n, n)), axis=1), rng.normal(size=(dim, dim))


def test_propagated_moments_are_those_of_mixed_draws():
    """An entry of the covariance errs by about sqrt(2/n) of its size, here up to 5: .05 is four times that."""
    joint, (A, Wv) = a_joint(), some_weights()
    found = M.propagate(joint, A, Wv)
    tokens = joint.sample(DRAWS).reshape(-1, N, D)
    mixed = np.einsum("ij,kjd,ed->kie", A, tokens, Wv).reshape(-1, N * D)
    np.testing.assert_allclose(found.mean, mixed.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(found.covariance, np.cov(mixed.T), atol=0.05)


def test_propagation_block_by_block():
    """Cov(out_k, out_l) = sum_ij A_ki A_lj Wv S_ij Wv^T, the thesis' section 7.1.1 with its value map put back."""
    joint, (A, Wv) = a_joint(), some_weights()
    found = M.propagate(joint, A, Wv)
    S = joint.covariance.reshape(N, D, N, D).swapaxes(1, 2)
    for k in range(N):
        for l in range(N):
            block = sum(A[k, i] * A[l, j] * Wv @ S[i, j] @ Wv.T for i in range(N) for j in range(N))
            np.testing.assert_allclose(found.covariance[k * D : (k + 1) * D, l * D : (l + 1) * D], block, atol=1e-10)


def test_moments_of_mixed_samples_are_the_propagated_moments_of_the_samples():
    """Why the study needs no joint matrix: a fixed map on the samples gives the propagated moments exactly."""
    rng = np.random.default_rng(2)
    tokens, (A, Wv) = rng.normal(size=(50, N, D)) * [1, 3], some_weights()
    flat = tokens.reshape(50, -1)
    found = M.propagate(Gaussian(flat.mean(axis=0), np.cov(flat.T, bias=True)), A, Wv)
    mixed = np.einsum("ij,kjd,ed->kie", A, tokens, Wv).reshape(50, -1)
    np.testing.assert_allclose(found.mean, mixed.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.covariance, np.cov(mixed.T, bias=True), atol=1e-12)


def test_weights_that_depend_on_the_data_make_propagation_wrong():
    """The toy of the specification: attention of the tokens themselves, 19 to 81 % off; a fixed map is not off."""
    rng = np.random.default_rng(3)
    joint = Gaussian(np.zeros(6 * 4), np.eye(24))
    tokens = joint.sample(40_000).reshape(-1, 6, 4)
    W = M.Weights(*(1.5 * rng.normal(size=(3, 4, 4)) / 2))
    Q, K, V = (tokens @ w.T for w in W)
    P = softmax(Q @ K.swapaxes(1, 2) / 2, axis=2)
    measured = np.cov((P @ V).reshape(-1, 24).T)
    propagated = M.propagate(joint, P.mean(axis=0), W.value)
    assert 0.15 < M.relative_difference(propagated.covariance, measured) < 0.9
    fixed = np.cov((P.mean(axis=0) @ V).reshape(-1, 24).T)
    assert M.relative_difference(propagated.covariance, fixed) < 0.05  # of 576 entries, each off by sqrt(2/40,000)


def test_entropy_and_information_after_attention():
    joint, (A, Wv) = a_joint(), some_weights()
    after = M.propagate(joint, A, Wv)
    S = after.covariance
    assert M.token_entropy(after, N, 1) == pytest.approx(entropy(Gaussian(np.zeros(D), S[D : 2 * D, D : 2 * D])))
    pair = np.r_[0:D, 2 * D : 3 * D]
    expected = mutual_information(Gaussian(np.zeros(2 * D), S[np.ix_(pair, pair)]), D)
    assert M.information_between(after, N, 0, 2) == pytest.approx(expected)
    independent = Gaussian(np.zeros(N * D), np.eye(N * D))
    assert M.information_between(independent, N, 0, 1) == pytest.approx(0, abs=1e-12)
    assert M.information_between(M.propagate(independent, A, np.eye(D)), N, 0, 1) > 0.1  # mixing makes tokens dependent
    merged = M.propagate(joint, np.full((N, N), 1 / N), np.eye(D))
    with pytest.raises(
        hs.InputError, match="singular"
    ):  # uniform weights: the tokens are one, their joint has no density
        M.information_between(merged, N, 0, 1)


# ---------------------------------------------------------------------- do tokens become one?


def random_layers(depth, dim, seed=4):
    rng = np.random.default_rng(seed)
    return [M.Weights(*(rng.normal(size=(3, dim, dim)) / np.sqrt(dim))) for _ in range(depth)]


def test_tokens_become_one_with_random_weights():
    X = np.random.default_rng(5).normal(size=(20, 32)) / np.sqrt(32)
    found = M.spread_by_depth(X, random_layers(8, 32))
    residuals = [spread.residual for spread in found]
    assert residuals[0] > 0.9 and residuals[-1] < 1e-3 and np.all(np.diff(residuals[:4]) < 0)
    assert found[-1].cosine > 0.999
    kept = M.spread_by_depth(X, random_layers(8, 32), skip=0.9)  # nine tenths of every token go past the layer
    assert kept[-1].residual > 0.5


def test_the_hypothesis_as_stated_is_false():
    """Wq = Wk = Wv = 2I, norms of 2 as it allows, and orthogonal tokens: each attends to itself and they never mix."""
    n = 8
    twice = M.Weights(*[2 * np.eye(n)] * 3)
    X = 4 * np.eye(n)
    found = M.spread_by_depth(X, [twice] * 50)
    assert found[-1].residual > 0.9 * found[0].residual
    assert found[-1].cosine < 0.01


@pytest.mark.parametrize("causal", [False, True])
def test_one_step_of_attention_written_out(causal):
    rng = np.random.default_rng(6)
    X, W = rng.normal(size=(4, 3)), M.Weights(*rng.normal(size=(3, 3, 3)))
    found = M.attention_step(X, W, skip=0.25, causal=causal)
    for i in range(4):
        seen = range(i + 1) if causal else range(4)
        weights = np.exp([(W.query @ X[i]) @ (W.key @ X[j]) / np.sqrt(3) for j in seen])
        mixed = sum(w * (W.value @ X[j]) for w, j in zip(weights / weights.sum(), seen, strict=True))
        np.testing.assert_allclose(found[i], 0.75 * mixed + 0.25 * X[i])


def test_token_spread():
    X = np.random.default_rng(7).normal(size=(6, 4)) + 1
    found = M.token_spread(X)
    assert found.residual == pytest.approx(np.linalg.norm(X - X.mean(axis=0)) / np.linalg.norm(X))
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(6) for j in range(6) if i != j]
    assert found.cosine == pytest.approx(np.mean(pairs))
    assert M.token_spread(X * 100).residual == pytest.approx(found.residual)


def test_share_of_variance_that_positions_explain():
    """Positions with means of variance v among tokens of variance 1 have v/(1+v); 60 x 200 tokens err by some .01."""
    rng = np.random.default_rng(8)
    noise = rng.normal(size=(60, 200, 5))
    assert M.position_share(noise) < 0.01
    means = np.sqrt(0.5) * rng.normal(size=(1, 200, 5))
    assert M.position_share(noise + means) == pytest.approx(0.5 / 1.5, abs=0.03)
    assert M.position_share(np.repeat(means, 3, axis=0)) == pytest.approx(1)
    few = rng.normal(size=(3, 200, 5))  # uncorrected, three inputs would show a third
    assert M.position_share(few) < 0.02


def test_energy_rank():
    rng = np.random.default_rng(9)
    U, V = np.linalg.qr(rng.normal(size=(12, 12)))[0], np.linalg.qr(rng.normal(size=(12, 12)))[0]
    P = (U * np.sqrt([60, 25, 10] + [5 / 9] * 9)) @ V
    assert [M.energy_rank(P, share) for share in (0.5, 0.85, 0.9, 0.95)] == [1, 2, 3, 3]
    assert M.energy_rank(np.zeros((3, 3))) == 0
    for shape in ((7, 7), (5, 9), (9, 5)):  # the slow twin: singular values
        A = rng.normal(size=shape) ** 3
        assert all(M.energy_rank(A, s) == M.energy_rank(np.linalg.svd(A)[1], s) for s in (0.3, 0.6, 0.9, 0.99, 1.0))
    for sink in (0.5, 0.8, 0.9, 0.95, 0.99):  # maps that rest on their first token, around the share itself
        A = sink * np.eye(30)[0] + (1 - sink) * rng.dirichlet(np.ones(30), size=30)
        assert all(M.energy_rank(A, s) == M.energy_rank(np.linalg.svd(A)[1], s) for s in (0.9, 0.99, 0.999))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: M.propagate(a_joint(), np.eye(4), np.eye(2)), "the joint has 6"),
        (lambda: M.token_entropy(a_joint(), 4, 0), "does not hold 4 tokens"),
        (lambda: M.token_entropy(a_joint(), 3, 3), "tokens 0 to 2"),
        (lambda: M.information_between(a_joint(), 3, 1, 1), "name two tokens"),
        (lambda: M.token_spread(np.zeros((1, 3))), "two or more rows"),
        (lambda: M.position_share(np.zeros((1, 4, 3))), "two inputs"),
        (lambda: M.energy_rank(np.eye(2), 0.0), "above 0 and up to 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(hs.InputError, match=message):
        call()


def slow_divergence(tokens):
    """Jensen-Shannon of thirds in the leading components, by densities of scipy at the draws of each Gaussian."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    centred = flat - flat.mean(axis=0)
    projected = centred @ np.linalg.svd(centred, full_matrices=False)[2][:8].T
    third = np.array(
        [3 * position // tokens.shape[1] for _ in range(len(tokens)) for position in range(tokens.shape[1])]
    )
    parts = [projected[third == k] for k in range(3)]
    laws = [multivariate_normal(x.mean(axis=0), np.cov(x.T)) for x in parts]
    found = []
    for p, q in ((laws[0], laws[1]), (laws[0], laws[2]), (laws[1], laws[2])):
        halves = []
        for own, other in ((p, q), (q, p)):
            x = own.rvs(4000, random_state=1)
            mixture = 0.5 * (own.pdf(x) + other.pdf(x))
            halves.append(np.mean(np.log(own.pdf(x) / mixture)))
        found.append(np.mean(halves))
    return np.mean(found)


def test_positions_with_other_means_diverge_and_equal_ones_do_not():
    rng = np.random.default_rng(0)
    same = rng.normal(size=(20, 60, 10))
    ((own, null),) = M.position_divergence(same)
    assert own == pytest.approx(null, abs=0.01)
    shifted = same + np.linspace(0, 3, 60)[:, None] * np.eye(10)[0]
    ((own, null),) = M.position_divergence(shifted)
    assert own == pytest.approx(slow_divergence(shifted), abs=0.03) and own > 5 * null
    ((far, _),) = M.position_divergence(same + 300 * np.repeat(np.arange(3), 20)[:, None] * np.eye(10)[0])
    assert far == pytest.approx(np.log(2), abs=1e-3)
    every = M.position_divergence(shifted[:4], left_out=True)
    assert every.shape == (5, 2) and every[0].tolist() == M.position_divergence(shifted[:4])[0].tolist()
    assert np.abs(every[1:, 0] - every[0, 0]).max() < 0.1
