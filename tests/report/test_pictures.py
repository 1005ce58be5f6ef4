"""Figures as data for the page."""

import numpy as np

from fakes import pixels
from headscape.report.pictures import picture as picture_of
from headscape.results import FigureSpec


def test_entries_that_are_not_there_are_pale_in_a_signed_map():
    values = np.where(np.tri(6, dtype=bool), np.linspace(-1, 1, 36).reshape(6, 6), np.nan)
    drawn = picture_of(
        FigureSpec(id="m", title="M", kind="maps", data={"panels": [{"name": "", "values": values}]}, read="Look."),
        None,
    )
    grey = pixels(drawn["panels"][0]["png"])
    assert (grey[np.triu_indices(6, 1)] == 0).all()
    assert grey[0, 0] == 0 and grey[5, 5] == 255 and grey[3, 0] == round(255 * (values[3, 0] + 1) / 2)


def test_half_violins_at_the_ends_are_not_cut():
    groups = [{"name": f"L{k}", "values": [0.0, 1.0], "side": side} for k in range(3) for side in ("left", "right")]
    drawn = picture_of(FigureSpec(id="v", title="V", kind="violins", data={"groups": groups}, read="Look."), None)
    low, high = drawn["layout"]["xaxis"]["range"]
    assert low <= -0.5 and high >= 2.5


def test_violins_of_histograms_are_stepwise_and_have_a_legend():
    shape = {"edges": [-1.0, 0.0, 1.0], "density": [0.25, 0.75], "said": "mode 0.50"}
    sides = (("left", "one"), ("right", "two"))
    groups = [{"name": f"L{k}", "side": side, "label": label} | shape for k in range(2) for side, label in sides]
    drawn = picture_of(FigureSpec(id="v", title="V", kind="violins", data={"groups": groups}, read="Look."), None)
    left, right = drawn["traces"][2:4]
    assert max(left["x"]) == 1.0 and min(left["x"]) == 1 - 0.45  # the fullest bin is as wide as there is room
    assert sorted(set(np.round(right["x"], 6))) == [1.0, 1.15, 1.45] and "mode 0.50" in right["text"]
    assert [trace["showlegend"] for trace in drawn["traces"]] == [True, True, False, False]
    assert drawn["layout"]["xaxis"]["ticktext"] == ["L0", "L1"]
