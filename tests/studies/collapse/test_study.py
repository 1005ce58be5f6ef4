"""The collapse study of a model, in all its variants.

Also tests studies.collapse.measures, studies.collapse.tables, studies.collapse.variants.
"""

import copy
import math
import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import headscape as hs
from headscape.attention.samples import replayed
from headscape.captures import open_capture
from headscape.collapse.residual import effective_rank, relative_residual, roundoff
from headscape.collapse.similarity import histogram, token_similarities
from headscape.studies.collapse import collapse
from headscape.studies.collapse import variants as variants_module
from headscape.studies.collapse.result import FOUR, CollapseResult
from headscape.studies.collapse.variants import double_copy, shuffled, variants_of
from headscape.studies.work.folder import kept_studies
from tiny import Letters
from zoo import make


def tiny(name, tokens=14, batches=2, text="abcdefgh the quick brown fox " * 6):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    return model, hs.capture(model, [text], tokens=tokens, batches=batches, keep=("hidden",), dtype="float32")


def by_hand(model, pixels, skip=True, alpha_hidden=0.0):
    """The ViT written out in float64: states before the first layer and after each, and the maps."""
    network = double_copy(model).module.vit
    states, maps, hidden = [], [], None
    with torch.no_grad():
        x = network.embeddings(torch.from_numpy(pixels)[None].double())[0]
        states.append(x.numpy())
        for layer in network.layers:
            a, y = layer.attention, layer.layernorm_before(x)
            q, k, v = (p(y).reshape(len(y), 6, -1).transpose(0, 1) for p in (a.q_proj, a.k_proj, a.v_proj))
            scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
            if alpha_hidden:
                scores = (1 - alpha_hidden) * scores + (0 if hidden is None else alpha_hidden * hidden)
                hidden = scores
            P = F.softmax(scores, dim=-1)
            out = a.o_proj((P @ v).transpose(0, 1).reshape(len(y), -1))
            x = x + out if skip else out
            x = x + layer.mlp(layer.layernorm_after(x))
            states.append(x.numpy())
            maps.append(P.numpy())
    return np.stack(states), maps


# ---------------------------------------------------------------------- a model


@pytest.mark.parametrize("name", FOUR)
def test_variants_are_what_they_are_said_to_be(vit_run, vit, load, name):
    variant = {v.name: v for v in variants_of(0.5, False, True)}[name]
    a, entropies = vit.at(name), 0
    for i in range(8):
        pixels = hs.open_capture(vit_run).pixels(i)
        states, maps = by_hand(load("vit-fmnist"), pixels, variant.skip, variant.alpha_hidden)
        np.testing.assert_allclose(vit.residual[a, i], relative_residual(states), rtol=1e-6, atol=roundoff())
        np.testing.assert_allclose(vit.rank[a, i], effective_rank(states), rtol=1e-6)
        counts = np.stack([histogram(token_similarities(x)) for x in states])
        assert np.abs(np.cumsum(vit.similarity[a, i] - counts, axis=1)).max() <= 3  # a cosine on the edge of a bin
        rows = [-(P * np.log(np.maximum(P, 1e-300))).sum(axis=-1).mean(axis=1) / math.log(50) for P in maps]
        np.testing.assert_allclose(vit.entropy[a, i], np.concatenate(rows), rtol=1e-6)
        entropies = entropies + np.concatenate(rows) / 8
    column = {"standard": "entropy"}.get(name, "entropy_" + name.replace(", ", "_").replace(" ", "_"))
    np.testing.assert_allclose(vit.to_frame()[column], entropies, rtol=1e-6)


def test_residuals_go_below_what_float32_can_tell(vit_run, vit, load):
    no_skip = vit.residual[vit.at("no skip"), :2, -1]
    assert (no_skip < 1e-12).all() and vit.floor.tolist() == [roundoff()] * 9
    rough = collapse(hs.Capture.in_memory([hs.open_capture(vit_run).batch(0)]), model=load("vit-fmnist"), double=False)
    assert 1e-9 < rough.residual[rough.at("no skip"), 0, -1] < rough.floor[0] < 1e-5
    assert next(load("vit-fmnist").module.parameters()).dtype == torch.float32  # the model itself was left alone


def test_a_network_that_rounds_on_its_way_has_the_floor_of_its_rounding():
    """Llama's norms compute in float32 whatever its weights are; GPT-2's do not."""
    for name, eps in (("llama", np.finfo(np.float32).eps), ("gpt2", np.finfo(np.float64).eps)):
        model, captured = tiny(name, batches=1)
        assert collapse(captured, model=model).floor.tolist() == [roundoff(eps)] * 5, name


def test_bounds_hold_and_their_condition_is_reported(vit):
    frame = vit.bounds
    assert len(frame) == 2 * 8 * 6 and set(frame["arm"]) == {"standard", "random"}
    assert frame[["keeps_repaired", "keeps_anywhere", "keeps_printed"]].to_numpy().all()
    assert (frame[frame["arm"] == "random"]["spread"] < 1.256).all()
    assert (frame[frame["arm"] == "standard"]["spread"] > 1.256).all()
    assert (frame["printed"] / frame["measured"]).min() > 1e4
    heads = vit.to_frame()
    widest = frame[(frame["arm"] == "standard") & (frame["layer"] == 3)]["spread"].min()
    assert heads[heads["layer"] == 3]["D"].max() <= frame["spread"].max() and widest > heads["D"].min()


def test_bounds_are_of_what_the_layer_computes(vit_run, vit, load):
    """The slow twin of what is measured: the output of a layer's attention, run by itself."""
    model = double_copy(load("vit-fmnist"))
    states, _ = by_hand(load("vit-fmnist"), hs.open_capture(vit_run).pixels(1))
    for n in (0, 4):
        layer = model.module.vit.layers[n]
        with torch.no_grad():
            entering = layer.layernorm_before(torch.from_numpy(states[n]))[None]
            out = layer.attention(entering)
        out = (out[0] if isinstance(out, tuple) else out)[0].numpy()
        R = out - out.mean(axis=0)
        norm = math.sqrt(np.abs(R).sum(axis=0).max() * np.abs(R).sum(axis=1).max())
        row = vit.bounds[(vit.bounds["arm"] == "standard") & (vit.bounds["input"] == 1) & (vit.bounds["layer"] == n)]
        assert row["measured"].iloc[0] == pytest.approx(norm, rel=1e-6)


def folder_of(run, **settings):
    kept = kept_studies(hs.Run.open(run), "collapse")
    return next(
        k.path for k in kept if settings.items() <= k.facts["settings"].items() and "random" in k.facts["inputs"]
    )


def test_what_is_saved_comes_back(vit_run, vit):
    loaded = CollapseResult.load(folder_of(vit_run, batches=8))
    assert [str(f) for f in loaded.findings()] == [str(f) for f in vit.findings()]
    for name in ("residual", "similarity", "entropy", "floor"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(vit, name))
    assert loaded.variants == vit.variants and loaded.by_layer.equals(vit.by_layer)
    assert loaded.bounds.equals(vit.bounds) and loaded.settings == vit.settings


def test_a_killed_study_goes_on_where_it_stopped(vit_run, vit, load, random_vit, monkeypatch):
    folder = folder_of(vit_run, batches=8)
    before = (folder / "layers.csv").read_bytes()
    for unit in (vit_run / "collapse" / "units").glob("no-skip-hidden-0001-*"):
        unit.unlink()
    (folder / "result.json").unlink()
    looked = []
    real = variants_module.look
    monkeypatch.setattr(variants_module, "look", lambda *a: looked.append(a[2].name) or real(*a))
    again = collapse(vit_run, model=load("vit-fmnist"), control=random_vit)
    assert looked == ["no skip, hidden"]
    np.testing.assert_allclose(again.residual, vit.residual, rtol=1e-9, atol=1e-15)
    assert len((folder / "layers.csv").read_bytes()) == pytest.approx(len(before), rel=0.01)


def test_threads_are_put_back(vit_run, load):
    before = torch.get_num_threads()
    collapse(vit_run, batches=1, model=load("vit-fmnist"), cells=False, threads=before + 1)
    assert torch.get_num_threads() == before


def test_jobs_change_nothing_and_a_scaled_skip_is_a_variant(vit_run, load, tmp_path):
    options = {"model": load("vit-fmnist"), "batches": 2, "cells": False, "alpha": 0.5, "threads": 1}
    shutil.copytree(vit_run, tmp_path / "other", ignore=shutil.ignore_patterns("collapse"))
    here, apart = collapse(vit_run, **options), collapse(tmp_path / "other", jobs=2, **options)
    assert here.variants == ("standard", "shuffled", "scaled skip", "scaled skip, hidden")
    for name in ("residual", "rank", "similarity", "entropy", "floor"):
        np.testing.assert_array_equal(getattr(here, name), getattr(apart, name))
    sample = replayed(load("vit-fmnist"), open_capture(vit_run))[0]
    model = double_copy(load("vit-fmnist"))
    with torch.no_grad(), hs.to_hopfield(model, 0.5, 0.0, skip="scaled"):
        states = model.module(sample.arguments["pixel_values"].double(), output_hidden_states=True)
    expected = relative_residual(torch.stack(states.hidden_states)[:, 0].numpy())
    np.testing.assert_allclose(here.residual[2, 0], expected, rtol=1e-9)
    assert np.abs(here.residual[2] - here.residual[0]).max() > 1e-3


def test_the_models_are_those_of_the_run(vit_run, vit, tmp_path):
    said = []
    result = collapse(vit_run, batches=1, control=True, cells=False, say=said.append)
    assert result.variants == ("standard", "shuffled", "random")
    np.testing.assert_allclose(result.residual[0], vit.residual[0, :1], rtol=1e-6)
    P = np.full((2, 2, 3, 3), 1 / 3)
    np.save(tmp_path / "maps.npy", P)
    hs.import_array(tmp_path / "maps.npy", tmp_path / "run", layout="layer,head,query,key")
    assert collapse(tmp_path / "run", control=True, say=said.append).variants == ("standard",)
    assert said == ["no control with random weights: it needs the model"]


# ---------------------------------------------------------------------- other models


def test_without_a_model_what_was_kept_is_measured(vit_run, vit):
    captured = hs.Capture.in_memory([hs.open_capture(vit_run).batch(i) for i in range(8)])
    stored = collapse(captured)
    assert stored.variants == ("standard",) and not len(stored.bounds)
    assert stored.floor[0] == pytest.approx(32 * 2.0**-23)  # the network computed in float32
    np.testing.assert_allclose(stored.residual[0], vit.residual[0], rtol=1e-4)
    np.testing.assert_allclose(stored.to_frame()["entropy"], vit.to_frame()["entropy"], rtol=1e-4)
    assert any("The model was not run" in f.text for f in stored.findings())
    assert [f.id for f in stored.figures()] == [
        "arms",
        "residual",
        "rank",
        "similarity",
        "share",
        "entropy",
        "entropy-layers",
    ]


def test_an_imported_run_has_entropies_alone(tmp_path):
    rng = np.random.default_rng(0)
    P = rng.random((2, 3, 4, 9, 9)) * np.tri(9)
    np.save(tmp_path / "maps.npy", P / P.sum(axis=-1, keepdims=True))
    hs.import_array(tmp_path / "maps.npy", tmp_path / "run", layout="batch,layer,head,query,key", dtype="float32")
    result = collapse(tmp_path / "run")
    assert result.residual is None and result.causal
    P = (P / P.sum(axis=-1, keepdims=True))[:, 1, 2, 1:]  # head 1.2, row 0 left out
    rows = [-(p[p > 0] * np.log(p[p > 0])).sum() / math.log(i + 2) for x in P for i, p in enumerate(x)]
    frame = result.to_frame().set_index(["layer", "head"])
    assert frame.loc[(1, 2), "entropy"] == pytest.approx(np.mean(rows), rel=1e-5)
    assert CollapseResult.load(tmp_path / "run" / "collapse").findings()[0].text == result.findings()[0].text
    assert [f.id for f in result.figures()] == ["arms", "entropy", "entropy-layers"]


def test_a_causal_model_has_no_bound_and_its_repeated_words_are_counted_separately():
    model, captured = tiny("llama")
    result = collapse(captured, model=model)
    assert result.causal and not len(result.bounds) and np.isinf(result.to_frame()["D"]).all()
    assert any("Causal attention has no bound" in f.text for f in result.findings())
    ids = captured.input_ids(0)
    pairs = [(i, j) for i in range(14) for j in range(i + 1, 14)]
    same = sum(ids[i] == ids[j] for i, j in pairs)
    both = sum(captured.input_ids(1)[i] == captured.input_ids(1)[j] for i, j in pairs)
    assert result.similarity[0, :, 0].sum() == 2 * len(pairs)
    assert result.different[0, :, 0].sum() == 2 * len(pairs) - same - both and same > 0
    assert result.alike("standard")[0].share >= (same + both) / (2 * len(pairs)) > 0
    assert result.alike("standard", different=True)[0].share == 0


@pytest.mark.parametrize(
    ("name", "block"), [("gpt2", None), ("bert", None), ("t5", "encoder"), ("t5", "decoder.cross")]
)
def test_other_families_are_measured(name, block):
    model, captured = tiny(name, batches=1)
    result = collapse(captured, model=model, block=block)
    assert result.residual.shape == (5, 1, 3) and set(FOUR) < set(result.variants)
    assert (len(result.bounds) > 0) == (name in ("bert", "mpnet") or block == "encoder")
    if name == "bert":
        assert result.bounds["keeps_anywhere"].all() and np.isfinite(result.bounds["printed"]).all()
    if name == "mpnet" or block == "encoder":  # scores that know positions: no printed bound
        assert result.bounds["keeps_anywhere"].all() and result.bounds["printed"].isna().all()
    states = captured.hidden(0, (block or captured.blocks[0]).removesuffix(".cross"))
    np.testing.assert_allclose(result.residual[0, 0], relative_residual(states), rtol=1e-4)


def test_a_variant_the_model_cannot_take_is_left_out_and_noted():
    model, captured = tiny("gptj", batches=1)  # attention and MLP share one skip
    said = []
    result = collapse(captured, model=model, say=said.append)
    assert result.variants == ("standard", "shuffled", "hidden") and len(said) == 2
    assert any("'no skip' was left out: attention and another branch" in f.text for f in result.findings())
    assert "residual-cells" not in {f.figure for f in result.findings()}


def test_shuffling_keeps_what_there_is(vit_run, load):
    from headscape.attention.samples import replayed

    model = load("vit-fmnist")
    sample = replayed(model, hs.open_capture(vit_run))[0]
    mixed = shuffled(model, sample, 3)
    patch = model.config.patch_size

    def patches(pixels):
        image = pixels[0, 0].numpy()
        n = image.shape[0] // patch
        return sorted(
            image[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch].tobytes()
            for r in range(n)
            for c in range(n)
        )

    a, b = sample.arguments["pixel_values"], mixed.arguments["pixel_values"]
    assert a.shape == b.shape and not torch.equal(a, b) and patches(a) == patches(b)
    model, captured = tiny("t5", batches=1)
    model.tokenizer.all_special_ids = [int(captured.input_ids(0)[0]), int(captured.input_ids(0)[-1])]
    sample = replayed(model, captured)[0]
    mixed = shuffled(model, sample, 3)
    ids, other = (s.arguments["input_ids"][0].tolist() for s in (sample, mixed))
    assert sorted(ids) == sorted(other) and ids != other and (ids[0], ids[-1]) == (other[0], other[-1])
    assert mixed.arguments["decoder_input_ids"][0].tolist() == [
        sample.arguments["decoder_input_ids"][0, 0].item(),
        *other[:-1],
    ]
    assert shuffled(model, sample, 3).arguments["input_ids"].equal(mixed.arguments["input_ids"])


def test_refusals_say_what_to_do(vit_run, load, tmp_path):
    np.save(tmp_path / "scores.npy", np.zeros((1, 2, 4, 4)))
    scores = hs.import_array(
        tmp_path / "scores.npy", tmp_path / "run", layout="layer,head,query,key", kind="scores", mask="full"
    )
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    with pytest.raises(hs.InputError, match="keeps scores; capture again with --keep hidden,probs"):
        collapse(scores)
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before  # no folder is left
    with pytest.raises(hs.InputError, match="alpha_hidden must be at least 0 and below 1, not 1"):
        collapse(vit_run, alpha_hidden=1)
    with pytest.raises(hs.InputError, match="batches must be at least 1"):
        collapse(vit_run, batches=0)
    with pytest.raises(hs.InputError, match="no block 'decoder'"):
        collapse(vit_run, block="decoder")
    broken = copy.deepcopy(load("vit-fmnist"))
    broken.module.vit.layers[2].attention.q_proj.weight.data[0, 0] = float("inf")
    with pytest.raises(hs.InputError, match=r"layers\.2\.attention\.q_proj\.weight holds NaN or infinite"):
        double_copy(broken)
    plain = hs.wrap_module(torch.nn.MultiheadAttention(8, 2, batch_first=True), example=(torch.ones(1, 3, 8),) * 3)
    from headscape.attention.samples import Sample

    with pytest.raises(hs.InputError, match="does not return its hidden states"):
        variants_module.look(
            plain, Sample((torch.ones(1, 3, 8),) * 3, {}, {}, []), variants_of(0.5, False, False)[0], "attention"
        )
