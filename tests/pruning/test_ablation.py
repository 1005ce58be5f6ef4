import sys
from pathlib import Path

import numpy as np
import pytest

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.pruning.ablation import Ablations, leave_one_out, leave_one_out_naively

sys.path.insert(0, str(Path(__file__).parents[1] / "attention"))
from test_capture import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "bloom", "mpt", "falcon"])
def test_starting_from_a_layer_gives_the_loss_of_the_whole_pass(name):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    samples, _ = samples_of(model, TEXT, 12)
    heads = [head for site in model.sites for head in site.heads]
    shared = leave_one_out(Ablations(model, samples), heads)
    np.testing.assert_allclose(shared, leave_one_out_naively(model, samples, heads), atol=1e-6)
    for head in (heads[0], heads[-1]):
        with hs.ablate(model, [head]):
            whole = hs.loss(model, TEXT, tokens=12)
        intact = hs.loss(model, TEXT, tokens=12)
        np.testing.assert_allclose(shared[heads.index(head)], whole.values - intact.values, atol=1e-6)


def test_images_and_sets_of_heads():
    model = hs.wrap_module(make("vit"))
    rng = np.random.default_rng(0)
    images = (rng.random((5, 28, 28), dtype=np.float32), np.array([0, 1, 0, 1, 1]))
    samples, _ = samples_of(model, images)
    ablations = Ablations(model, samples)
    heads = [hs.HeadId("encoder", 0, 1), hs.HeadId("encoder", 1, 3)]
    with hs.ablate(model, heads):
        own = hs.loss(model, images)
    found = ablations.loss(heads)
    np.testing.assert_allclose(found.values, own.values, atol=1e-6)
    assert found.accuracy == own.accuracy
    np.testing.assert_allclose(ablations.intact.values, hs.loss(model, images).values, atol=1e-7)


def test_the_network_is_restored():
    network = make("llama")
    model = hs.wrap_module(network, tokenizer=Letters())
    samples, _ = samples_of(model, TEXT, 12)
    before = hs.loss(model, TEXT, tokens=12).values
    Ablations(model, samples).loss([hs.HeadId("decoder", 1, 2)])
    assert not any("forward" in vars(layer) for layer in network.model.layers)
    np.testing.assert_array_equal(hs.loss(model, TEXT, tokens=12).values, before)
