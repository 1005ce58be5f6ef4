"""Intervals cover what they say, whatever the number of inputs."""

import numpy as np
import pytest

from headscape.intervals import (
    Interval,
    another,
    exactly,
    jackknife,
    mean_interval,
    median_interval,
    share_change,
    share_interval,
    student_interval,
)
from headscape.studies.prune.result import percent
from headscape.studies.work.series import bars, line
from headscape.verdicts import judge

DRAWS = 2000


def coverage(make, interval, truth, seed=0):
    """Share of draws whose interval holds the truth; draws without an interval do not count."""
    rng = np.random.default_rng(seed)
    found = [interval(make(rng)) for _ in range(DRAWS)]
    known = [one for one in found if one.known]
    return np.mean([one.low <= truth <= one.high for one in known]), len(known) / DRAWS


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("mean", [0, 1, 1.5, 2, 3, 5, 10])
def test_means_and_paired_differences_of_normal_inputs_are_covered(mean, n):
    """A mean of 2 to 4 standard deviations is covered up to 97.3 % (200,000 draws): inputs of one sign may be skewed.

    Student's interval alone covers 95 % of them; with z in place of t it covers 70 to 92 % of up to ten inputs.
    """
    share, known = coverage(lambda rng: rng.normal(mean, 1, n), mean_interval, mean)
    assert 0.935 <= share <= 0.98 and known > 0.95  # a value near 0 by chance may look like another order of magnitude
    share, known = coverage(lambda rng: rng.normal(mean, 1, n), student_interval, mean)
    assert 0.935 <= share <= 0.965 and known == 1

    def paired(rng):
        common = rng.normal(0, 5, n)
        return (common + rng.normal(mean, 0.6, n)) - (common + rng.normal(0, 0.8, n))

    share, known = coverage(paired, mean_interval, mean)
    assert 0.935 <= share <= 0.98 and known > 0.95


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5])
def test_means_of_skewed_inputs_are_covered_or_not_given(n, sigma):
    """Student's interval alone covers 69 to 94 % of them."""
    share, _ = coverage(lambda rng: rng.lognormal(0, sigma, n), mean_interval, np.exp(sigma**2 / 2))
    assert share >= 0.9


def test_few_inputs_over_many_orders_of_magnitude_have_no_interval():
    few = mean_interval([1e-8, 1e-3, 0.5])
    assert not few.known and few.why == "too few to say" and few.n == 3
    assert mean_interval(np.geomspace(1e-8, 0.5, 10)).known


def test_ends_that_say_nothing_are_not_shown_and_still_decide():
    """Two inputs that differ by a factor of six: the interval for log-normal ones ends at some millions."""
    far = mean_interval([0.2, 1.2])
    assert far.known and far.low < 0 and far.high > 1e6
    assert not far.readable and str(far) == "0.7 (n = 2, too few to say)"
    assert str(judge(far, above=0.5).why) == "0.7 (n = 2, too few to say) and 0.5 overlap"
    assert str(far.scaled(100)) == "70 (n = 2, too few to say)" and percent(far) == "+70.00% (n = 2)"
    drawn = bars({"two": far, "three": mean_interval([1.0, 1.1, 1.2]), "a formula": exactly(1.0)})
    assert np.isnan(drawn["high"]).tolist() == [True, False, True] and "high" not in line("two", [0], [far])
    assert mean_interval([0.2, 0.3]).readable and mean_interval([-1e-9, 1.0, -0.9]).readable


@pytest.mark.parametrize("n", [3, 10])
def test_one_more_draw_lies_where_another_says(n):
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(DRAWS):
        *seen, new = rng.normal(1, 2, n + 1)
        found = another(seen)
        inside.append(found.low <= new <= found.high)
    assert 0.93 <= np.mean(inside) <= 0.97
    assert not another([1.0]).known


@pytest.mark.parametrize("draw", ["normal", "lognormal"])
@pytest.mark.parametrize("n", [6, 10, 30])
def test_medians_are_covered_whatever_the_distribution(n, draw):
    truth = 1.0 if draw == "lognormal" else 0.0
    share, known = coverage(lambda rng: getattr(rng, draw)(0, 1, n), median_interval, truth)
    assert share >= 0.94 and known == 1


def test_medians_of_few_inputs_have_no_interval():
    for n in (1, 2, 3, 5):
        assert not median_interval(np.arange(n)).known


@pytest.mark.parametrize("n", [8, 30])
def test_a_median_whose_ends_agree_takes_inputs_further_out(n):
    """Draws of 0 or 1, all but a few of them 0: the median is 0, and an interval of no width would claim to know it."""
    assert median_interval([0.0] * (n - 1) + [2e-6]) == Interval(0.0, 0.0, 2e-6, n)
    assert median_interval([-3.0, *[0.1] * (n - 2), 5.0]) == Interval(0.1, -3.0, 5.0, n)
    found = median_interval([-3.0, -2.0, *[0.1] * (n - 4), 4.0, 5.0])
    assert (found.low, found.high) == ((-3.0, 5.0) if n == 8 else (-2.0, 4.0))
    share, known = coverage(lambda rng: (rng.uniform(size=n) < 0.1).astype(float), median_interval, 0.0)
    assert share == 1 and 0 < known < 1


def test_the_jackknife_covers_means_over_pairs():
    """Mean over pairs of |x - y|^2 / 2 is the variance."""
    n = 12

    def pairs(x):
        return jackknife(lambda chosen: x[chosen].var(ddof=1), n)

    share, _ = coverage(lambda rng: rng.uniform(0, 1, n), pairs, 1 / 12)
    assert share > 0.92


@pytest.mark.parametrize("n", [2, 5, 6, 30, 1000])
def test_inputs_that_agree_have_no_interval_of_no_width(n):
    """One input in twenty is 1 and the others are 0: thirty are often all 0, and their mean is not."""
    jackknifed = jackknife(lambda chosen: np.full(n, 0.1)[chosen].mean(), n)
    why = "too few to say" if n < 6 else "all inputs agree, so no interval"
    alike = [interval([0.1] * n) for interval in (mean_interval, median_interval, student_interval, another)]
    for found in (*alike, jackknifed):
        assert not found.known and found.why == why and found.n == n
        assert judge(found, above=0.0).verdict == "cannot tell"
        assert found.within(0, 1, step=0.1).known == (n >= 6) and not found.within(0, 1).known


def test_the_interval_of_inputs_that_agree_follows_the_step_they_are_counted_in():
    """As if one input more were a step above and one a step below: so six that agree say no less than six that nearly do."""
    exact, nearly = mean_interval([1.0] * 30).within(0, 1, step=1 / 12), mean_interval([1.0] * 29 + [11 / 12])
    assert exact.high == 1 and exact.n == 30 and nearly.low < exact.low < 1
    for n in (6, 8, 40):
        wide, narrow = (mean_interval([0.5] * n).within(0, 1, step) for step in (0.1, 0.01))
        assert wide.high - 0.5 == pytest.approx(10 * (narrow.high - 0.5)) and narrow.low < 0.5 < narrow.high
        assert mean_interval([0.5] * n).within(0, 1, 9.0).high == 1
    assert mean_interval([0.0] * 50).within(-1, 1, step=1.0).high == pytest.approx(share_change([0.0] * 50).high)


@pytest.mark.parametrize("own", [False, True], ids=["one chance for all heads", "a chance for each"])
@pytest.mark.parametrize("n_head", [3, 12, 36])
@pytest.mark.parametrize("n", [6, 8, 10, 20, 40])
def test_shares_of_heads_are_covered_also_where_nearly_all_inputs_agree(n, n_head, own):
    """With the step only where all agree, and Student's interval alone for the rest, the lowest coverage is 83 to 88 %."""
    for mean in (0.003, 0.01, 0.03, 0.05, 0.08, 0.2, 0.5):
        rng = np.random.default_rng(0)
        chances = rng.beta(0.2 * mean, 0.2 * (1 - mean), n_head) if own else np.full(n_head, mean)
        passed = rng.binomial(1, chances, (DRAWS, n, n_head)).sum(axis=2)
        kinds, counts = np.unique(np.sort(passed, axis=1), axis=0, return_counts=True)
        found = [share_interval(kind / n_head, step=1 / n_head) for kind in kinds]
        held = np.array([one.low <= chances.mean() <= one.high for one in found])
        assert all(one.known for one in found) and (held @ counts) / DRAWS > 0.9


@pytest.mark.parametrize("n", [6, 8, 10, 20, 40])
def test_shares_whose_heads_go_together_are_covered_with_a_step_of_all(n):
    """All layers of an input, or none: with a step of one layer those that all agree hold the truth in no case."""
    for p in (0.003, 0.03, 0.1, 0.3, 0.5):
        together = np.random.default_rng(0).binomial(n, p, DRAWS)
        held = [share_interval(np.arange(n) < k, step=1.0) for k in together]
        assert np.mean([one.low <= p <= one.high for one in held]) > 0.93
    assert share_interval(np.zeros(n), step=1 / 30).high < 0.03


def test_a_share_is_bounded_and_a_difference_of_shares_on_both_sides():
    every, few = share_interval(np.ones(8), step=0.1), share_interval(np.ones(5), step=0.1)
    assert every.high == 1 and every.low > 0.9 and every.n == 8 and few.why == "too few to say"
    assert share_interval([0.2, 0.9], step=0.1).low == 0 and share_interval([np.nan, 0.5, 0.7], step=0.1).n == 2
    below = share_interval([-1.0] * 8, step=1.0, low=-1.0)
    assert below.low == -1 and below.high > -0.9
    wide = np.arange(8) / 7
    assert share_interval(wide, step=1e-3) == mean_interval(wide).within(0, 1)


@pytest.mark.parametrize("n", [30, 123, 1000])
@pytest.mark.parametrize(("lost", "won"), [(0.5, 0), (1, 0), (2, 0), (3, 0), (1, 1), (5, 1), (20, 5)])
def test_changes_of_a_share_are_covered_however_few_inputs_change(n, lost, won):
    """Student's interval covers 40 to 86 % of the first three, where none may change."""
    rng = np.random.default_rng(0)
    p = np.array([lost, won, n - lost - won]) / n
    drawn = [np.repeat([1.0, -1.0, 0.0], rng.multinomial(n, p)) for _ in range(DRAWS)]
    found = [share_change(x) for x in drawn]
    truth = (lost - won) / n
    assert np.mean([one.low <= truth <= one.high for one in found]) > 0.93
    assert all(one.low < one.value < one.high for one in found)


def test_a_change_of_a_share_stays_within_its_bounds():
    every = share_change(np.ones(50))
    assert every.value == every.high == 1 and every.low > 0.8 and every.n == 50
    assert not share_change([1.0]).known and share_change([]).n == 0


def test_ends_that_differ_are_printed_apart():
    assert str(Interval(1.3, 1.2991, 1.3012, 18)) == "1.3 [1.299, 1.301] (n = 18)"
    assert str(Interval(0.97301, 0.97299, 0.97303, 6)) == "0.97301 [0.97299, 0.97303] (n = 6)"
    assert str(Interval(0.5, 0.4, 0.6, 3)) == "0.5 [0.4, 0.6] (n = 3)"


def test_nan_inputs_do_not_count():
    assert mean_interval([1.0, np.nan, 3.0]) == mean_interval([1.0, 3.0])
    assert mean_interval([np.nan]).n == 0
