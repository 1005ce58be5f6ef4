"""How the figures of a study are laid out."""

from dataclasses import replace

import pytest

from fakes import FakeResult, frame_of
from headscape.report import write_report
from headscape.report.gather import gather
from headscape.report.sections import section_html
from headscape.report.sections import table as html_table
from headscape.results import FigureSpec
from headscape.runs import Run

pytestmark = pytest.mark.xdist_group("chromium")


def test_a_table_too_wide_for_half_a_page_takes_the_whole(tmp_path, visit):
    def table(n_column):
        data = {"columns": ["a column"] * n_column, "rows": [["x"] * n_column]}
        return FigureSpec(id=f"t{n_column}", title="T", kind="table", data=data, read="Look.")

    run = Run.create(tmp_path / "run", config={"kind": "train"})
    page = visit(write_report(run, [FakeResult(frame_of(1, 2), [table(3), table(4), table(20)])]))
    boxes = [page.query_selector(f"#fig-fake-t{n}").bounding_box() for n in (3, 4, 20)]
    assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["width"] == boxes[1]["width"]  # side by side
    assert boxes[2]["width"] > 2 * boxes[0]["width"]
    assert page.errors == []


def test_every_violin_is_named_also_the_last_of_many(tmp_path, visit):
    """Names that are turned to fit run past the edge, where plotly leaves them out."""
    names = [f"network-of-size-{k}" for k in range(10)]
    data = {"groups": [{"name": name, "values": [0.0, 0.5, 0.6, 1.0]} for name in names]}
    figure = FigureSpec(id="v", title="V", kind="violins", data=data, read="Look.")
    run = Run.create(tmp_path / "run", config={"kind": "train"})
    page = visit(write_report(run, [FakeResult(frame_of(1, 2), [figure])]))
    page.wait_for_selector("#fig-fake-v .xtick text")
    seen = "all => all.filter((one) => getComputedStyle(one).display != 'none').map((one) => one.textContent)"
    assert page.eval_on_selector_all("#fig-fake-v .xtick text", seen) == names
    assert page.errors == []


@pytest.mark.parametrize(
    ("study", "cited"),
    [
        ("organize", "figure 3 of Fasina et al. 2025"),
        ("train", "figure 3 of Masumura and Taki 2025"),
        ("collapse", "figure 3 of Masumura and Taki 2025"),
        ("compare", "figure 3 of Fasina et al. 2025"),
        ("a study of your own", "figure 3"),
    ],
)
def test_a_figure_names_the_paper_it_is_from(study, cited):
    figure = FigureSpec(
        id="t", title="T", kind="table", data={"columns": [], "rows": []}, read="Look.", paper="figure 3"
    )
    scene = gather([FakeResult(frame_of(1, 2), [figure])], [])
    html = section_html(replace(scene.sections[0], study=study), {}, scene)
    assert f">{cited}<" in html
    assert ("Masumura and Taki (2025), On the Role of Hidden States" in html) == (
        study in ("train", "collapse")
    )  # in a tip


def test_numbers_of_a_table_are_on_the_right_and_text_is_escaped():
    html = html_table(["name", "value"], [["<a>", 1.25], ["b", "-"]], "T")
    assert '<th scope="col">name</th><th scope="col" class="number">value</th>' in html
    assert '<tr><td>&lt;a&gt;</td><td class="number">1.25</td></tr>' in html


def test_a_long_table_ends_with_how_long_it_is():
    assert html_table(["n"], [[i] for i in range(501)], "T").endswith("<p>The first 500 of 501 rows.</p>")
    assert "The first" not in html_table(["n"], [[i] for i in range(500)], "T")
