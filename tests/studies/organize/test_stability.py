import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from headscape.studies.organize.stability import kendall_w, stability


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(4, 12))
def test_w_is_the_mean_spearman_in_disguise(seed, m, n):
    values = np.random.default_rng(seed).standard_normal((m, n))
    w, _ = kendall_w(values)
    pairs = [spearmanr(values[i], values[j]).statistic for i in range(m) for j in range(i)]
    assert (m * w - 1) / (m - 1) == pytest.approx(np.mean(pairs))


def test_w_with_ties_still_reaches_one():
    assert kendall_w([[1, 1, 2, 3], [5, 5, 6, 9]])[0] == pytest.approx(1)
    assert rankdata([1, 1, 2])[0] == 1.5


def test_random_rankings_look_like_chance():
    values = np.random.default_rng(0).standard_normal((10, 200))
    found = stability(values, "noise")
    assert found.w == pytest.approx(0.1, abs=0.03) and found.w_p > 0.001
    assert found.jaccard_bottom.value == pytest.approx(found.chance, abs=0.02)
    assert found.always_bottom == 0 and found.always_by_chance < 1e-6
    assert found.bottom.sum() == found.top.sum() == 10 * 20


def test_a_planted_tail_is_found_in_every_batch():
    rng = np.random.default_rng(1)
    values = rng.standard_normal((8, 50))
    values[:, :3] -= 50
    values[:, 40:42] += 50
    found = stability(values, "planted")
    assert (found.bottom[:3] == 8).all() and (found.top[40:42] == 8).all()
    assert found.n_extreme == 5 and found.always_bottom >= 3
    assert found.jaccard_bottom.low > found.chance


def test_one_batch_has_no_stability():
    found = stability(np.arange(10.0)[None], "one")
    assert np.isnan(found.w) and np.isnan(found.jaccard_bottom.value)


def test_chance_is_the_mean_overlap_of_all_pairs_of_sets():
    sets = [set(chosen) for chosen in itertools.combinations(range(7), 3)]
    overlaps = [len(a & b) / len(a | b) for a, b in itertools.product(sets, sets)]
    assert stability(np.zeros((2, 7)), "any", share=3 / 7).chance == pytest.approx(np.mean(overlaps))
