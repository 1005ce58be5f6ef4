"""A claim holds only where its control fails; what cannot be told is not decided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.intervals import Interval, exactly, mean_interval
from headscape.verdicts import Judgement, cannot_tell, judge, strictest
from reference import QUICK

ends = st.floats(-10, 10)


@st.composite
def intervals(draw):
    low, value, high = sorted(draw(st.tuples(ends, ends, ends)))
    return Interval(value, low, high, 5)


@QUICK
@given(intervals(), intervals())
def test_above_is_below_seen_from_the_other_side(one, other):
    above, below = judge(one, above=other).verdict, judge(one, below=other).verdict
    assert judge(other, below=one).verdict == above
    opposite = {"holds": "does not hold", "does not hold": "holds", "cannot tell": "cannot tell"}
    assert below == opposite[above]
    apart = one.low > other.high or one.high < other.low
    assert (above == "cannot tell") == (not apart)
    assert (above == "holds") == (one.low > other.high)


@QUICK
@given(intervals(), ends)
def test_a_number_is_an_interval_of_no_width(one, number):
    assert judge(one, above=number) == judge(one, above=exactly(number))


@pytest.mark.parametrize("control", [0.8, 1.0, Interval(0.5, 0.2, 0.8, 3), Interval(1.2, 1.0, 1.4, 3)])
def test_intervals_that_touch_overlap(control):
    found = judge(Interval(0.9, 0.8, 1.0, 8), above=control, control="chance")
    assert (
        found.verdict == "cannot tell" and found.why == f"0.9 [0.8, 1] (n = 8) and {_shown(control)} (chance) overlap"
    )


def _shown(control):
    return control if isinstance(control, Interval) else f"{control:g}"


def test_the_rule_names_side_and_control():
    found = judge(Interval(0.2, 0.1, 0.3, 4), above=Interval(0.5, 0.4, 0.6, 9), control="random weights")
    assert found.verdict == "does not hold"
    assert found.why == "0.2 [0.1, 0.3] (n = 4) lies below 0.5 [0.4, 0.6] (n = 9) (random weights)"
    assert judge(Interval(0.2, 0.1, 0.3, 4), below=1.0).why == "0.2 [0.1, 0.3] (n = 4) lies below 1"


def test_one_input_says_nothing_and_the_reason_says_whose():
    one, several = mean_interval([0.9]), mean_interval([0.9, 0.91, 0.92])
    assert judge(one, above=0.5) == cannot_tell("too few inputs for an interval (n = 1)")
    assert judge(several, above=one, control="shuffled rows") == cannot_tell(
        "shuffled rows: too few inputs for an interval (n = 1)"
    )
    assert judge(several, above=one) == cannot_tell("the control: too few inputs for an interval (n = 1)")
    assert judge(Interval(0.9, n=2, why="all draws failed"), above=0.5).why == "all draws failed (n = 2)"
    assert judge(several, above=float("nan")).verdict == "cannot tell"


def test_what_lies_below_the_precision_is_not_judged():
    tiny = Interval(-3e-9, -4e-9, -2e-9, 8)
    assert judge(tiny, below=0.0).verdict == "holds"
    found = judge(tiny, below=0.0, floor=1e-8)
    assert found == cannot_tell("-3e-09 lies below the numerical precision of 1e-08")
    assert judge(tiny, below=0.0, floor=3e-9).verdict == "holds"  # at the precision, not below
    assert judge(tiny, below=0.0, floor=1e-9).verdict == "holds"


@pytest.mark.parametrize("both", [{}, {"above": 0.0, "below": 1.0}])
def test_a_claim_has_one_side(both):
    with pytest.raises(ValueError, match="above its control or below it: give one of the two"):
        judge(Interval(0.5, 0.4, 0.6, 3), **both)


def test_equal_numbers_are_called_equal():
    assert judge(exactly(0), above=0.0, control="chance") == cannot_tell("0 equals 0 (chance)")
    assert judge(Interval(0.5, 0.4, 0.6, 3), above=0.5).why.endswith("overlap")


def test_the_strictest_of_several_conditions_decides():
    yes, no, open_one = Judgement("holds", "a"), Judgement("does not hold", "b"), cannot_tell("c")
    assert strictest(yes, Judgement("holds", "d")).why == "d"
    assert strictest(yes, open_one) == open_one
    assert strictest(open_one, yes, no) == strictest(no, open_one) == no
