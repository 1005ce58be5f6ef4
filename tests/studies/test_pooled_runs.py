"""Pooled runs on their way through organize, prune and report, and the studies that refuse them."""

from functools import partial

import numpy as np
import pytest

import headscape as hs
from headscape.roles import assign_roles, batch_roles, role_scores, role_table
from headscape.studies.collapse.study import collapse
from headscape.studies.gaussian.study import gaussian
from headscape.studies.organize.study import organize
from headscape.studies.organize.units import shuffled_rows
from headscape.studies.softmax.study import check_scores
from headscape.tensor import AttentionTensor, block_bounds
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog. " * 20]


@pytest.fixture(scope="module")
def model():
    return hs.wrap_module(make("llama"), tokenizer=Letters())


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """24 tokens in 7 blocks, uneven ones; four batches."""
    path = tmp_path_factory.mktemp("pooled") / "run"
    hs.capture(model, TEXT, tokens=24, batches=4, keep=("probs", "scores"), pool=7, windows="rows:2", out=path)
    return path


@pytest.fixture(scope="module")
def organized(run):
    return organize(run, model=False, threads=1)


def pooled(maps, pool):
    """(n, n, head) causal maps as a pooled tensor."""
    n = len(maps)
    bounds = block_bounds(n, pool)
    there = np.tri(n)[:, :, None]
    sums = np.add.reduceat(np.add.reduceat(maps * there, bounds[:-1], 0), bounds[:-1], 1)
    counts = np.add.reduceat(np.add.reduceat(there, bounds[:-1], 0), bounds[:-1], 1)
    return AttentionTensor(sums / np.maximum(counts, 1), mask="causal", query_bounds=bounds, key_bounds=bounds)


def test_roles_of_blocks_are_those_planted():
    n = 24
    there = np.tri(n)
    own, first, before, even = np.eye(n), np.zeros((n, n)), np.zeros((n, n)), there / there.sum(axis=1, keepdims=True)
    first[:, 0] = 1
    before[np.arange(n), np.maximum(np.arange(n) - 4, 0)] = 1
    X = pooled(np.stack([own, first, before, even], axis=2), 6)
    np.testing.assert_allclose(X.mass().sum(axis=1), 1, atol=1e-6)
    scores = role_scores(X)
    assert assign_roles(role_table([batch_roles(X)]), 4) == ["own block", "first block", "block before", "even blocks"]
    assert not {"self", "previous", "duplicate", "uniform"} & set(scores.columns)
    assert scores["own block"][0] == pytest.approx(1) and scores["block before"][2] == pytest.approx(1)
    # the even head: in block b of six, 4 keys of 4b + 1 .. 4b + 4 in its own block, the rest before
    share = np.mean([np.mean([(i % 4 + 1) / (i + 1) for i in range(4 * b, 4 * b + 4)]) for b in range(6)])
    assert scores["own block"][3] == pytest.approx(share, abs=1e-6)


def test_evenness_of_blocks_bounds_the_evenness_of_rows():
    rng = np.random.default_rng(0)
    maps = rng.random((20, 20, 5)) ** 4 * np.tri(20)[:, :, None]
    maps /= maps.sum(axis=1, keepdims=True)
    single = pooled(maps, 20)
    assert not single.pooled  # blocks of one token are tokens
    for pool in (2, 5, 19):
        X = pooled(maps, pool)
        assert (role_scores(X)["even blocks"] > role_scores(single)["uniform"]).all()


def test_organize_keeps_the_grid_and_says_so(run, organized):
    assert organized.tree.n_leaves == 8 and organized.query_trees[0].n_leaves == 7
    assert organized.settings["pool"] == 7
    assert any("pooled to 7 blocks of tokens" in finding.text for finding in organized.findings())
    assert "own block" in organized.to_frame() and "previous" not in organized.to_frame()
    X = hs.open_capture(run).tensor(0)
    null = shuffled_rows(X, 1)
    assert null.pooled and not null.values[~null.present].any()
    np.testing.assert_allclose(np.sort(null.values, axis=1), np.sort(X.values, axis=1))


def test_prune_ranks_on_pooled_maps_and_says_what_it_cannot(run, model, organized):
    table = hs.rank_heads(run, criterion="l1_all", model=model)
    assert len(table) == 8 and np.isfinite(table["score"]).all()
    with pytest.raises(hs.InputError, match="a pooled capture lacks what needs whole maps"):
        hs.rank_heads(run, criterion="attention_entropy", model=model)


def test_the_report_names_blocks_by_their_tokens(run, organized):
    from headscape.report import write_report
    from headscape.report.headmaps import draw_maps

    cap = hs.open_capture(run)
    maps = draw_maps(cap, cap.heads())
    facts = maps.facts["batches"][0]["blocks"]["decoder"]
    assert facts["shape"] == [7, 7] and facts["query_tokens"][0].startswith("0-3 ")
    assert any("24 x 24 tokens in 7 x 7 blocks" in note for note in maps.notes)
    page = write_report(cap.run, [organized]).read_text()
    assert "pooled to 7 blocks" in page and "21-23 " in page


def test_studies_of_single_entries_refuse_in_one_line(run):
    cap = hs.open_capture(run)
    for study in (check_scores, partial(collapse, model=False), partial(gaussian, model=False)):
        with pytest.raises(hs.InputError, match="needs whole maps, this capture is pooled to 7 blocks") as caught:
            study(cap)
        assert "\n" not in str(caught.value) and "--pool" in str(caught.value)


def test_compare_refuses_blocks_beside_tokens(run, organized, model, tmp_path):
    from headscape.studies.compare.runs import read_runs

    twin, whole = tmp_path / "twin", tmp_path / "whole"
    options = {"batches": 4, "keep": ("probs",)}
    organize(hs.capture(model, TEXT, tokens=24, pool=7, out=twin, random_state=1, **options), model=False, threads=1)
    organize(hs.capture(model, TEXT, tokens=7, out=whole, **options), model=False, threads=1)
    assert len(read_runs([run, twin])) == 2
    with pytest.raises(hs.InputError, match="maps pooled from 24 tokens, .* has whole maps: a block is not a token"):
        read_runs([run, whole])
