"""The prune study: what it ranks, chooses and judges on, what it proposes, and that it goes on after a kill."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.pruning.compensation import folded, folds_of, moments_on
from headscape.report.files import write_figures
from headscape.studies.prune import study
from headscape.studies.prune.controls import control_entropies
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.inputs import inputs_of
from headscape.studies.prune.result import Curve, PruneResult
from headscape.studies.prune.study import prune, rank_heads
from headscape.wavelets.entropy import head_entropies
from tiny import Letters
from zoo import make

RANK = ["the quick brown fox jumps over the lazy dog and then it does all of that once more for good measure"]
JUDGE = ["she sells sea shells by the sea shore and the shells she sells are surely sea shells of the shore " * 2]
QUICK = {"criteria": ("novelty", "gradient", "output_norm", "l1_all", "l1_top"), "windows": 4, "evaluations": 12}


def network():
    """A Llama whose heads (0, 2) and (1, 0) put nothing out, and whose head (1, 3) attends as (1, 2) does."""
    module = make("llama")
    with torch.no_grad():
        module.model.layers[0].self_attn.o_proj.weight[:, 16:24] = 0
        module.model.layers[1].self_attn.o_proj.weight[:, 0:8] = 0
        module.model.layers[1].self_attn.q_proj.weight[24:32] = module.model.layers[1].self_attn.q_proj.weight[16:24]
    return hs.wrap_module(module, tokenizer=Letters())


@pytest.fixture(scope="module")
def model():
    return network()


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune") / "run"
    captured = hs.capture(model, RANK, tokens=12, batches=None, dtype="float32", out=folder)
    hs.organize(captured)
    return folder


@pytest.fixture(scope="module")
def result(run, model):
    return prune(run, model=model, inputs=JUDGE, budget=0.05, **{**QUICK, "criteria": study.DEFAULT_CRITERIA})


SILENT = {hs.HeadId("decoder", 0, 2), hs.HeadId("decoder", 1, 0)}


def test_planted_heads_are_proposed_first(run, model):
    silent = rank_heads(run, "output_norm", model)
    assert {hs.HeadId(*row) for row in silent[["block", "layer", "head"]].to_numpy()[:2]} == SILENT
    for criterion in ("output_norm", "novelty"):
        found = prune(run, model=model, inputs=JUDGE, criterion=criterion, n_heads=2, **QUICK)
        assert set(found.proposal) == SILENT
        assert abs(found.curve("proposal", proposal=True).cost(0).value) < 1e-6
    first = rank_heads(run, "redundancy", model)[["block", "layer", "head"]].to_numpy()[0]
    assert hs.HeadId(*first) in (hs.HeadId("decoder", 1, 2), hs.HeadId("decoder", 1, 3))


def test_costs_are_those_of_removing_the_heads_on_the_judging_text(result, run, model):
    split = inputs_of(model, hs.open_capture(run), JUDGE, 4, 0)
    intact = split.judge.whole()
    np.testing.assert_allclose(result.intact.values, intact.values, atol=1e-6)
    curve = result.curve("l1_all", "mean") or result.curve("l1_all", "none")
    order = np.argsort(result.heads["l1_all"].to_numpy(), kind="stable")
    moments = moments_on(model, split.rank)
    for i, n in enumerate(curve.n):
        by_site = {}
        for j in order[:n]:
            row = result.heads.iloc[j]
            name = next(s.name for s in model.sites if s.layer == row["layer"])
            by_site.setdefault(name, []).append(int(row["head"]))
        with folded(model, folds_of(model, by_site, moments, curve.compensation)):
            without = split.judge.whole()
        rise = (without.values - intact.values) / intact.values.mean()
        np.testing.assert_allclose(curve.costs[0, i], rise, atol=1e-5)


def test_no_window_is_ranked_on_and_judged_on(run, model):
    captured = hs.open_capture(run)
    split = inputs_of(model, captured, [*RANK, *JUDGE], 6, 0)
    ranked = {sample.stored["input_ids"].tobytes() for sample in split.rank}
    chosen, judged = (
        {row.numpy().astype(np.int64).tobytes() for task in judge.tasks for row in task.arguments["input_ids"]}
        for judge in (split.choose, split.judge)
    )
    assert chosen and judged and not (chosen & judged or ranked & chosen or ranked & judged)
    with pytest.raises(hs.InputError, match="were ranked on; at least 4 others are needed"):
        inputs_of(model, captured, RANK, 6, 0)
    with pytest.raises(hs.InputError, match="too few for an interval"):
        inputs_of(model, captured, JUDGE, 2, 0)


def test_a_killed_study_goes_on(run, model, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    shutil.rmtree(folder / "prune", ignore_errors=True)
    options = {"model": model, "inputs": JUDGE, "budget": 0.05, **QUICK}
    whole = prune(folder, **options)
    file = folder / "prune" / "evaluations.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:7]) + lines[7][:20])  # killed within the eighth
    made = []
    measured = Evaluations.get

    def counting(self, *args):
        before = self.made
        found = measured(self, *args)
        made.append(self.made - before)
        return found

    monkeypatch.setattr(Evaluations, "get", counting)
    again = prune(folder, **options)
    assert sum(made) == len(lines) - 7
    assert again.proposal == whole.proposal
    for one, other in zip(whole.curves, again.curves, strict=True):
        np.testing.assert_allclose(one.costs, other.costs, atol=1e-9)
    made.clear()
    prune(folder, **options)
    assert sum(made) == 0


def test_another_text_starts_anew(result, run, model, tmp_path):
    assert result.table is not None  # the run has been pruned on other text
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    said = []
    prune(folder, model=model, inputs=[JUDGE[0][7:]], budget=None, say=said.append, **QUICK)
    assert any("other settings before: starting anew" in line for line in said)


def test_what_is_saved_comes_back(result, run):
    loaded = PruneResult.load(run / "prune")
    for one in (loaded, result):
        assert one.proposal and isinstance(one.findings()[0].text, str)
    assert [f.text for f in loaded.findings()] == [f.text for f in result.findings()]
    assert loaded.table.equals(result.table)
    assert loaded.evidence.equals(result.evidence)
    assert loaded.tree == result.tree
    (run / "prune" / "result.safetensors").rename(run / "prune" / "moved")
    with pytest.raises(hs.HeadscapeError, match="cannot be read"):
        PruneResult.load(run / "prune")
    (run / "prune" / "moved").rename(run / "prune" / "result.safetensors")


def test_figures_are_drawn(result, run, tmp_path):
    kinds = {figure.id: figure.kind for figure in result.figures()}
    assert {"proposal", "curves", "costs", "compensation", "importance", "correlations", "folders", "choice"} <= set(
        kinds
    )
    written = write_figures(hs.Run.open(run), [result], tmp_path)
    assert written and all(Path(path).stat().st_size > 0 for path in tmp_path.iterdir())


def test_controls_are_the_same_measure_on_other_trees(run):
    captured = hs.open_capture(run)
    organised = hs.organize(captured)
    found = control_entropies(captured, organised)
    natural = [
        head_entropies(X, [hs.PartitionTree.dyadic(n) for n in X.shape[:2]])["l1_all"].to_numpy() for X in captured
    ]
    np.testing.assert_allclose(found["l1_all_natural"], np.mean(natural, axis=0))
    assert not np.allclose(found["l1_all_random"], organised.to_frame()["l1_all"])


def test_auto_takes_the_best_on_the_choosing_text(result, run, model):
    best = result.choice.iloc[0]
    assert (result.criterion, result.compensation) == (best["criterion"], best["compensation"])
    final = result.choice[result.choice["compared"] == "all shares"]
    assert best["cost"] == final["cost"].min() and len(final) == 4
    assert not set(result.choice["criterion"]) & {"leave_one_out", "l1_all_random", "l1_all_natural", "random"}
    ranked = rank_heads(run, "auto", model, JUDGE)
    assert ranked["place"].tolist() == list(range(8))


def test_a_function_of_ones_own(run, model):
    def last_first(evidence):
        return -np.arange(len(evidence.heads), dtype=float)

    found = prune(run, model=model, inputs=JUDGE, criterion=last_first, n_heads=1, compensation="none", **QUICK)
    assert found.criterion == "last_first" and found.proposal == (hs.HeadId("decoder", 1, 3),)


def test_a_capture_in_memory_without_organisation(model):
    captured = hs.capture(model, RANK, tokens=12, batches=None, dtype="float32")
    said = []
    found = prune(captured, model=model, inputs=JUDGE, budget=0.05, say=said.append, **QUICK)
    assert set(found.skipped) == {"l1_all", "l1_top"} and any("without l1_all" in line for line in said)
    assert found.tree is None


def made_up(criterion, costs, compensation="mean", proposal=False):
    costs = np.array(costs, dtype=float)
    return Curve(criterion, compensation, tuple(range(1, costs.shape[1] + 1)), costs, costs, proposal)


def test_the_sentences_follow_from_the_curves(result):
    from dataclasses import replace

    cheap, dear = [[[0.01, 0.02, 0.01]]], [[[0.05, 0.06, 0.07]]]
    chance = made_up("random", np.full((3, 1, 3), 0.03))
    for own, rival, beats in ((cheap, dear, True), (dear, cheap, False)):
        curves = [made_up("novelty", own), made_up("gradient", rival), made_up("l1_top", own), chance]
        found = replace(result, criterion="novelty", compensation="mean", curves=curves, budget=None)
        assert found._against_gradients()[0].holds is beats
        assert ("beats gradient" in found._against_gradients()[0].text) is beats
        paper = found._paper()[0]
        assert paper.holds is beats and ("worse than every random draw" in paper.text) is not beats
    for costs, verdict, word in (
        ([0.01, 0.012, 0.011], True, "within"),
        ([0.05, 0.06, 0.07], False, "beyond"),
        ([0.0, 0.03, 0.04], None, "not surely within"),
    ):
        one = replace(result, compensation="mean", curves=[made_up("proposal", [[costs]], proposal=True)], budget=0.02)
        assert one._proposed()[0].holds is verdict and f": {word} the budget" in one._proposed()[0].text


def test_mistakes_are_named(run, model):
    options = {"model": model, "inputs": JUDGE, **QUICK}
    for change, message in (
        ({"budget": 0.0}, "budget must be above 0 %"),
        ({"n_heads": 8}, "8 heads are to go and .* has 8 in decoder; at least one must stay"),
        ({"n_heads": 0}, "at least one head must go"),
        ({"criterion": "l1"}, "no criterion 'l1'"),
        ({"compensation": "magic"}, "no compensation 'magic'; there are auto, none"),
        ({"fractions": (0.1, 1.0)}, "fractions of heads lie between 0 and 1"),
        ({"block": "encoder"}, "no block 'encoder' was captured; there are decoder"),
    ):
        with pytest.raises(hs.InputError, match=message):
            prune(run, **{**options, **change})
    other = hs.wrap_module(make("gpt2"), tokenizer=Letters())
    other_heads = [head for site in other.sites for head in site.heads]
    if set(hs.open_capture(run).heads()) <= set(other_heads):
        return
    with pytest.raises(hs.InputError, match="is this its model"):
        prune(run, **{**options, "model": other})


def command(*arguments):
    code = "from headscape.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def vit_run(tmp_path_factory, load):
    folder = tmp_path_factory.mktemp("vit") / "run"
    hs.capture(load("vit-fmnist"), hs.sample_images(), batches=6, out=folder)
    return folder


def test_the_command_proposes_and_writes_a_smaller_model(vit_run, tmp_path):
    small = tmp_path / "small"
    options = ["--criteria", "novelty,gradient", "--compensation", "linear", "--threads", "1", "--quiet", "--json"]
    found = command("prune", str(vit_run), "--budget", "5%", "--out", str(small), "--kind", "ragged", *options)
    assert found.returncode == 0, found.stderr
    printed = json.loads(found.stdout)
    assert printed["heads"] and printed["compensation"] == "linear" and "parameters" in printed["export"]
    smaller = hs.load_model(small)
    assert sum(site.n_heads for site in smaller.sites) == 36 - len(printed["heads"])
    images, labels = hs.sample_images()
    before = hs.loss(hs.load_model("vit-fmnist"), (images, labels)).accuracy
    assert hs.loss(smaller, (images, labels)).accuracy > before - 0.15


def test_the_command_names_mistakes(vit_run, tmp_path):
    for arguments, message in (
        (["--budget", "0%"], "the budget must be above 0 %"),
        (["--budget", "much"], "'much' is not a number"),
        (["--heads", "400"], "400 heads are to go and vit-fmnist has 36"),
        (["--kind", "tiny"], "kind is one of masked, ragged, uniform"),
        (["--criterion", "best"], "no criterion 'best'"),
        (["--out", str(vit_run)], "not an empty folder"),
    ):
        found = command("prune", str(vit_run), "--quiet", *arguments)
        assert found.returncode == 2 and message in found.stderr, found.stderr
        assert len(found.stderr.strip().splitlines()) == 1
    np.save(tmp_path / "a.npy", np.full((1, 2, 2, 8, 8), 1 / 8))
    hs.import_array(tmp_path / "a.npy", tmp_path / "own", layout="batch,layer,head,query,key", mask="none")
    found = command("prune", str(tmp_path / "own"))
    assert found.returncode == 2 and "was imported: there is no model to prune" in found.stderr


def test_more_text_to_calibrate_on_is_never_judged_on(run, model):
    captured = hs.open_capture(run)
    plain = inputs_of(model, captured, JUDGE, 4, 0)
    split = inputs_of(model, captured, JUDGE, 4, 0, calibrate=[*RANK, JUDGE[0][:40]])
    ranked = [sample.stored["input_ids"].tobytes() for sample in split.rank]
    fitted = [sample.stored["input_ids"].tobytes() for sample in split.fit]
    more = fitted[len(ranked) :]
    assert fitted[: len(ranked)] == ranked and more and not set(more) & set(ranked) and len(plain.fit) == len(ranked)
    judged = {
        row.numpy().astype(np.int64).tobytes()
        for judge in (split.choose, split.judge)
        for task in judge.tasks
        for row in task.arguments["input_ids"]
    }
    assert not judged & set(more)
    assert split.facts["calibrated_on"] == len(more) and "calibrated_on" not in plain.facts
    options = {"model": model, "inputs": JUDGE, "criterion": "novelty", "compensation": "linear", "n_heads": 4}
    costs = [
        prune(captured_in, calibrate=calibrate, **options, **QUICK).curve("proposal", proposal=True).costs
        for captured_in, calibrate in ((captured, None), (captured, [JUDGE[0][:40]]))
    ]
    assert not np.allclose(costs[0][..., : costs[1].shape[-1]], costs[1][..., : costs[0].shape[-1]])


def test_an_encoder_is_fitted_on_sentences_that_nobody_judges(load):
    """Second moments on long windows are not those of sentences, and an encoder is judged on sentences."""
    model = load("minilm-l6")
    captured = hs.capture(model, [hs.sample_text("rank")], tokens=128, batches=2)
    judged = hs.sample_text("judge")
    split = inputs_of(model, captured, [judged], 4, 0)
    sizes = [sample.stored["input_ids"].size for sample in split.fit]
    assert len(sizes) == split.facts["fitted_on"] > 4 and max(sizes) < 64 and sizes == sorted(sizes)
    fitted = [model.tokenizer.decode(s.stored["input_ids"].tolist(), skip_special_tokens=True) for s in split.fit]
    assert all(any(text in whole for whole in split.texts) for text in fitted)
    again = inputs_of(model, captured, [judged], 4, 0, calibrate=[judged[: len(judged) // 2]])
    sentences = {
        tuple(row)
        for judge in (again.choose, again.judge)
        for task in judge.tasks
        for row in task["input_ids"].tolist()
    }
    assert not sentences & {tuple(s.stored["input_ids"].tolist()) for s in again.fit}
    assert len(again.fit) > len(split.fit)
