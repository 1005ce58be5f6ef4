"""Figures for paper show what their data say.

Also tests report.drawing_heads, report.palette.
"""

import io
import itertools

import numpy as np
import pandas as pd
import pytest

from headscape.report.drawing import draw, style
from headscape.report.gather import Section
from headscape.report.pictures import picture
from headscape.report.plots import layout_of
from headscape.results import FigureSpec
from headscape.tensor import HeadId

SECTION = Section("fake", "Fake")


def figure(kind, **data):
    return draw(FigureSpec(id="f", title="F", kind=kind, data=data, read="Look."), SECTION)


@pytest.mark.parametrize(
    ("dash", "drawn"), [("dot", ":"), ("dash", "--"), ("dashdot", "-."), (None, "-"), (True, "--")]
)
def test_lines_keep_their_dash(dash, drawn):
    line = {"name": "a", "x": [1, 2], "y": [1, 2], "dash": dash}
    (ax,) = figure("lines", series=[line]).axes
    assert ax.lines[0].get_linestyle() == drawn


def test_signed_values_diverge_from_their_centre():
    values = np.array([[-1.0, 3.0], [np.nan, 0.0]])
    image = figure("heatmap", values=values, centre=1.0).axes[0].images[0]
    assert image.get_clim() == (-1, 3) and image.get_cmap().name == "purple-orange"
    assert figure("heatmap", values=values).axes[0].images[0].get_cmap().name == "cividis10"


@pytest.mark.parametrize(("scores", "colours"), [([-1.0, 2.0], "purple-orange"), ([1.0, 2.0], "cividis10")])
def test_a_grid_of_heads_diverges_only_where_signs_differ(scores, colours):
    heads = [HeadId("decoder", 0, n) for n in range(2)]
    frame = pd.DataFrame(heads, columns=["block", "layer", "head"]).assign(score=scores)
    section = Section("fake", "Fake", frame=frame, rows=[0, 1])
    spec = FigureSpec(id="f", title="F", kind="head_grid", data={"score": "score"}, read="Look.")
    assert draw(spec, section, heads).axes[0].images[0].get_cmap().name == colours


def test_an_unknown_interval_has_no_error_bar():
    ax = figure("bars", names=["a", "b"], values=[2.0, 1.0], low=[1.5, np.nan], high=[3.0, np.nan]).axes[0]
    (bars,) = (container for container in ax.containers if hasattr(container, "has_yerr"))
    ends = [segment[:, 1].tolist() for segment in bars[2][0].get_segments()]
    assert ends == [[1.5, 3.0], [1.0, 1.0]]


def overlaps(drawn):
    """Names under an axis that run into the next one: slanted lines of text side by side, or boxes in a row."""
    drawn.draw_without_rendering()
    labels = [label for label in drawn.axes[0].get_xticklabels() if label.get_text()]
    turn, size = np.radians(labels[0].get_rotation()), labels[0].get_fontsize() * drawn.dpi / 72
    boxes = [label.get_window_extent() for label in labels]
    if turn:
        return [i for i, gap in enumerate(np.diff([box.x1 for box in boxes])) if gap * np.sin(turn) < 0.9 * size]
    return [i for i, (a, b) in enumerate(itertools.pairwise(boxes)) if a.x1 > b.x0]


def test_names_under_a_file_do_not_run_into_each_other():
    names = [f"paraproduct, number {i}" for i in range(14)]
    groups = [{"name": f"group {i}", "values": np.linspace(-0.441, -0.0439, 9) - i} for i in range(5)]
    with style():
        assert not overlaps(figure("bars", names=names, values=np.arange(14.0)))
        assert not overlaps(figure("violins", groups=groups))


@pytest.mark.parametrize("n", [24, 28, 40, 48, 64])
def test_tokens_along_a_map_do_not_run_into_each_other(n):
    tokens = [f"·token{i}" for i in range(n)]
    panels = [{"name": name, "values": np.eye(n), "key_tokens": tokens, "query_tokens": tokens} for name in "ab"]
    with style():
        drawn = figure("maps", panels=panels)
        assert not overlaps(drawn)
        rows = [label.get_window_extent() for label in drawn.axes[0].get_yticklabels()]
    assert all(a.y0 >= b.y1 - 1 for a, b in itertools.pairwise(rows)) and len(rows) >= 6


def test_the_number_of_inputs_stands_on_a_figure_with_intervals():
    bars_ = {"names": ["a", "b", "c"], "values": [1.0, 2.0, 3.0], "low": [0.5, 1.5, np.nan], "high": [2.0, 3.0, np.nan]}
    assert figure("bars", **bars_, n=[8, 8, 3]).axes[0].get_title() == "F (n = 8)"  # what has no interval has no n
    assert figure("bars", **bars_, n=[8, 10, 3]).axes[0].get_title() == "F (n = 8 to 10)"
    plain = {"name": "a line", "x": [0.0, 1.0], "y": [1.0, 2.0]}
    ends = {"low": [0.5, 1.5], "high": [2.0, 3.0]}
    assert figure("lines", series=[plain, plain | ends | {"n": [5]}]).axes[0].get_title() == "F (n = 5)"
    assert figure("lines", series=[plain | ends | {"range": True}, plain]).axes[0].get_title() == "F"


def test_the_name_of_an_axis_is_whole_also_above_long_names_of_bars():
    names = [f"Corollary 1, shuffled head, {i}" for i in range(11)]
    label = "change, of the final hidden state (relative)"
    data = {"names": names, "values": np.arange(11.0)}
    drawn = draw(FigureSpec(id="f", title="F", kind="bars", data=data, read="Look.", y_label=label), SECTION)
    with style():
        drawn.draw_without_rendering()
    box = drawn.axes[0].yaxis.label.get_window_extent()
    assert box.y0 >= 0 and box.y1 <= drawn.bbox.y1 and drawn.axes[0].get_ylabel().replace("\n", " ") == label
    spec = FigureSpec(id="f", title="F", kind="bars", data=data, read="Look.", y_label=label)
    assert layout_of(spec)["yaxis"]["title"]["text"] == "change, of the final hidden<br>state (relative)"


@pytest.mark.parametrize("n", [5, 13, 16, 20])
def test_ranks_have_whole_numbers_on_the_axis(n):
    with style():
        drawn = figure("lines", series=[{"name": "a", "x": np.arange(1, n + 1), "y": np.arange(n)}])
        drawn.savefig(io.BytesIO(), format="png", dpi="figure")
    (ax,) = drawn.axes
    assert all(float(at).is_integer() for at in ax.get_xticks())


@pytest.mark.parametrize("top", [1.0, 3.5, 60.0])
def test_numbers_of_a_short_log_axis_do_not_run_into_each_other(top):
    lines = [{"name": f"line {k}", "x": [1, 2, 3], "y": [0.15, 0.2, top]} for k in range(7)]
    spec = FigureSpec(id="f", title="F", kind="lines", data={"series": lines}, read="Look.", log_y=True)
    with style():
        drawn = draw(spec, SECTION)
        drawn.savefig(io.BytesIO(), format="png", dpi="figure")
        low, high = drawn.axes[0].get_ylim()
        texts = drawn.axes[0].get_yticklabels(which="both")
        shown = [t for t in texts if t.get_text() and low <= t.get_position()[1] <= high]
        boxes = sorted((t.get_window_extent() for t in shown), key=lambda box: box.y0)
    assert len(boxes) >= 2 and all(above.y0 > below.y1 for below, above in itertools.pairwise(boxes))


@pytest.mark.parametrize("length", [8, 26, 38])
def test_names_in_a_legend_are_whole(length):
    lines = [{"name": f"{k} " + ("random weights, " * 3)[: length - 2], "x": [1, 2], "y": [1, 2]} for k in range(4)]
    with style():
        drawn = figure("lines", series=lines)
        drawn.savefig(io.BytesIO(), format="png", dpi="figure")
        box = drawn.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= drawn.bbox.x1


def test_a_map_of_attention_starts_at_0_and_a_title_is_whole():
    panel = {"name": "a", "values": np.full((3, 3), 0.25)}
    assert figure("maps", panels=[panel]).axes[0].images[0].get_clim() == (0, 0.5)
    title = "What removing heads costs, compensation linear"
    with style():
        data = {"series": [{"name": "a", "x": [1, 2], "y": [-5.0, 20.0]}]}
        spec = FigureSpec(id="f", title=title, kind="lines", data=data, read="Look.", y_label="drop of accuracy (%)")
        drawn = draw(spec, SECTION)
        drawn.savefig(io.BytesIO(), format="png", dpi="figure")
        assert drawn.axes[0].title.get_window_extent().x1 <= drawn.bbox.x1


def test_long_names_take_no_room_from_the_data():
    def height(names):
        with style():
            drawn = figure("violins", groups=[{"name": name, "values": [0.0, 1.0]} for name in names])
            drawn.savefig(io.BytesIO(), format="png", dpi="figure")
            return drawn.axes[0].get_window_extent().height

    short, long = (height([f"{k}{end}" for k in range(10)]) for end in ("", " network on other input"))
    assert long > 0.75 * short


def test_between_layers_an_axis_has_no_ticks():
    data = {"series": [{"name": "a", "x": [1, 2, 3], "y": [0.0, 1.0, 2.0]}]}
    ticks = figure("lines", **data).axes[0].get_xticks()
    assert np.array_equal(ticks, np.round(ticks))
    spec = FigureSpec(id="f", title="F", kind="lines", data=data, read="Look.")
    assert picture(spec, SECTION)["layout"]["xaxis"]["dtick"] == 1
