"""Figures say how many inputs their intervals are based on, and tables what is missing."""

import numpy as np
import pandas as pd
import pytest

from headscape.results import Captions, few

captions = Captions("headscape.studies.compress.figures")  # any study's words will do


@pytest.mark.parametrize(
    ("counts", "said"),
    [([8, 8], " n = 8."), ([8, 3], " n = 3 to 8."), ([8, 3, 5], " n = 3 to 8."), ([], "")],
)
def test_a_figure_ends_with_the_number_of_inputs_behind_its_intervals(counts, said):
    series = [{"name": "a", "x": [0], "y": [1], "low": [0], "high": [2], "n": [n]} for n in counts]
    plain = {"name": "b", "x": [0], "y": [1], "n": [99]}  # without an interval
    spec = captions.figure("map-error", {"series": [*series, plain]}, n=4)
    bare = captions.figure("map-error", {"series": []}, n=4)
    assert spec.read == bare.read + said


def test_cells_have_four_digits_and_a_dash_for_what_is_missing():
    frame = pd.DataFrame({"x": [1.23456, np.nan], "what": ["a", None], "n": pd.array([3, pd.NA], dtype="Int64")})
    spec = captions.table("curves", frame)
    assert spec.data["rows"] == [["1.235", "a", "3"], ["-", "-", "-"]]
    assert spec.data["columns"] == ["x", "what", "n"] and spec.kind == "table"


def test_few_names_only_those_that_fit():
    assert few(list("abc")) == "a, b, c" and few(list("abcd")) == "a, b, c, …" and few(list("abcd"), 4) == "a, b, c, d"
