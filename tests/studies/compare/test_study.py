"""Comparing networks: the distances against slow twins, planted sameness and difference, and what is refused."""

import itertools
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import headscape as hs
from headscape.geometry.gromov import (
    DEPTHS,
    RANKS,
    _onto_marginals,
    classical_map,
    depth_profile,
    energy_curve,
    geometry_bound,
    in_order,
    match_geometries,
    refine,
)
from headscape.studies.compare.result import ALL, BATCHES, HEADS, INPUT, MEASURES, CompareResult, interval
from headscape.studies.compare.runs import read_runs
from headscape.studies.compare.study import compare, half_samples, other_heads
from headscape.tree import PartitionTree
from planted_runs import attention_of, make_run

# ---------------------------------------------------------------------- distances


def cloud(n, seed):
    """Distance matrix of n random points."""
    points = np.random.default_rng(seed).normal(size=(n, 3))
    return np.linalg.norm(points[:, None] - points, axis=-1)


def quadruple_sum(A, B, T):
    """The loss as it is written: sum over i, j, k, l."""
    n, m = T.shape
    return sum(
        (A[i, k] - B[j, l]) ** 2 * T[i, j] * T[k, l]
        for i, j, k, l in itertools.product(range(n), range(m), range(n), range(m))
    )


def slow_bound(A, B):
    """Rows repeated to a common length and sorted; the coupling by linear programming."""
    n, m = len(A), len(B)
    rows = [np.sort(np.repeat(D, k, axis=1), axis=1) for D, k in ((A, m), (B, n))]
    cost = np.array([[np.mean((a - b) ** 2) for b in rows[1]] for a in rows[0]])
    marginals = [np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))]
    sums = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    return np.sqrt(linprog(cost.ravel(), A_eq=np.vstack(marginals), b_eq=sums).fun)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 6), m=st.integers(2, 6), seed=st.integers(0, 99))
def test_lower_bound_is_that_of_the_definition_and_below_what_is_found(n, m, seed):
    A, B = cloud(n, seed), cloud(m, seed + 100)
    bound = geometry_bound(A, B)
    assert bound.distance == pytest.approx(slow_bound(A, B), abs=1e-6)
    found = match_geometries(A, B)
    assert bound.distance <= found.distance + 1e-9
    assert found.distance == pytest.approx(np.sqrt(quadruple_sum(A, B, found.coupling)), abs=1e-6)
    for coupling in (bound.coupling, found.coupling):
        np.testing.assert_allclose(coupling.sum(axis=1), 1 / n, atol=1e-9)
        np.testing.assert_allclose(coupling.sum(axis=0), 1 / m, atol=1e-9)


def test_search_reaches_the_best_permutation():
    """Permutations are couplings, so that the distance is at most the best of them."""
    for seed in range(5):
        A, B = cloud(6, seed), cloud(6, seed + 50)
        best = min(np.sqrt(np.mean((A - B[np.ix_(order, order)]) ** 2)) for order in itertools.permutations(range(6)))
        assert match_geometries(A, B).distance <= best * 1.02


def test_geometry_does_not_know_the_order_of_heads():
    A, order = cloud(20, 0), np.random.default_rng(1).permutation(20)
    assert match_geometries(A, A[np.ix_(order, order)]).distance < 1e-6
    doubled = A.repeat(2, axis=0).repeat(2, axis=1)  # every head twice is the same geometry
    assert match_geometries(A, doubled).distance < 1e-6
    B = cloud(15, 2)
    assert match_geometries(A, B).distance == pytest.approx(match_geometries(B, A).distance, rel=0.05)


def test_refine_never_goes_uphill():
    A, B = cloud(8, 0), cloud(5, 1)
    start = in_order(8, 5)
    assert refine(A, B, start).distance <= np.sqrt(quadruple_sum(A, B, start)) + 1e-9


def test_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(hs.InputError, match="square"):
        match_geometries(np.zeros((3, 2)), np.zeros((3, 3)))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 9), m=st.integers(1, 9), seed=st.integers(0, 99))
def test_couplings_have_their_marginals(n, m, seed):
    p, q = np.full(n, 1 / n), np.full(m, 1 / m)
    rough = np.random.default_rng(seed).random((n, m)) ** 4
    for T in (in_order(n, m), _onto_marginals(rough / rough.sum(), p, q)):
        assert (T >= 0).all()
        np.testing.assert_allclose(T.sum(axis=1), p, atol=1e-12)
        np.testing.assert_allclose(T.sum(axis=0), q, atol=1e-12)


def test_depth_profile_is_the_mean_over_pairs_of_heads():
    layers = np.repeat([0, 1, 2, 4], [3, 2, 1, 2])
    D = cloud(8, 3)
    points = {}
    for i, j in itertools.combinations(range(8), 2):
        points.setdefault(abs(layers[i] - layers[j]) / 4, []).append(D[i, j])
    known = sorted(points)
    expected = np.interp(DEPTHS, known, [np.mean(points[x]) for x in known])
    np.testing.assert_allclose(depth_profile(D, layers), expected)
    assert np.isnan(depth_profile(D, np.zeros(8, dtype=int))).all()


def test_energy_curve_is_the_share_of_the_coefficients():
    X = np.random.default_rng(0).random((16, 16, 6))
    trees = [PartitionTree.dyadic(n) for n in X.shape]
    b = hs.decay_curve(X, trees, by="support", n=100)
    network = hs.network_entropy(X, trees, 100)[["l1_top", "l1_all", "dc", "l1_rel", "shannon"]].to_numpy(float)
    energy = hs.haar_transform(X, trees).ravel() ** 2
    expected = [np.sum(b[1 : k + 1] ** 2) / energy[1:].sum() for k in RANKS]
    np.testing.assert_allclose(energy_curve(b, network), expected, rtol=1e-6)
    scaled = network * np.array([7, 7, 7, 1, 1])  # units of attention do not matter
    np.testing.assert_allclose(energy_curve(7 * b, scaled), expected, rtol=1e-6)
    assert (energy_curve([4.0, 0.0], [4.0, 4.0, 4.0, 0.0, 0.0]) == 0).all()


def test_classical_map_lays_out_points_of_a_plane():
    points = np.random.default_rng(0).normal(size=(7, 2))
    D = np.linalg.norm(points[:, None] - points, axis=-1)
    found, share = classical_map(D)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found, axis=-1), D, atol=1e-9)
    assert share == pytest.approx(1)
    assert (classical_map(np.zeros((3, 3)))[0] == 0).all()


# ---------------------------------------------------------------------- draws


def test_half_samples_are_disjoint_and_spread_like_the_bootstrap():
    draws = half_samples(10, 5, 4000, [0])
    assert all(len(set(both.ravel())) == 10 for both in draws)
    x = np.random.default_rng(1).normal(size=10)
    assert np.var(x[draws[:, 0]].mean(axis=1)) == pytest.approx(np.var(x) / 9, rel=0.1)  # sigma^2 / n
    assert half_samples(11, 4, 3, [0]).shape == (3, 2, 4)


def test_other_heads_are_as_many_in_every_layer():
    layers = np.repeat([0, 1, 2], [4, 5, 2])
    one, two = other_heads(layers, np.random.default_rng(0))
    assert not set(one) & set(two)
    assert np.bincount(layers[one]).tolist() == np.bincount(layers[two]).tolist() == [2, 2, 1]
    assert other_heads(np.array([0, 0, 1]), np.random.default_rng(0)) is None


def test_an_interval_with_an_unknown_draw_is_unknown():
    assert np.isnan(interval([1.0, np.nan]).value)


# ---------------------------------------------------------------------- planted networks


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
    return compare(list(runs.values()), out=out, draws=30), out


def test_planted_difference_is_separated_and_planted_sameness_is_not(compared):
    result, _ = compared
    assert result.networks == ["net-one", "net-two", "stranger"]
    by_pair = {(d.a, d.b): d for d in result.by(ALL)}
    assert by_pair["net-one", "net-two"].separated and by_pair["net-two", "stranger"].separated
    assert not by_pair["net-one", "stranger"].separated  # another name is no other network
    assert by_pair["net-one", "net-two"].apart.value > 3 * by_pair["net-one", "stranger"].apart.value
    assert ("net-one", "net-two") in result.certain and ("net-one", "stranger") not in result.certain
    for measure in ("geometry", "l1_rel"):
        told = {(d.a, d.b): d.separated for d in result.by(measure)}
        assert told["net-one", "net-two"] and not told["net-one", "stranger"]


def test_yardstick_knows_other_batches_and_other_input(compared):
    result, _ = compared
    one, two = (result.yardsticks(network, "geometry") for network in ("net-one", "net-two"))
    assert set(one) == {BATCHES, INPUT, HEADS} and set(two) == {BATCHES, HEADS}
    assert 0 < one[BATCHES].low <= one[BATCHES].value <= one[BATCHES].high
    assert one[INPUT].value < 2 * one[BATCHES].value
    assert one[HEADS].value > 2 * one[INPUT].value  # other heads are further than other input
    distance = next(d for d in result.by("geometry") if (d.a, d.b) == ("net-one", "net-two"))
    assert distance.same.high == max(one[BATCHES].high, one[INPUT].high, two[BATCHES].high)
    assert distance.heads.high == max(one[HEADS].high, two[HEADS].high)


def test_what_cannot_be_measured_is_left_out_and_said(tmp_path):
    flat = make_run(tmp_path / "flat", attention_of(1, 0, n_batch=4, n_layer=1))
    thin = make_run(tmp_path / "thin", attention_of(2, 1, n_batch=4, n_layer=4, n_head=1))
    result = compare([flat, thin], draws=20)
    assert "depth" not in result.together_of and "geometry" in result.together_of  # flat has one layer
    (depth,) = result.by("depth")
    assert np.isnan(depth.apart.value) and not depth.separated
    assert np.isfinite(result.by(ALL)[0].apart.value)
    assert np.isnan(result.by("geometry")[0].heads.high)  # no layer of thin can be halved
    assert any("a layer has one head" in finding.text for finding in result.findings())
    assert all(figure.data for figure in result.figures())


def test_findings_follow_the_table(compared):
    result, _ = compared
    found = result.findings()
    texts = [finding.text for finding in found]
    assert any("2 of 3 pairs of networks are separated" in text for text in texts)
    pair = next(f for f in found if f.text.startswith("net-one and stranger"))
    assert "NOT told apart" in pair.text and pair.holds is False
    pair = next(f for f in found if f.text.startswith("net-one and net-two"))
    assert "are told apart" in pair.text and pair.holds is True
    table = result.table().set_index("networks")
    assert table.loc["net-one / stranger", "separated"] == "NO" and table.loc["net-one / net-two", "separated"] == "yes"
    ids = {figure.id for figure in result.figures()}
    assert {finding.figure for finding in found if finding.figure} <= ids


def test_to_frame_has_every_pair_measure_and_yardstick(compared):
    result, _ = compared
    frame = result.to_frame()
    pairs = frame[frame["what"] == "different networks"]
    assert len(pairs) == 3 * (1 + len(MEASURES))
    assert (pairs["separated"] == (pairs["low"] > pairs["same_network_high"])).all()
    assert set(frame["what"]) == {"different networks", BATCHES, INPUT, HEADS}


def test_result_comes_back_from_disk(compared):
    result, out = compared
    again = CompareResult.load(out / "compare")
    assert again.findings() == result.findings()
    np.testing.assert_array_equal(again.draws, result.draws)
    assert again.runs.equals(result.runs)
    with pytest.raises(hs.HeadscapeError, match="cannot be read"):
        CompareResult.load(out)


def test_a_killed_comparison_goes_on_and_jobs_change_no_byte(compared, runs, tmp_path):
    result, out = compared
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    pair = copy / "compare" / "pair-000-002.safetensors"
    whole = pair.read_bytes()
    pair.unlink()
    (copy / "compare" / "result.json").unlink()
    kept = (copy / "compare" / "pair-000-001.safetensors").stat().st_mtime_ns
    compare(list(runs.values()), out=copy, draws=30, jobs=2)
    assert pair.read_bytes() == whole
    assert (copy / "compare" / "pair-000-001.safetensors").stat().st_mtime_ns == kept
    assert (copy / "compare" / "result.safetensors").read_bytes() == (out / "compare/result.safetensors").read_bytes()


def test_two_inputs_of_one_network_are_all_yardstick(runs):
    result = compare([runs["one"], runs["other"]], draws=20)
    assert result.networks == ["net-one"] and not result.distances
    assert INPUT in result.yardsticks("net-one", ALL)
    assert len(result.findings()) == 1 and result.figures()


# ---------------------------------------------------------------------- what is refused


def test_refusals_name_the_way_out(runs, tmp_path):
    one = runs["one"]
    copied = shutil.copytree(one, tmp_path / "copied")
    bare = make_run(tmp_path / "bare", attention_of(1, 5), organized=False)
    few = make_run(tmp_path / "few", attention_of(1, 5, n_batch=3))
    short = make_run(tmp_path / "short", attention_of(1, 5, n_batch=4, n=12))
    scores = make_run(tmp_path / "scores", np.log(attention_of(1, 5, n_batch=4)), kind="scores")
    cross = make_run(tmp_path / "cross", attention_of(1, 5, n_batch=4)[..., :12, :])
    paper = make_run(tmp_path / "paper", attention_of(1, 5, n_batch=4), size_weight=1.0)
    single = make_run(tmp_path / "single", attention_of(1, 5, n_batch=4, n_layer=1, n_head=1))
    for paths, words in (
        ([one], "two runs or more"),
        ([one, one], "named twice"),
        ([one, copied], "is a copy of one"),
        ([one, bare], f"headscape organize {bare}"),
        ([one, few], "--batches 10"),
        ([one, short], "--tokens 12"),
        ([one, scores], "--kind probs"),
        ([one, cross], "different axes"),
        ([one, paper], "size_weight = 0.5, paper with 1.0"),
        ([one, single], "one head"),
        ([one, tmp_path / "nowhere"], "no run at"),
    ):
        with pytest.raises(hs.InputError) as error:
            read_runs(paths)
        assert words in str(error.value), error.value
        assert "\n" not in str(error.value)
    halfway = shutil.copytree(one, tmp_path / "halfway")
    (halfway / "organize" / "result.json").unlink()
    with pytest.raises(hs.InputError, match="organized only in part"):
        read_runs([one, halfway])
    lost = shutil.copytree(one, tmp_path / "lost")
    (lost / "organize" / "batch-0003.safetensors").unlink()
    with pytest.raises(hs.InputError, match="distances of 7 batches, its result of 8"):
        read_runs([runs["two"], lost])


def test_the_folder_of_a_comparison_is_never_someone_elses(runs, tmp_path):
    both = [runs["one"], runs["two"]]
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for out, words in ((tmp_path / "full", "not a comparison"), (runs["one"], "is a run directory")):
        with pytest.raises(hs.InputError, match=words):
            compare(both, out=out)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    with pytest.raises(hs.InputError, match="20 draws"):
        compare(both, draws=5)
    with pytest.raises(hs.InputError, match="jobs"):
        compare(both, jobs=0)


def test_networks_that_share_a_name_are_told_by_their_runs(runs, tmp_path):
    twin = shutil.copytree(runs["two"], tmp_path / "twin")
    meta = json.loads((twin / "run.json").read_text())
    meta["model"]["source"] = "net-one"
    (twin / "run.json").write_text(json.dumps(meta))
    assert [run.network for run in read_runs([runs["one"], runs["other"], twin])] == [
        "net-one (one)",
        "net-one (one)",
        "net-one (twin)",
    ]
