"""Attention maps as pictures: what their greys mean, how many fit, and what is said of the others.

Also tests report.greys, report.orders.
"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fakes import attention, make_run, pixels, result_of
from headscape.captures import open_capture
from headscape.report import write_report
from headscape.report.greys import encode
from headscape.report.headmaps import HeadMaps, _Drawer, draw_maps
from headscape.report.orders import Orders
from headscape.report.packing import pack


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


@pytest.mark.parametrize("pictured", [False, True])
def test_the_numbers_beside_a_picture_take_the_characters_that_are_counted(tmp_path, pictured):
    capture = open_capture(make_run(tmp_path / "run", attention(1, 2, 300, 1)))
    index = {head: i for i, head in enumerate(capture.heads())}
    drawer = _Drawer(capture, "probs", Orders(), index, pictured)
    facts = drawer.draw(0, "decoder", 32, HeadMaps())
    written = len(json.dumps(facts["heads"])) / len(index)
    assert drawer.size({"0": []}, 300) == pytest.approx(written, rel=0.1, abs=100)


def test_coarse_maps_come_organized_too(tmp_path):
    values = attention(1, 2, 300, 1)
    run = make_run(tmp_path / "run", values)
    order = np.random.default_rng(1).permutation(300)
    orders = Orders({"decoder": {"query_orders": [order], "key_orders": [order]}})
    maps = draw_maps(open_capture(run), open_capture(run).heads(), orders)
    original, organized = (pixels(png) for png in maps.images["maps-0-0"]["0"])
    bounds = np.append(np.arange(0, 300, 2), 300)
    stored = values[0, 0, 0].astype(np.float16).astype(np.float64)
    stored[np.triu_indices(300, 1)] = np.nan
    i, j = 40, 7
    for picture, along, which in ((original, np.arange(300), 0), (organized, order, 1)):
        block = stored[np.ix_(along[bounds[i] : bounds[i + 1]], along[bounds[j] : bounds[j + 1]])]
        low, high = maps.facts["batches"][0]["blocks"]["decoder"]["heads"]["0"]["ranges"][which]
        shown = low + (high - low) * (picture[i, j] / 255) ** 2
        expected = 0 if np.isnan(block).all() else np.nanmean(block)
        assert np.sqrt(shown) == pytest.approx(np.sqrt(expected), abs=np.sqrt(high) / 255)


@pytest.mark.parametrize("fits", [True, False])
def test_coarse_maps_are_cut_along_the_tree_if_it_is_of_these_tokens(tmp_path, fits):
    run = make_run(tmp_path / "run", attention(1, 1, 300, 1))
    order = np.random.default_rng(1).permutation(300)
    labels = np.empty((1, 300), dtype=int)
    labels[0, order] = np.repeat(np.arange(150), np.tile([3, 1], 75))  # clusters of three tokens and of one in turn
    trees = {f"{axis}_trees": [labels if fits else labels[:, :-1]] for axis in ("query", "key")}
    orders = Orders({"decoder": {"query_orders": [order], "key_orders": [order]} | trees})
    maps = draw_maps(open_capture(run), open_capture(run).heads(), orders)
    bounds = np.append(0, np.cumsum(np.tile([3, 1], 75))) if fits else np.arange(0, 301, 2)
    assert maps.facts["batches"][0]["blocks"]["decoder"]["key"]["organized"]["bounds"] == pack(bounds)


def test_capture_without_attention_says_so(tmp_path):
    run = make_run(tmp_path / "run", attention())
    for path in (run.path / "attention").iterdir():
        raw = path.read_bytes()
        path.write_bytes(raw.replace(b'\\"keep\\": [\\"probs\\"]', b'\\"keep\\": [\\"keys\\"] '))
    text = write_report(run, [result_of(4, 3)]).read_text()
    assert "the capture kept keys; capture again with --keep probs" in text


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
