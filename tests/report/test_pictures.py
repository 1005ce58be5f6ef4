"""Figures as data for the page.

Also tests report.marks, report.plots.
"""

from dataclasses import replace

import numpy as np
import pytest

from fakes import pixels
from headscape.report.marks import shapes
from headscape.report.pictures import picture as picture_of
from headscape.results import FigureSpec


def test_entries_that_are_not_there_have_a_grey_of_their_own_in_a_signed_map():
    """The middle of the scale is pale in the dark too; what is absent has the ground of the page."""
    values = np.where(np.tri(6, dtype=bool), np.linspace(-1, 1, 36).reshape(6, 6), np.nan)
    drawn = picture_of(
        FigureSpec(id="m", title="M", kind="maps", data={"panels": [{"name": "", "values": values}]}, read="Look."),
        None,
    )
    grey = pixels(drawn["panels"][0]["png"])
    assert (grey[np.triu_indices(6, 1)] == 0).all() and (grey[np.tril_indices(6)] > 0).all()
    assert grey[0, 0] == 1 and grey[5, 5] == 255 and grey[3, 0] == round(255 * (values[3, 0] + 1) / 2)


def test_the_rows_of_a_heatmap_are_named_and_plain_columns_are_counted_by_plotly():
    data = {"values": np.eye(3), "rows": ["a", "b", "c"]}
    layout = picture_of(FigureSpec(id="h", title="H", kind="heatmap", data=data, read="Look."), None)["layout"]
    assert list(layout["yaxis"]["ticktext"]) == ["a", "b", "c"] and list(layout["yaxis"]["tickvals"]) == [0, 1, 2]
    assert "ticktext" not in layout["xaxis"]


@pytest.mark.parametrize(("n", "size"), [(199, 8), (200, 6)])
def test_points_are_smaller_where_there_are_200_or_more(n, size):
    spec = FigureSpec(id="s", title="S", kind="scatter", data={"x": np.arange(n), "y": np.arange(n)}, read="Look.")
    assert picture_of(spec, None)["traces"][0]["marker"]["size"] == size


def test_bars_with_a_pattern_have_a_ground_and_an_edge():
    data = {"names": ["x", "x"], "values": [1.0, 2.0], "group": ["a", "b"]}
    drawn = picture_of(FigureSpec(id="b", title="B", kind="bars", data=data, read="Look."), None)["traces"]
    assert all(t["marker"]["pattern"]["bgcolor"] == t["marker"]["color"] + "/0.25" for t in drawn)
    assert all(t["marker"]["line"]["color"] == t["marker"]["color"] for t in drawn)


def test_open_symbols_have_an_edge_that_is_seen():
    data = {"x": np.arange(8), "y": np.arange(8), "group": list("abcdefgh")}
    traces = picture_of(FigureSpec(id="s", title="S", kind="scatter", data=data, read="Look."), None)["traces"]
    widths = {trace["marker"]["symbol"]: trace["marker"]["line"]["width"] for trace in traces}
    assert len(widths) == 8 and all(width > 1 for symbol, width in widths.items() if symbol.endswith("-open"))


@pytest.mark.parametrize(("top", "expected"), [(4.0, None), (8.0, "D2"), (900.0, "D2"), (2000.0, None)])
def test_axes_of_one_to_three_decades_name_1_2_and_5(top, expected):
    """All nine digits of a decade run into each other."""
    for kind, data in (
        ("lines", {"series": [{"name": "a", "x": [1, 2], "y": [2.0, 3.0], "low": [1.0, 2.0], "high": [3.0, top]}]}),
        ("scatter", {"x": [1, 2, 3], "y": [1.0, top, -1.0]}),
    ):
        spec = FigureSpec(id="l", title="L", kind=kind, data=data, read="Look.", log_y=True)
        layout = picture_of(spec, None)["layout"]
        assert layout["yaxis"].get("dtick") == expected


def test_a_title_that_fits_along_the_axis_is_not_broken():
    """Its second line would lie under the legend."""
    spec = FigureSpec(id="l", title="L", kind="lines", data={"series": []}, read="Look.")
    wide = replace(spec, x_label="singular value / upper edge of noise")
    assert picture_of(wide, None)["layout"]["xaxis"]["title"]["text"] == wide.x_label


def test_statistics_are_printed_with_the_digits_that_the_figure_shows():
    groups = [{"name": name, "values": 5.9491 + 1e-4 * np.array([-9.0, 0.0, 0.0, k])} for k, name in enumerate("ab")]
    drawn = picture_of(FigureSpec(id="v", title="V", kind="violins", data={"groups": groups}, read="Look."), None)
    assert "median 5.9491<br>" in drawn["layout"]["xaxis"]["ticktext"][0]


def test_half_violins_at_the_ends_are_not_cut():
    groups = [{"name": f"L{k}", "values": [0.0, 1.0], "side": side} for k in range(3) for side in ("left", "right")]
    drawn = picture_of(FigureSpec(id="v", title="V", kind="violins", data={"groups": groups}, read="Look."), None)
    low, high = drawn["layout"]["xaxis"]["range"]
    assert low <= -0.5 and high >= 2.5


def test_violins_show_a_mode_at_the_edge_and_print_their_statistics():
    """5 % of the values at exactly 1, as aligned tokens have; a smooth density would draw them at a tenth."""
    values = np.concatenate([np.full(50, 1.0), np.linspace(-0.5, 0.9, 950)])
    spec = FigureSpec(
        id="v", title="V", kind="violins", data={"groups": [{"name": "a", "values": values}]}, read="Look."
    )
    (shape,) = shapes(spec)
    assert shape.width[-1] == 1 and shape.width[:-2].max() < 0.7
    assert shape.statistics["mode"] > 0.98
    assert shape.statistics["median"] == np.median(values) and shape.statistics["mean"] == pytest.approx(values.mean())
    drawn = picture_of(spec, None)
    text = drawn["layout"]["xaxis"]["ticktext"][0]
    assert all(f"{name} {value:.3g}" in text for name, value in shape.statistics.items())
    assert [trace["name"] for trace in drawn["traces"]] == ["", "mode", "median", "mean"]


def test_sides_of_violins_have_a_legend_and_empty_groups_no_statistics():
    groups = [{"name": "L1", "values": [0.0, 1.0], "side": side, "label": side} for side in ("left", "right")]
    groups.append({"name": "L2", "values": [np.nan]})
    drawn = picture_of(FigureSpec(id="v", title="V", kind="violins", data={"groups": groups}, read="Look."), None)
    assert [t["name"] for t in drawn["traces"] if t.get("showlegend") is True] == ["left", "right"]


def test_compared_maps_share_one_scale_and_signed_ones_have_0_in_the_middle():
    weak, strong = np.full((2, 2), 0.25), np.array([[1.0, 0.25], [0.0, 0.5]])
    panels = [{"name": "a", "values": weak, "high": 1.0}, {"name": "b", "values": strong, "high": 1.0}]
    panels.append({"name": "b - a", "values": strong - weak})
    drawn = picture_of(FigureSpec(id="m", title="M", kind="maps", data={"panels": panels}, read="Look."), None)[
        "panels"
    ]
    assert pixels(drawn[0]["png"])[0, 0] == pixels(drawn[1]["png"])[0, 1] == 128
    assert drawn[2]["signed"] and not drawn[0]["signed"] and drawn[2]["range"] == [-0.75, 0.75]
    assert pixels(drawn[2]["png"])[0, 1] == 128


def test_a_gap_between_parts_of_a_map_has_no_name_and_an_empty_token_has():
    values = np.ones((4, 4))
    values[1], values[:, 1] = np.nan, np.nan
    panel = {"name": "a", "values": values} | {key: ["a", "", "b", ""] for key in ("query_tokens", "key_tokens")}
    (drawn,) = picture_of(FigureSpec(id="m", title="M", kind="maps", data={"panels": [panel]}, read="Look."), None)[
        "panels"
    ]
    assert drawn["query_tokens"] == drawn["key_tokens"] == ["a", "", "b", "(empty)"]
