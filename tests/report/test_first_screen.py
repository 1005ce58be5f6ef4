"""The first screen in a browser: link, address, keys, search, filter, strip, saving, and reading it by keyboard alone.

Also tests report.first.
"""

import re

import numpy as np
import pytest

from fakes import FakeResult, attention, frame_of, groups_of, make_run, result_of
from headscape.report import write_report
from headscape.report.first import first_screen, heads_by_role, opening_head, strongest_first
from headscape.report.gather import Column, Scene, gather
from headscape.report.shades import Shades
from headscape.report.text import number
from headscape.results import FigureSpec
from headscape.tensor import HeadId

pytestmark = pytest.mark.xdist_group("chromium")
N_LAYER, N_HEAD, N_TOKEN = 4, 3, 12
LARGE_FOR_THREE = 25_000  # characters: of four inputs three have large maps
WORDS = ["The", " cat", " sat", " on", " a", " mat", ",", " the", " cat", " slept", ".", " End"]


def scene(roles, **scores):
    heads = [HeadId("decoder", i, 0) for i in range(len(roles))]
    columns = [
        Column("role", "organize", roles),
        *(Column(n, "organize", np.array(v, float)) for n, v in scores.items()),
    ]
    return Scene(heads, [], [], columns)


def test_the_page_opens_with_the_strongest_induction_head_else_the_first_role():
    first = "first token (sink)"
    mixed = scene(["mixed", "induction", "induction", first], induction=[0, 0.5, 0.9, 0], first=[0, 0, 0, 0.99])
    assert opening_head(mixed) == 2
    assert list(heads_by_role(mixed)) == ["induction", first, "mixed"]
    assert strongest_first(mixed) == [2, 1, 3]  # what Enter in the search goes by; a head without a role is never it
    assert opening_head(scene(["mixed", first, first], first=[0, 0.7, 0.8])) == 2
    assert opening_head(scene(["mixed", "mixed"])) == 0 == opening_head(Scene([HeadId("a", 0, 0)], [], [], []))


def test_a_role_of_most_heads_is_pale_so_that_the_others_stand_out():
    html = first_screen(scene(["first token (sink)", "first token (sink)", "first token (sink)", "induction", "mixed"]))
    assert html.count('class="c r1 pale"') == 3 == html.count('first token (sink)"></span>')
    assert 'class="c r0"' in html and 'class="c rm"' in html and '<li class="r1 pale">' in html
    assert "pale" not in first_screen(scene(["induction", "self"]))


def test_without_roles_the_grid_shows_the_score_of_the_study():
    """Not all grey, as the still picture under it is not."""
    frame = frame_of(2, 3).drop(columns="role")
    spec = FigureSpec(id="gains", title="Gain", kind="head_grid", data={"score": "gain"}, read="Look.")
    html = first_screen(gather([FakeResult(frame, [spec])]))
    colours = re.findall(r'role="gridcell"[^>]*--role:(#\w{6})', html)
    shades = Shades.of(frame["gain"].to_numpy())
    assert colours == [shades.colour(value) for value in frame["gain"]] and len(set(colours)) > 3
    assert "colored by gain" in html and f"Color: gain, {shades.said}." in html
    assert f"layer 0, head 0: gain {number(frame['gain'][0])}" in html
    named = first_screen(gather([FakeResult(frame_of(2, 3), [spec])]))  # roles come first
    assert "--role:" not in named and "colored by role" in named


def test_the_first_screen_says_what_roles_and_names_mean():
    html = first_screen(scene(["mixed", "first token (sink)", "mine"]))
    assert 'title="attends to the first token (attention sink)"' in html
    assert 'title="no known pattern holds 40% of its attention"' in html and 'title="mine"' in html
    assert "1.0 is head 0 of layer 1." in html


def test_names_on_the_first_screen_are_text():
    html = first_screen(scene(["<b>x</b>", "<b>x</b>"]))
    assert "<b>x</b>" not in html and "&lt;b&gt;x&lt;/b&gt;" in html
    assert first_screen(Scene([], [], [], [])) == ""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    values = attention(N_LAYER, N_HEAD, N_TOKEN, 4)
    run = make_run(tmp_path_factory.mktemp("runs") / "run", values, tokens=WORDS)
    with pytest.MonkeyPatch.context() as patch:  # such small maps leave little to a strip
        patch.setattr("headscape.report.headmaps.STRIP_SHARE", 0.3)
        return write_report(run, [result_of(N_LAYER, N_HEAD, N_TOKEN, 4)], map_budget=LARGE_FOR_THREE)


@pytest.fixture(scope="module")
def page(path, visit):
    return visit(path, width=1400, height=900)


@pytest.fixture(autouse=True)
def _clean(request):
    yield
    if "page" in request.fixturenames:
        assert request.getfixturevalue("page").errors == []


def head(page):
    return page.evaluate("document.body.dataset.head")


def cell(layer, number):
    return f"#grid [data-i='{layer * N_HEAD + number}']"


FIRST, *_ = ORDER = ("previous token", "first token", "spread")  # a role that is known comes first
ROLES = np.array(["first token", "previous token", "spread"])[groups_of(N_LAYER, N_HEAD).ravel()]


def test_all_of_it_is_above_the_fold(page):
    page.evaluate("scrollTo(0, 0)")
    for what in ("h1", ".roles", "#search", "#grid", "#panel-title", "#panel-text .text", "#panel-maps canvas"):
        box = page.query_selector(what).bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= 900, what
    assert head(page) == "decoder." + ".".join(map(str, divmod(int(np.flatnonzero(ROLES == FIRST)[0]), N_HEAD)))


def test_a_link_opens_a_head_and_the_address_follows(path, visit):
    for address in ("#2.1", "#decoder.2.1", "#L2H1"):
        page = visit(f"{path}{address}")
        assert head(page) == "decoder.2.1" and page.errors == []
    page.click(cell(3, 0))
    assert page.evaluate("location.hash") == "#3.0"
    page.evaluate("location.hash = '#0.2'")
    page.wait_for_function("() => document.body.dataset.head === 'decoder.0.2'")
    assert visit(f"{path}#fig-fake-map").evaluate("location.hash") == "#fig-fake-map"  # no head: left alone


def test_roles_have_counts_and_heads_by_name(page):
    chips = page.query_selector_all(".roles li")
    for role, chip in zip(ORDER, chips, strict=True):
        assert chip.query_selector("button").inner_text() == f"{role} {int((role == ROLES).sum())}"
    link = chips[1].query_selector("a")
    link.click()
    page.wait_for_function("name => document.body.dataset.head === `decoder.${name}`", arg=link.inner_text())
    page.keyboard.press("ArrowDown")  # the arrows go on from any click
    layer, number = map(int, link.inner_text().split("."))
    assert head(page) == f"decoder.{layer + 1 if layer + 1 < N_LAYER else layer}.{number}"


def shown(page):
    return [int(i) for i in page.eval_on_selector_all("#grid .c:not(.dim)", "cells => cells.map(c => c.dataset.i)")]


def test_a_role_filters_and_search_finds_by_name_and_role(page):
    chip = page.query_selector(".roles button")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    assert shown(page) == np.flatnonzero(ROLES == FIRST).tolist()
    assert page.inner_text("#matches") == f"{(ROLES == FIRST).sum()} of 12 heads"
    chip.click()
    assert len(shown(page)) == 12
    for text, found in (
        ("2.1", [7]),
        ("2", [6, 7, 8]),
        ("layer 3", [9, 10, 11]),
        ("spread", np.flatnonzero(ROLES == "spread").tolist()),
        ("nonsense", []),
    ):
        page.fill("#search", text)
        assert shown(page) == found
    assert page.inner_text("#matches") == "no head matches"
    page.fill("#search", "3.2")
    page.press("#search", "Enter")
    assert head(page) == "decoder.3.2"
    for text, chip in ((FIRST, 0), ("spread", 2)):  # of a role the strongest, which is the first that is named
        page.fill("#search", text)
        page.press("#search", "Enter")
        assert head(page) == "decoder." + page.inner_text(f".roles li:nth-child({chip + 1}) a:first-of-type")
    page.press("#search", "Escape")
    assert len(shown(page)) == 12


def test_arrows_move_in_the_grid_and_the_focus_goes_along(page):
    page.click(cell(1, 1))
    page.click("h1")  # the arrows of the last click end here; the focus alone decides, as for who uses no mouse
    page.focus(cell(1, 1))
    for key, place in (("ArrowRight", (1, 2)), ("ArrowDown", (2, 2)), ("ArrowLeft", (2, 1)), ("ArrowUp", (1, 1))):
        page.keyboard.press(key)
        assert head(page) == f"decoder.{place[0]}.{place[1]}"
        assert page.evaluate("document.activeElement.dataset.i") == str(place[0] * N_HEAD + place[1])


def test_the_text_shows_where_a_token_looks(page):
    layer, number = (int(i[0]) for i in np.nonzero(groups_of(N_LAYER, N_HEAD) == 1))  # looks one token back
    page.click(cell(layer, number))
    page.wait_for_selector(f"#panel[data-maps='decoder.{layer}.{number}']")
    assert page.inner_text("#panel-text .tokens") == "".join(WORDS)
    page.click("#panel-text span[data-key='8']")
    assert page.inner_text("#panel-text [role=status]").startswith("“·cat” (8) attends to “·the” (7)")
    page.focus("#panel-text .text")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#panel-text [role=status]").startswith("“·slept” (9) attends to “·cat” (8)")
    assert head(page) == f"decoder.{layer}.{number}"


def test_the_strip_shows_the_head_on_every_input(page):
    page.wait_for_selector("#panel-strip [data-input='3']")
    inputs = page.query_selector_all("#panel-strip [data-input]")
    assert [b.get_attribute("aria-pressed") for b in inputs] == ["true", "false", "false", None]
    assert inputs[1].get_attribute("aria-label").startswith("input 1: The cat sat")
    assert (inputs[3].get_attribute("role"), page.locator("#pick-batch option").count()) == ("img", 3)
    assert inputs[3].get_attribute("aria-label").endswith("(only this small map is in the file)")
    ink = "all => all.map(c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data].join())"
    assert len(set(page.eval_on_selector_all("#panel-strip canvas", ink))) == 4  # each shows its own input
    inputs[2].click()
    page.wait_for_selector("#panel-strip button[data-batch='2'][aria-pressed='true']")
    assert page.input_value("#pick-batch") == "2"
    page.click("#panel-strip button[data-batch='0']")


@pytest.mark.parametrize("place", ["#panel .save", ".head_matrix .save"])
def test_figures_can_be_saved(page, place):
    with page.expect_download() as waiting:
        page.click(place)
    assert waiting.value.suggested_filename.endswith(".png")
    assert waiting.value.path().read_bytes().startswith(b"\x89PNG")


def test_it_can_be_read_by_keyboard_and_screen_reader(page):
    page.click(cell(0, 0))
    assert page.eval_on_selector_all("#grid [tabindex='0']", "cells => cells.map(c => c.dataset.i)") == ["0"]
    assert page.eval_on_selector_all("#grid [aria-selected='true']", "cells => cells.length") == 1
    label = page.get_attribute(cell(2, 1), "aria-label")
    assert label == f"layer 2, head 1: {ROLES[7]}"
    assert page.eval_on_selector_all("#grid [role=row]", "rows => rows.length") == N_LAYER + 1
    heads = page.eval_on_selector_all("#grid [role=columnheader]", "all => all.map(b => [b.ariaLabel, b.textContent])")
    assert heads == [[f"head {n}", str(n)] for n in range(N_HEAD)]
    nameless = """() => [...document.querySelectorAll('main :is(button, input, select, a, [tabindex])')].filter(e =>
        e.offsetParent && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length || e.title)
    ).map(e => e.outerHTML.slice(0, 90))"""
    assert page.evaluate(nameless) == []
    page.focus(".brand")
    reached = []
    for _ in range(50):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("(e => e.id || e.dataset.i || e.className || e.textContent)(document.activeElement)")
        )
    order = [reached.index(place) for place in ("search", "0", "pick-layer", "text")]
    assert order == sorted(order)
    page.focus("#search")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert page.get_attribute("#live", "aria-live") == "polite"


def test_the_table_keeps_its_first_columns(page):
    page.click("#heads-table summary")
    page.click("#heads-table th button >> text=gain")
    assert (
        page.eval_on_selector_all("#heads-table th", "all => all.map(t => t.getAttribute('aria-sort'))").count(
            "descending"
        )
        == 1
    )
    page.eval_on_selector("#heads-table .table", "t => { t.style.width = '160px'; t.scrollLeft = 200; }")
    box = page.query_selector("#heads-table .table").bounding_box()
    for n in (1, 2):
        at = page.query_selector(f"#heads-table tbody tr td:nth-child({n})").bounding_box()
        assert at["x"] - box["x"] < 120, n


def test_a_phone_shows_the_grid_and_the_head_without_scrolling_sideways(path, visit):
    page = visit(path, width=390, height=844)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for what in (".roles", "#search", "#grid"):
        box = page.query_selector(what).bounding_box()
        assert box["y"] + box["height"] <= 844, what
    assert page.query_selector("#panel-title").bounding_box()["y"] <= 844
    maps = [canvas.bounding_box() for canvas in page.query_selector_all("#panel-maps canvas")]
    assert len(maps) == 2 and maps[0]["y"] == maps[1]["y"]  # side by side, not one below the caption of the other
    assert page.errors == []
