"""Rivals as their formulas say, on outputs collected by hooks."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.pruning.compensation import fit_compensation, moments_on, without_heads
from headscape.pruning.evidence import Evidence
from headscape.pruning.rivals import RIVALS, _Correlation, _shared, remove_by
from reference_pruning import outputs_of
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog and then it does all of that once more"]


@pytest.fixture(scope="module")
def e():
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    heads = [head for site in model.sites for head in site.heads]
    return Evidence(heads, model=model, samples=samples_of(model, TEXT, 12)[0])


@pytest.mark.parametrize("name", [*RIVALS, "depth"])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_each_removes_as_many_as_asked(e, name, n):
    found = remove_by(name, e, n)
    assert sum(len(layer.heads) for layer in found.values()) == n
    with torch.no_grad(), without_heads(e.network, found):
        assert torch.isfinite(e.network.module(**e.samples[0].arguments).logits).all()


def test_flap_is_variance_times_weight_standardized_in_the_layer(e):
    rows, scores = outputs_of(e.network, e.samples), {}
    for site in e.network.sites:
        W = e.projections[site.name].numpy()
        by_head = (rows[site.name].var(0) * (W**2).sum(0)).reshape(4, -1).mean(1)
        for h, score in enumerate((by_head - by_head.mean()) / by_head.std()):
            scores[site.heads[h]] = score
    order = sorted(scores, key=scores.get)
    for n in range(1, len(order)):
        removed = {(site, head) for site, layer in remove_by("flap", e, n).items() for head in layer.heads}
        assert removed == {(next(s.name for s in e.network.sites if s.layer == h.layer), h.head) for h in order[:n]}
    first = order[0]
    found = remove_by("flap", e, 1)
    name = next(site.name for site in e.network.sites if site.layer == first.layer)
    assert {n: layer.heads for n, layer in found.items()} == {name: (first.head,)}
    np.testing.assert_allclose(found[name].constant, rows[name].mean(0).reshape(4, -1)[first.head], atol=1e-5)


def test_slimllms_correlation_is_pearsons_over_all_entries(e):
    site = e.network.sites[0]
    X, W = outputs_of(e.network, e.samples)[site.name], e.projections[site.name].numpy()
    kept = X.copy()
    kept[:, 8:16] = 0
    expected = np.corrcoef((X @ W.T).ravel(), (kept @ W.T).ravel())[0, 1]
    S = moments_on(e.network, e.samples)[site.name]
    assert _Correlation(S, torch.from_numpy(W), 4).without([1]) == pytest.approx(expected, abs=1e-5)


def test_slimgpt_calibrates_each_layer_on_the_model_pruned_so_far(e):
    found = remove_by("slimgpt", e, 3)
    first, second = (site.name for site in e.network.sites)
    assert first not in found and len(found[second].heads) == 3  # nothing is taken from the first layer before
    found = remove_by("slimgpt", e, 4)
    with without_heads(e.network, {first: found[first]}):
        moments = moments_on(e.network, e.samples)
    again = fit_compensation(e.network, {second: found[second].heads}, moments, "linear")[second]
    np.testing.assert_allclose(found[second].mix, again.mix, atol=1e-4)


def test_shares_of_layers_sum_up_and_leave_a_head(e):
    sites = e.network.sites
    for weights in ([1.0, 1.0], [0.01, 5.0]):
        for n in range(1, 7):
            counts = _shared(sites, np.array(weights), n)
            assert sum(counts) == n and max(counts) <= 3
