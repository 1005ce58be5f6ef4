"""Pooled captures against block means of whole maps.

Also tests attention.masks.
"""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention import taps
from headscape.attention.capture_tap import CaptureTap, Memory
from headscape.attention.pooling import Grid, block_sums
from headscape.attention.samples import samples_of
from headscape.attention.sites import run
from headscape.attention.tapping import tapped
from headscape.tensor import AttentionTensor, block_bounds, block_labels, present_pairs
from tiny import Letters, captured
from zoo import ZOO, make


def block_means(X, pool):
    """The obvious twin: loop over pairs of blocks and average the entries that are there."""
    n_query, n_key, n_head = X.shape
    rows, columns = np.array_split(np.arange(n_query), pool), np.array_split(np.arange(n_key), pool)
    found = np.zeros((pool, pool, n_head))
    for a, queries in enumerate(rows):
        for b, keys in enumerate(columns):
            there = [(i, j) for i in queries for j in keys if X.present[i, j]]
            if there:
                found[a, b] = np.mean([X.values[i, j].astype(np.float64) for i, j in there], axis=0)
    return found


@pytest.mark.parametrize("pool", [1, 3, 5, 12])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "t5", "bert", "falcon"])
def test_pooled_scores_and_probs_are_block_means(name, pool):
    network = make(name)
    keep = ("probs", "scores")
    _, whole = captured(name, network, keep)
    _, pooled = captured(name, network, keep, pool=pool)
    for block in whole.blocks:
        for kind in keep:
            X, P = whole.tensor(0, block, kind), pooled.tensor(0, block, kind)
            assert P.shape == (pool, pool, X.shape[2]) and P.mask == X.mask and P.heads == X.heads
            np.testing.assert_allclose(P.values, block_means(X, pool), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [5, 2])
@pytest.mark.parametrize("name", ZOO)
def test_every_family_is_pooled_in_blocks_of_rows(name, rows, monkeypatch):
    """Rows come in blocks that are no multiple of the blocks of tokens; at two rows the mask of 12 x 12 does too."""
    network = make(name)
    _, whole = captured(name, network)
    monkeypatch.setattr(taps, "BLOCK_BYTES", 4 * 4 * 12 * rows)
    _, pooled = captured(name, network, pool=5, windows="rows:4")
    for block in whole.blocks:
        X = whole.tensor(0, block)
        np.testing.assert_allclose(pooled.tensor(0, block).values, block_means(X, 5), atol=1e-5)
        rows = pooled.rows(0, block)
        assert len(rows.queries) == 4 and (np.diff(rows.queries) > 0).all()
        np.testing.assert_allclose(rows.values, X.values[rows.queries], atol=1e-5)
        assert rows.query_tokens == [X.query_tokens[i] for i in rows.queries] and rows.key_tokens == X.key_tokens


def test_large_masks_come_in_rows(monkeypatch):
    """With masks in rows the network gives the same hidden states, windows and sinks included."""
    from headscape.attention.masks import RowMask

    seen = []
    own = taps.additive_rows
    monkeypatch.setattr(taps, "additive_rows", lambda mask, *rest: seen.append(type(mask)) or own(mask, *rest))
    for name in ("llama", "mistral", "gemma3", "gpt-oss", "bart"):
        network = make(name)
        keep = ("probs", "hidden")
        _, whole = captured(name, network, keep)
        assert RowMask not in seen
        with monkeypatch.context() as patch:
            patch.setattr(taps, "BLOCK_BYTES", 4 * 12 * 5)
            _, rows = captured(name, network, keep)
        assert RowMask in seen
        block = "decoder"
        np.testing.assert_allclose(rows.hidden(0, block), whole.hidden(0, block), atol=1e-5)
        np.testing.assert_allclose(rows.tensor(0, block).values, whole.tensor(0, block).values, atol=1e-6)
        seen.clear()


@pytest.mark.parametrize("name", ["llama", "mistral", "bart"])
def test_keys_that_no_row_sees_are_not_computed(name, monkeypatch):
    widths = []
    own = Grid.add
    monkeypatch.setattr(taps, "BLOCK_BYTES", 4 * 4 * 12 * 2)
    monkeypatch.setattr(Grid, "add", lambda g, s, m, first: widths.append((first, m.shape[2])) or own(g, s, m, first))
    _, pooled = captured(name, pool=5, keep=("probs", "scores"))
    assert (0, 2) in widths and (10, 12) in widths and all(n in (first + 2, 12) for first, n in widths)
    monkeypatch.undo()
    _, whole = captured(name, keep=("probs", "scores"))
    for kind in ("probs", "scores"):
        X, P = whole.tensor(0, "decoder", kind), pooled.tensor(0, "decoder", kind)
        np.testing.assert_allclose(P.values, block_means(X, 5), atol=1e-5, rtol=1e-5)


def test_keys_of_a_memory_are_pooled_to_the_last_corner():
    """Keys outnumber queries: the diagonal ends in the last corner, and blocks of both sides differ in size."""
    rng = np.random.default_rng(0)
    X = AttentionTensor(rng.random((10, 31, 3)), mask="causal")
    grid = Grid("causal", 10, 31, 4)
    maps = torch.from_numpy(np.moveaxis(X.values, 2, 0).copy())
    sums = grid.zeros(3, maps)
    for start in range(0, 10, 3):
        grid.add(sums, maps[:, start : start + 3], start)
    found = np.moveaxis(grid.means(sums).numpy(), 0, -1)
    np.testing.assert_allclose(found, block_means(X, 4), atol=1e-6)
    P = AttentionTensor(found, mask="causal", query_bounds=grid.query_bounds, key_bounds=grid.key_bounds)
    np.testing.assert_array_equal(P.present, grid.counts > 0)
    inside = np.add.reduceat(np.add.reduceat(X.present.astype(int), P.query_bounds[:-1], 0), P.key_bounds[:-1], 1)
    np.testing.assert_array_equal(grid.counts, inside)
    assert P.pooled and not X.pooled


def test_what_lies_above_the_diagonal_is_never_counted():
    """An intervention may put anything there; the pooled mean is over present entries, as in a full capture."""
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    even = torch.full((12, 12), 1 / 12)
    options = {"tokens": 12, "batches": 1, "dtype": "float32"}
    with hs.patch_maps(model, {(0, 1): even}):
        cap = hs.capture(model, ["the quick brown fox"], pool=4, **options)
    found = cap.tensor(0).values[:, :, 1]
    np.testing.assert_allclose(found, np.tri(4) / 12, atol=1e-7)


@pytest.mark.parametrize(("n", "pool"), [(7, 3), (12, 12), (10, 1), (9, 4)])
def test_blocks_are_those_of_array_split(n, pool):
    bounds = block_bounds(n, pool)
    parts = np.array_split(np.arange(n), pool)
    assert [list(range(a, b)) for a, b in pairwise(bounds)] == [p.tolist() for p in parts]
    x = torch.randn(2, n)
    expected = np.stack([x.numpy()[:, part].sum(axis=1) for part in parts], axis=1)
    np.testing.assert_allclose(block_sums(x, pool).numpy(), expected, atol=1e-5)
    assert present_pairs("full", bounds, bounds).sum() == n * n
    assert present_pairs("causal", bounds, bounds).sum() == n * (n + 1) // 2


def test_labels_name_the_tokens_of_a_block():
    _, cap = captured("llama", pool=5)
    X = cap.tensor(0)
    shown = cap.info["blocks"]["decoder"]["pooled_tokens"]["query"]
    assert X.query_tokens[0] == f"0-2 {shown[0]} … {shown[2]}" and X.query_tokens[4].startswith("10-11 ")
    assert block_labels(["internationalisation", "b"], np.array([0, 2])) == ["0-1 internati… … b"]
    assert "pooled from 12 x 12 tokens" in repr(X) and "pooled to 5 blocks" in repr(cap)


def test_masses_of_blocks_sum_to_one():
    for name in ("llama", "bert"):
        _, whole = captured(name)
        _, cap = captured(name, pool=5)
        mass = cap.tensor(0).mass()
        np.testing.assert_allclose(mass.sum(axis=1), 1, atol=1e-5)
        X = whole.tensor(0)
        np.testing.assert_allclose(mass[4, 0], X.values[10:, :3].sum(axis=1).mean(axis=0), atol=1e-6)
        assert X.mass() is X.values


def test_rows_are_the_same_for_all_layers_and_differ_between_batches(tmp_path):
    options = {"pool": 4, "windows": "rows:3", "batches": 3, "out": tmp_path / "run"}
    _, cap = captured("llama", **options)
    chosen = [cap.rows(i).queries.tolist() for i in range(3)]
    assert len({tuple(rows) for rows in chosen}) > 1
    meta = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (meta["pool"], meta["windows"], meta["tokens"]) == (4, "rows:3", 12)
    before = {p.name: p.read_bytes() for p in (tmp_path / "run" / "attention").iterdir()}
    (tmp_path / "run" / "attention" / "batch-0001.safetensors").unlink()
    _, again = captured("llama", **options)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run" / "attention").iterdir()} == before
    assert [again.rows(i).queries.tolist() for i in range(3)] == chosen


def test_a_resumed_run_keeps_its_pool(tmp_path):
    captured("llama", pool=4, out=tmp_path / "run")
    for options, message in (
        ({"pool": 3}, "config pool = 4, not 3"),
        ({}, "config pool = 4, not None"),
        ({"pool": 4, "windows": "rows:2"}, "config windows = None, not 'rows:2'"),
    ):
        with pytest.raises(hs.InputError, match=message):
            captured("llama", out=tmp_path / "run", **options)


def test_pools_that_make_no_sense(tmp_path):
    for options, message in (
        ({"pool": 13}, "pool 13 is larger than the 12 tokens of a context"),
        ({"pool": 0}, "pool must be at least 1"),
        ({"pool": 4, "windows": "rows:13"}, "13 sampled rows from a context of 12 tokens"),
        ({"pool": 4, "windows": "rows:0"}, "at least 1, not 'rows:0'"),
        ({"pool": 4, "windows": "columns:2"}, 'windows is "rows:K"'),
        ({"windows": "rows:2"}, "give pool too"),
    ):
        with pytest.raises(hs.InputError, match=message):
            captured("llama", out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
    with pytest.raises(hs.InputError, match="pool 18 is larger than the 17 tokens"):
        captured("vit", pool=18)
    with pytest.raises(hs.InputError, match="no rows were sampled"):
        captured("llama", pool=4)[1].rows(0)
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x = torch.randn(1, 7, 16)
    with pytest.raises(hs.InputError, match="pool 8 is larger than the 7 queries"):
        hs.capture(layer, [(x, x, x)], pool=8)


def test_short_contexts_are_checked_before_anything_runs(tmp_path):
    model = hs.wrap_module(make("gpt2"), tokenizer=Letters())
    with pytest.raises(hs.InputError, match="larger than the 3 tokens"):
        hs.capture(model, ["abc", "abcdefgh"], tokens=6, batches=None, keep_short=True, pool=4, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_recapture_pools_on_the_same_grid():
    from headscape.attention.capture import recapture

    model, cap = captured("llama", pool=5)
    again = recapture(model, cap, dtype="float32")
    np.testing.assert_array_equal(again.tensor(0).values, cap.tensor(0).values)
    assert again.tensor(0).query_tokens == cap.tensor(0).query_tokens


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m", "minilm-l6", "mpnet-base", "vit-fmnist"])
def test_bundled_models_at_512_tokens_or_their_maximum(load, name):
    """Both captures of all layers come from one pass, which is what costs."""
    model = load(name)
    inputs = hs.sample_images() if model.images is not None else [hs.sample_text("rank")]
    tokens = min(512, model.max_tokens or 512)
    (sample,), _ = samples_of(model, inputs, tokens, 1)
    n, pool = (50, 7) if model.images is not None else (tokens, 60)  # 512 is no multiple
    chosen = {site.name: (site, list(range(site.n_heads))) for site in model.sites}
    both = [CaptureTap(model.module, chosen, ("probs",), "float32", pool) for pool in (None, pool)]
    whole, pooled = Memory(), Memory()
    for tap, sink in zip(both, (whole, pooled), strict=True):
        tap.start(sink)
    with torch.no_grad(), tapped(model.module, both[0]), tapped(model.module, both[1]):
        run(model, sample.arguments, whole=False)
    bounds = block_bounds(n, pool)[:-1]
    assert set(whole.arrays) == {f"probs/{site.block}.{site.layer}" for site in model.sites}
    for site in model.sites:
        maps = whole.arrays[f"probs/{site.block}.{site.layer}"]
        assert maps.shape == (site.n_heads, n, n)
        present = np.tri(n) if site.mask == "causal" else np.ones((n, n))
        sums = np.add.reduceat(np.add.reduceat(maps * present, bounds, 1), bounds, 2)
        counts = np.add.reduceat(np.add.reduceat(present, bounds, 0), bounds, 1)
        found = pooled.arrays[f"probs/{site.block}.{site.layer}"]
        np.testing.assert_allclose(found, sums / np.maximum(counts, 1), atol=1e-5)
        assert found.dtype == np.float32 and found.max() > 1e-3
