"""Similarities of tokens and entropies of attention, against entry-by-entry twins."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscape as hs
from headscape.collapse.similarity import (
    ALIKE,
    BINS,
    attention_entropy,
    histogram,
    layer_histograms,
    points_of,
    shown_layers,
    summary_of,
    token_similarities,
)


@given(st.integers(2, 9), st.integers(1, 6), st.integers(0, 50))
@settings(deadline=None, max_examples=40)
def test_cosines_of_pairs(n, width, seed):
    rng = np.random.default_rng(seed)
    X, labels = rng.normal(size=(n, width)), rng.integers(0, 3, size=n)
    every, different = [], []
    for i in range(n):
        for j in range(i + 1, n):
            cosine = X[i] @ X[j] / math.sqrt((X[i] @ X[i]) * (X[j] @ X[j]))
            every.append(cosine)
            if labels[i] != labels[j]:
                different.append(cosine)
    np.testing.assert_allclose(token_similarities(X), every, atol=1e-12)
    np.testing.assert_allclose(token_similarities(X, labels), different, atol=1e-12)


def test_a_token_of_zeros_has_no_direction():
    X = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(token_similarities(X), [math.sqrt(0.5)])
    assert len(token_similarities(np.ones((1, 4)))) == 0
    assert (token_similarities(np.full((5, 3), 0.1)) <= 1).all()  # round-off does not leave the range


@given(st.integers(0, 50), st.integers(1, 500), st.floats(0, 1))
@settings(deadline=None, max_examples=40)
def test_a_summary_is_that_of_the_values_to_the_width_of_a_bin(seed, n, alike):
    rng = np.random.default_rng(seed)
    values = np.clip(rng.normal(0.2, 0.3, size=n), -1, 1)
    values[rng.random(n) < alike] = rng.uniform(0.9901, 1)
    found = summary_of(histogram(values))
    assert found.mean == pytest.approx(values.mean(), abs=1 / BINS + 1e-9)
    low, high = np.sort(values)[[(n - 1) // 2, n // 2]]
    assert low - 1.01 / BINS <= found.median <= high + 1.01 / BINS
    assert found.share == pytest.approx((values >= ALIKE).mean(), abs=1e-9)
    counts = {b: sum(-1 + 0.02 * b <= v < -1 + 0.02 * (b + 1) for v in values) for b in range(99)}
    counts[99] = sum(v >= 0.98 for v in values)
    assert counts[round((found.mode + 1) / 0.02 - 0.5)] >= max(counts.values()) - 1  # edges may round either way


def test_histograms_by_layer_count_every_pair_once():
    rng = np.random.default_rng(0)
    states, labels = rng.normal(size=(3, 6, 4)), [0, 0, 1, 2, 2, 2]
    every, different = layer_histograms(states), layer_histograms(states, labels)
    assert every.sum(axis=1).tolist() == [15] * 3 and different.sum(axis=1).tolist() == [15 - 1 - 3] * 3
    np.testing.assert_array_equal(every[1], histogram(token_similarities(states[1])))


@pytest.mark.parametrize("n", range(1, 60))
def test_shown_layers_leave_out_none_where_all_fit(n):
    found = shown_layers(n)
    assert found[0] == 0 and found[-1] == n - 1 and len(found) <= 9
    assert n > 9 or found == list(range(n))
    assert len(set(np.diff(found)[:-1])) <= 1  # at equal distances, but for the last


def test_an_empty_histogram_says_nothing():
    assert all(math.isnan(v) for v in summary_of(np.zeros(BINS)))
    assert len(points_of(np.zeros(BINS))) == 0


def test_points_stand_for_the_histogram():
    rng = np.random.default_rng(0)
    values = np.concatenate([np.clip(rng.normal(0, 0.2, 7000), -1, 1), rng.uniform(0.995, 1, 3000)])
    points = points_of(histogram(values), n=1000)
    assert len(points) == 1000 and (np.diff(points) >= 0).all() and abs(points).max() <= 1
    wanted = np.quantile(values, (np.arange(1000) + 0.5) / 1000)
    assert np.abs(points - wanted)[10:].max() < 2 / BINS  # the first few stand in bins of one value
    assert (points > 0.99).mean() == pytest.approx(0.3, abs=0.002)


@pytest.mark.parametrize("causal", [True, False])
def test_entropy_of_rows(causal):
    rng = np.random.default_rng(0)
    n = 7
    present = np.tri(n, dtype=bool) if causal else np.ones((n, n), dtype=bool)
    P = rng.random((3, n, n)) ** 4 * present
    P[:, 2, :] = 0
    P[:, 2, 1] = 1
    P /= P.sum(axis=-1, keepdims=True)
    found = attention_entropy(P, present)
    assert found.shape == (3, n)
    for h in range(3):
        for i in range(n):
            keys = i + 1 if causal else n
            if keys == 1:
                assert np.isnan(found[h, i])
                continue
            entropy = -sum(p * math.log(p) for p in P[h, i] if p > 0)
            assert found[h, i] == pytest.approx(entropy / math.log(keys), abs=1e-12)
    assert (found[:, 2] == 0).all()
    even = present / present.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(attention_entropy(even, present)[1:], 1)


def test_what_does_not_fit_is_refused():
    with pytest.raises(hs.InputError, match=r"shape \(2, 3, 4\)"):
        token_similarities(np.ones((2, 3, 4)))
    with pytest.raises(hs.InputError, match="labels given for 3 tokens"):
        token_similarities(np.ones((3, 4)), labels=[1, 2])
    with pytest.raises(hs.InputError, match="present has shape"):
        attention_entropy(np.ones((2, 2)), np.ones((3, 2)))
    with pytest.raises(hs.InputError, match="n_query, n_key"):
        attention_entropy([1.0, 0.0])
