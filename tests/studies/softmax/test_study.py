"""The softmax study of a run, and of a model whose maps are replaced.

Also tests attention.replacing, studies.softmax.units.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import headscape as hs
from headscape.geometry.questionnaire import Questionnaire
from headscape.studies.softmax.head import COLUMNS, VARIANTS, Head, as_probabilities, log_attention, measure, organize
from headscape.studies.softmax.result import ALL_VARIANTS, HEAD_VARIANTS, SoftmaxResult
from headscape.studies.softmax.study import head_maps, softmax
from planted_scores import imported, scores_of
from spoiling import rearranged
from tiny import Letters
from zoo import make

SETTINGS = Questionnaire(n_jobs=1).get_params()


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
    return softmax(vit_run, batches=3, model=load("vit-fmnist"), control=control, threads=1)


# ---------------------------------------------------------------------- a run without a model


def test_a_run_has_one_row_per_head_and_no_functional_test(run):
    result = softmax(run)
    frame = result.to_frame()
    assert len(frame) == 4 and set(COLUMNS) <= set(frame) and "invariant" not in frame
    assert result.values.shape == (2, len(COLUMNS), 4) and not result.unit
    scores = hs.open_capture(run).tensor(1, kind="scores").values[:, :, 3].astype(np.float64)
    present = np.tri(24, dtype=bool)
    g = log_attention(scores, present)
    own, _ = measure(Head(g, present, organize(g, present, SETTINGS)), SETTINGS, random_state=1)
    np.testing.assert_allclose(result.values[1, :, 3], [own[name] for name in COLUMNS], rtol=1e-9, equal_nan=True)
    np.testing.assert_allclose(frame["paraproduct_error"], result.values.mean(axis=0)[0], rtol=1e-12)
    share = (frame["corollary_error"] <= 0.1).mean()
    assert f"({share:.0%})" in result.findings()[0].text and "not measured" in result.findings()[0].text
    assert {finding.verdict for finding in result.findings()} == {"cannot tell"}  # two inputs decide nothing
    alpha = result.column("alpha")[:, 0]
    reach = 12.706 * alpha.std(ddof=1) / np.sqrt(2)  # Student's t with one degree of freedom
    assert frame["alpha_low"][0] == pytest.approx(alpha.mean() - reach, rel=1e-4)


def test_what_stands_above_the_diagonal_changes_nothing(tmp_path):
    frames = []
    for junk in (0.0, 1e4):
        folder = tmp_path / str(junk)
        folder.mkdir()
        scores = np.where(np.tri(24, dtype=bool), scores_of(1, 1, 2), junk)
        frames.append(softmax(imported(folder, scores)).to_frame())
    assert frames[0].equals(frames[1])


def files_of(run):
    return {str(p.relative_to(run)): p.read_bytes() for p in sorted((run / "softmax").rglob("*")) if p.is_file()}


def test_jobs_threads_and_a_second_run_give_the_same_bytes(run, tmp_path):
    files = []
    for i, (jobs, threads) in enumerate([(1, 1), (1, 2), (2, 1)]):
        copy = tmp_path / str(i)
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("softmax"))
        softmax(copy, jobs=jobs, threads=threads)
        files.append(files_of(copy))
    assert files[0] == files[1] == files[2] and len(files[0]) > 7


def test_it_resumes_and_more_inputs_only_add(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("softmax"))
    softmax(copy, batches=1)
    units = copy / "softmax" / "units"
    first, second = sorted(units.glob("maps-0000-*"))
    before = first.stat().st_mtime_ns
    second.unlink()
    result = softmax(copy, batches=2)
    assert first.stat().st_mtime_ns == before and second.exists() and len(result.values) == 2
    assert len(list(units.iterdir())) == 4
    with pytest.raises(hs.InputError, match="cannot be resumed: heads was"):
        softmax(copy, batches=2, heads=["heads.1.0"], resume=True)
    one = softmax(copy, batches=2, heads=["heads.1.0"])  # other heads: beside the first, which stay
    assert len(one.to_frame()) == 1 and len(hs.open_result(copy, "softmax").to_frame()) == 1
    assert first.stat().st_mtime_ns == before and len(list((copy / "softmax").glob("*/result.json"))) == 3


def test_an_input_that_changed_is_measured_again(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("softmax"))
    before = softmax(copy).values
    (other := tmp_path / "other").mkdir()
    batch = imported(other, scores_of(seed=9)) / "attention" / "batch-0001.safetensors"
    shutil.copy(batch, copy / "attention" / "batch-0001.safetensors")
    after = softmax(copy).values
    np.testing.assert_array_equal(before[0], after[0])
    assert (before[1] != after[1]).any()


def test_figures_of_any_head(run):
    result = softmax(run, show=["heads.1.1", "heads.0.0"])
    assert set(result.maps) == {"heads.1.1", "heads.0.0"}
    maps = head_maps(run, "heads.1.1")
    for name, array in result.maps["heads.1.1"].items():
        np.testing.assert_array_equal(array, maps[name])
    organized = np.ix_(maps["query_order"], maps["key_order"])
    np.testing.assert_array_equal(maps["softmax"], maps["original"][organized])
    np.testing.assert_allclose(maps["original"].sum(axis=1), 1, rtol=1e-5)
    ids = [figure.id for figure in result.figures()]
    assert len(set(ids)) == len(ids) and {"organized-heads.1.1", "approximation-heads.0.0"} <= set(ids)
    assert {f.paper for f in result.figures()} == {None, "figure 1", "figure 2"}
    panels = next(f for f in result.figures() if f.id == "approximation-heads.0.0").data["panels"]
    np.testing.assert_array_equal(panels[3]["values"], panels[1]["values"] - panels[2]["values"])


# ---------------------------------------------------------------------- with a model


def test_whether_a_head_passes_follows_from_its_interval(vit):
    frame = vit.to_frame()
    inside = (frame["change_corollary_low"] >= -0.01) & (frame["change_corollary_high"] <= 0.01)
    beyond = (frame["change_corollary_low"] > 0.01) | (frame["change_corollary_high"] < -0.01)
    assert (frame["invariant"] == np.where(inside, "yes", np.where(beyond, "no", "cannot tell"))).all()
    verdict = vit.findings()[0]
    assert f"{inside.sum()} of 12 heads ({inside.mean():.0%})" in verdict.text and verdict.verdict == "cannot tell"
    looser = replace(vit, tolerance=1e6)
    assert (looser.standing("corollary") == "yes").all()
    assert looser.findings()[0].verdict == "cannot tell"  # uniform attention passes too: no head can fail


def test_own_maps_change_nothing_and_uniform_ones_do(vit):
    own = vit.changes_all[:, ALL_VARIANTS.index("own")]
    np.testing.assert_allclose(own, 0, atol=1e-5)
    assert vit.changes_all[:, ALL_VARIANTS.index("mean")].mean() > 0.02
    assert vit.changes_head.shape == (3, 3, 12) and vit.changes_layer.shape == (3, 4, 2)
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
        head = Head(g, X.present, organize(g, X.present, SETTINGS))
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
    assert [str(f) for f in loaded.findings()] == [str(f) for f in vit.findings()]
    assert [f.id for f in loaded.figures()] == [f.id for f in vit.figures()]
    np.testing.assert_array_equal(loaded.changes_layer, vit.changes_layer)
    for head, maps in vit.maps.items():
        for name, array in maps.items():
            np.testing.assert_array_equal(loaded.maps[head][name], array)
    known = {figure.id for figure in vit.figures()}
    assert all(finding.figure in known for finding in vit.findings())
    assert set(vit.to_json()) == {"findings", "variants", "heads"}


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
    model = hs.wrap_module(make(name), tokenizer=Letters())
    cap = hs.capture(model, ["the quick brown fox " * 6], tokens=12, batches=1, keep=("scores",), dtype="float32")
    result = softmax(cap, model=model, block=cap.blocks[-1], threads=1)
    assert result.unit == "loss"
    assert result.base[0] == pytest.approx(hs.loss(model, ["the quick brown fox " * 6], tokens=12, batches=1).mean)
    assert abs(result.changes_all[0, ALL_VARIANTS.index("own")]) < 1e-5
    assert np.isnan(result.to_frame()["change_corollary_low"]).all()  # one input has no interval
    assert set(result.to_frame()["invariant"]) == {"cannot tell"}


# ---------------------------------------------------------------------- what cannot be


def test_refusals_say_what_to_do_and_leave_nothing(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("softmax"))
    (one := tmp_path / "one").mkdir()
    (mapped := tmp_path / "mapped").mkdir()
    single = imported(one, np.zeros((1, 1, 2, 1, 1)), "full")
    probs = imported(mapped, np.full((1, 1, 2, 4, 4), 0.25), "full", "probs")
    for path, options, message in (
        (probs, {}, "needs scores.*keeps probs; capture again with --keep probs,scores"),
        (single, {}, "1 x 1; a decomposition needs at least two tokens"),
        (copy, {"heads": ["heads.9.9"]}, "head heads.9.9 was not captured"),
        (copy, {"heads": ["0.0"], "show": ["1.1"]}, "head heads.1.1 was not captured or not chosen"),
        (copy, {"heads": ["heads.0.0"], "show": ["heads.1.1"]}, "head heads.1.1 was not captured or not chosen"),
        (copy, {"heads": ["nine"]}, "is not a head"),
        (copy, {"block": "decoder"}, "no block"),
        (copy, {"batches": 0}, "batches must be at least 1"),
        (copy, {"jobs": 0}, "jobs must be at least 1"),
        (copy, {"tolerance": 0}, "tolerance must be positive"),
        (copy, {"questionnaire": Questionnaire(n_iter=0)}, "n_iter"),
        (copy, {"control": True}, "has no model"),
    ):
        before = sorted(path.rglob("*"))
        with pytest.raises(hs.InputError, match=message):
            softmax(path, **options)
        assert sorted(path.rglob("*")) == before


def test_a_model_of_another_architecture_is_refused():
    model = hs.wrap_module(make("gpt2"), tokenizer=Letters())
    cap = hs.capture(model, ["abcdefgh" * 8], tokens=12, batches=1, keep=("scores",), dtype="float32")
    with pytest.raises(hs.InputError, match="it is not the model of this capture"):
        softmax(cap, model=hs.wrap_module(make("bert"), tokenizer=Letters()))


def test_constant_rows_are_measured_and_noted(tmp_path):
    scores = np.broadcast_to(np.arange(16.0)[:, None], (1, 1, 2, 16, 16))
    frame = softmax(imported(tmp_path, scores, "full")).to_frame()
    assert (frame["corollary_error"] < 1e-12).all() and frame["alpha"].isna().all()
    assert frame["note"].str.contains("no mixed coefficient").all()


def test_a_window_the_scores_do_not_show_is_refused():
    model = hs.wrap_module(make("mistral"), tokenizer=Letters())  # looks back 5 tokens
    cap = hs.capture(model, ["abcdefgh" * 8], tokens=20, batches=1, keep=("probs", "scores"))
    with pytest.raises(hs.InputError, match="has its own window or sink"):
        softmax(cap)


def test_every_batch_is_checked_before_anything_is_written(tmp_path):
    model = hs.wrap_module(make("gpt2"), tokenizer=Letters())
    hs.capture(model, ["abcdefgh" * 8], tokens=12, batches=2, keep=("probs", "scores"), out=tmp_path)
    spoiled = tmp_path / "attention" / "batch-0001.safetensors"
    rearranged(spoiled, lambda found: found.update({n: a * 0.5 for n, a in found.items() if n.startswith("probs/")}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(hs.InputError, match="differs from its probabilities"):
        softmax(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


# ---------------------------------------------------------------------- the command


def command(*arguments):
    code = "from headscape.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


def test_the_command_prints_the_verdict(run):
    done = command("softmax", run, "--heads", "heads.0.0,heads.1.1", "--json", "-q")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert len(facts["heads"]) == 2 and "invariant to softmax" in facts["findings"][0]["text"]
    assert {row["instead of softmax"] for row in facts["variants"]} == set(VARIANTS)
    for arguments, message in [
        (["--heads", "heads.0.0", "--all"], "either --heads or --all"),
        (["--random-weights"], "was imported and has no model"),
    ]:
        done = command("softmax", run, *arguments)
        lines = done.stderr.strip().splitlines()
        assert done.returncode == 2 and len(lines) == 1 and message in lines[0], done.stderr
    assert "Example" in command("softmax", "--help").stdout
