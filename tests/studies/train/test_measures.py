"""What is measured in a network while it trains."""

import numpy as np
import pytest
import torch

from headscape.collapse.residual import effective_rank, relative_residual
from headscape.collapse.similarity import histogram
from headscape.hopfield.networks import NetworkConfig, Transformer, arm
from headscape.studies.train.measures import by_layer, lesioned


@pytest.fixture(params=[("gpt", "both"), ("gpt", "standard"), ("vit", "hidden")], ids=lambda p: "-".join(p))
def case(request):
    kind, name = request.param
    torch.manual_seed(0)
    network = Transformer(NetworkConfig(kind, 2, 2, 8, tokens=6, patch=14), arm(name)).eval()
    for p in network.parameters():
        p.data.mul_(6)
    x = torch.randint(0, 3, (2, 6)) if kind == "gpt" else torch.randn(2, 1, 28, 28)
    return kind, network, x


def probabilities(network, x):
    """Attention (layer, batch, head, query, key), from each layer's own projections."""
    found, causal, state = [], network.config.kind != "vit", None
    for block, hidden in zip(network.blocks, network(x).hidden, strict=False):
        layer, source = block.attention, block.norm1(hidden)
        q, k = (p(source).unflatten(-1, (2, 4)).transpose(1, 2) for p in (layer.q_proj, layer.k_proj))
        scores = q @ k.transpose(2, 3) / 2
        kept = layer.alpha_hidden
        state = (1 - kept) * scores if state is None else kept * state + (1 - kept) * scores
        ahead = torch.ones(scores.shape[-2:]).triu(1).bool() & causal
        found.append(state.masked_fill(ahead, -torch.inf).softmax(-1))
    return found


@torch.no_grad()
def test_every_measure_pair_by_pair(case):
    """On text the same token twice is left out; an image has no tokens that are the same by name."""
    kind, network, x = case
    got = by_layer(network, [x])
    hidden = network(x).hidden
    n = hidden[0].shape[1]
    pairs = [(b, i, j) for b in range(2) for i in range(n) for j in range(i) if kind == "vit" or x[b, i] != x[b, j]]
    assert kind == "vit" or 0 < len(pairs) < 2 * 15
    for layer, h in enumerate(hidden):
        values = [float(torch.dot(h[b, i], h[b, j]) / h[b, i].norm() / h[b, j].norm()) for b, i, j in pairs]
        assert got["similarity"][layer] == pytest.approx(np.mean(values), abs=1e-5)
        assert got["aligned"][layer] == pytest.approx(np.mean(np.array(values) > 0.99), abs=1e-9)
        assert sum(got["counts"][layer]) == len(pairs)
        moved = np.cumsum(got["counts"][layer]) - np.cumsum(histogram(values))  # rounding may move a pair by a bin
        assert np.abs(moved).max() <= 2
        assert got["residual"][layer] == pytest.approx(np.mean([relative_residual(t.numpy()) for t in h]))
        assert got["rank"][layer] == pytest.approx(np.mean([effective_rank(t.numpy()) for t in h]))
    for layer, probs in enumerate(probabilities(network, x)):
        for head in range(2):
            rows = [
                -sum(float(p * p.log()) for p in probs[b, head, i] if p > 0) / np.log(i + 1 if kind == "gpt" else n)
                for b in range(2)
                for i in range(kind == "gpt", n)
            ]
            assert got["entropy"][layer][head] == pytest.approx(np.mean(rows), abs=1e-4)


@torch.no_grad()
def test_lesions_take_choices_or_output_away_and_give_them_back(case):
    kind, network, x = case
    whole = network(x).logits
    without = {}
    for how in ("uniform", "removed"):
        with lesioned(network, how):
            without[how] = network(x)
    assert torch.equal(network(x).logits, whole) and not torch.allclose(without["uniform"].logits, whole, atol=1e-4)
    block, start = network.blocks[0], network(x).hidden[0]
    layer = block.attention
    value = layer.v_proj(block.norm1(start))
    n = value.shape[1]
    seen = torch.ones(n, n).tril() if kind == "gpt" else torch.ones(n, n)
    for how, heads in {
        "uniform": (seen / seen.sum(1, keepdim=True)) @ value,
        "removed": torch.zeros_like(value),
    }.items():
        out = layer.out_proj(heads)
        x1 = layer.alpha * start + (1 - layer.alpha) * out if layer.skip == "scaled" else start + out
        expected = x1 + block.mlp(block.norm2(x1))
        torch.testing.assert_close(without[how].hidden[1], expected, atol=1e-5, rtol=1e-5)
