"""The softmax study: what it says of one head, of a run, and of a model whose maps are replaced."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import headscape as hs
from headscape.geometry.questionnaire import Questionnaire
from headscape.studies.softmax.head import (
    COLUMNS,
    VARIANTS,
    Head,
    Trees,
    as_probabilities,
    compare,
    log_attention,
    measure,
    organise,
    scales,
)
from headscape.studies.softmax.result import ALL_VARIANTS, HEAD_VARIANTS, SoftmaxResult
from headscape.studies.softmax.study import head_maps, softmax
from headscape.tree import PartitionTree

SETTINGS = Questionnaire(n_jobs=1).get_params()


def scores_of(n_batch=2, n_layer=2, n_head=2, n=24, size=1.5, seed=0):
    """Smooth scores with hidden groups of queries and keys, and noise: (batch, layer, head, query, key)."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, n_batch, n_layer, n_head, n, 3))
    return size * (q @ k.swapaxes(-1, -2)) / 2 + 0.3 * rng.normal(size=(n_batch, n_layer, n_head, n, n))


def imported(folder, scores, mask="causal", kind="scores"):
    np.save(folder / "scores.npy", scores)
    layout = "batch,layer,head,query,key"
    hs.import_array(folder / "scores.npy", folder / "run", layout=layout, kind=kind, mask=mask, dtype="float32")
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return imported(tmp_path_factory.mktemp("softmax"), scores_of())


@pytest.fixture(scope="module")
def vit_run(tmp_path_factory, load):
    folder = tmp_path_factory.mktemp("vit") / "run"
    kept = {"keep": ("probs", "scores"), "dtype": "float32", "layers": [0, 4]}
    hs.capture(load("vit-fmnist"), hs.sample_images(), batches=3, out=folder, **kept)
    return folder


@pytest.fixture(scope="module")
def vit(vit_run, load):
    control = hs.load_model("vit-fmnist", device="cpu", random_init=1)
    return softmax(vit_run, model=load("vit-fmnist"), control=control, threads=1)


def a_head(n=16, seed=0, causal=True):
    present = np.tri(n, dtype=bool) if causal else np.ones((n, n), dtype=bool)
    g = log_attention(scores_of(1, 1, 1, n, seed=seed)[0, 0, 0], present)
    return Head(g, present, organise(g, present, SETTINGS))


# ---------------------------------------------------------------------- one head


@pytest.mark.parametrize("causal", [True, False])
def test_log_attention_is_the_log_of_softmax_over_present_keys(causal):
    rng = np.random.default_rng(0)
    S = 20 * rng.normal(size=(7, 7))
    present = np.tri(7, dtype=bool) if causal else np.ones((7, 7), dtype=bool)
    g = log_attention(S, present)
    for i in range(7):
        weights = np.exp(S[i, present[i]] - S[i, present[i]].max())
        np.testing.assert_allclose(np.exp(g[i, present[i]]), weights / weights.sum(), rtol=1e-12)
    assert np.isnan(g[~present]).all()
    shifted = log_attention(np.where(present, S + rng.normal(size=(7, 1)), 1e9), present)
    np.testing.assert_allclose(shifted, g, atol=1e-12)
    with pytest.raises(hs.InputError, match="query 2 has no key"):
        log_attention(S, np.arange(7)[:, None] != 2 * np.ones((7, 7)))


def test_probabilities_are_clipped_and_sum_to_one():
    present = np.tri(3, dtype=bool)
    raw = np.array([[-2.0, np.nan, np.nan], [0.0, 0.0, np.nan], [-1.0, 1.0, 3.0]])
    found = as_probabilities(raw, present)
    np.testing.assert_allclose(found, [[1, 0, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]])
    head = a_head()
    for variant in VARIANTS:
        rows = as_probabilities(head.approximation(variant), head.present)
        np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
        assert (rows >= 0).all() and not rows[~head.present].any()


def test_softmax_compared_with_itself_and_with_something_else():
    head = a_head(12)
    same = compare(np.where(head.present, head.softmax, np.nan), head.g, head.present)
    np.testing.assert_allclose(same, (0, 0, 1), atol=1e-12)
    rng = np.random.default_rng(1)
    other = head.softmax + 0.3 * rng.normal(size=head.g.shape)
    error, kl, top = compare(np.where(head.present, other, np.nan), head.g, head.present)
    inside = head.present
    expected = np.sqrt(((other - head.softmax)[inside] ** 2).sum() / (head.softmax[inside] ** 2).sum())
    assert error == pytest.approx(expected)
    kls, overlaps = [], []
    for i, row in enumerate(other):
        p, q = head.softmax[i, : i + 1], np.maximum(row[: i + 1], 0)
        q = q / q.sum() if q.any() else np.full(i + 1, 1 / (i + 1))
        kls.append(sum(b * np.log(b / a) for a, b in zip(p, q, strict=True) if b > 0))
        if i + 1 > 5:
            largest = [set(np.argsort(-x[: i + 1])[:5].tolist()) for x in (head.softmax[i], row)]
            overlaps.append(len(largest[0] & largest[1]) / 5)
    assert kl == pytest.approx(np.mean(kls))
    assert top == pytest.approx(np.mean(overlaps))
    assert np.isnan(compare(head.softmax[:4, :4], head.g[:4, :4], head.present[:4, :4])[2])


def test_what_the_variants_are():
    head = a_head(20)
    g, present, P = head.g, head.present, head.softmax
    full = hs_paraproduct(head, head.trees, "exp")
    np.testing.assert_array_equal(head.approximation("paraproduct"), full.approximation)
    np.testing.assert_array_equal(head.approximation("boundary"), full.boundary)
    dyadic = Trees(PartitionTree.dyadic(20), PartitionTree.dyadic(20))
    np.testing.assert_array_equal(head.approximation("natural"), hs_paraproduct(head, dyadic, "exp").approximation)
    np.testing.assert_allclose(head.approximation("mean")[present], np.exp(g[present].mean()))
    slope, offset = np.polyfit(g[present], P[present], 1)
    np.testing.assert_allclose(head.approximation("linear")[present], offset + slope * g[present], atol=1e-12)
    with pytest.raises(hs.InputError, match="unknown variant"):
        head.approximation("nothing")


def hs_paraproduct(head, trees, function):
    from headscape.wavelets.paraproduct import paraproduct

    return paraproduct(head.g, *trees, function, head.present)


def test_approximation_and_softmax_are_in_the_same_order():
    """Permuting queries and keys of a head, with its trees, permutes the approximation and changes no measure."""
    head = a_head(18, causal=False)
    rng = np.random.default_rng(3)
    p, q = rng.permutation(18), rng.permutation(18)
    moved = Head(head.g[np.ix_(p, q)], head.present, Trees(head.trees.query.permute(p), head.trees.key.permute(q)))
    for variant in ("paraproduct", "corollary", "boundary", "mean", "linear"):
        a, b = head.approximation(variant), moved.approximation(variant)
        np.testing.assert_allclose(b, a[np.ix_(p, q)], atol=1e-12)
        measured = [compare(x, h.g, h.present) for x, h in ((a, head), (b, moved))]
        np.testing.assert_allclose(*(m[: 2 if variant == "mean" else 3] for m in measured), atol=1e-9)  # ties of a mean


def test_uniform_attention_is_exact_and_has_no_exponent():
    present = np.ones((16, 16), dtype=bool)
    g = log_attention(np.zeros((16, 16)), present)
    head = Head(g, present, organise(g, present, SETTINGS))
    found, note = measure(head, SETTINGS)
    assert tuple(found) == COLUMNS
    for variant in ("paraproduct", "corollary", "boundary", "mean", "linear", "natural"):
        assert found[f"{variant}_error"] < 1e-12
    assert np.isnan(found["alpha"]) and "no mixed coefficient" in note
    assert found["average_rms"] < 1e-12 and found["mixed_rms"] < 1e-12


def test_heads_whose_scores_depend_on_the_key_alone():
    """g = v(key): boundary terms are exact, so both decompositions are, however large the scores."""
    present = np.ones((16, 12), dtype=bool)
    g = log_attention(np.tile(5 * np.random.default_rng(0).normal(size=12), (16, 1)), present)
    found, _ = measure(Head(g, present, organise(g, present, SETTINGS)), SETTINGS)
    assert max(found[f"{v}_error"] for v in ("paraproduct", "corollary", "boundary", "natural")) < 1e-10
    assert found["mean_error"] > 0.5 and found["mixed_share"] < 1e-12


def test_small_scores_meet_the_condition_and_are_approximated():
    """As scores shrink averages go to 0, and the error of Corollary 1 falls like their square."""
    errors, averages = [], []
    for size in (0.2, 0.02):
        present = np.ones((24, 24), dtype=bool)
        g = log_attention(scores_of(1, 1, 1, size=1)[0, 0, 0] * size, present)
        found, _ = measure(Head(g, present, organise(g, present, SETTINGS)), SETTINGS)
        errors.append(found["corollary_error"])
        averages.append(found["average_rms"])
    assert averages[1] == pytest.approx(averages[0] / 10, rel=0.2)
    assert errors[1] < errors[0] / 50 and errors[1] < 1e-3


def test_condition_columns_are_what_they_say():
    head = a_head(16)
    found, _ = measure(head, SETTINGS)
    g, present = head.g, head.present
    mixed = g - np.nanmean(g, axis=1, keepdims=True) - np.nanmean(g, axis=0) + g[present].mean()
    assert found["mixed_rms"] == pytest.approx(np.sqrt(np.mean(mixed[present] ** 2)))
    assert found["mixed_max"] == pytest.approx(np.abs(mixed[present]).max())
    assert found["spread"] == pytest.approx(g[present].std())
    means = head.averages()
    values = [
        (means.at(j, k) - means.mean)[present] for j in range(means.n_scales[0]) for k in range(means.n_scales[1])
    ]
    assert found["average_rms"] == pytest.approx(np.sqrt(np.mean(np.square(values))))
    assert found["average_max"] == pytest.approx(np.abs(values).max())


def test_organisation_makes_a_shuffled_smooth_head_regular():
    x = np.linspace(0, 1, 64)
    rng = np.random.default_rng(0)
    S = 3 * np.cos(3 * (x[rng.permutation(64)][:, None] - x[rng.permutation(64)]))
    present = np.ones((64, 64), dtype=bool)
    g = log_attention(S, present)
    found, note = measure(Head(g, present, organise(g, present, SETTINGS)), SETTINGS)
    assert not note
    assert found["alpha"] > 0.3 > found["alpha_natural"] + 0.5
    assert found["alpha_low"] < found["alpha"] < found["alpha_high"]
    assert found["alpha_shuffled"] == pytest.approx(-0.45, abs=0.15)
    assert found["roughness"] < 0.3 * found["roughness_natural"]
    assert found["paraproduct_error"] < found["shuffled_error"]
    assert found["constant_mixed"] < found["constant_mixed_natural"]


def test_scales_hold_the_energy_of_the_terms():
    head = a_head(24)
    terms = head.averages().paraproduct("exp").terms
    found = scales(head, (6, 6))
    total = np.linalg.norm(head.softmax)
    np.testing.assert_allclose(np.linalg.norm(found[0]), np.linalg.norm(terms.residual) / total)
    np.testing.assert_allclose(np.linalg.norm(found[1]), np.linalg.norm(terms.exact) / total)


# ---------------------------------------------------------------------- a run without a model


def test_a_run_has_one_row_a_head_and_no_functional_test(run):
    result = softmax(run)
    frame = result.to_frame()
    assert len(frame) == 4 and set(COLUMNS) <= set(frame) and "invariant" not in frame
    assert result.values.shape == (2, len(COLUMNS), 4) and not result.unit
    scores = hs.open_capture(run).tensor(1, kind="scores").values[:, :, 3].astype(np.float64)
    present = np.tri(24, dtype=bool)
    g = log_attention(scores, present)
    own, _ = measure(Head(g, present, organise(g, present, SETTINGS)), SETTINGS, random_state=1)
    np.testing.assert_allclose(result.values[1, :, 3], [own[name] for name in COLUMNS], rtol=1e-9, equal_nan=True)
    np.testing.assert_allclose(frame["paraproduct_error"], result.values.mean(axis=0)[0], rtol=1e-12)
    share = (frame["corollary_error"] <= 0.1).mean()
    assert f"({share:.0%})" in result.findings()[0].text and "not measured" in result.findings()[0].text


def test_what_stands_above_the_diagonal_changes_nothing(tmp_path):
    frames = []
    for junk in (0.0, 1e4):
        folder = tmp_path / str(junk)
        folder.mkdir()
        scores = np.where(np.tri(24, dtype=bool), scores_of(1, 1, 2), junk)
        frames.append(softmax(imported(folder, scores)).to_frame())
    assert frames[0].equals(frames[1])


def test_jobs_threads_and_a_second_run_give_the_same_bytes(run, tmp_path):
    files = []
    for i, (jobs, threads) in enumerate([(1, 1), (1, 2), (2, 1)]):
        copy = tmp_path / str(i)
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("softmax"))
        softmax(copy, jobs=jobs, threads=threads)
        files.append({p.name: p.read_bytes() for p in sorted((copy / "softmax").iterdir())})
    assert files[0] == files[1] == files[2]


def test_it_goes_on_where_it_stopped_and_more_inputs_only_add(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("softmax"))
    softmax(copy, batches=1)
    folder = copy / "softmax"
    first = folder / "maps-0000-0000.safetensors"
    before = first.stat().st_mtime_ns
    (folder / "maps-0000-0001.safetensors").unlink()
    result = softmax(copy, batches=2)
    assert first.stat().st_mtime_ns == before and result.settings["batches"] == 2
    assert (folder / "maps-0001-0001.safetensors").exists()
    said = []
    softmax(copy, heads=["heads.1.0"], say=said.append)
    assert "other settings" in said[0] and not first.exists()
    assert len(SoftmaxResult.load(folder).to_frame()) == 1


def test_figures_of_any_head(run):
    result = softmax(run, show=["heads.1.1", "heads.0.0"])
    assert set(result.maps) == {"heads.1.1", "heads.0.0"}
    maps = head_maps(run, "heads.1.1")
    for name, array in result.maps["heads.1.1"].items():
        np.testing.assert_array_equal(array, maps[name])
    organised = np.ix_(maps["query_order"], maps["key_order"])
    np.testing.assert_array_equal(maps["softmax"], maps["original"][organised])
    np.testing.assert_allclose(maps["original"].sum(axis=1), 1, rtol=1e-5)
    ids = [figure.id for figure in result.figures()]
    assert len(set(ids)) == len(ids) and {"organised-heads.1.1", "approximation-heads.0.0"} <= set(ids)
    assert {f.paper for f in result.figures()} == {None, "figure 1", "figure 2"}


# ---------------------------------------------------------------------- with a model


def test_the_verdict_follows_from_the_table_by_its_rule(vit):
    frame = vit.to_frame()
    inside = (frame["change_corollary_low"] >= -0.01) & (frame["change_corollary_high"] <= 0.01)
    assert (frame["invariant"] == np.where(inside, "yes", "no")).all()
    verdict = vit.findings()[0]
    assert f"{inside.sum()} of 12 heads ({inside.mean():.0%})" in verdict.text
    assert verdict.holds == (inside.mean() >= 0.9)
    looser = SoftmaxResult(**{**vars(vit), "tolerance": 1e6})
    assert looser.passes("corollary").all() and looser.findings()[0].text.startswith("Heads are invariant")


def test_own_maps_change_nothing_and_uniform_ones_do(vit):
    own = vit.changes_all[:, ALL_VARIANTS.index("own")]
    np.testing.assert_allclose(own, 0, atol=1e-5)
    assert vit.changes_all[:, ALL_VARIANTS.index("mean")].mean() > 0.02
    assert vit.changes_head.shape == (2, 3, 12) and vit.changes_layer.shape == (2, 4, 2)
    frame = vit.to_frame()
    for v, name in enumerate(HEAD_VARIANTS):
        np.testing.assert_allclose(frame[f"change_{name}"], vit.changes_head[:, v].mean(axis=0), rtol=1e-12)


def test_changes_are_those_of_whole_forward_passes(vit_run, vit, load):
    """The slow twin: patch, run the model on the labelled image from the start, compare losses."""
    import torch
    from torch.nn import functional as F

    model = load("vit-fmnist")
    captured = hs.open_capture(vit_run)
    X = captured.tensor(1, kind="scores")
    label = torch.tensor([captured.batch(1).info["origin"][1]])
    pixels = torch.from_numpy(captured.pixels(1))[None]

    def loss():
        with torch.no_grad():
            return float(F.cross_entropy(model.module(pixel_values=pixels).logits, label))

    before = loss()
    assert vit.base[1] == pytest.approx(before, abs=1e-5)
    for i in (0, 7, 11):
        g = log_attention(X.values[:, :, i], X.present)
        head = Head(g, X.present, organise(g, X.present, SETTINGS))
        for v, name in enumerate(HEAD_VARIANTS):
            with hs.patch_maps(model, {X.heads[i]: as_probabilities(head.approximation(name), X.present)}):
                assert vit.changes_head[1, v, i] == pytest.approx(loss() - before, abs=2e-5)
    assert loss() == before  # and the model is as it was


def test_random_weights_have_flat_attention_and_small_errors(vit):
    errors = vit.control[COLUMNS.index("corollary_error")]
    assert vit.control.shape == (len(COLUMNS), 12)
    assert np.median(errors) < 0.01 < np.median(vit.to_frame()["corollary_error"])
    assert any("random weights" in finding.text for finding in vit.findings())


def test_saved_and_loaded_results_are_equal(vit_run, vit):
    loaded = SoftmaxResult.load(vit_run / "softmax")
    assert [f.text for f in loaded.findings()] == [f.text for f in vit.findings()]
    assert [f.id for f in loaded.figures()] == [f.id for f in vit.figures()]
    np.testing.assert_array_equal(loaded.changes_layer, vit.changes_layer)
    for head, maps in vit.maps.items():
        for name, array in maps.items():
            np.testing.assert_array_equal(loaded.maps[head][name], array)
    known = {figure.id for figure in vit.figures()}
    assert all(finding.figure in known for finding in vit.findings())
    (vit_run / "softmax" / "result.json").write_text("{")
    with pytest.raises(hs.HeadscapeError, match="cannot be read"):
        SoftmaxResult.load(vit_run / "softmax")
    vit.save(vit_run / "softmax")


def test_the_report_draws_every_figure(vit_run, vit):
    from headscape.report.gather import gather
    from headscape.report.pictures import picture

    (section,) = gather([vit], hs.open_capture(vit_run).heads()).sections
    assert not section.problems
    for figure in vit.figures():
        if figure.kind != "table":
            assert picture(figure, section)


def test_an_encoder_is_judged_by_its_final_hidden_state():
    import torch

    from tiny import Letters
    from zoo import make

    network = make("bert")
    model = hs.wrap_module(network.bert, tokenizer=Letters())
    cap = hs.capture(model, ["abcdefgh" * 8], tokens=12, batches=2, keep=("probs", "scores"), dtype="float32")
    result = softmax(cap, model=model, threads=1)
    assert result.unit == "state" and "final hidden state" in result.findings()[0].text
    X = cap.tensor(0)
    uniform = np.full((12, 12), 1 / 12, dtype=np.float32)
    ids = torch.from_numpy(cap.input_ids(0))[None]
    with torch.no_grad():
        before = network.bert(input_ids=ids).last_hidden_state
        with hs.patch_maps(model, {X.heads[5]: uniform}):
            after = network.bert(input_ids=ids).last_hidden_state
    expected = float((after - before).norm() / before.norm())
    assert result.changes_head[0, HEAD_VARIANTS.index("mean"), 5] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_language_models_are_judged_by_their_loss(name):
    from tiny import Letters
    from zoo import make

    model = hs.wrap_module(make(name), tokenizer=Letters())
    cap = hs.capture(model, ["the quick brown fox " * 6], tokens=12, batches=1, keep=("scores",), dtype="float32")
    result = softmax(cap, model=model, block=cap.blocks[-1], threads=1)
    assert result.unit == "loss"
    assert result.base[0] == pytest.approx(hs.loss(model, ["the quick brown fox " * 6], tokens=12, batches=1).mean)
    assert abs(result.changes_all[0, ALL_VARIANTS.index("own")]) < 1e-5
    assert np.isnan(result.to_frame()["change_corollary_low"]).all()  # one input has no interval


# ---------------------------------------------------------------------- what cannot be


def test_refusals_say_what_to_do(run, tmp_path):
    probs = np.full((1, 1, 2, 4, 4), 0.25)
    with pytest.raises(hs.InputError, match="needs scores.*keeps probs; capture again with --keep probs,scores"):
        softmax(imported(tmp_path, probs, "full", "probs"))
    one = tmp_path / "one"
    one.mkdir()
    with pytest.raises(hs.InputError, match="1 x 1; a decomposition needs at least two tokens"):
        softmax(imported(one, np.zeros((1, 1, 2, 1, 1)), "full"))
    with pytest.raises(hs.InputError, match="head heads.9.9 was not captured"):
        softmax(run, heads=["heads.9.9"])
    with pytest.raises(hs.InputError, match="is not a head"):
        softmax(run, heads=["nine"])
    with pytest.raises(hs.InputError, match="no block"):
        softmax(run, block="decoder")
    with pytest.raises(hs.InputError, match="jobs and batches must be at least 1"):
        softmax(run, batches=0)
    with pytest.raises(hs.InputError, match="tolerance must be above 0"):
        softmax(run, tolerance=0)


def test_constant_rows_are_measured_and_noted(tmp_path):
    scores = np.broadcast_to(np.arange(16.0)[:, None], (1, 1, 2, 16, 16))
    frame = softmax(imported(tmp_path, scores, "full")).to_frame()
    assert (frame["corollary_error"] < 1e-12).all() and frame["alpha"].isna().all()
    assert frame["note"].str.contains("no mixed coefficient").all()


def test_a_window_the_scores_do_not_show_is_refused():
    from tiny import Letters
    from zoo import make

    model = hs.wrap_module(make("mistral"), tokenizer=Letters())  # looks back 5 tokens
    cap = hs.capture(model, ["abcdefgh" * 8], tokens=20, batches=1, keep=("probs", "scores"))
    with pytest.raises(hs.InputError, match="has a window or a sink"):
        softmax(cap)


# ---------------------------------------------------------------------- the command


def command(*arguments):
    code = "import headscape.cli.softmax; from headscape.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


def test_the_command_prints_the_verdict(run):
    done = command("softmax", run, "--heads", "heads.0.0,heads.1.1", "--json", "-q")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert len(facts["heads"]) == 2 and "invariant to softmax" in facts["findings"][0]["text"]
    assert {row["instead of softmax"] for row in facts["variants"]} == set(VARIANTS)
    for arguments, message in [
        (["--heads", "heads.0.0", "--all"], "either --heads or --all"),
        (["--random-weights"], "there is no model to give random weights"),
    ]:
        done = command("softmax", run, *arguments)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 2 and len(lines) == 1 and message in lines[0], done.stderr
    assert "Example" in command("softmax", "--help").stdout
