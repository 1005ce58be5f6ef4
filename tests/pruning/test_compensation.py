import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.projections import columns_of, output_projections
from headscape.attention.samples import samples_of
from headscape.pruning.compensation import COMPENSATIONS, RIDGE, fit_compensation, moments_on, without_heads
from headscape.pruning.export import export_pruned
from reference_pruning import outputs_of
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog"]
GONE = {0: [1], 1: [0, 2]}


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def model(request):
    return hs.wrap_module(make(request.param), tokenizer=Letters())


@pytest.fixture(scope="module")
def samples(model):
    return samples_of(model, TEXT, 12)[0]


def heads_of(model):
    return {model.sites[layer].name: heads for layer, heads in GONE.items()}


def test_moments_are_means_of_products(model, samples):
    found = moments_on(model, samples)
    for name, rows in outputs_of(model, samples).items():
        with_one = np.c_[rows, np.ones(len(rows))]
        np.testing.assert_allclose(found[name], with_one.T @ with_one / len(rows), atol=1e-5)


@pytest.mark.parametrize("compensation", list(COMPENSATIONS))
def test_the_outputs_and_the_folded_weight_agree(model, samples, compensation):
    fitted = fit_compensation(model, heads_of(model), moments_on(model, samples), compensation)
    projections = output_projections(model)
    for name, rows in outputs_of(model, samples).items():
        weight = columns_of(model.module.get_submodule(projections[name])).double()
        n_heads = next(site.n_heads for site in model.sites if site.name == name)
        changed = fitted[name].outputs(torch.from_numpy(rows).reshape(len(rows), n_heads, -1)).flatten(1)
        by_weight = torch.from_numpy(rows) @ fitted[name].weight(weight).T + fitted[name].bias(weight)
        np.testing.assert_allclose(changed @ weight.T, by_weight, atol=1e-10)
        assert not fitted[name].weight(weight)[:, fitted[name].inputs(weight.shape[1])[1]].any()


def test_linear_is_least_squares_and_never_worse_than_the_mean(model, samples):
    moments = moments_on(model, samples)
    linear, mean = (fit_compensation(model, heads_of(model), moments, how) for how in ("linear", "mean"))
    for name, rows in outputs_of(model, samples).items():
        layer = linear[name]
        kept, gone = (rows[:, part] for part in layer.inputs(rows.shape[1]))
        X, Y = kept - kept.mean(0), gone - gone.mean(0)
        ridge = RIDGE * (X**2).mean()
        stacked = np.r_[X / len(X) ** 0.5, np.sqrt(ridge) * np.eye(X.shape[1])]
        wanted = np.linalg.lstsq(stacked, np.r_[Y / len(Y) ** 0.5, np.zeros((X.shape[1], Y.shape[1]))], rcond=None)[0]
        predicted, flat = kept @ layer.mix + layer.constant, mean[name].constant
        np.testing.assert_allclose(predicted, X @ wanted + gone.mean(0), atol=1e-4)
        assert ((gone - predicted) ** 2).sum() <= ((gone - flat) ** 2).sum()


def test_scale_is_the_best_factor(model, samples):
    fitted = fit_compensation(model, heads_of(model), moments_on(model, samples), "scale")
    projections = output_projections(model)
    for name, rows in outputs_of(model, samples).items():
        weight = columns_of(model.module.get_submodule(projections[name])).double().numpy()
        kept, _ = fitted[name].inputs(rows.shape[1])
        whole, part = rows @ weight.T, rows[:, kept] @ weight[:, kept].T
        assert fitted[name].scale == pytest.approx((whole * part).sum() / (part**2).sum(), rel=1e-4)


def test_none_and_mean_are_what_ablate_does(model, samples):
    heads = [(layer, h) for layer, found in GONE.items() for h in found]
    means = hs.mean_outputs(model, TEXT, tokens=12, batches=None)
    moments = moments_on(model, samples)
    for compensation, how in (("none", "zero"), ("mean", "mean")):
        with torch.no_grad(), without_heads(model, fit_compensation(model, heads_of(model), moments, compensation)):
            found = model.module(**samples[0].arguments).logits
        with torch.no_grad(), hs.ablate(model, heads, how, means=means):
            wanted = model.module(**samples[0].arguments).logits
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_layer_without_any_head_keeps_its_mean(model, samples):
    name = model.sites[0].name
    every = {name: list(range(model.sites[0].n_heads))}
    moments = moments_on(model, samples)
    layer = fit_compensation(model, every, moments, "linear")[name]
    np.testing.assert_allclose(layer.constant, moments[name][-1, :-1], atol=1e-12)
    assert layer.mix is None


@pytest.mark.parametrize("kind", ["masked", "ragged"])
@pytest.mark.parametrize("compensation", ["scale", "linear"])
def test_every_compensation_can_be_exported(model, samples, tmp_path, kind, compensation):
    fitted = fit_compensation(model, heads_of(model), moments_on(model, samples), compensation)
    heads = [(layer, h) for layer, found in GONE.items() for h in found]
    export_pruned(model, heads, tmp_path / "out", kind, fitted=fitted)
    with torch.no_grad(), without_heads(model, fitted):
        wanted = model.module(**samples[0].arguments).logits
    written = hs.load_model(tmp_path / "out")
    with torch.no_grad():
        found = written.module(**samples[0].arguments).logits
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_mistakes_are_named(model, samples, tmp_path):
    with pytest.raises(hs.InputError, match="no compensation 'magic'; there are none, mean, scale, linear"):
        fit_compensation(model, heads_of(model), None, "magic")
    with pytest.raises(hs.InputError, match="'mean' is fitted on text"):
        fit_compensation(model, heads_of(model), None, "mean")
    fitted = fit_compensation(model, heads_of(model), None)
    with pytest.raises(hs.InputError, match="fitted for other heads"):
        export_pruned(model, [(0, 0)], tmp_path / "out", fitted=fitted)
