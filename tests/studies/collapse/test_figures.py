"""The pictures of the collapse study."""

import numpy as np

import headscape as hs
from headscape.collapse.similarity import points_of
from headscape.intervals import mean_interval
from headscape.studies.collapse.figures import _line


def test_the_report_draws_every_figure(vit_run, vit):
    from headscape.report.drawing import draw
    from headscape.report.gather import gather
    from headscape.report.pictures import picture

    scene = gather([vit], hs.open_capture(vit_run).heads())
    assert not scene.sections[0].problems
    for figure in vit.figures():
        assert figure.read and figure.alt and len(figure.title) <= 60
        if figure.kind != "table":
            assert picture(figure, scene.sections[0]) and draw(figure, scene.sections[0], scene.heads)


def test_lines_are_the_numbers_of_the_result(vit):
    figures = {figure.id: figure for figure in vit.figures()}
    four = figures["residual-cells-random"].data["series"]
    assert [line["name"] for line in four][-1] == "round-off" and four[-1]["y"].tolist() == [vit.floor[0]] * 2
    table = vit.by_layer[vit.by_layer["arm"] == "random, no skip"]
    np.testing.assert_allclose(four[2]["y"], table["residual"])
    assert (four[2]["low"] <= four[2]["y"]).all() and (four[2]["y"] <= four[2]["high"]).all()
    counts = vit.similarity.sum(axis=1)
    groups = figures["similarity"].data["groups"]
    assert [group["name"] for group in groups[::2]] == [f"L{n}" for n in range(7)]
    np.testing.assert_array_equal(groups[2]["values"], points_of(counts[0, 1]))
    np.testing.assert_array_equal(groups[3]["values"], points_of(counts[vit.at("random"), 1]))


def test_ends_that_say_nothing_are_not_drawn():
    far = mean_interval([0.2, 1.2])
    assert far.high > 1e6 and not far.readable
    drawn = _line("two", [far, mean_interval([0.2, 0.3])])
    assert drawn["low"][0] == drawn["high"][0] == far.value and drawn["high"][1] > drawn["low"][1]
