"""Figures for paper show what their data say."""

import numpy as np
import pandas as pd
import pytest

from headscape.report.drawing import draw
from headscape.report.gather import Section
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
