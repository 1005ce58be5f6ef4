"""Converted networks generate text: greedy search, and a cache that changes no token."""

import pytest
import torch

import headscape as hs
from headscape.hopfield.convert import to_hopfield
from zoo import PARALLEL, make


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_without_a_cache_is_greedy_search_by_hand(name):
    network = make(name)
    ids = torch.randint(3, 100, (1, 5), generator=torch.Generator().manual_seed(0))
    with to_hopfield(network, 0.4, 0.6):
        got = network.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
        expected = ids
        for _ in range(got.shape[1] - ids.shape[1]):
            with torch.no_grad():
                expected = torch.cat([expected, network(expected).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(got, expected) and got.shape[1] > 5


DECODERS = [
    "gpt2",
    "llama",
    "mistral",
    "qwen3",
    "gemma2",
    "gemma3",
    "gpt-oss",
    "falcon",
    "falcon-alibi",
    "bloom",
    "mpt",
    "gptj",
]


def windowed(name):
    """A tiny network; of Gemma 2 with a window of 4 tokens in every other layer."""
    network = make(name)
    if name == "gemma2":
        network.config.sliding_window = 4
        for layer in network.model.layers:
            if layer.self_attn.sliding_window:
                layer.self_attn.sliding_window = 4
    return network


@pytest.mark.parametrize("name", [*DECODERS, "t5", "bart"])
def test_a_cache_changes_no_token(name):
    network = windowed(name)
    network.generation_config.eos_token_id = None
    ids = torch.randint(3, 100, (2, 6), generator=torch.Generator().manual_seed(0))
    for skip in ["residual"] if name in PARALLEL else ["residual", "scaled"]:
        with to_hopfield(network, 0.4, 0.6, skip=skip):
            found = {
                cached: network.generate(
                    ids,
                    max_new_tokens=8,
                    do_sample=False,
                    use_cache=cached,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
                for cached in (True, False)
            }
        assert torch.equal(found[True].sequences, found[False].sequences) and found[True].sequences.shape[1] > 6
        for with_cache, without in zip(found[True].logits, found[False].logits, strict=True):
            torch.testing.assert_close(with_cache, without, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seen", [1, 12])
def test_a_cache_that_drops_keys_is_refused_and_one_made_inside_drops_none(seen):
    network = windowed("gemma2")
    assert set(network.config.layer_types) == {"sliding_attention", "full_attention"}
    ids = torch.randint(3, 100, (1, 12))
    past = network(ids[:, :seen], use_cache=True).past_key_values
    with torch.no_grad(), to_hopfield(network, skip="residual"):
        with pytest.raises(hs.InputError, match="the cache drops keys of layer"):
            network(ids[:, :1], past_key_values=past)
        own = network(ids[:, :-1], use_cache=True).past_key_values
        step = network(ids[:, -1:], past_key_values=own).logits
        torch.testing.assert_close(step[:, -1], network(ids).logits[:, -1], atol=1e-4, rtol=1e-4)


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_bundled_decoders_generate_the_same_with_a_cache(load, name):
    model = load(name)
    long = 520 if name.startswith("gemma") else 12  # beyond Gemma's window of 512
    ids = torch.randint(3, 20_000, (1, long), generator=torch.Generator().manual_seed(0))
    with to_hopfield(model, 0.5, 0.3, "first", "residual"):
        found = [model.module.generate(ids, max_new_tokens=4, do_sample=False, use_cache=c) for c in (True, False)]
    assert torch.equal(*found)
