"""One record of a pruning: what is exported is what was judged, and the recipe makes the same model again."""

import json
import shutil

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.pruning.compensation import digest_of, without_heads
from headscape.pruning.export import export_pruned
from headscape.runs import without_places
from headscape.studies.prune.pruning import Pruning
from headscape.studies.prune.result import PruneResult
from headscape.studies.prune.study import prune
from prunable import JUDGE, QUICK, RANK, contents, network, reader
from tiny import Letters

CALIBRATE = "all the more words that a fox might say of a dog are said here once and for all"
CHOICE = {"criterion": "gradient", "compensation": "linear", "n_heads": 3}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, texts and a run, all in files."""
    folder = tmp_path_factory.mktemp("place")
    model = reader(folder / "model")
    (folder / "judge.txt").write_text(JUDGE[0])
    (folder / "more.txt").write_text(CALIBRATE)
    hs.capture(model, RANK, tokens=12, batches=None, dtype="float32", out=folder / "run")
    return folder


@pytest.fixture(scope="module")
def judged(place):
    options = {"inputs": place / "judge.txt", "calibrate": place / "more.txt"}
    return prune(place / "run", **options, **CHOICE, **QUICK)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["masked", "auto"])
def test_the_exported_model_costs_what_was_judged(judged, place, tmp_path, kind):
    judged.export(tmp_path / "out", kind)
    written = hs.load_model(tmp_path / "out", device="cpu")
    live = Pruning.of_recipe(judged.recipe, place / "run").prepare()
    live.judging.model = written
    found = {key: live.judging.join([live.judging.run(t) for t in tasks]) for key, tasks in live.judging.pieces}
    intact, now = judged.intact["text"], live.judging.by_ability(found)["text"]
    cost = (now.values - intact.values) / intact.mean
    np.testing.assert_allclose(judged.curve("proposal", proposal=True).costs[0, 0], cost, atol=1e-5)
    assert np.abs(cost).max() > 1e-3


def test_a_result_from_disk_exports_the_same_bytes(judged, place, tmp_path):
    judged.export(tmp_path / "now", "ragged")
    read = hs.open_result(place / "run", "prune")
    assert read.recipe == judged.recipe and digest_of(read.fitted) == digest_of(judged.fitted) == judged.recipe["fit"]
    read.export(tmp_path / "later", "ragged")
    assert contents(tmp_path / "later") == contents(tmp_path / "now")
    said = json.loads((tmp_path / "now" / "headscape.json").read_text())["pruned_from"]
    assert {name: said[name] for name in judged.recipe} == without_places(judged.recipe)


def test_the_recipe_makes_the_same_model_again(judged, place, tmp_path):
    recipe = json.loads(json.dumps(judged.recipe))
    assert len(json.dumps(recipe)) < 2000
    pruning = Pruning.of_recipe(recipe, place / "run")
    live = pruning.prepare()
    fitted = live.fit(pruning.heads, pruning.compensation)
    assert digest_of(fitted) == recipe["fit"]
    export_pruned(live.evidence.network, pruning.heads, tmp_path / "again", fitted=fitted)
    judged.export(tmp_path / "out")
    assert weights(tmp_path / "again") == weights(tmp_path / "out")


def test_a_recipe_of_other_data_or_weights_is_refused(judged, place, tmp_path):
    moved = tmp_path / "place"
    shutil.copytree(place, moved)
    (moved / "more.txt").write_text(CALIBRATE.replace("fox", "cat"))
    with pytest.raises(hs.InputError, match="data have changed since this pruning was made: what it was fitted on"):
        Pruning.of_recipe({**judged.recipe, "calibrate": str(moved / "more.txt")}, moved / "run").prepare()
    with pytest.raises(hs.InputError, match="made with run in memory; give run="):
        Pruning.of_recipe(judged.recipe).prepare()
    other = network()
    with torch.no_grad():
        other.model.layers[0].self_attn.o_proj.weight[0, 0] += 1
    other.save_pretrained(moved / "model")
    with pytest.raises(hs.InputError, match="has other weights here than where the study was started"):
        Pruning.of_recipe({**judged.recipe, "source": str(moved / "model")}).load()
    with pytest.raises(hs.InputError, match="has other weights here"):
        judged.export(tmp_path / "out", model=hs.load_model(moved / "model", device="cpu"))
    assert not (tmp_path / "out").exists()


def test_what_was_in_memory_has_to_be_given_again(run, model, tmp_path):
    found = prune(run, model=model, inputs=JUDGE, calibrate=[CALIBRATE], **CHOICE, **QUICK)
    assert found.recipe["inputs"] == found.recipe["calibrate"] == "in memory" and CALIBRATE not in json.dumps(
        found.recipe
    )
    with pytest.raises(hs.InputError, match="made with calibrate in memory; give calibrate="):
        Pruning.of_recipe(found.recipe, run, inputs=JUDGE).prepare(model)
    live = Pruning.of_recipe(found.recipe, run, inputs=JUDGE, calibrate=[CALIBRATE]).prepare(model)
    assert digest_of(live.fit(found.proposal, found.compensation)) == found.recipe["fit"]
    found.export(tmp_path / "now")  # the model is at hand
    loaded = hs.open_result(run, "prune")
    assert isinstance(loaded, PruneResult)
    with pytest.raises(hs.InputError):
        loaded.export(tmp_path / "later")  # a module that no name loads
    loaded.export(tmp_path / "later", model=model)
    assert contents(tmp_path / "later") == contents(tmp_path / "now")
    with without_heads(model, loaded.fitted), torch.no_grad():
        expected = model.module(torch.tensor([Letters().encode("the fox")])).logits
    with torch.no_grad():
        logits = (
            hs.load_model(tmp_path / "now", device="cpu").module(torch.tensor([Letters().encode("the fox")])).logits
        )
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_without_a_proposal_there_is_nothing_to_export(run, model, tmp_path):
    found = prune(run, model=model, inputs=JUDGE, budget=None, **QUICK)
    assert not found.proposal and not found.fitted
    with pytest.raises(hs.InputError, match="nothing to export"):
        found.export(tmp_path / "out")


def test_an_export_is_expected_in_a_place_that_can_take_it(place, tmp_path):
    options = {"inputs": place / "judge.txt", **CHOICE, **QUICK}
    out = tmp_path / "out"
    prune(place / "run", out=out, **options).export(out)
    before = contents(place / "run")
    prune(place / "run", out=out, **options).export(out)  # the very same: accepted
    assert contents(place / "run") == before
    for change in ({"kind": "masked"}, {"n_heads": 2}, {"windows": 5}):
        with pytest.raises(hs.InputError, match="exists and is not an empty folder"):
            prune(place / "run", out=out, **{**options, **change})
    assert contents(place / "run") == before
