"""A result shows itself in a notebook.

Also tests hooks.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fakes import FakeResult, frame_of, other_figures, result_of
from headscape.errors import InputError
from headscape.report.drawing import draw
from headscape.report.gather import gather
from headscape.results import FigureSpec


def test_notebook_shows_findings_and_the_same_pictures():
    result = result_of(4, 3, everything=True)
    whole = result._repr_html_()
    view = re.search(r'<div style="position:relative.*?</iframe></div>', whole, re.S)[0]
    assert view.count("<img alt=") == 1 and 'sandbox="allow-scripts allow-downloads"' in view  # a still under the frame
    html = whole.replace(view, "")
    assert html.count("data:image/png;base64,") == len(result.shown) - 1
    verdicts = re.findall(r'<b class="verdict \w+"><span aria-hidden="true">(.)</span> (.*?):</b> (.*?)<', html)
    assert [found[:2] for found in verdicts] == [("✓", "Holds"), ("✗", "Does not hold"), ("?", "Cannot tell")]
    assert verdicts[0][2] == "0.9 [0.8, 1] (n = 8) lies above 0.1 (chance)."
    assert html.index("The ten least active heads recur") < html.index("lies above 0.1")
    assert "&lt;b&gt;this&lt;/b&gt;" in html
    assert not re.search(r"<script|<iframe|onerror=['\"]?window|javascript:", re.sub("&lt;.*?&gt;", "", html))
    assert html.count("<img alt=") == html.count("<img")


@pytest.mark.xdist_group("chromium")
def test_the_still_is_seen_where_scripts_are_not_allowed(chromium):
    html = result_of(4, 3)._repr_html_()
    page, seen = chromium.new_page(), []
    for taken in (' sandbox="allow-scripts allow-downloads"', "<iframe.*?</iframe>"):  # scripts, the frame
        page.set_content(re.sub(taken, " sandbox" if "=" in taken else "", html, flags=re.S))
        seen.append(page.screenshot())
    page.set_content(html)
    page.frame_locator("iframe").locator("#panel-title").wait_for()
    seen.append(page.screenshot())
    page.close()
    assert seen[0] == seen[1] != seen[2]


def test_notebook_says_which_picture_failed():
    bad = FigureSpec(id="bad", title="A bad one", kind="lines", data={}, read="Look.")
    html = FakeResult(frame_of(1, 2), [bad, other_figures()[2]])._repr_html_()
    assert "A bad one could not be drawn: KeyError" in html
    assert html.count("<img") == 1


def test_single_figures_are_shown_by_their_ids():
    result = result_of(4, 3, everything=True)
    pictures = [spec for spec in result.figures() if spec.kind != "table"]
    shown = result.show(pictures[1].id, pictures[0].id)
    assert shown._repr_html_() == shown and shown.count("<figure>") == 2 and "<iframe" not in shown
    assert re.findall(r"<img alt=\"(.*?)\"", shown) == [spec.alt or spec.title for spec in (pictures[1], pictures[0])]
    assert result.show("heads").count("<iframe") == 1
    with pytest.raises(InputError, match="no figure 'nonsense'; there are .*heads"):
        result.show("nonsense")


def test_the_still_of_the_heads_is_their_grid_by_role():
    shown = result_of(4, 3, everything=True).show("heads")
    assert re.search(r'<img alt="(.*?)"', shown)[1] == "Heads by role"
    scene = gather([result_of(4, 3)])
    spec = FigureSpec(id="heads", title="Heads by role", kind="head_grid", data={"score": "role"}, read="Look.")
    figure = draw(spec, scene.sections[0], scene.heads)
    (image,) = figure.axes[0].images
    roles = scene.sections[0].frame["role"].to_numpy().reshape(4, 3)
    cells = np.asarray(image.get_array()).reshape(12, 3)
    assert len({tuple(cell) for cell in cells}) == 3
    assert all((cells[roles.ravel() == role] == cells[roles.ravel() == role][0]).all() for role in np.unique(roles))
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend == {f"{role} ({(roles == role).sum()})" for role in np.unique(roles)}


def test_notebook_without_matplotlib_shows_the_table(monkeypatch):
    for name in [n for n in sys.modules if n.startswith(("headscape.report.notebook", "headscape.report.drawing"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert FakeResult(frame_of(1, 2))._repr_html_() == frame_of(1, 2).to_html()


def test_a_study_on_its_own_can_be_shown():
    """Whatever was imported first: results know nothing of drawing, the package has told them."""
    code = (
        "import sys; from headscape.results import Result; assert 'headscape.report' not in sys.modules\n"
        "from fakes import FakeResult, frame_of; print(FakeResult(frame_of(1, 2))._repr_html_()[:24])"
    )
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=place)
    assert done.stdout.strip() == "<h3>A made-up study</h3>"
