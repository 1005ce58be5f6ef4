"""The presets train as their papers say."""

import pytest

from headscape.hopfield.presets import PRESETS, preset


@pytest.mark.parametrize(("name", "batch"), [("vit-t", 256), ("vit-s", 256), ("vit-b", 128), ("vit-l", 32)])
def test_vision_transformers_see_50000_images_300_times_and_cool_down_for_ten(name, batch):
    found = preset(name)
    epoch = 50_000 // batch
    assert (found.batch, found.steps, found.warmup) == (batch, 310 * epoch, 20 * epoch)
    assert found.cooldown == 10 * epoch and found.warmup_rate == 1e-6 and found.augment == "paper"
    network = found.network
    assert (network.image, network.patch, network.channels, network.outputs, network.n_tokens) == (224, 16, 3, 10, 197)
    assert found.label_smoothing == 0.1 and found.weight_decay == 0.05 and found.floor < min(found.rates)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_is_one_that_can_be_trained(name):
    found = preset(name)
    assert 0 <= found.floor < min(found.rates) and max(found.rates) < 0.01
    assert 0 <= found.label_smoothing < 1 and 0 <= found.weight_decay < 1 and 0 <= found.network.drop_path < 1
    assert list(found.rates) == sorted(set(found.rates))
    assert 0 <= found.warmup_rate < min(found.rates)  # a warm-up that warms up
    assert found.network.dim % found.network.heads == 0 or found.network.head_dim is not None


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gpt", (6, 4, 64)),
        ("gpt2-small", (12, 12, 768)),
        ("gpt2-medium", (24, 16, 1024)),
        ("vit-t", (12, 3, 192)),
        ("vit-s", (12, 6, 384)),
        ("vit-b", (12, 12, 768)),
        ("vit-l", (24, 16, 1024)),
    ],
)
def test_the_sizes_are_those_of_the_papers(name, sizes):
    network = preset(name).network
    assert (network.layers, network.heads, network.dim) == sizes
