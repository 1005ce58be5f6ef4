"""Which runs can be compared, the curves that are compared, and what is refused."""

import itertools
import json
import shutil

import numpy as np
import pytest

import fakes as blockwise
import headscape as hs
from headscape.studies.compare.runs import DEPTHS, RANKS, depth_profile, energy_curve, read_runs
from headscape.tree import PartitionTree
from planted_runs import attention_of, make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two inputs of network one, and one of network two."""
    place = tmp_path_factory.mktemp("compared")
    return {
        "one": make_run(place / "one", attention_of(1, 0), "net-one"),
        "other": make_run(place / "other", attention_of(1, 1, n_batch=4), "net-one"),
        "two": make_run(place / "two", attention_of(2, 2, n_batch=4), "net-two"),
    }


def test_depth_profile_is_the_mean_over_pairs_of_heads():
    layers = np.repeat([0, 1, 2, 4], [3, 2, 1, 2])
    points = np.random.default_rng(3).normal(size=(8, 3))
    D = np.linalg.norm(points[:, None] - points, axis=-1)
    found = {}
    for i, j in itertools.combinations(range(8), 2):
        found.setdefault(abs(layers[i] - layers[j]) / 4, []).append(D[i, j])
    known = sorted(found)
    expected = np.interp(DEPTHS, known, [np.mean(found[x]) for x in known])
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
        ([one, paper], "size_weight = 0.5, paper was organized with size_weight = 1.0: organize both alike"),
        ([one, single], "one head"),
        ([one, tmp_path / "nowhere"], "no run at"),
    ):
        with pytest.raises(hs.InputError) as error:
            read_runs(paths)
        assert words in str(error.value), error.value
        assert "\n" not in str(error.value)
    halfway = shutil.copytree(one, tmp_path / "halfway")
    next((halfway / "organize").glob("*/result.json")).unlink()
    with pytest.raises(hs.InputError, match="organized only in part"):
        read_runs([one, halfway])
    lost = shutil.copytree(one, tmp_path / "lost")
    next((lost / "organize" / "units").glob("batch-0003-*.safetensors")).unlink()
    with pytest.raises(
        hs.InputError, match=r"batch-0003-\w+.safetensors is missing; `headscape organize .*lost` makes it"
    ):
        read_runs([runs["two"], lost])


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


def test_runs_with_several_blocks_are_compared_by_the_one_they_share_or_the_one_named(tmp_path):
    values = {
        name: attention_of(net, net, n_batch=4) for net, name in enumerate(("encoder", "decoder", "extra"), start=1)
    }
    of = {"both": ("encoder", "decoder"), "twin": ("encoder", "decoder"), "few": ("decoder", "extra")}
    for n, (run, blocks) in enumerate(of.items()):
        shifted = {block: np.roll(values[block], n, axis=0) for block in blocks}
        blockwise.make_run(tmp_path / run, None, mask="full", blocks=shifted, source=run)
        hs.organize(tmp_path / run, model=None, questionnaire=hs.Questionnaire(n_iter=1))
    both, twin, few = (tmp_path / name for name in ("both", "twin", "few"))
    assert [run.facts["block"] for run in read_runs([both, few])] == ["decoder", "decoder"]
    assert [run.facts["block"] for run in read_runs([both, twin], "encoder")] == ["encoder", "encoder"]
    with pytest.raises(
        hs.InputError, match="both has encoder, decoder; twin has encoder, decoder: name one with --block"
    ):
        read_runs([both, twin])
    with pytest.raises(hs.InputError, match="no block 'encoder' of few was organized; there are decoder, extra"):
        read_runs([both, few], "encoder")
    result = hs.compare([both, few], draws=20)
    assert set(result.runs["block"]) == {"decoder"}
