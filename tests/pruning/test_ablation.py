import numpy as np
import pytest

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.pruning import ablation
from headscape.pruning.ablation import Ablations, leave_one_out
from headscape.pruning.compensation import fit_compensation, moments_on, without_heads
from headscape.pruning.judges import LossJudge
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "bloom", "mpt", "falcon"])
def test_starting_from_a_layer_gives_the_loss_of_the_whole_pass(name):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    samples, _ = samples_of(model, TEXT, 12)
    heads = [head for site in model.sites for head in site.heads]
    shared = leave_one_out(Ablations(LossJudge(model, samples)), heads)
    np.testing.assert_allclose(
        shared, leave_one_out(Ablations(LossJudge(model, samples), share=False), heads), atol=1e-6
    )
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
    ablations = Ablations(LossJudge(model, samples))
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
    Ablations(LossJudge(model, samples)).loss([hs.HeadId("decoder", 1, 2)])
    assert not any("forward" in vars(layer) for layer in network.model.layers)
    np.testing.assert_array_equal(hs.loss(model, TEXT, tokens=12).values, before)


def test_compensated_sets_start_from_their_layer_too():
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    samples, _ = samples_of(model, TEXT, 12)
    moments = moments_on(model, samples)
    ablations = Ablations(LossJudge(model, samples), lambda: moments)
    site = model.sites[1]
    for compensation in ("none", "mean", "scale", "linear"):
        with without_heads(model, fit_compensation(model, {site.name: [0, 3]}, moments, compensation)):
            whole = hs.loss(model, TEXT, tokens=12).values
        found = ablations.loss([site.heads[0], site.heads[3]], compensation).values
        np.testing.assert_allclose(found, whole, atol=1e-6)


def test_outputs_too_large_to_keep_are_given_up(monkeypatch):
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    samples, _ = samples_of(model, TEXT, 12)
    head = [hs.HeadId("decoder", 1, 2)]
    kept = Ablations(LossJudge(model, samples)).loss(head).values
    monkeypatch.setattr(ablation, "SHARED_BYTES", 100)
    given_up = Ablations(LossJudge(model, samples))
    assert given_up.intact.values.size and given_up._stack is None and not given_up._outputs
    np.testing.assert_allclose(given_up.loss(head).values, kept, atol=1e-6)
