"""The page in a browser: it loads, links, obeys keys, and runs nothing that a token says."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fakes import NASTY, FakeResult, attention, frame_of, head_figures, head_tree, make_run, result_of
from headscape.report import write_report
from headscape.report.text import visible
from headscape.results import Finding

pytestmark = pytest.mark.xdist_group("chromium")
N_LAYER, N_HEAD, N_TOKEN = 4, 3, 24
TOKENS = (NASTY * 2)[:N_TOKEN]
VALUES = attention(N_LAYER, N_HEAD, N_TOKEN)
RESULT = result_of(N_LAYER, N_HEAD, N_TOKEN, everything=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("runs") / "run", VALUES, tokens=TOKENS, source=NASTY[0])
    missing = [("softmax", ValueError("the file <b>decay</b> is damaged")), ("prune", "it has not been run")]
    return write_report(run, [RESULT, *missing])


@pytest.fixture(scope="module")
def page(path, visit):
    return visit(path)


@pytest.fixture(autouse=True)
def _clean(page):
    """Whatever a test does, the page stays without errors and requests, and no token has run."""
    yield
    assert page.errors == []
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in page.asked if url.startswith("file:")]) == 1
    assert page.evaluate("window.owned") is None


def name(layer, head):
    return f"decoder.{layer}.{head}"


def select(page, layer, head):
    page.select_option("#pick-layer", str(layer))
    page.select_option("#pick-head", str(layer * N_HEAD + head))
    page.wait_for_selector(f"#panel[data-maps='{name(layer, head)}']")


def centre(page, kind, x, y):
    """Where a point of a flat plot is on the screen."""
    return page.evaluate(
        """([kind, x, y]) => {
            const box = document.querySelector(`.${kind} .plot`);
            box.scrollIntoView({block: 'center'});
            const {xaxis, yaxis} = box._fullLayout;
            const at = box.getBoundingClientRect();
            return [at.left + xaxis._offset + xaxis.l2p(x), at.top + yaxis._offset + yaxis.l2p(y)];
        }""",
        [kind, x, y],
    )


def click(page, kind, x, y):
    at = centre(page, kind, x, y)
    page.mouse.move(at[0] - 3, at[1] - 3)
    page.mouse.move(*at)
    page.wait_for_timeout(80)  # plotly ties a click to the point it has seen the mouse over
    page.mouse.click(*at)


def check_selected(page, layer, head):
    """Every picture and the panel show this head, in what they drew and not only in what they say."""
    assert page.evaluate("document.body.dataset.head") == name(layer, head)
    assert {page.get_attribute(f".{k} .plot", "data-selected") for k in ("head_map", "head_matrix", "head_tree")} == {
        name(layer, head)
    }
    shapes = "document.querySelector('.{} .plot')._fullLayout.shapes.map(s => [s.x0, s.x1, s.y0, s.y1])"
    assert page.evaluate(shapes.format("head_grid")) == [[head - 0.5, head + 0.5, layer - 0.5, layer + 0.5]]
    row = layer * N_HEAD + head
    at = int(head_tree(N_LAYER, N_HEAD).leaf_position[row])
    assert {tuple(shape[:2]) for shape in page.evaluate(shapes.format("head_tree"))} == {(at - 0.5, at + 0.5)}
    n = N_LAYER * N_HEAD
    whole, own = (-0.5, n - 0.5), (at - 0.5, at + 0.5)
    assert page.evaluate(shapes.format("head_matrix")) == [[*whole, *own], [*own, *whole]]
    ring = page.evaluate("(t => [t.x[0], t.y[0]])(document.querySelector('.head_map .plot').data.at(-1))")
    assert ring == pytest.approx(RESULT.shown[0].data["coordinates"][row, :2].tolist(), rel=1e-5)
    assert page.inner_text("#panel-title") == f"Layer {layer}, head {head}"


def test_every_picture_is_drawn(page):
    boxes = page.query_selector_all("[data-figure]")
    assert len(boxes) == len(RESULT.shown) - 1  # the table is HTML
    for box in boxes:
        assert box.query_selector("svg.main-svg, canvas") is not None, box.get_attribute("data-figure")
    assert page.query_selector(".still") is None


def test_first_screen_says_what_was_found(page):
    summary = page.inner_text("#summary")
    assert NASTY[0] in summary
    assert "12 heads in 4 layers" in summary
    findings = page.query_selector_all(".findings li")
    assert [item.get_attribute("class") for item in findings] == ["holds", "fails", "unsure", "plain"]
    assert "Shuffling does not change <b>this</b>." in findings[1].inner_text()
    rule = findings[2].query_selector(".rule")
    assert rule.inner_text() == "? Cannot tell: one batch; capture at least 3."
    sizes = "e => [parseFloat(getComputedStyle(e.querySelector('small')).fontSize), parseFloat(getComputedStyle(e).fontSize)]"
    small, normal = rule.evaluate(sizes)
    assert small < normal
    target = findings[0].query_selector("a").get_attribute("href")
    assert page.inner_text(f"{target} h3") == "Map of the heads"
    for figure in page.query_selector_all("figure.card"):
        assert "How to read this." in figure.inner_text()
        assert "What it does not prove." in figure.inner_text()


def test_missing_studies_are_named_with_the_reason(page):
    notes = " ".join(note.inner_text() for note in page.query_selector_all("#findings .problem"))
    assert "softmax is missing: ValueError: the file <b>decay</b> is damaged" in notes
    assert "prune is missing: it has not been run" in notes


def test_clicking_a_head_in_the_map_selects_it_everywhere(page):
    for layer, head in ((2, 1), (3, 2), (0, 0)):
        x, y, _ = RESULT.shown[0].data["coordinates"][layer * N_HEAD + head]
        click(page, "head_map", x, y)
        check_selected(page, layer, head)


def test_clicking_in_the_grid_selects_everywhere(page):
    click(page, "head_grid", 2, 1)
    check_selected(page, 1, 2)
    page.keyboard.press("ArrowLeft")  # goes on from the click
    check_selected(page, 1, 1)


def test_clicking_a_leaf_or_a_row_selects_everywhere(page):
    tree = head_tree(N_LAYER, N_HEAD)
    for kind, x, y in (("head_tree", 7, tree.n_levels - 1), ("head_matrix", 2, 5)):
        click(page, kind, x, y)
        layer, head = divmod(int(tree.order[x if kind == "head_tree" else y]), N_HEAD)
        check_selected(page, layer, head)


def test_clicking_a_cluster_zooms_and_dims_the_others(page):
    page.select_option("#colour", "layer")
    click(page, "head_tree", 1, 1)
    tree = head_tree(N_LAYER, N_HEAD)
    inside = np.flatnonzero(tree.level(1)[tree.order] == tree.level(1)[tree.order[1]])
    shown = page.evaluate("document.querySelector('.head_tree .plot')._fullLayout.xaxis.range")
    assert shown == [inside[0] - 0.5, inside[-1] + 0.5]
    dim = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--line').trim()")
    colours = page.evaluate("document.querySelector('.head_map .plot').data[0].marker.color")
    kept = {i for i, colour in enumerate(colours) if colour != dim}
    assert kept == set(tree.order[inside].tolist())
    page.click("text=Whole tree")
    assert page.evaluate("document.querySelector('.head_map .plot').data[0].marker.color").count(dim) == 0


def test_colour_menu_offers_everything_and_recolours(page):
    offered = page.eval_on_selector_all("#colour option", "options => options.map(o => o.textContent)")
    assert offered[:2] == ["layer", "role"]
    assert {"entropy", "gain"} <= set(offered)
    assert any(text.startswith("cluster, level 1 (3 clusters)") for text in offered)
    colours = "document.querySelector('.head_map .plot').data[0].marker.color"

    def groups(choice):
        page.select_option("#colour", choice)
        found = page.evaluate(colours)
        return [found.index(colour) for colour in found]

    roles = RESULT.frame["role"].tolist()
    assert groups("column:2") == [roles.index(role) for role in roles]
    assert page.inner_text("#legend").split("\n")[0].endswith("previous token")
    layers = RESULT.frame["layer"].tolist()
    assert groups("layer") == [layers.index(layer) for layer in layers]
    labels = head_tree(N_LAYER, N_HEAD).level(1).tolist()
    assert groups("cluster:1") == [labels.index(label) for label in labels]
    assert "look at <b>first</b>" in page.inner_text("#legend")
    entropy = np.array(page.evaluate("document.querySelector('.head_grid .plot').data[0].z.map(r => [...r])"))
    assert np.allclose(entropy.ravel(), RESULT.frame["entropy"], rtol=1e-5)
    page.select_option(".head_grid select", "column:1")
    gain = np.array(page.evaluate("document.querySelector('.head_grid .plot').data[0].z.map(r => [...r])"))
    assert np.allclose(gain.ravel(), RESULT.frame["gain"], rtol=1e-5)


def test_arrow_keys_move_the_head(page):
    select(page, 1, 1)
    page.focus(".head_grid .plot")
    page.keyboard.press("ArrowRight")
    check_selected(page, 1, 2)
    page.keyboard.press("ArrowRight")  # on to the next layer
    check_selected(page, 2, 0)
    page.keyboard.press("ArrowUp")
    check_selected(page, 1, 0)
    page.focus(".head_map .plot")
    page.keyboard.press("ArrowDown")
    check_selected(page, 2, 0)
    page.focus(".head_tree .plot")
    order = head_tree(N_LAYER, N_HEAD).order.tolist()
    page.keyboard.press("ArrowRight")
    check_selected(page, *divmod(order[order.index(2 * N_HEAD) + 1], N_HEAD))
    assert page.inner_text("#live").endswith("selected")


def test_tab_reaches_the_controls(page):
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.focus(".brand")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("(e => e.id || e.className)(document.activeElement)"))
    assert {"theme", "colour", "pick-layer", "pick-head"} <= reached
    assert any("plot" in where for where in reached)


def test_map_shows_the_attention_and_its_organized_order(page):
    layer, head = 2, 1
    select(page, layer, head)
    order = RESULT.shown[0].data["query_orders"][0]
    top = VALUES[0, layer, head].max()
    for which, rows, columns in ((0, np.arange(N_TOKEN), np.arange(N_TOKEN)), (1, order, order[::-1])):
        canvas = page.query_selector_all("#panel-maps canvas")[which]
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        for i, j in ((5, 3), (20, 19), (11, 2), (3, 17), (23, 0)):
            w = box["width"] - 50 - 2  # room for labels, as in maps.js
            page.mouse.move(box["x"] + 50 + (j + 0.5) * w / N_TOKEN, box["y"] + 7 + (i + 0.5) * w / N_TOKEN)
            said = page.inner_text("#tip").split("\n")
            query, key = int(rows[i]), int(columns[j])
            assert said[1].endswith(f"({query})")
            assert said[2] == f"key “{visible(TOKENS[key])}” ({key})"
            if key > query:
                assert said[0] == "masked: this query cannot attend to this key"
            else:
                grey = np.sqrt(VALUES[0, layer, head, query, key] / top)
                shown = np.sqrt(float(said[0].split()[-1]) / top)
                assert shown == pytest.approx(grey, abs=1 / 255 + 0.006)  # 8 bits and three digits


def test_panel_lists_pairs_and_neighbours(page):
    layer, head = 1, 0
    select(page, layer, head)
    values = VALUES[0, layer, head].astype(np.float16).astype(float)
    best = [(values[1:, k].max(), 1 + int(values[1:, k].argmax()), k) for k in range(N_TOKEN)]
    best = sorted(best, key=lambda pair: -pair[0])[:3]
    listed = [item.inner_text() for item in page.query_selector_all("#panel-pairs li")[:3]]
    for text, (value, query, key) in zip(listed, best, strict=True):
        assert f"({query}) → " in text
        assert f"({key})" in text
        assert float(text.split("\n")[-1]) == pytest.approx(value, rel=0.01)
    affinity = RESULT.shown[1].data["values"][layer * N_HEAD + head]
    near = [i for i in np.argsort(-affinity) if i != layer * N_HEAD + head][:3]
    buttons = page.query_selector_all("#panel-near button")
    assert [b.inner_text() for b in buttons[:3]] == [f"layer {i // N_HEAD}, head {i % N_HEAD}" for i in near]
    buttons[0].click()
    check_selected(page, *divmod(int(near[0]), N_HEAD))
    assert page.query_selector("#panel-decay svg.main-svg") is not None
    assert page.query_selector("#panel-batches svg.main-svg") is not None


def test_batches_can_be_changed(page):
    select(page, 0, 0)
    before = page.inner_text("#panel-pairs")
    page.select_option("#pick-batch", "1")
    page.wait_for_function("before => document.querySelector('#panel-pairs').innerText !== before", arg=before)
    page.select_option("#pick-batch", "0")


def test_large_map_opens_zooms_and_closes_by_key(page):
    page.focus("#panel-maps canvas")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] canvas")
    before = page.query_selector("dialog canvas").screenshot()
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    assert page.query_selector("dialog canvas").screenshot() != before
    page.keyboard.press("Escape")
    assert page.query_selector("dialog[open]") is None


def test_hostile_tokens_are_text(page):
    """Show every token in every place: labels, tooltips, lists, table, dialog."""
    for row in range(N_LAYER * N_HEAD):
        select(page, *divmod(row, N_HEAD))
    page.click("#heads-table summary")
    for selector in ("#panel-maps canvas", ".scatter .plot", ".bars .plot", ".head_map .plot", ".maps canvas"):
        box = page.query_selector(selector)
        box.scroll_into_view_if_needed()
        at = box.bounding_box()
        for share in np.linspace(0.15, 0.85, 8):
            page.mouse.move(at["x"] + share * at["width"], at["y"] + share * at["height"])
            page.wait_for_timeout(10)
    assert (
        page.evaluate(
            "document.querySelectorAll('main script, main img, main iframe, main a[href^=javascript]').length"
        )
        == 0
    )
    pairs = page.evaluate("[...document.querySelectorAll('#panel-pairs bdi')].map(b => b.textContent)")
    assert set(pairs) <= {visible(token) for token in TOKENS}
    text = page.evaluate("document.body.textContent")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
    assert max(len(word) for word in pairs) < 120


def test_policy_refuses_scripts_that_are_put_in(page):
    ran = page.evaluate(
        """async () => {
            const script = document.createElement('script');
            script.textContent = 'window.ran = 1';
            document.body.append(script);
            const holder = document.createElement('div');
            holder.innerHTML = '<img src=data:, onerror="window.ran = 2">';
            document.body.append(holder);
            await new Promise(done => setTimeout(done, 100));
            let reached = true;
            try { await fetch('https://example.org/'); } catch { reached = false; }
            script.remove(); holder.remove();
            return [window.ran ?? null, reached];
        }"""
    )
    assert ran == [None, False]
    assert page.errors  # the browser says that it refused
    page.errors.clear()
    page.asked[:] = [url for url in page.asked if "example.org" not in url]


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_themes_follow_the_system_and_the_button(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function("s => document.documentElement.dataset.theme === s", arg=scheme)

    def brightness():
        return (
            sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3])) / 3
        )

    assert (brightness() > 128) == (scheme == "light")
    ink = page.evaluate("document.querySelector('.lines .plot')._fullLayout.font.color")
    assert (int(ink[1:3], 16) > 128) == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_verdicts_and_rules_can_be_read(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.wait_for_function("s => document.documentElement.dataset.theme === s", arg=scheme)
    ground = luminance(page.eval_on_selector(".findings li", "e => getComputedStyle(e).backgroundColor"))
    inks = page.eval_on_selector_all(".verdict, .rule, .findings .go", "all => all.map(e => getComputedStyle(e).color)")
    assert len(inks) == 9
    for ink in inks:
        low, high = sorted((luminance(ink), ground))
        assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG AA for small text


def luminance(colour):
    shares = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    return np.dot(
        [0.2126, 0.7152, 0.0722], [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    )


def test_theme_button_overrules_the_system(page):
    page.emulate_media(color_scheme="light")
    page.focus("#theme")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_narrow_screen_does_not_scroll_sideways(page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = page.evaluate(
        "[...document.querySelectorAll('figure.card, #panel, .plot')]"
        ".filter(e => e.getBoundingClientRect().right > 391).length"
    )
    assert wide == 0
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_timeout(300)


def test_solid_map_turns_and_selects(page):
    page.click("[data-view='3d']")
    page.wait_for_selector(".head_map .gl-container canvas")
    page.wait_for_timeout(500)
    page.evaluate("document.querySelector('.head_map .plot').scrollIntoView({block: 'center'})")
    picture = Image.open(io.BytesIO(page.query_selector(".head_map .plot").screenshot())).convert("RGB")
    assert len(picture.getcolors(10**6)) > 100  # points and axes, not a blank canvas
    at = page.query_selector(".head_map .plot").bounding_box()
    for share in np.linspace(0.2, 0.8, 400):  # a path over the picture meets a head somewhere
        angle = 60 * share
        x = at["x"] + at["width"] * (0.5 + 0.45 * share * np.cos(angle))
        y = at["y"] + at["height"] * (0.5 + 0.45 * share * np.sin(angle))
        page.mouse.move(x, y)
        if page.is_hidden("#tip"):
            continue
        page.wait_for_timeout(300)  # the picture behind the pointer is a frame or two late
        if not page.is_hidden("#tip"):
            said = page.inner_text("#tip").split("\n")[0]
            page.mouse.click(x, y, delay=100)
            page.wait_for_timeout(100)
            layer, head = map(int, re.findall(r"\d+", said))
            assert page.evaluate("document.body.dataset.head") == name(layer, head)
            break
    else:
        pytest.fail("no head met")
    page.click("[data-view='2d']")
    assert page.get_attribute(".head_map .plot", "data-view") == "2d"


def test_table_of_heads_sorts_and_selects(page):
    if page.query_selector("#heads-table table") is None:
        page.click("#heads-table summary")
    page.click("#heads-table th button >> text=gain")
    first = page.query_selector("#heads-table tbody tr")
    row = int(RESULT.frame["gain"].argmax())  # the highest first
    assert first.get_attribute("data-head") == name(*divmod(row, N_HEAD))
    first.click()
    check_selected(page, *divmod(row, N_HEAD))


def test_printing_gives_a_light_pdf(page, tmp_path):
    page.emulate_media(color_scheme="dark")
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.count(b"/Type /Page\n") + content.count(b"/Type /Page ") + content.count(b"/Type /Page/") >= 3
    assert page.evaluate("document.documentElement.dataset.theme") in ("dark", "light")
    page.emulate_media(color_scheme="light")


def test_a_long_title_of_a_figure_breaks_in_the_list_of_findings(tmp_path, visit):
    """Those of the claims are a paper's whole reference."""
    figures = [replace(spec, title="Whole reference of a paper, " * 8) for spec in head_figures(1, 2)]
    long = FakeResult(frame_of(1, 2), figures, [Finding("Seen.", figures[0].id)])
    own = visit(write_report(make_run(tmp_path / "run", attention(1, 2, 24)), [long]), width=700)
    assert own.query_selector(".findings .go").bounding_box()["width"] <= 700
    assert own.evaluate("document.documentElement.scrollWidth") <= 700
