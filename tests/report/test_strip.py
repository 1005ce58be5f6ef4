"""The strip: every input of a head, small and on one scale, however few large maps fit."""

import numpy as np
import pytest

from fakes import attention, make_run, pixels
from headscape.captures import open_capture
from headscape.report.headmaps import draw_maps


def test_every_batch_is_in_the_strip_where_few_large_maps_fit(tmp_path):
    values = attention(4, 3, 60, 5)
    capture = open_capture(make_run(tmp_path / "run", values))
    maps = draw_maps(capture, capture.heads(), budget=100_000)
    assert len(maps.facts["batches"]) == 3
    strip = maps.facts["strip"]["decoder"]
    assert [(one["name"], one["shape"]) for one in strip["batches"]] == [(i, [8, 8]) for i in range(5)]
    assert strip["batches"][3]["tokens"][:2] == ["·t0", "·t1"]
    assert "3 of 5 batches have large maps, to limit the file size; all of them are in the strip." in maps.notes[-1]
    size = sum(len(p) for place in maps.images.values() for p in ("".join(one) for one in place.values()))
    assert size < 100_000
    stored = values[:, 2, 1].astype(np.float16).astype(float)  # layer 2, head 1
    stored[:, ~np.tri(60, dtype=bool)] = np.nan
    small = np.zeros((5, 8, 8))
    for b, i, j in np.ndindex(small.shape):
        cell = stored[b, 8 * i : 8 * i + 8, 8 * j : 8 * j + 8]
        small[b, i, j] = np.nanmean(cell) if j <= i else 0
    picture = pixels(maps.images[strip["images"]]["7"])
    assert picture.shape == (8, 5 * 8)
    expected = 255 * np.sqrt(np.hstack(small) / small.max())  # one scale for all five
    assert picture == pytest.approx(expected, abs=0.51)


def test_inputs_of_several_lengths_and_a_damaged_one(tmp_path):
    values = attention(1, 2, 12, 4)
    run = make_run(tmp_path / "run", values)
    short = make_run(tmp_path / "short", values[:, ..., :5, :5])
    run.batch_path(1).write_bytes(short.batch_path(1).read_bytes())
    run.batch_path(2).write_bytes(b"not a file of tensors")
    capture = open_capture(run)
    maps = draw_maps(capture, capture.heads())
    strip = maps.facts["strip"]["decoder"]
    assert [(one["name"], one["shape"]) for one in strip["batches"]] == [(0, [12, 12]), (1, [5, 5]), (3, [12, 12])]
    assert len(maps.problems) == 1 and "batch 2 are not shown" in maps.problems[0]
    picture = pixels(maps.images[strip["images"]]["0"])
    assert not picture[5:, 12:24].any() and not picture[:, 17:24].any()
    assert draw_maps(open_capture(make_run(tmp_path / "one", values[:1])), capture.heads()).facts["strip"] == {}
