"""Watching a pass: what is seen of a layer, states by depth, and float64.

Also tests attention.depth.
"""

import numpy as np
import pytest
import torch

import headscape as hs
import zoo
from headscape.attention.depth import by_depth, in_double, precision
from headscape.attention.models import wrap_module
from headscape.attention.samples import Sample
from headscape.attention.sites import run
from headscape.attention.watching import _scaling, embedded, headed, watch_layers
from headscape.attention.weights import parts_of, read, read_bias
from headscape.statistics.gaussian import fit_gaussian, linear_map
from headscape.statistics.mixture import token_spread
from watched import samples_for


def layers_of(name, **options):
    model = wrap_module(zoo.make(name), name=name)
    found = []
    watched = watch_layers(model, samples_for(model, **options), model.sites[0].block, found.append)
    return model, found, watched.states


# --- what is seen of a layer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-bias", "qwen3", "gemma3", "mistral", "gpt2", "bert", "vit", "bart"])
def test_scores_are_scaled_products_of_turned_queries_and_keys(name):
    _, layers, states = layers_of(name)
    assert len(layers) == 2 and len(states) == 3
    for data in layers:
        assert not data.note
        q, k = data.queries, np.repeat(data.keys, data.queries.shape[1] // data.keys.shape[1], axis=1)
        if data.rotations is not None:
            q, k = (np.einsum("bhnd,nde->bhne", part, data.rotations) for part in (q, k))
        np.testing.assert_allclose(data.scaling * q @ k.swapaxes(2, 3), data.scores, atol=1e-3)
    assert (layers[0].rotations is not None) == (name in ("llama-bias", "qwen3", "gemma3", "mistral"))


@pytest.mark.parametrize("name", ["llama-bias", "bert"])
def test_gaussians_of_queries_are_those_of_the_inputs_mapped_by_the_weights(name):
    """The brief of the study: predicted from the Gaussian of the layer's inputs and the weights, GQA-correct."""
    model = wrap_module(zoo.make(name), name=name)
    if name == "bert":
        layer = model.module.bert.encoder.layer[1].attention.self
        maps = (layer.query, layer.key)
    else:
        layer = model.module.model.layers[1].self_attn
        maps = (layer.q_proj, layer.k_proj)
    seen, found = [], []
    hook = maps[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    watch_layers(model, samples_for(model), model.sites[0].block, found.append)
    hook.remove()
    x = seen[-1].flatten(0, 1).double().numpy()
    of_input = fit_gaussian(x, shrinkage=0.0)
    for linear, got in zip(maps, (found[1].queries, found[1].keys), strict=True):
        dim = got.shape[-1]
        for head in range(got.shape[1]):
            rows = slice(head * dim, (head + 1) * dim)
            W, b = linear.weight[rows].detach().numpy(), linear.bias[rows].detach().numpy()
            mapped = linear_map(of_input, W, b)
            direct = fit_gaussian(got[:, head].reshape(-1, dim), shrinkage=0.0)
            np.testing.assert_allclose(mapped.mean, direct.mean, atol=1e-4)
            np.testing.assert_allclose(mapped.covariance, direct.covariance, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("mpnet", "a bias or a cap"),
        ("t5", "a bias or a cap"),
        ("gptj", "after any rotation"),
        ("falcon", "after any rotation"),
    ],
)
def test_layers_that_are_built_otherwise_say_so(name, note):
    model = wrap_module(zoo.make(name), name=name)
    samples = samples_for(model)
    if model.task == "seq2seq-lm":
        samples = [Sample(s.arguments | {"decoder_input_ids": s.arguments["input_ids"]}, {}, {}, []) for s in samples]
    found = []
    watch_layers(model, samples, model.sites[0].block, found.append)
    assert note in found[0].note
    assert np.isnan(found[0].scaling) == ("bias" in note)


def test_watching_changes_nothing():
    model = wrap_module(zoo.make("gemma3"), name="gemma3")
    samples = samples_for(model)
    with torch.no_grad():
        before = model.module(samples[0].arguments["input_ids"]).logits
        watch_layers(model, samples, "decoder", lambda _: None)
        by_depth(model, samples, skip=False, alpha=2.0)
        after = model.module(samples[0].arguments["input_ids"]).logits
    assert torch.equal(before, after)


def test_inputs_of_different_lengths_are_refused():
    model = wrap_module(zoo.make("llama"), name="llama")
    mixed = [*samples_for(model, 1, 20), *samples_for(model, 1, 21)]
    with pytest.raises(hs.InputError, match="differ in length"):
        watch_layers(model, mixed, "decoder", lambda _: None)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit"])
def test_inputs_of_a_layer_are_what_its_weights_read(name):
    """Queries are the inputs times W_q, and its bias."""
    model, layers, _ = layers_of(name)
    part = next(one for one in parts_of(model)[0] if one.kind == "q" and one.layer == 1)
    bias = read_bias(model, part)
    made = layers[1].inputs @ read(model, part).T + (0 if bias is None else bias)
    shaped = made.reshape(*made.shape[:2], part.n_heads, -1).swapaxes(1, 2)
    np.testing.assert_allclose(shaped, layers[1].queries, atol=1e-5)


# --- by depth --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "bert", "gpt2", "vit"])
def test_states_by_depth_are_those_of_the_model(name):
    model, _, states = layers_of(name)
    found = by_depth(model, samples_for(model))
    np.testing.assert_allclose(found[0], states[0], atol=1e-5)
    np.testing.assert_allclose(found[1], states[1], atol=1e-4)  # the last state of the model has its final norm


def test_without_skip_a_layer_is_its_attention_alone():
    model, layers, _ = layers_of("llama")
    found = by_depth(model, samples_for(model), skip=False)
    W = model.module.model.layers[0].self_attn.o_proj.weight.detach().numpy()
    outputs = layers[0].outputs.swapaxes(1, 2).reshape(3, 20, -1) @ W.T
    np.testing.assert_allclose(found[1] / np.linalg.norm(found[1]), outputs / np.linalg.norm(outputs), atol=1e-6)
    assert np.linalg.norm(found[1]) == pytest.approx(np.linalg.norm(found[0]), rel=1e-5)


@pytest.mark.parametrize("skip", [False, 0.5])
def test_without_skip_only_the_first_layer_runs_its_feed_forward_part(skip):
    """The same bytes as where every layer runs to its end, which a forward that was replaced before makes it do."""
    model, _, _ = layers_of("llama")
    samples, layers = samples_for(model), model.module.model.layers
    all_layers = list(range(len(layers)))
    ran = []
    for number, layer in enumerate(layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: ran.append(number))
    short = by_depth(model, samples, skip=skip)
    assert ran == [*all_layers, 0]  # first the output projections are looked for by a pass
    assert not any("forward" in layer.__dict__ for layer in layers)
    for layer in layers:
        layer.forward = layer.forward
    whole = by_depth(model, samples, skip=skip)
    assert ran == [*all_layers, 0, *all_layers, *all_layers]
    np.testing.assert_array_equal(np.stack(short), np.stack(whole))


def test_alpha_scales_the_spectra_of_queries_and_keys():
    """alpha = 2 is Wq and Wk (and their biases) times 2 in a model without a norm of queries and keys."""
    model = wrap_module(zoo.make("llama-bias"), name="llama-bias")
    samples = samples_for(model)
    scaled = by_depth(model, samples, alpha=2.0)
    with torch.no_grad():
        for layer in model.module.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                part.weight.mul_(2)
                part.bias.mul_(2)
    np.testing.assert_allclose(np.stack(scaled), np.stack(by_depth(model, samples)), rtol=1e-4, atol=1e-4)


def test_a_model_of_two_stacks_has_no_versions():
    model = wrap_module(zoo.make("bart"), name="bart")
    with pytest.raises(hs.InputError, match="not one stack"):
        by_depth(model, samples_for(model))


# --- float64 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3", "bert", "gpt2", "vit", "falcon", "mpt"])
def test_in_double_everything_is_computed_in_float64(name):
    """Also the norms of Llama and Gemma, which turn to float32 of themselves; and the model is as before after it."""
    model = wrap_module(zoo.make(name), name=name)
    samples = samples_for(model)
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    single = by_depth(model, samples)
    assert model.dtype == "float32" and precision(model) == 256 * 2**-23
    with in_double(model):
        assert model.dtype == "float64" and precision(model) == 256 * 2**-52
        double = by_depth(model, samples)
        again = by_depth(model, [samples[0]])  # alone: other blocks of the same sums
    assert double[-1].dtype == np.float64 and single[-1].dtype == np.float32
    assert 1e-9 < np.abs(single[-1] - double[-1]).max() / np.abs(double[-1]).max() < 1e-4
    np.testing.assert_allclose(again[-1][0], double[-1][0], rtol=0, atol=1e-13 * np.abs(double[-1]).max())
    assert model.dtype == "float32"
    after = model.module.state_dict()
    assert all(value.dtype == after[key].dtype and torch.equal(value, after[key]) for key, value in before.items())
    for one, two in zip(single, by_depth(model, samples), strict=True):
        np.testing.assert_array_equal(one, two)


def test_float32_cannot_follow_a_decay_that_float64_can():
    """Scores near 0 make attention nearly uniform: tokens become one by a factor per layer, below float32's rounding."""
    model = wrap_module(zoo.make("bert"), name="bert")
    samples = samples_for(model)
    options = {"skip": False, "alpha": 0.2}
    rough = token_spread(by_depth(model, samples, **options)[-1][0]).residual
    with in_double(model):
        exact = token_spread(by_depth(model, samples, **options)[-1][0]).residual
        assert precision(model) < exact
    assert exact < rough / 20 and rough < precision(model)


def test_the_model_is_restored_when_a_pass_fails():
    model = wrap_module(zoo.make("llama"), name="llama")
    with pytest.raises(RuntimeError, match="stop"), in_double(model):
        raise RuntimeError("stop")
    assert {p.dtype for p in model.module.parameters()} == {torch.float32} and model.dtype == "float32"


@pytest.mark.parametrize("name", ["llama", "gpt2", "vit", "bert"])
def test_a_watched_pass_is_followed_as_the_model_alone_is(name):
    model = wrap_module(zoo.make(name), name=name)
    samples, found = samples_for(model), []
    watch_layers(model, samples, model.sites[0].block, lambda _: None, found.append)
    alone = by_depth(model, samples)
    assert len(found) == len(alone) == 3
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gemma3", "bloom", "gptj", "gpt-oss"])
def test_a_head_by_itself_gives_the_logits_of_the_whole_model(name):
    model = wrap_module(zoo.make(name), name=name)
    samples = samples_for(model)
    watched = watch_layers(model, samples, "decoder", lambda _: None)
    for sample, last in zip(samples, watched.last, strict=True):
        with torch.no_grad():
            whole = run(model, sample.arguments).logits
        np.testing.assert_allclose(headed(model, sample, last), whole, atol=1e-5)
        assert "forward" not in model.module.base_model.__dict__
    changed = headed(model, samples[0], np.zeros_like(watched.last[0]))
    assert not np.allclose(changed, headed(model, samples[0], watched.last[0]))


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_what_a_factor_does_not_explain_is_a_share_of_the_scores(size):
    generator = torch.Generator().manual_seed(0)
    q, k, noise = (torch.randn(1, 2, 5, n, generator=generator) for n in (4, 4, 5))
    present, products = torch.ones(5, 5, dtype=torch.bool).tril(), q @ k.transpose(2, 3)
    assert _scaling(q, k, size * products, present) == pytest.approx((size, 0), abs=1e-4 * size)
    left = (
        noise - (noise * products * present).sum() / (products**2 * present).sum() * products
    )  # no part of the products
    factor, share = _scaling(q, k, size * (products + left), present)
    whole = ((products + left) * present).norm()
    assert (factor, share) == pytest.approx((size, float((left * present).norm() / whole)), rel=1e-4)


# --- embeddings ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "scaled"), [("llama", False), ("gemma3", True)])
def test_the_embedding_of_a_token_is_what_the_module_outputs(name, scaled):
    model = wrap_module(zoo.make(name), name=name)
    row = model.module.get_input_embeddings().weight[8].detach().numpy()
    expected = row * np.sqrt(len(row)) if scaled else row
    np.testing.assert_allclose(embedded(model, np.array([9, 8]))[1], expected, rtol=1e-6)
    np.testing.assert_allclose(embedded(model)[8], expected, rtol=1e-6)
