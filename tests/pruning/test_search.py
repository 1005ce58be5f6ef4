import pytest
from hypothesis import given
from hypothesis import strategies as st

import headscape as hs
from headscape.pruning.search import within_budget
from reference import QUICK


@QUICK
@given(st.integers(2, 300), st.floats(0.005, 1.5), st.floats(0.3, 4))
def test_the_budget_holds_one_unit_stays_and_the_end_is_near(n_units, crossing, power):
    calls = []

    def ratio(n):
        assert 0 < n < n_units and n not in calls
        calls.append(n)
        return (n / (crossing * n_units)) ** power

    found = within_budget(n_units, ratio, evaluations=30)
    assert found.n == 0 or ratio_of(found.n, crossing * n_units, power) <= 1
    assert [n for n, _ in found.trials] == calls
    best = max((n for n in range(n_units) if n <= crossing * n_units), default=0)
    used = ratio_of(found.n, crossing * n_units, power)
    assert best - found.n <= max(1, round(0.02 * n_units)) or used >= 0.9


def ratio_of(n, crossing, power):
    return (n / crossing) ** power


def test_a_power_law_is_met_in_few_trials():
    for crossing in (20, 64, 150):
        found = within_budget(270, lambda n, c=crossing: (n / c) ** 2, evaluations=6)
        assert 0.85 * crossing <= found.n <= crossing


def test_nothing_fits_and_nothing_is_asked():
    assert within_budget(3, lambda n: 9.0).n == 0
    assert within_budget(50, lambda n: -1.0).n >= 48
    with pytest.raises(hs.InputError, match="at least 1 evaluation"):
        within_budget(5, lambda n: 1.0, evaluations=0)
