"""The chain from scores to mixing against loops, and on heads whose scores are normal."""

import numpy as np
import pytest
from scipy.special import softmax

from headscape.statistics import chain


def slow_links(scores, probs, content, causal):
    """Row by row and key by key."""
    n = scores.shape[-1]
    places = range(n)[content]
    variance, entropy, diff = [], [], []
    other = np.random.default_rng(0).permutation(n)
    for i in places:
        keys = [j for j in places if j <= i or not causal]
        if len(keys) < 8:
            continue
        variance.append(np.var([scores[i, j] for j in keys], ddof=1))
        total = sum(probs[i, j] for j in keys)
        entropy.append(-sum(probs[i, j] / total * np.log(probs[i, j] / total) for j in keys) / np.log(len(keys)))
        diff += [abs(scores[i, j] - scores[i, other[j]]) for j in keys if other[j] in keys and other[j] != j]
    return np.array(variance), np.array(entropy), np.median(diff)


@pytest.mark.parametrize("causal", [True, False])
def test_links_are_those_of_the_loop(causal):
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(2, 14, 14)) * 2
    probs = softmax(np.where(np.tri(14, dtype=bool) | (not causal), scores, -np.inf), axis=-1)
    keys = chain.rows_and_keys(14, slice(1, 13), causal)
    found = chain.measured_links(scores, probs, keys)
    for h in range(2):
        variance, entropy, ratio = slow_links(scores[h], probs[h], slice(1, 13), causal)
        np.testing.assert_allclose(found["variance"][h], variance)
        np.testing.assert_allclose(found["entropy"][h], entropy)
        assert found["ratio"][h] == pytest.approx(ratio)
    values, outputs = rng.normal(size=(2, 14, 3)), rng.normal(size=(2, 14, 3))
    rows = np.flatnonzero(keys.any(axis=1))
    spread = [np.sqrt(sum(np.var(x[1, rows, d]) for d in range(3))) for x in (outputs, values)]
    assert chain.mixing(values, outputs, keys)[1] == pytest.approx(spread[0] / spread[1])


def test_normal_scores_have_the_entropy_and_ratio_of_their_variance():
    rng = np.random.default_rng(0)
    for n, v in ((100, 0.5), (40, 4.0), (300, 20.0)):
        scores = rng.normal(size=(400, n)) * np.sqrt(v)
        p = softmax(scores, axis=1)
        drawn = -(p * np.log(p)).sum(axis=1).mean() / np.log(n)
        assert float(chain.expected_entropy(n, v)) == pytest.approx(drawn, abs=0.02)
        assert np.median(np.abs(scores[:, 0] - scores[:, 1])) == pytest.approx(chain.MEDIAN * np.sqrt(v), rel=0.15)
    assert float(chain.expected_entropy(1000, 0.01)) == pytest.approx(1 - 0.01 / (2 * np.log(1000)), abs=2e-3)


def test_the_predicted_variance_is_that_of_drawn_rows():
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(2, 3, 3))
    mean_q, mean_k, forms = rng.normal(size=3), rng.normal(size=3), rng.normal(size=(2, 3, 3))
    q = rng.normal(size=(2000, 3)) @ A.T + mean_q
    k = rng.normal(size=(400, 3)) @ B.T + mean_k
    # half of a query's keys are at one distance, half at another
    scores = np.concatenate([q @ forms[0] @ k[:200].T, q @ forms[1] @ k[200:].T], axis=1)
    predicted = chain.row_variance_predicted(forms, mean_q, A @ A.T, mean_k, B @ B.T)
    assert scores.var(axis=1).mean() == pytest.approx(predicted, rel=0.1)
    M = A @ A.T + np.outer(mean_q, mean_q)
    own = [np.einsum("ij,jk,lk,li->", C, B @ B.T, C, M) for C in forms]  # the slow twin: sums written out
    apart = [(C - forms.mean(axis=0)) @ mean_k for C in forms]
    assert predicted == pytest.approx(np.mean(own) + np.mean([a @ M @ a for a in apart]))


def test_rows_that_average_independent_tokens_shrink_them_as_said():
    rng = np.random.default_rng(2)
    n = 200
    even = chain.mixed_by(np.ones((1, n)), np.full(n, float(n)))
    assert even[0] == pytest.approx(n**-0.5)
    weights = np.stack([softmax(rng.normal(size=n)) for _ in range(n)])
    values = rng.normal(size=(1, n, 64))
    entropy = -(weights * np.log(weights)).sum(axis=1)[None] / np.log(n)
    measured = chain.mixing(values, weights[None] @ values, np.ones((n, n), dtype=bool))
    said = chain.mixed_by(entropy, np.full(n, float(n)))
    assert 0.6 < float(measured[0] / said[0]) < 1.4
