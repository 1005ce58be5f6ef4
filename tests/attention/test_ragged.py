"""Ragged networks are captured, ablated, generated with and copied like any other."""

import copy
import json

import numpy as np
import pytest
import torch

import headscape as hs
from exported import (
    CAUSAL,
    RAGGED,
    TEXT,
    ablated_logits,
    load_ragged,
    logits,
    model_of,
    relative,
    some_heads,
    whole_layer,
)
from headscape.attention.ragged import PLAN_FILE
from headscape.attention.sites import example_input
from headscape.pruning.export import export_pruned


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_models_are_captured_like_others(name, tmp_path):
    model = model_of(name)
    heads = some_heads(model, seed=3)
    export_pruned(model, heads, tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    inputs = TEXT
    if model.images is not None:
        inputs = example_input(model)["pixel_values"].permute(0, 2, 3, 1).numpy()
    options = {"tokens": 12, "batches": 1, "dtype": "float32"}
    cap = hs.capture(loaded, inputs, **options)
    with hs.ablate(model, heads):
        expected = hs.capture(model, inputs, **options)
    for block in expected.blocks:
        X = expected.tensor(0, block)
        stays = [i for i, head in enumerate(X.heads) if head not in heads]
        np.testing.assert_allclose(cap.tensor(0, block).values, X.values[:, :, stays], atol=1e-5)
    first = model.sites[0]
    n_left = first.n_heads - sum(head[:2] == (first.block, 0) for head in heads)
    assert loaded.sites[0].n_heads == n_left


def test_a_ragged_model_can_be_ablated_further(tmp_path):
    model = model_of("llama-nine")
    export_pruned(model, [(0, 0), (0, 1), (1, 5)], tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    found = ablated_logits(loaded, [(0, 0), (1, 5)])  # numbered anew: these were (0, 2) and (1, 6)
    assert relative(found, ablated_logits(model, [(0, 0), (0, 1), (0, 2), (1, 5), (1, 6)])) < 1e-5


def generated(model, **options):
    ids = example_input(model, 9)["input_ids"]
    ids = torch.cat([ids, ids.flip(1)])
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0, **options}
    with torch.no_grad():
        return model.module.generate(ids, attention_mask=torch.ones_like(ids), **options)


@pytest.mark.parametrize("name", [*CAUSAL, "t5", "bart"])
def test_ragged_models_generate_with_their_cache(name, tmp_path):
    model = model_of(name)
    for i, heads in enumerate((some_heads(model, seed=1), whole_layer(model))):
        export_pruned(model, heads, tmp_path / str(i), "ragged")
        loaded = load_ragged(model, tmp_path / str(i))
        with hs.ablate(model, heads):
            expected = generated(model, use_cache=False)
        assert torch.equal(generated(loaded), expected)
        assert torch.equal(generated(loaded, num_beams=2), generated(loaded, num_beams=2, use_cache=False))


@pytest.mark.parametrize("name", [*CAUSAL, "t5", "bart"])
def test_logits_token_by_token_are_those_of_the_whole_text(name, tmp_path):
    model = model_of(name)
    ids = example_input(model, 12)["input_ids"]

    def read(network, part, **options):
        if model.task == "seq2seq-lm":
            return network(input_ids=ids.flip(1), decoder_input_ids=part, **options)
        return network(input_ids=part, **options)

    for i, heads in enumerate((some_heads(model, seed=2), whole_layer(model))):
        export_pruned(model, heads, tmp_path / str(i), "ragged")
        network = load_ragged(model, tmp_path / str(i)).module
        with torch.no_grad():
            with hs.ablate(model, heads):
                expected = read(model.module, ids, use_cache=False).logits
            steps = [read(network, ids[:, :5], use_cache=True)]
            for t in range(5, 12):
                past = steps[-1].past_key_values
                steps.append(read(network, ids[:, t : t + 1], past_key_values=past, use_cache=True))
        assert relative(torch.cat([step.logits for step in steps], dim=1), expected) < 1e-5


def test_the_cache_keeps_each_key_value_head_once(tmp_path):
    model = model_of("llama-nine")
    export_pruned(
        model, [(0, 0), (0, 3), (0, 4), (0, 5), (1, 1)], tmp_path / "out", "ragged"
    )  # 2 + 0 + 3 and 2 + 3 + 3
    loaded = load_ragged(model, tmp_path / "out")
    with torch.no_grad():
        cache = loaded.module(example_input(model)["input_ids"], use_cache=True).past_key_values
    assert [layer.keys.shape[1] for layer in cache.layers] == [2, 3]
    attention = [layer.self_attn for layer in loaded.module.model.layers]
    assert [a.k_proj.out_features // 4 for a in attention] == [2, 3]
    assert [a.q_proj.out_features // 4 for a in attention] == [5, 8]


def test_a_padded_batch_and_training_work_too(tmp_path):
    model = model_of("llama-nine")
    heads = [(0, 0), (0, 1), (0, 2), (0, 4), (1, 8)]
    export_pruned(model, heads, tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    ids = example_input(model)["input_ids"].repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with torch.no_grad():
        with hs.ablate(model, heads):
            expected = model.module(ids, attention_mask=mask).logits
        found = loaded.module(ids, attention_mask=mask).logits
    assert relative(found[mask.bool()], expected[mask.bool()]) < 1e-5
    loss = loaded.module.train()(ids, labels=ids).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in loaded.module.parameters())


def test_a_ragged_folder_as_a_random_control_or_damaged(tmp_path):
    model = model_of("gpt2")
    folder = tmp_path / "out"
    report = export_pruned(model, [(0, 1), (1, 0), (1, 1)], folder, "ragged")
    random = hs.load_model(folder, device="cpu", random_init=1)
    assert random.n_parameters == report.parameters.after and relative(logits(random), logits(model)) > 1e-2
    plan = json.loads((folder / PLAN_FILE).read_text())
    assert plan["layers"][1]["heads"] == [2, 3] == plan["layers"][1]["key_values"]
    (folder / PLAN_FILE).write_text(json.dumps({**plan, "format": 99}))
    with pytest.raises(hs.InputError, match="newer headscape"):
        hs.load_model(folder, device="cpu")
    (folder / PLAN_FILE).write_text('{"format": 1, "kind": "ragged"}')
    with pytest.raises(hs.InputError, match=r"headscape-module\.json is damaged"):
        hs.load_model(folder, device="cpu")
    plan["layers"][0]["name"] = "transformer.h.7.attn"
    (folder / PLAN_FILE).write_text(json.dumps(plan))
    with pytest.raises(hs.InputError, match="does not fit the network"):
        hs.load_model(folder, device="cpu")


def test_a_ragged_model_can_be_copied(tmp_path):
    model = model_of("llama-nine")
    export_pruned(model, [(0, 0), (0, 4), (0, 5), *((1, h) for h in range(9))], tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    again = hs.wrap_module(copy.deepcopy(loaded.module))
    assert torch.equal(logits(again), logits(loaded))
