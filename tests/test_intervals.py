"""Intervals cover what they say, whatever the number of inputs."""

import numpy as np
import pytest

from headscape.intervals import jackknife, mean_interval, median_interval

DRAWS = 2000


def coverage(make, interval, truth, seed=0):
    """Share of draws whose interval holds the truth; draws without an interval do not count."""
    rng = np.random.default_rng(seed)
    found = [interval(make(rng)) for _ in range(DRAWS)]
    known = [one for one in found if one.known]
    return np.mean([one.low <= truth <= one.high for one in known]), len(known) / DRAWS


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_means_and_paired_differences_of_normal_inputs_are_covered(n):
    share, known = coverage(lambda rng: rng.normal(3, 2, n), mean_interval, 3)
    assert 0.93 <= share <= 0.97 and known == 1

    def paired(rng):
        common = rng.normal(0, 5, n)
        return (common + rng.normal(1, 1, n)) - (common + rng.normal(0, 1, n))

    share, known = coverage(paired, mean_interval, 1)
    assert 0.93 <= share <= 0.97 and known == 1


@pytest.mark.parametrize("draw", ["normal", "lognormal"])
@pytest.mark.parametrize("n", [6, 10, 30])
def test_medians_are_covered_whatever_the_distribution(n, draw):
    truth = 1.0 if draw == "lognormal" else 0.0
    share, known = coverage(lambda rng: getattr(rng, draw)(0, 1, n), median_interval, truth)
    assert share >= 0.94 and known == 1


def test_medians_of_few_inputs_have_no_interval():
    for n in (1, 2, 3, 5):
        assert not median_interval(np.arange(n)).known


def test_the_jackknife_covers_means_over_pairs():
    """Mean over pairs of |x - y|^2 / 2 is the variance."""
    n = 12

    def pairs(x):
        return jackknife(lambda chosen: x[chosen].var(ddof=1), n)

    share, _ = coverage(lambda rng: rng.uniform(0, 1, n), pairs, 1 / 12)
    assert share > 0.92


def test_nan_inputs_do_not_count():
    assert mean_interval([1.0, np.nan, 3.0]) == mean_interval([1.0, 3.0])
    assert mean_interval([np.nan]).n == 0
