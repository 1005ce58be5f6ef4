"""Healing brings the pruned model nearer to the intact one, and can be exported as it was judged."""

import pytest
import torch

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.pruning.compensation import fit_compensation, without_heads
from headscape.pruning.export import export_pruned
from headscape.pruning.heal import heal
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog and then it does all of that once more"]


def divergence(model, fitted, ids):
    with torch.no_grad():
        wanted = model.module(ids).logits.log_softmax(-1)
        with without_heads(model, fitted):
            found = model.module(ids).logits.log_softmax(-1)
    return (wanted.exp() * (wanted - found)).sum(-1).mean().item()


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_healing_lowers_the_divergence_and_changes_output_projections_alone(name, tmp_path):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    samples, _ = samples_of(model, TEXT, 12)
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    flags = [p.requires_grad for p in model.module.parameters()]
    heads = {model.sites[0].name: [1], model.sites[1].name: [0, 2]}
    plain = fit_compensation(model, heads, None)
    healed = heal(model, plain, samples, steps=40)
    ids = torch.cat([sample.arguments["input_ids"] for sample in samples])
    assert divergence(model, healed, ids) < 0.97 * divergence(model, plain, ids)
    assert {k: v.tolist() for k, v in model.module.state_dict().items()} == {k: v.tolist() for k, v in before.items()}
    assert [p.requires_grad for p in model.module.parameters()] == flags
    for layer in healed.values():
        assert not layer.folded[:, layer.inputs(layer.folded.shape[1])[1]].any()
    again = heal(model, plain, samples, steps=40)
    assert all((again[n].folded == layer.folded).all() for n, layer in healed.items())
    export_pruned(model, [(0, 1), (1, 0), (1, 2)], tmp_path / "out", "ragged", fitted=healed)
    written = hs.load_model(tmp_path / "out", device="cpu")
    with torch.no_grad(), without_heads(model, healed):
        torch.testing.assert_close(written.module(ids).logits, model.module(ids).logits, atol=1e-5, rtol=1e-4)


def test_only_language_models_are_healed():
    model = hs.wrap_module(make("bert"), tokenizer=Letters())
    with pytest.raises(hs.InputError, match="healing distils the next token"):
        heal(model, {}, [], 1)
