"""Runs of every size and sort give a page without an error in the console."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fakes import FakeResult, attention, frame_of, groups_of, make_run, other_figures, result_of
from headscape.report import write_report
from headscape.results import FigureSpec

pytestmark = pytest.mark.xdist_group("chromium")


def check(page, n_pictures):
    assert page.errors == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    drawn = page.eval_on_selector_all(
        "[data-figure]", "b => b.filter(x => x.querySelector('svg.main-svg, canvas')).length"
    )
    assert drawn == n_pictures
    assert page.query_selector_all("figure .problem") == []


@pytest.mark.parametrize(("n_layer", "n_head"), [(1, 1), (1, 6)])
def test_few_heads(tmp_path, visit, n_layer, n_head):
    run = make_run(tmp_path / "run", attention(n_layer, n_head, 9, 1))
    page = visit(write_report(run, [result_of(n_layer, n_head, 9, 1)]))
    check(page, 4)
    assert page.locator(".panel-head select").count() == (0 if n_head == 1 else 2)  # one head: nothing to choose
    if n_head == 1:  # the map has the page to itself, and is still seen whole
        page.set_viewport_size({"width": 1400, "height": 700})
        page.wait_for_function(
            "() => document.querySelector('#panel-maps canvas').getBoundingClientRect().bottom <= 700"
        )
    page.focus(".head_grid .plot")
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
    assert page.inner_text("#panel-title").startswith("Layer 0")
    check(page, 4)


def test_a_thousand_heads(tmp_path, visit):
    run = make_run(tmp_path / "run", attention(40, 25, 32, 1))
    path = write_report(run, [result_of(40, 25, 32, 1)])
    assert path.stat().st_size < 25e6
    page = visit(path)
    check(page, 4)
    page.select_option("#pick-layer", "39")
    page.wait_for_selector("#panel[data-maps='decoder.39.0']")
    assert page.inner_text("#panel-title") == "Layer 39, head 0"
    for text, n in (("layer 3", 25), ("layer 39, head 2", 1), ("head 1", 40), ("L39H24", 1)):  # not layers 30 to 39
        page.fill("#search", text)
        assert page.inner_text("#matches") == f"{n} of 1000 heads"
    check(page, 4)


def test_many_heads_fit_the_budget_are_drawn_on_demand_and_the_page_says_what_it_left_out(tmp_path, visit):
    """3,000 heads; benchmarks/report.py --heads 5000 measures more."""
    run = make_run(tmp_path / "run", np.tile(attention(1, 1, 24, 1), (1, 50, 60, 1, 1)))
    wide = FigureSpec(id="wide", title="Wide", kind="heatmap", data={"values": np.eye(3, 5000)}, read="Look.")
    result = result_of(50, 60, 24, 1)
    path = write_report(run, [replace(result, shown=[*result.shown, wide])])
    assert path.stat().st_size < 25e6
    page = visit(path, height=500)
    assert page.query_selector(".head_tree svg.main-svg") is None  # not before it is seen
    with page.expect_download() as waiting:  # or saved
        page.eval_on_selector(".head_tree .save", "button => button.click()")
    assert waiting.value.suggested_filename == "fake-tree.png"
    for kind in ("head_matrix", "head_tree", "head_grid", "heatmap"):
        page.locator(f".{kind} .plot").scroll_into_view_if_needed()
        page.wait_for_selector(f".{kind} .plot svg.main-svg")
    check(page, 5)
    assert "the 3,000 x 3,000 matrix is shown as" in page.inner_text(".head_matrix figcaption")
    note = "the 3 x 5,000 matrix is shown as 3 x 500 means over equal blocks"
    assert note in page.inner_text(".heatmap figcaption")
    near = page.locator(".near button").first
    text = near.inner_text()
    near.click()
    assert page.inner_text("#panel-title").lower() == text


def test_images_show_where_a_head_looks(tmp_path, visit):
    side, n_token = 7, 50
    rng = np.random.default_rng(0)
    tokens = ["[CLS]", *(f"({r},{c})" for r in range(side) for c in range(side))]
    values = attention(3, 3, n_token, 2, mask="full")
    pixels = rng.random((2, 1, 28, 28))
    run = make_run(tmp_path / "run", values, tokens=tokens, mask="full", pixels=pixels, grid=(side, side))
    page = visit(write_report(run, [result_of(3, 3, n_token, 2)]))
    check(page, 4)
    layer, head = (int(i[0]) for i in np.nonzero(groups_of(3, 3) == 1))  # looks one token back
    page.select_option("#pick-layer", str(layer))
    page.select_option("#pick-head", str(layer * 3 + head))
    page.wait_for_selector(f"#panel[data-maps='decoder.{layer}.{head}']")
    page.wait_for_selector("#seen[data-query]")
    box = page.query_selector("#seen").bounding_box()
    row, column = 3, 4
    page.mouse.click(box["x"] + (column + 0.5) / side * box["width"], box["y"] + (row + 0.5) / side * box["height"])
    query = 1 + row * side + column
    page.wait_for_selector(f"#seen[data-query='{query}']")
    shares = page.evaluate(
        """() => { const c = document.querySelector('#seen').getContext('2d'); const out = [];
        for (let r = 0; r < 7; r++) for (let k = 0; k < 7; k++) {
            const [R, G, B] = c.getImageData(64 * k + 32, 64 * r + 32, 1, 1).data; out.push(R + G - B); }
        return out; }"""
    )
    assert int(np.argmax(shares)) == query - 2  # the patch before the query; yellow is high
    assert int(values[0, layer, head, query, 1:].argmax()) == query - 2
    check(page, 4)


def test_several_blocks_are_kept_apart(tmp_path, visit):
    parts = {"encoder": attention(2, 3, 12, 1, "full"), "decoder": attention(2, 3, 12, 1, "full", seed=1)}
    run = make_run(tmp_path / "run", None, blocks=parts, mask="full")
    page = visit(write_report(run, [result_of(2, 3, 12, 1)]))
    check(page, 4)
    page.select_option("#pick-layer", label="encoder layer 1")
    page.wait_for_selector("#panel[data-maps='encoder.1.0']")
    assert page.inner_text("#panel-title") == "Encoder, layer 1, head 0"
    assert page.query_selector_all("#panel-scores .score") == []  # the study speaks of the decoder only
    page.select_option("#pick-layer", label="decoder layer 1")
    page.wait_for_selector("#panel[data-maps='decoder.1.0']")
    assert len(page.query_selector_all("#panel-scores .score")) == 2
    check(page, 4)


def test_long_inputs_are_coarsened_and_it_is_said(tmp_path, visit):
    run = make_run(tmp_path / "run", attention(2, 3, 300, 1))
    page = visit(write_report(run, [result_of(2, 3, 300, 1)]))
    check(page, 4)
    assert "The 300 tokens are averaged to at most 256 cells" in page.inner_text("#panel")
    assert len(page.query_selector_all("#panel-maps canvas")) == 2
    canvas = page.query_selector("#panel-maps canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    assert "and 1 more" in page.inner_text("#tip")


def test_run_without_any_study_shows_its_heads(tmp_path, visit):
    page = visit(write_report(make_run(tmp_path / "run", attention()), []))
    check(page, 0)
    assert "No study has run yet" in page.inner_text("#findings")
    assert page.inner_text("#panel-title") == "Layer 0, head 0"
    assert len(page.query_selector_all("#panel-maps canvas")) == 1


def test_without_webgl_the_flat_map_is_shown_and_said(tmp_path, visit):
    path = write_report(make_run(tmp_path / "run", attention()), [result_of(4, 3)])
    off = """const get = HTMLCanvasElement.prototype.getContext;
    HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
        return /webgl/.test(kind) ? null : get.call(this, kind, ...rest); };"""
    page = visit(path, script=off)
    check(page, 4)
    assert page.is_disabled("[data-view='3d']")
    assert "needs WebGL" in page.inner_text(".head_map figcaption")


class Second(FakeResult):
    """Another study of the same heads, in another order."""

    study = "prune"
    title = "Which heads to remove"


def test_a_later_study_is_linked_without_being_known(tmp_path, visit):
    cost = frame_of(4, 3)[["block", "layer", "head"]].assign(cost=np.arange(12.0)).iloc[::-1]
    grid = FigureSpec(
        id="cost",
        title="Cost of removing a head",
        kind="head_grid",
        data={"score": "cost"},
        read="Bright heads cost most.",
    )
    run = make_run(tmp_path / "run", attention())
    page = visit(write_report(run, [result_of(4, 3), Second(cost, [grid])]))
    check(page, 5)
    assert [s.get_attribute("id") for s in page.query_selector_all(".study")] == ["study-fake", "study-prune"]
    shown = page.evaluate("document.querySelector('#fig-prune-cost .plot').data[0].z.map(row => [...row])")
    assert shown == np.arange(12.0).reshape(4, 3).tolist()
    page.click("#grid [data-i='0']")
    page.focus("#fig-prune-cost .plot")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#panel-title") == "Layer 1, head 0"
    assert "cost\n3 · rank 4 of 12" in page.inner_text("#panel-scores")
    page.set_viewport_size({"width": 1280, "height": 500})
    page.evaluate("document.querySelector('#fig-prune-cost').scrollIntoView()")
    page.wait_for_selector("#float:not([hidden])")  # the panel is out of sight: a way back to it
    assert page.get_attribute("#float", "href") == "#panel"
    assert "cost" in page.eval_on_selector_all("#colour option", "options => options.map(o => o.textContent)")


def test_a_damaged_capture_leaves_the_studies(tmp_path, visit):
    run = make_run(tmp_path / "run", attention())
    run.batch_path(0).write_bytes(b"not a file of tensors")
    page = visit(write_report(run, [result_of(4, 3)]))
    check(page, 4)
    assert "batch-0000.safetensors is damaged" in page.inner_text("#findings")
    assert page.query_selector("#panel-maps canvas") is None
    numbers = FakeResult(pd.DataFrame({"batch": [0, 1], "l1": [1.0, 2.0]}), other_figures())
    page = visit(write_report(run, [numbers], tmp_path / "numbers.html"))
    check(page, 6)
    assert page.query_selector("#panel") is None


def test_a_bad_figure_is_a_line_in_its_place(tmp_path, visit):
    bad = FigureSpec(id="bad", title="A bad map", kind="head_map", data={"coordinates": np.zeros((5, 3))}, read="Look.")
    strange = FigureSpec(id="strange", title="A strange one", kind="spiral", data={}, read="Look.")
    good = FigureSpec(id="good", title="A good one", kind="bars", data={"names": ["a"], "values": [1.0]}, read="Look.")
    run = make_run(tmp_path / "run", attention())
    page = visit(write_report(run, [FakeResult(frame_of(4, 3), [bad, strange, good])]))
    assert page.errors == []
    said = page.inner_text("#findings")
    assert "'coordinates' of figure 'bad' has shape (5, 3), the study has 12 heads" in said
    assert "figure 'strange' has kind 'spiral'" in said
    assert len(page.query_selector_all("figure .problem")) == 2
    assert page.query_selector(".bars svg.main-svg") is not None
