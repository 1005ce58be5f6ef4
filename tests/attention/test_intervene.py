"""Interventions against the same change made by hand, and the model as it was afterwards.

Also tests attention.wrapping.
"""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.sites import example_input, run
from headscape.attention.tapping import attention_implementation
from tiny import Letters, captured
from zoo import ZOO, make

TEXT = ["the quick brown fox jumps over the lazy dog"]


def logits(model, batch):
    with torch.no_grad():
        result = run(model, batch)
    return result.logits if hasattr(result, "logits") else result[0]


def output_projection(network, name):
    """The module whose input is the heads side by side, for one layer of each family."""
    path = {
        "gpt2": "transformer.h.1.attn.c_proj",
        "llama": "model.layers.1.self_attn.o_proj",
        "bert": "bert.encoder.layer.1.attention.output.dense",
        "qwen3": "model.layers.1.self_attn.o_proj",
        "bloom": "transformer.h.1.self_attention.dense",
        "falcon": "transformer.h.1.self_attention.dense",
        "mpt": "transformer.blocks.1.attn.out_proj",
        "mpnet": "mpnet.encoder.layer.1.attention.attn.o",
        "gemma3": "model.layers.1.self_attn.o_proj",
        "mistral": "model.layers.1.self_attn.o_proj",
        "gptj": "transformer.h.1.attn.out_proj",
    }[name]
    return network.get_submodule(path)


@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "bert", "qwen3", "bloom", "falcon", "mpt", "mpnet", "gemma3", "mistral", "gptj"]
)
def test_ablation_is_a_changed_slice_before_the_output_projection(name, how):
    network = make(name)
    model = hs.wrap_module(network, tokenizer=Letters())
    batch = example_input(model)
    before = logits(model, batch)
    head_dim = captured(name, network, keep=("head_outputs",))[1].head_outputs(0).shape[-1]
    means = hs.mean_outputs(model, TEXT, tokens=12, batches=None) if how == "mean" else None
    fill = 0.0 if means is None else torch.from_numpy(means[hs.HeadId(model.sites[0].block, 1, 2)])

    def change(module, args):
        x = args[0].clone()
        x[..., 2 * head_dim : 3 * head_dim] = fill
        return (x, *args[1:])

    handle = output_projection(network, name).register_forward_pre_hook(change)
    expected = logits(model, batch)
    handle.remove()
    with hs.ablate(model, [(1, 2)], how, means=means):
        ours = logits(model, batch)
    assert (expected - before).abs().max() > 1e-3
    torch.testing.assert_close(ours, expected, atol=1e-6 * float(before.abs().max().clamp(min=1)), rtol=0)
    assert torch.equal(logits(model, batch), before)


@pytest.mark.parametrize("name", ["gpt2", "llama", "falcon"])
def test_mean_outputs_are_means(name):
    network = make(name)
    model = hs.wrap_module(network, tokenizer=Letters())
    cap = hs.capture(model, TEXT, tokens=12, batches=None, keep=("head_outputs",), dtype="float32")
    outputs = np.stack([cap.head_outputs(i) for i in range(len(cap))])
    expected = outputs.mean(axis=(0, 3))
    means = hs.mean_outputs(model, TEXT, tokens=12, batches=None)
    for head, mean in means.items():
        np.testing.assert_allclose(mean, expected[head.layer, head.head], atol=1e-5)


def test_the_model_is_restored_when_the_block_fails():
    model = hs.wrap_module(make("llama"))
    batch = example_input(model)
    before = logits(model, batch)

    def fail():
        with hs.ablate(model, [(0, 0)]):
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert torch.equal(logits(model, batch), before)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama-bias", "bert", "falcon", "mpnet"])
def test_scaling_scores_is_scaling_the_queries(name):
    factor = 1.7
    network = make(name)
    model = hs.wrap_module(network)
    batch = example_input(model)
    with hs.scale_scores(model, [(1, h) for h in range(4)], factor):
        ours = logits(model, batch)
    with torch.no_grad():
        if name == "gpt2":
            projection = network.transformer.h[1].attn.c_attn
            projection.weight[:, :32] *= factor
            projection.bias[:32] *= factor
        elif name == "falcon":
            network.transformer.h[1].self_attention.query_key_value.weight[:32] *= factor
        else:
            path = {
                "bert": "bert.encoder.layer.1.attention.self.query",
                "mpnet": "mpnet.encoder.layer.1.attention.attn.q",
            }
            projection = network.get_submodule(path.get(name, "model.layers.1.self_attn.q_proj"))
            projection.weight *= factor
            if projection.bias is not None:
                projection.bias *= factor
    if name == "mpnet":  # its position bias enters the scores too, and is shared between layers
        network.mpnet.encoder.relative_attention_bias.weight.data *= 0
        with hs.scale_scores(model, [(1, h) for h in range(4)], 1.0):
            ours = logits(model, batch)
    torch.testing.assert_close(ours, logits(model, batch), atol=2e-5, rtol=1e-4)


def test_scaling_one_head_leaves_the_others():
    network = make("llama")
    _, before = captured("llama", network, keep=("scores",))
    model = hs.wrap_module(network, tokenizer=Letters())
    with hs.scale_scores(model, [(0, 1)], 2.0):
        cap = hs.capture(model, TEXT, tokens=12, batches=1, keep=("scores",), dtype="float32")
    ours, own = cap.tensor(0, kind="scores").values, before.tensor(0, kind="scores").values
    np.testing.assert_allclose(ours[:, :, 1], 2 * own[:, :, 1], rtol=1e-5)
    np.testing.assert_array_equal(ours[:, :, [0, 2, 3]], own[:, :, [0, 2, 3]])


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "bloom", "t5"])
def test_a_models_own_maps_put_in_place_change_nothing(name):
    network = make(name)
    model, cap = captured(name, network)
    batch = {"pixel_values": torch.from_numpy(cap.pixels(0))[None]} if name == "vit" else None
    if batch is None:
        ids = torch.from_numpy(cap.input_ids(0))[None]
        batch = {"input_ids": ids}
        if name == "t5":
            batch["decoder_input_ids"] = torch.cat([torch.zeros(1, 1, dtype=torch.long), ids[:, :-1]], dim=1)
    block = cap.blocks[-1]
    X = cap.tensor(0, block)
    maps = {head: X.values[:, :, i] for i, head in enumerate(X.heads)}
    own = logits(model, batch)
    with hs.patch_maps(model, maps):
        torch.testing.assert_close(logits(model, batch), own, atol=1e-4, rtol=1e-4)
    uniform = {X.heads[0]: np.full(X.shape[:2], 1 / X.shape[1])}
    with hs.patch_maps(model, uniform):
        assert (logits(model, batch) - own).abs().max() > 1e-4
    with pytest.raises(hs.InputError, match="has shape"), hs.patch_maps(model, {X.heads[0]: np.ones((3, 3))}):
        logits(model, batch)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "vit"])
def test_gates_carry_the_gradient_of_removing_a_head(name):
    model = hs.wrap_module(make(name))
    batch = example_input(model)
    site = model.sites[1]

    def objective(gate=None):
        with hs.gates(model) as values:
            if gate is not None:
                values[site.name].data[1] = gate
            loss = run(model, batch).logits.double().pow(2).mean()
            if gate is None:
                loss.backward()
                return values[site.name].grad[1].item()
            return loss.item()

    step = 1e-2
    numeric = (objective(1 + step) - objective(1 - step)) / (2 * step)
    assert objective() == pytest.approx(numeric, rel=2e-2, abs=1e-5)


@pytest.mark.parametrize("name", [n for n in ZOO if n != "gpt-oss"])  # its sink is no part of scores and mask
def test_replacing_softmax_by_itself_changes_nothing(name):
    model = hs.wrap_module(make(name))
    batch = example_input(model)
    with attention_implementation(model.module, "eager"):  # Falcon's own fused path with ALiBi gives other logits
        own = logits(model, batch)

    def softmax(scores, mask):
        return torch.softmax(scores if mask is None else scores + mask, dim=-1)

    def uniform(scores, mask):
        return softmax(torch.zeros_like(scores), mask)

    with hs.replace_attention(model, softmax):
        torch.testing.assert_close(logits(model, batch), own, atol=1e-4, rtol=1e-4)
    with hs.replace_attention(model, uniform):
        assert (logits(model, batch) - own).abs().max() > 1e-4
    with hs.replace_attention(model, uniform, layers=[]):
        torch.testing.assert_close(logits(model, batch), own, atol=1e-4, rtol=1e-4)


def test_interventions_nest_and_capture_sees_them():
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    with hs.ablate(model, [(0, 0)]), hs.ablate(model, [(0, 1)]):
        cap = hs.capture(model, TEXT, tokens=12, batches=1, keep=("head_outputs",))
    outputs = cap.head_outputs(0)
    assert not outputs[0, :2].any() and outputs[0, 2:].any() and outputs[1].any()


def test_wrong_requests():
    model = hs.wrap_module(make("llama"))
    for heads, how, message in [
        ([(9, 0)], "zero", r"no head decoder\.9\.0"),
        ([(0, 4)], "zero", r"no head decoder\.0\.4"),
        (["0.5"], "zero", r"no head decoder\.0\.5"),
        (["x"], "zero", "is not a head"),
        ([(0, 0)], "median", "how is 'zero' or 'mean'"),
        ([(0, 0)], "mean", "needs means"),
    ]:
        with pytest.raises(hs.InputError, match=message), hs.ablate(model, heads, how):
            pass
    with pytest.raises(hs.InputError, match="needs its block"), hs.ablate(hs.wrap_module(make("t5")), [(0, 0)]):
        pass
