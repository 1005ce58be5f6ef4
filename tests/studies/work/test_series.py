"""Intervals in figures: drawn where they are known, with the number of inputs behind them in the figure's words."""

import numpy as np
import pandas as pd
import pytest

from headscape.intervals import Interval, mean_interval
from headscape.results import Captions
from headscape.studies.work.series import bars, curve, heads_as_points, level, line

captions = Captions("headscape.studies.prompt.figures")
KNOWN = [mean_interval([1.0, 2.0, 4.0]), mean_interval([2.0, 2.5])]


def test_a_line_has_the_ends_of_its_intervals_only_where_all_are_known():
    found = line("a", [0, 1], KNOWN)
    assert found["low"].tolist() == [one.low for one in KNOWN] and found["n"].tolist() == [3, 2]
    assert "low" not in line("a", [0, 1], [KNOWN[0], Interval(1.0)])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"series": [line("a", [0, 1], KNOWN), level("b", [0, 1], 1.0)]}, " n = 2 to 3."),
        ({"series": [line("a", [0], KNOWN[:1])]}, " n = 3."),
        ({"series": [line("a", [0], [Interval(1.0)])]}, ""),
        (bars({"a": KNOWN[1], "b": KNOWN[1]}), " n = 2."),
        (bars({"a": KNOWN[0], "b": Interval(1.0, n=1)}), " n = 3."),  # one input has no interval
    ],
)
def test_a_figure_says_how_many_inputs_its_intervals_rest_on(data, said):
    plain = captions.figure("losses", {}).read
    assert captions.figure("losses", data).read == plain + said
    assert np.all([name in bars({"a": KNOWN[0]}) for name in ("names", "values", "low", "high", "n")])


def test_an_interval_without_its_n_is_refused_and_a_range_is_not():
    band = {"name": "a", "x": [0], "y": [1.0], "low": [0.5], "high": [1.5]}
    with pytest.raises(ValueError, match="a has an interval without its n"):
        captions.figure("losses", {"series": [band]})
    assert "n = " not in captions.figure("losses", {"series": [band | {"range": True}]}).read


def test_heads_are_points_with_their_names_and_groups():
    heads = pd.DataFrame({"block": ["decoder"] * 2, "layer": [0, 3], "head": [1, 2], "a": [0.5, 1.0], "b": [2.0, 4.0]})
    found = heads_as_points(heads, "a", "b", ["early", "late"])
    assert found["names"] == ["decoder.0.1", "decoder.3.2"] and found["group"] == ["early", "late"]
    assert found["x"].tolist() == [0.5, 1.0] and found["y"].tolist() == [2.0, 4.0]


def test_a_curve_has_a_dash_only_where_one_is_asked_for():
    assert curve("plain", [0], [1]) == {"name": "plain", "x": [0], "y": [1]}
    assert curve("law", [0], [1], "dot", colour=2) == {"name": "law", "x": [0], "y": [1], "dash": "dot", "colour": 2}
