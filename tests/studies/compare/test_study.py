"""Comparing networks: planted sameness and difference, resuming, and the folder it may use."""

import os
import shutil

import numpy as np
import pytest

import headscape as hs
from headscape.studies.compare.result import ALL, BATCHES, HEADS, INPUT, MEASURES, CompareResult
from headscape.studies.compare.study import compare, groups_of, other_heads
from planted_runs import attention_of, make_run


def test_groups_are_disjoint_neighbours_of_equal_size():
    for n_batches, n_groups in ((10, 10), (11, 4), (40, 10), (4, 4)):
        groups = groups_of(n_batches, n_groups)
        assert len(groups) == n_groups and groups.shape[1] == n_batches // n_groups
        assert (np.diff(groups.ravel()) == 1).all() and groups.max() < n_batches


def test_other_heads_are_as_many_in_every_layer():
    layers = np.repeat([0, 1, 2], [4, 5, 2])
    one, two = other_heads(layers, np.random.default_rng(0))
    assert not set(one) & set(two)
    assert np.bincount(layers[one]).tolist() == np.bincount(layers[two]).tolist() == [2, 2, 1]
    assert other_heads(np.array([0, 0, 1]), np.random.default_rng(0)) is None


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two inputs of network one, one of network two, and a stranger that is network one under another name."""
    place = tmp_path_factory.mktemp("compare")
    return {
        "one": make_run(place / "one", attention_of(1, 0), "net-one"),
        "other": make_run(place / "other", attention_of(1, 1), "net-one"),
        "two": make_run(place / "two", attention_of(2, 2), "net-two"),
        "stranger": make_run(place / "stranger", attention_of(1, 3)),
    }


@pytest.fixture(scope="module")
def compared(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "compared"
    return compare(list(runs.values()), out=out, draws=20), out


def folder_of(out):
    """The folder of the one comparison in OUT."""
    (file,) = (out / "compare").glob("*/study.json")
    return file.parent


def test_planted_difference_is_separated_and_planted_sameness_is_not(compared):
    result, _ = compared
    assert result.networks == ["net-one", "net-two", "stranger"]
    by_pair = {(d.a, d.b): d for d in result.by(ALL)}
    assert (
        by_pair["net-one", "net-two"].judgement.verdict == by_pair["net-two", "stranger"].judgement.verdict == "holds"
    )
    assert by_pair["net-one", "stranger"].judgement.verdict != "holds"  # another name is no other network
    assert by_pair["net-one", "net-two"].apart.value > 3 * by_pair["net-one", "stranger"].apart.value
    assert ("net-one", "net-two") in result.certain and ("net-one", "stranger") not in result.certain
    for measure in ("geometry", "l1_rel"):
        told = {(d.a, d.b): d.separated for d in result.by(measure)}
        assert told["net-one", "net-two"] and not told["net-one", "stranger"]


def test_a_network_is_held_against_itself_on_other_batches_and_other_input(compared):
    result, _ = compared
    one, two = (result.yardsticks(network, "geometry") for network in ("net-one", "net-two"))
    assert set(one) == {BATCHES, INPUT, HEADS} and set(two) == {BATCHES, HEADS}
    assert 0 < one[BATCHES].low <= one[BATCHES].value <= one[BATCHES].high
    assert one[BATCHES].n == 8 and two[BATCHES].n == 4  # groups of two runs, and of one
    assert one[INPUT].value < 2 * one[BATCHES].value
    assert one[HEADS].value > 2 * one[INPUT].value  # other heads are further than other input
    distance = next(d for d in result.by("geometry") if (d.a, d.b) == ("net-one", "net-two"))
    assert distance.apart.n == 12
    assert distance.same.high == max(one[BATCHES].high, one[INPUT].high, two[BATCHES].high)
    assert distance.heads.high == max(one[HEADS].high, two[HEADS].high)


def test_what_cannot_be_measured_is_left_out_and_said(tmp_path):
    flat = make_run(tmp_path / "flat", attention_of(1, 0, n_batch=4, n_layer=1))
    thin = make_run(tmp_path / "thin", attention_of(2, 1, n_batch=4, n_layer=4, n_head=1))
    result = compare([flat, thin], draws=20)
    assert "depth" not in result.together_of and "geometry" in result.together_of  # flat has one layer
    (depth,) = result.by("depth")
    assert np.isnan(depth.apart.value) and depth.judgement.verdict == "cannot tell"
    assert np.isfinite(result.by(ALL)[0].apart.value)
    assert not result.by("geometry")[0].heads.known  # no layer of thin can be halved
    assert any("a layer has one head" in finding.text for finding in result.findings())
    assert all(figure.data for figure in result.figures())


def test_a_killed_comparison_resumes_and_jobs_change_no_byte(compared, runs, tmp_path):
    _, out = compared
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    lost, *kept = sorted((copy / "compare" / "units").iterdir())
    whole, times = lost.read_bytes(), [path.stat().st_mtime_ns for path in kept]
    lost.unlink()
    (folder_of(copy) / "result.json").unlink()
    compare(list(runs.values()), out=copy, draws=20, jobs=2, resume=True)
    assert lost.read_bytes() == whole
    assert [path.stat().st_mtime_ns for path in kept] == times
    for name in ("result.safetensors", "result.json", "distances.csv"):
        assert (folder_of(copy) / name).read_bytes() == (folder_of(out) / name).read_bytes()


def test_one_more_run_costs_only_its_own_pairs(compared, runs, tmp_path):
    _, out = compared
    copy = shutil.copytree(out, tmp_path / "copy")
    units = set((copy / "compare" / "units").iterdir())
    compare([runs["one"], runs["two"]], out=copy, draws=20)
    assert set((copy / "compare" / "units").iterdir()) == units  # fewer runs: nothing to do
    assert len(list((copy / "compare").glob("*/result.json"))) == 2
    with pytest.raises(hs.InputError, match="cannot be resumed: "):
        compare([runs["one"], runs["two"]], out=copy, draws=30, resume=True)


def test_two_inputs_of_one_network_say_only_how_far_it_is_from_itself(compared, runs, tmp_path):
    copy = shutil.copytree(compared[1], tmp_path / "copy")
    result = compare([runs["one"], runs["other"]], out=copy, draws=20)
    assert result.networks == ["net-one"] and not result.distances
    assert INPUT in result.yardsticks("net-one", ALL)
    assert [finding.claim for finding in result.findings()] == [None, "compare.bottom"] and result.figures()


def test_result_comes_back_from_disk(compared):
    result, out = compared
    again = CompareResult.load(out / "compare")
    assert again.findings() == result.findings()
    np.testing.assert_array_equal(again.measures, result.measures)
    assert again.runs.equals(result.runs)
    with pytest.raises(hs.HeadscapeError, match="cannot be read"):
        CompareResult.load(out / "compare" / "units")


def test_groups_of_several_batches_are_compared_by_their_means(compared):
    result, _ = compared
    assert np.shape(result.settings["groups"]) == (4, 2)  # 8 batches, sqrt(20) groups
    geometry, single = (result.by(name)[0].same.value for name in ("geometry", "geometry_batch"))
    assert geometry < single  # a mean of two batches varies less than one
    assert len(MEASURES) == len(result.measures)


def test_a_refused_request_leaves_no_folder_and_touches_no_other(runs, tmp_path):
    both = [runs["one"], runs["two"]]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for out, words in ((tmp_path / "full", "not a comparison"), (runs["one"], "is a run directory")):
        with pytest.raises(hs.InputError, match=words):
            compare(both, out=out)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    for options, words in (
        ({"draws": 5}, "draws must be at least 20, not 5"),
        ({"draws": 30.5}, "draws must be a whole number"),
        ({"random_state": -1}, "random_state must be at least 0"),
        ({"jobs": 0}, "jobs"),
    ):
        with pytest.raises(hs.InputError, match=words):
            compare(both, out=tmp_path / "new", **options)
    with pytest.raises(hs.InputError, match="two runs"):
        compare(both[:1], out=tmp_path / "new")
    assert os.listdir(tmp_path) == ["full"]


def test_the_lowest_heads_of_other_input_are_counted_one_by_one(compared, runs):
    result, _ = compared
    between, within, chance = result.shared_bottom("net-one")
    assert chance == 1 / 12 and result.shared_bottom("net-two") is None
    lowest = {}
    for name in ("one", "other"):
        found = hs.open_result(runs[name], "organize")
        scores = found.entropies[:, 0]  # l1_top
        order = np.lexsort((found.heads["head"], found.heads["layer"]))
        groups = result.settings["groups"]
        lowest[name] = [int(np.argmin(scores[group].mean(axis=0)[order])) for group in groups]
    same = [a == b for a in lowest["one"] for b in lowest["other"]]
    assert between.value == pytest.approx(np.mean(same))
    said = next(f for f in result.findings() if f.claim == "compare.bottom")
    assert (said.verdict == "holds") == (between.low > chance)
