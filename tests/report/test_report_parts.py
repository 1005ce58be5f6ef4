"""What the page is made of: text made harmless, arrays packed, maps coarsened and encoded, results gathered."""

import base64
import io
import json
import unicodedata

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from fakes import NASTY, FakeResult, attention, frame_of, head_figures, make_run, result_of
from headscape.captures import open_capture
from headscape.report import write_report
from headscape.report.coarsen import block_means, cells_of
from headscape.report.gather import gather
from headscape.report.headmaps import Orders, draw_maps, encode
from headscape.report.packing import pack, unpack
from headscape.report.page import page as page_parts
from headscape.report.pictures import picture as picture_of
from headscape.report.summary import excerpt
from headscape.report.text import escape, json_for_html, plotly_text, visible
from headscape.results import FigureSpec, Finding
from headscape.runs import Run
from headscape.tensor import HeadId


def pixels(png):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))


# ------------------------------------------------------------------ text


@given(st.text(max_size=200))
def test_visible_text_hides_and_turns_nothing(text):
    shown = visible(text)
    joiner = "\u200d"  # kept between pictographs only
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != joiner]
    assert len(shown) < 60 * 10 + 40
    shown.encode("utf-8")


@given(st.text(max_size=60))
def test_visible_leaves_plain_text_alone(text):
    plain = "".join(c for c in text if unicodedata.category(c)[0] in "LNPS").strip()
    assert visible(plain) == (plain or "(empty)")


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_for_html_cannot_leave_its_script(value):
    text = json_for_html(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize("token", NASTY)
def test_escaped_text_holds_no_tag(token):
    assert "<" not in escape(token)
    assert '"' not in escape(token)
    assert "<" not in plotly_text(token)


# ------------------------------------------------------------------ arrays


@given(
    hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=9), elements=st.floats(-1e6, 1e6, width=32)
    )
)
def test_packed_floats_come_back(array):
    assert np.allclose(unpack(json.loads(json.dumps(pack(array)))), array, rtol=1e-6)


@given(hnp.arrays(np.int64, st.integers(0, 80), elements=st.integers(-(2**31), 2**31 - 1)))
def test_packed_integers_come_back(array):
    assert np.array_equal(unpack(json.loads(json.dumps(pack(array)))), array)


def test_large_arrays_take_two_bytes_and_keep_missing_numbers():
    values = np.random.default_rng(0).normal(size=(600, 500))
    values[3, 4] = np.nan
    packed = pack(values)
    assert packed["$"] == "u2"
    back = unpack(packed)
    assert np.isnan(back[3, 4])
    assert np.nanmax(np.abs(back - values)) <= np.ptp(values[np.isfinite(values)]) / 65_000


def test_numbers_json_does_not_know_become_none():
    assert pack({"a": float("inf"), "b": np.array([np.nan, 1.0]), 3: np.float32(2)}) == {
        "a": None,
        "b": [None, 1.0],
        "3": 2.0,
    }


# ------------------------------------------------------------------ maps


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_block_means_are_means(n_query, n_key, most, seed, causal):
    """Slow twin: average the present entries of every cell one by one."""
    rng = np.random.default_rng(seed)
    values = rng.random((2, n_query, n_key)).astype(np.float32)
    present = np.tri(n_query, n_key, k=n_key - n_query, dtype=bool) if causal else np.ones((n_query, n_key), bool)
    query = cells_of(n_query, most, rng.permutation(n_query))
    key = cells_of(n_key, most)
    means = block_means(values, present, query, key)
    assert max(means.shape[1:]) <= most
    for i, j in np.ndindex(means.shape[1:]):
        rows = query.order[query.bounds[i] : query.bounds[i + 1]]
        columns = key.order[key.bounds[j] : key.bounds[j + 1]]
        inside = [(q, k) for q in rows for k in columns if present[q, k]]
        for h in range(2):
            expected = np.mean([values[h, q, k] for q, k in inside]) if inside else 0
            assert means[h, i, j] == pytest.approx(expected, abs=1e-5)


def test_cells_follow_the_tree_where_there_is_one():
    labels = np.array([[0] * 8, [0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 3, 3, 4, 5, 6], list(range(8))])
    cells = cells_of(8, 3, np.arange(8), labels)
    assert cells.bounds.tolist() == [0, 3, 5, 8]  # the finest level with at most three folders
    assert cells_of(8, 8, np.arange(8), labels).bounds.tolist() == list(range(9))


@given(hnp.arrays(np.float32, (7, 5), elements=st.floats(0, 1, width=32)))
def test_eight_bits_keep_the_square_root(values):
    png, low, high = encode(values, "probs", np.ones((7, 5), dtype=bool))
    grey = pixels(png)
    assert low == 0
    assert grey.dtype == np.uint8
    if high > 0:
        assert np.abs(grey / 255 - np.sqrt(values / high)).max() <= 0.5 / 255 + 1e-4


def test_scores_are_linear_and_absent_entries_do_not_stretch_them():
    values = np.array([[-3.0, 1e9], [0.0, 2.0]], dtype=np.float32)
    png, low, high = encode(values, "scores", np.tri(2, dtype=bool))
    assert (low, high) == (-3, 2)
    assert pixels(png).tolist() == [[0, 0], [153, 255]]


def test_maps_stay_within_the_budget_and_say_what_was_left_out(tmp_path):
    capture = open_capture(make_run(tmp_path / "run", attention(3, 4, 64, 5)))
    heads = capture.heads()
    whole = draw_maps(capture, heads)
    assert len(whole.facts["batches"]) == 5
    size = sum(len(png) for images in whole.images.values() for pngs in images.values() for png in pngs)
    some = draw_maps(capture, heads, budget=size // 2)
    assert 1 <= len(some.facts["batches"]) < 5
    assert any("of 5 batches" in note for note in some.notes)
    least = draw_maps(capture, heads, budget=size // 12)
    assert any("averaged to at most 32 cells" in note for note in least.notes)
    assert pixels(next(iter(least.images["maps-0-0"].values()))[0]).shape == (32, 32)


def test_coarse_maps_come_organised_too(tmp_path):
    values = attention(1, 2, 300, 1)
    run = make_run(tmp_path / "run", values)
    order = np.random.default_rng(1).permutation(300)
    orders = Orders.of_figure({"query_orders": [order], "key_orders": [order]}, ["decoder"])
    maps = draw_maps(open_capture(run), open_capture(run).heads(), orders)
    original, organised = (pixels(png) for png in maps.images["maps-0-0"]["0"])
    bounds = np.append(np.arange(0, 300, 2), 300)
    stored = values[0, 0, 0].astype(np.float16).astype(np.float64)
    stored[np.triu_indices(300, 1)] = np.nan
    i, j = 40, 7
    for picture, along, which in ((original, np.arange(300), 0), (organised, order, 1)):
        block = stored[np.ix_(along[bounds[i] : bounds[i + 1]], along[bounds[j] : bounds[j + 1]])]
        low, high = maps.facts["batches"][0]["blocks"]["decoder"]["ranges"]["0"][which]
        shown = low + (high - low) * (picture[i, j] / 255) ** 2
        expected = 0 if np.isnan(block).all() else np.nanmean(block)
        assert np.sqrt(shown) == pytest.approx(np.sqrt(expected), abs=np.sqrt(high) / 255)


def test_capture_without_attention_says_so(tmp_path):
    run = make_run(tmp_path / "run", attention())
    for path in (run.path / "attention").iterdir():
        raw = path.read_bytes()
        path.write_bytes(raw.replace(b'\\"keep\\": [\\"probs\\"]', b'\\"keep\\": [\\"other\\"]'))
    text = write_report(run, [result_of(4, 3)]).read_text()
    assert "the capture kept other; capture again with --keep probs" in text


def test_damaged_capture_says_so(tmp_path):
    run = make_run(tmp_path / "run", attention())
    run.batch_path(0).write_bytes(b"not a file of tensors")
    text = write_report(run, [result_of(4, 3)]).read_text()
    assert "batch-0000.safetensors is damaged" in text
    assert "Map of the heads" in text


def test_damaged_later_batch_leaves_the_first(tmp_path):
    run = make_run(tmp_path / "run", attention(n_batch=3))
    run.batch_path(1).write_bytes(b"not a file of tensors")
    text = write_report(run, [result_of(4, 3)]).read_text()
    assert "The maps of batch 1 are not shown" in text
    assert 'id="maps-0-0"' in text
    assert 'id="maps-2-0"' in text


# ------------------------------------------------------------------ results


class Broken(FakeResult):
    """A study whose pictures cannot be made."""

    def figures(self):
        raise KeyError("coordinates")


def test_a_study_that_fails_is_a_section_with_its_reason(tmp_path):
    run = make_run(tmp_path / "run", attention())
    found = [Finding("This still holds.")]
    text = write_report(run, [Broken(frame_of(4, 3), [], found), result_of(4, 3)]).read_text()
    assert "its figures could not be made: KeyError: &#x27;coordinates&#x27;" in text
    assert "This still holds." in text
    assert "Map of the heads" in text


def test_heads_of_all_studies_are_joined_by_place():
    heads = [HeadId("decoder", 0, h) for h in range(3)]
    first = frame_of(1, 3)
    second = first.iloc[::-1].assign(gain=[3.0, 2.0, 1.0], flag=[True, False, True])
    scene = gather([FakeResult(first), FakeResult(second)], heads)
    assert scene.heads == heads
    assert scene.sections[1].rows == [2, 1, 0]
    columns = {column.name: column.values for column in scene.columns}
    assert columns["gain (fake#2)"].tolist() == [1.0, 2.0, 3.0]
    assert columns["flag (fake#2)" if "flag (fake#2)" in columns else "flag"] == ["True", "False", "True"]


def test_heads_of_two_networks_stay_apart():
    both = pd.concat([frame_of(1, 2).assign(run=run) for run in ("a", "b")])
    scene = gather([FakeResult(both)], [HeadId("decoder", 0, 0)])
    assert [str(head) for head in scene.heads[1:]] == [
        "a: decoder.0.0",
        "a: decoder.0.1",
        "b: decoder.0.0",
        "b: decoder.0.1",
    ]
    assert {column.name for column in scene.columns} == {"entropy", "gain", "role"}


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"batch": [0, 1], "l1": [1.0, 2.0]}),
        pd.concat([frame_of(1, 2), frame_of(1, 2)]),
        frame_of(1, 2).assign(layer="none"),
        frame_of(1, 2).iloc[:0],
    ],
)
def test_tables_that_are_not_of_heads_are_shown_as_tables(tmp_path, frame):
    scene = gather([FakeResult(frame)])
    assert scene.sections[0].rows is None
    assert scene.columns == []
    run = make_run(tmp_path / "run", attention())
    bars = FigureSpec(id="bars", title="Bars", kind="bars", data={"names": ["a"], "values": [1.0]}, read="Look.")
    assert "Bars" in write_report(run, [FakeResult(frame, [bars, *head_figures(1, 2)])]).read_text()


def test_page_is_the_same_twice_and_appears_whole(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", attention())
    first = write_report(run, [result_of(4, 3, everything=True)]).read_bytes()
    again = write_report(run, [result_of(4, 3, everything=True)], tmp_path / "else" / "page.html")
    assert again.read_bytes() == first

    def failing(*arguments):
        yield next(iter(page_parts(*arguments)))
        raise OSError("the disk is gone")

    monkeypatch.setattr("headscape.report.page.page", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        write_report(run, [])
    assert (run.path / "report.html").read_bytes() == first
    assert not list(run.path.glob("*.partial"))


def test_page_asks_for_nothing_outside(tmp_path):
    text = write_report(make_run(tmp_path / "run", attention()), [result_of(4, 3)]).read_text()
    head = text[: text.index("</head>")]
    policy = head[head.index("Content-Security-Policy") :].split('"')[2]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    assert all(source.startswith("'sha256-") for source in rules["script-src"].split())
    assert rules["img-src"] == "data: blob:"
    assert text.count("</script>") == text.count("<script")


def test_a_run_that_captures_nothing_misses_nothing(tmp_path):
    run = Run.create(
        tmp_path / "run", config={"kind": "train"}, inputs={"text": "novels", "bytes": 1234, "sha256": "0"}
    )
    (run.path / "begun").mkdir()
    missing = [("organize", "not run yet"), ("begun", "not finished")]
    html = write_report(run, [result_of(1, 2, 4), *missing]).read_text(encoding="utf-8")
    assert "organize</b> is missing" not in html and "begun</b> is missing" in html
    assert "Attention maps are not shown" not in html and "imported from a file" not in html
    assert "networks made for this study" in html and "text novels; bytes 1,234" in html
    captured = Run.create(tmp_path / "captured", config={"kind": "capture"})
    html = write_report(captured, [result_of(1, 2, 4), *missing]).read_text(encoding="utf-8")
    assert "organize</b> is missing" in html and "Attention maps are not shown" in html


def test_a_table_too_wide_for_half_a_page_takes_the_whole(tmp_path):
    run = Run.create(tmp_path / "run", config={"kind": "train"})

    def page_of(n_column):
        spec = FigureSpec(
            id="t",
            title="T",
            kind="table",
            data={"columns": ["a column"] * n_column, "rows": [["x"] * n_column]},
            read="Look.",
        )
        result = result_of(1, 2, 4)
        result.shown[:] = [spec]
        return write_report(run, [result]).read_text(encoding="utf-8")

    assert 'class="card table-card wide"' in page_of(9)
    assert 'class="card table-card "' in page_of(3)  # not of class table, whose height is limited: the caption would go


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


def test_word_pieces_are_quoted_as_words(tmp_path):
    pieces = ["[CLS]", "an", "aw", "##ful", "charge", "."]
    run = make_run(tmp_path / "run", attention(1, 1, 6), tokens=pieces)
    run.meta["inputs"]["kind"] = "text"
    assert excerpt(open_capture(run), run.meta["inputs"]) == "[CLS] an awful charge ."
    run = make_run(tmp_path / "other", attention(1, 1, 3), tokens=["An", " aw", "ful"])
    run.meta["inputs"]["kind"] = "text"
    assert excerpt(open_capture(run), run.meta["inputs"]) == "An awful"
