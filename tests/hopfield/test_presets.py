"""The presets train as their papers say."""

import pytest

from headscape.hopfield.presets import PRESETS, preset


@pytest.mark.parametrize(("name", "batch"), [("vit-t", 256), ("vit-s", 256), ("vit-b", 128), ("vit-l", 32)])
def test_vision_transformers_see_50000_images_300_times(name, batch):
    found = preset(name)
    epoch = 50_000 // batch
    assert (found.batch, found.steps, found.warmup) == (batch, 300 * epoch, 20 * epoch)
    network = found.network
    assert (network.image, network.patch, network.channels, network.outputs, network.n_tokens) == (224, 16, 3, 10, 197)
    assert found.label_smoothing == 0.1 and found.weight_decay == 0.05 and found.floor < min(found.rates)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_is_one_that_can_be_trained(name):
    found = preset(name)
    assert 0 <= found.floor < min(found.rates) and max(found.rates) < 0.01
    assert 0 <= found.label_smoothing < 1 and 0 <= found.weight_decay < 1 and 0 <= found.network.drop_path < 1
    assert list(found.rates) == sorted(set(found.rates))
    assert found.network.dim % found.network.heads == 0 or found.network.head_dim is not None


def test_the_sizes_are_those_that_the_description_gives():
    for name in ("gpt", "vit", "xl"):
        network = preset(name).network
        assert f"{network.layers} layers x {network.heads} heads x {network.dim}" in preset(name).about
    xl = preset("transformer-xl").network
    assert f"{xl.layers} layers x {xl.heads} heads x {xl.dim}; heads of {xl.head_dim}" in preset("transformer-xl").about
    assert (preset("gpt2-small").network.tokens, preset("gpt2-medium").network.heads) == (1024, 16)
