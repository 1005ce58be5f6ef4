"""What makes scores: shares by distance, key and pair against sums written out; the features of a sink."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.attention.scoring import LARGEST, score_parts, score_shares, sink_features
from tiny import Letters
from zoo import make

TEXT = "it was the best of times, it was the worst of times"


def slow_shares(probs):
    n, m = probs.shape
    entries = [(i, j) for i in range(n) for j in range(m) if probs[i, j] > 0]
    S = {}
    for i in range(n):
        row = [np.log(probs[i, j]) for k, j in entries if k == i]
        S |= {(i, j): np.log(probs[i, j]) - np.mean(row) for k, j in entries if k == i}
    whole = sum(s**2 for s in S.values())
    by_distance = {d: np.mean([s for (i, j), s in S.items() if i - j == d]) for d in {i - j for i, j in entries}}
    S = {(i, j): s - by_distance[i - j] for (i, j), s in S.items()}
    beyond = sum(s**2 for s in S.values())
    by_key = {k: np.mean([s for (_, j), s in S.items() if j == k]) for k in {j for _, j in entries}}
    rest = sum((s - by_key[j]) ** 2 for (_, j), s in S.items())
    return [(whole - beyond) / whole, (beyond - rest) / whole, rest / whole]


@pytest.mark.parametrize("causal", [False, True])
def test_shares_are_the_sums_written_out_and_add_to_one(causal):
    scores = np.random.default_rng(0).normal(size=(2, 6, 6))
    scores = np.where(np.tri(6, dtype=bool), scores, -np.inf) if causal else scores
    probs = torch.softmax(torch.from_numpy(scores), -1)
    found = score_shares(probs).numpy()
    np.testing.assert_allclose(found, np.transpose([slow_shares(one.numpy()) for one in probs]), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=0), 1)


def test_distance_alone_key_alone_and_nothing():
    n = 12
    i, j = np.indices((n, n))
    far = np.random.default_rng(2).normal(size=n)[(i - j) % n]
    key = np.broadcast_to(np.random.default_rng(1).normal(size=n), (n, n))
    probs = torch.softmax(torch.from_numpy(np.stack([far, key, np.zeros((n, n))])), -1)
    distance, keys, pair = score_shares(probs).numpy()
    assert distance[0] == pytest.approx(1) and keys[1] > 0.5 and pair[1] < 0.2
    assert np.isnan([distance[2], keys[2], pair[2]]).all()


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bert"])
def test_every_head_has_its_shares(name):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    samples, _ = samples_of(model, [TEXT], 16, 2)
    found = score_parts(model, samples)
    heads = {head for site in model.sites for head in site.heads}
    assert all(set(of) == heads for of in found.values())
    np.testing.assert_allclose(sum(np.array(list(of.values())) for of in found.values()), 1)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_sink_is_taken_apart_feature_by_feature(name):
    """Against the score of the first key with all but some features of its token set to 0, in the first layer."""
    network = make(name)
    model = hs.wrap_module(network, tokenizer=Letters())
    samples, _ = samples_of(model, [TEXT], 16, 1)
    ids = samples[0].arguments["input_ids"]
    with torch.no_grad():
        if name == "llama":
            layer = network.model.layers[0]
            x = layer.input_layernorm(network.model.embed_tokens(ids))[0]
            W_k = layer.self_attn.k_proj.weight
        else:
            layer = network.transformer.h[0]
            places = torch.arange(ids.shape[1])
            x = layer.ln_1(network.transformer.wte(ids) + network.transformer.wpe(places))[0]
            dim = x.shape[-1]
            W_k = layer.attn.c_attn.weight.T[dim : 2 * dim]
            layer.attn.c_attn.bias.normal_()
    taken = hs.capture(model, [TEXT], tokens=16, batches=1, keep=("queries", "keys"), dtype="float32")
    block = taken.blocks[0]
    queries, keys = (taken.batch(0).read(f"{kind}/{block}.0") for kind in ("queries", "keys"))
    W = W_k.detach().double().numpy().reshape(len(keys), -1, x.shape[-1])
    first = x[0].double().numpy()
    alone = np.zeros_like(first)
    largest = np.argsort(-np.abs(first))[:LARGEST]
    alone[largest] = first[largest]
    found = sink_features(model, samples)
    for h, q in enumerate(queries):
        group = h // (len(queries) // len(keys))
        whole, some = ((q[1:] @ (W[group] @ vector)).mean() for vector in (first, alone))
        assert found[hs.HeadId(block, 0, h)] == pytest.approx(some / whole, rel=1e-3)
