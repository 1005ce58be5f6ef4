"""Criteria on a network where the answer is planted.

Also tests pruning.evidence.
"""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.projections import columns_of, output_projections
from headscape.attention.samples import samples_of
from headscape.pruning.criteria import CRITERIA, find_criterion, scores
from headscape.pruning.evidence import BRIEF_WINDOWS, Evidence
from reference_pruning import outputs_of
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog"]


def planted_network():
    """A Llama whose head (0, 2) puts nothing out, and whose head (1, 3) is a copy of (1, 2) in attention."""
    network = make("llama")
    with torch.no_grad():
        network.model.layers[0].self_attn.o_proj.weight[:, 16:24] = 0
        network.model.layers[1].self_attn.q_proj.weight[24:32] = network.model.layers[1].self_attn.q_proj.weight[16:24]
    return hs.wrap_module(network, tokenizer=Letters())


def evidence(model, organized=None):
    heads = [head for site in model.sites for head in site.heads]
    samples, _ = samples_of(model, TEXT, 12)
    frame = None if organized is None else organized.to_frame()
    return Evidence(heads, frame, None if organized is None else organized.distances, model, samples)


@pytest.fixture(scope="module")
def planted():
    model = planted_network()
    cap = hs.capture(model, TEXT, tokens=12, batches=None, dtype="float32")
    return evidence(model, hs.organize(cap))


def test_a_head_that_puts_nothing_out_comes_first_by_output_norm(planted):
    found = scores("output_norm", planted)
    assert planted.heads[int(np.argmin(found))] == hs.HeadId("decoder", 0, 2)
    assert found.min() < 1e-6 < np.sort(found)[1]


def test_a_copied_head_comes_first_by_redundancy(planted):
    found = scores("redundancy", planted)
    first = planted.heads[int(np.argmin(found))]
    assert first in (hs.HeadId("decoder", 1, 2), hs.HeadId("decoder", 1, 3))
    assert sorted(found) == [0, 1, 2, 3, 4, 5, 6, 8]  # the order in which they go; the last one stays
    other = hs.HeadId("decoder", 1, 5 - first.head)
    assert found[planted.heads.index(other)] > 0


def test_output_norm_is_the_norm_of_the_mean_contribution(planted):
    model = planted.network
    means = hs.mean_outputs(model, TEXT, tokens=12, batches=None)
    head = hs.HeadId("decoder", 1, 1)
    weight = model.module.model.layers[1].self_attn.o_proj.weight.detach().numpy()[:, 8:16]
    expected = np.linalg.norm(weight @ means[head])
    assert scores("output_norm", planted)[planted.heads.index(head)] == pytest.approx(expected, rel=1e-4)


def test_gradients_are_the_slope_of_the_loss(planted):
    model = planted.network
    head = hs.HeadId("decoder", 1, 0)
    found = scores("gradient", planted)[planted.heads.index(head)]
    slopes = []
    name = next(site.name for site in model.sites if site.layer == 1)
    for i in range(len(planted.samples)):
        values = []
        for gate in (0.99, 1.01):
            with hs.gates(model) as gates:
                gates[name].data[0] = gate
                values.append(hs.loss(model, TEXT, tokens=12).values[i])
        slopes.append(abs(values[1] - values[0]) / 0.02)
    assert found == pytest.approx(np.mean(slopes), rel=0.02, abs=1e-4)
    assert scores("gradient", planted)[planted.heads.index(hs.HeadId("decoder", 0, 2))] == 0


def test_the_oracle_is_the_rise_of_the_loss(planted):
    head = planted.heads[5]
    with hs.ablate(planted.network, [head]):
        without = hs.loss(planted.network, TEXT, tokens=12).values
    rises = without - hs.loss(planted.network, TEXT, tokens=12).values
    assert scores("leave_one_out", planted)[5] == pytest.approx(rises[:BRIEF_WINDOWS].mean(), abs=1e-6)


def test_simple_criteria_and_averages(planted):
    assert scores("depth", planted).tolist() == [0.0] * 4 + [-1.0] * 4
    np.testing.assert_array_equal(scores("random", planted), scores("random", planted))
    average = scores("l1_all+gradient", planted)
    assert average.min() >= 1 and average.max() <= 8
    own = scores(lambda e: np.arange(len(e.heads)), planted)
    assert own.tolist() == list(range(8))
    for name in CRITERIA:
        if name not in ("l1_all_random", "l1_all_natural"):  # the study brings these
            assert scores(name, planted).shape == (8,)


def test_wrong_requests(planted):
    with pytest.raises(hs.InputError, match="no criterion 'l1'; there are attention_entropy"):
        find_criterion("l1")
    with pytest.raises(hs.InputError, match="needs the organize study"):
        scores("l1_all", Evidence(planted.heads))
    with pytest.raises(hs.InputError, match="needs the distances"):
        scores("redundancy", Evidence(planted.heads))
    with pytest.raises(hs.InputError, match="needs the model"):
        scores("gradient", Evidence(planted.heads))
    with pytest.raises(hs.InputError, match="8 finite ones are needed"):
        scores(lambda e: np.array([1.0, np.nan]), planted)


def test_novelty_is_what_regression_leaves_after_the_output_projection(planted):
    model = planted.network
    rows = outputs_of(model, planted.samples)
    projections = output_projections(model)
    inputs = {}
    for layer in model.module.model.layers:
        layer.register_forward_pre_hook(
            lambda module, a, k: inputs.setdefault(id(module), []).append((a[0] if a else k["hidden_states"])[0]),
            with_kwargs=True,
        )
    with torch.no_grad():
        for sample in planted.samples[:4]:
            model.module(**sample.arguments)
    for layer in model.module.model.layers:
        layer._forward_pre_hooks.clear()
        layer._forward_pre_hooks_with_kwargs.clear()
    errors = {}
    for site, seen in zip(model.sites, inputs.values(), strict=True):
        power = torch.cat(seen).square().sum(-1).median().item()
        weight = columns_of(model.module.get_submodule(projections[site.name])).double().numpy()
        X = rows[site.name] - rows[site.name].mean(0)
        for h, head in enumerate(site.heads):
            gone = np.arange(X.shape[1]) // (X.shape[1] // site.n_heads) == h
            ridge = 1e-3 * (X**2).mean()
            K = np.r_[X[:, ~gone] / len(X) ** 0.5, np.sqrt(ridge) * np.eye((~gone).sum())]
            Y = np.r_[X[:, gone] / len(X) ** 0.5, np.zeros(((~gone).sum(), gone.sum()))]
            left = X[:, gone] - X[:, ~gone] @ np.linalg.lstsq(K, Y, rcond=None)[0]
            errors[head] = ((left @ weight[:, gone].T) ** 2).sum(1).mean() / power
    found = scores("novelty", planted)
    assert sorted(found) == list(range(8))
    assert planted.heads[int(np.argmin(found))] == min(errors, key=errors.get)


def test_novelty_finds_a_head_that_says_what_others_say():
    network = make("gpt2")
    attention = network.transformer.h[1].attn
    with torch.no_grad():  # head 3 of layer 1: the queries, keys and values of head 1
        dim = attention.head_dim
        for part in range(3):
            start = part * network.config.n_embd
            target, source = slice(start + 3 * dim, start + 4 * dim), slice(start + dim, start + 2 * dim)
            attention.c_attn.weight[:, target] = attention.c_attn.weight[:, source]
            attention.c_attn.bias[target] = attention.c_attn.bias[source]
    e = evidence(hs.wrap_module(network, tokenizer=Letters()))
    first = e.heads[int(np.argmin(scores("novelty", e)))]
    assert first in (hs.HeadId("decoder", 1, 1), hs.HeadId("decoder", 1, 3))
    other = hs.HeadId("decoder", 1, 4 - first.head)
    assert scores("novelty", e)[e.heads.index(other)] > 0  # only one of the two is redundant


def test_coupling_pairs_queries_with_the_key_of_their_group(planted):
    found = scores("coupling", planted)
    attention = planted.network.module.model.layers[1].self_attn
    dim, group = attention.head_dim, attention.num_key_value_groups
    for h in range(4):
        Q = attention.q_proj.weight.detach().double()[h * dim : (h + 1) * dim]
        K = attention.k_proj.weight.detach().double()[h // group * dim : (h // group + 1) * dim]
        assert found[4 + h] == pytest.approx(torch.linalg.norm(Q.T @ K).item(), rel=1e-5)


def test_measured_again_starts_as_the_gradient_does(planted):
    again = scores("gradient_again", planted)
    assert sorted(again) == list(range(8))
    assert np.argmin(again) == np.argmin(scores("gradient", planted))
