"""Networks of attention alone: against an explicit twin, and what table 1 says of them."""

import math

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.collapse.attention_only import (
    ALONG,
    AttentionNetwork,
    AttentionOnly,
    along_depth,
    bounds_of,
    four_variants,
    patch_tokens,
)
from headscape.collapse.bounds import d3_decades
from headscape.collapse.residual import norm_1, norm_1inf, relative_residual, residual

SMALL = {"depth": 3, "width": 12, "heads": 3}


def tokens(n=7, width=12, seed=0):
    return np.random.default_rng(seed).normal(size=(n, width))


def written_out(network, X):
    """Every layer, head and row for itself, in numpy; the hidden state is carried undivided."""
    c = network.config
    dk = c.width // c.heads
    H = [np.zeros((len(X), len(X))) for _ in range(c.heads)]
    states, attention = [], []
    for maps in network.maps:
        w = {k: maps[k].weight.detach().numpy() for k in "qkvo"}
        b = {k: maps[k].bias.detach().numpy() for k in "qkvo"}
        Y = X
        if c.norm == "pre":
            Y = np.array([(x - x.mean()) / math.sqrt(x.var() + 1e-5) for x in X])
        out = np.tile(b["o"], (len(X), 1))
        for h in range(c.heads):
            part = slice(h * dk, (h + 1) * dk)
            q, k, v = (Y @ w[name][part].T + b[name][part] for name in "qkv")
            H[h] = c.alpha_hidden * H[h] + (1 - c.alpha_hidden) * q @ k.T
            for i in range(len(X)):
                e = np.exp(H[h][i] / math.sqrt(dk))
                out[i] += w["o"][:, part] @ (e / e.sum() @ v)
        X = c.alpha * X + (1 - c.alpha) * out if c.skip else out
        states.append(X)
        attention.append(out)
    return states, attention


@pytest.mark.parametrize("weights", ["default", "xavier"])
@pytest.mark.parametrize("norm", ["pre", "none"])
@pytest.mark.parametrize("cell", ["no skip, a'=0", "no skip, a'=0.5", "skip, a'=0", "skip, a'=0.5"])
def test_layers_are_what_the_equations_say(weights, norm, cell):
    config = four_variants(AttentionOnly(**SMALL, weights=weights, norm=norm, alpha=0.3))[cell]
    network = AttentionNetwork(config, seed=4)
    X = tokens()
    batch = torch.from_numpy(np.stack([X, 2 * X + 1]))
    with torch.no_grad():
        found = [layer.states for layer in network.layers(batch)]
        assert torch.equal(network(batch), found[-1])
    for one, start in enumerate((X, 2 * X + 1)):
        for state, expected in zip(found, written_out(network, start)[0], strict=True):
            np.testing.assert_allclose(state[one], expected, rtol=1e-10, atol=1e-12)
    assert found[0].dtype == torch.float64


@pytest.mark.parametrize("cell", ["no skip, a'=0", "no skip, a'=0.5", "skip, a'=0.5"])
def test_bounds_are_of_what_attention_gives(cell):
    config = four_variants(AttentionOnly(**SMALL, norm="none"))[cell]
    network = AttentionNetwork(config, seed=1)
    X = 0.3 * tokens()
    found = bounds_of(network, torch.from_numpy(X))
    for bounds, out in zip(found, written_out(network, X)[1], strict=True):
        assert bounds.measured == pytest.approx(norm_1inf(residual(out)), rel=1e-8, abs=1e-14)
        assert bounds.keeps(bounds.anywhere) and bounds.keeps(bounds.printed)
        assert not bounds.condition or bounds.keeps(bounds.repaired)
    assert any(bounds.condition for bounds in found)


def test_the_printed_bound_counts_the_hidden_state_from_the_second_layer_on():
    config = AttentionOnly(**SMALL, norm="none", alpha_hidden=0.5)
    network, X = AttentionNetwork(config, seed=1), 0.3 * tokens()
    found = bounds_of(network, torch.from_numpy(X))
    first, second = (layer.inputs[0].detach().numpy() for layer in list(network.layers(torch.from_numpy(X)[None]))[:2])
    maps = {name: network.maps[1][name].weight.detach().numpy() for name in "qkvo"}
    C1, C2 = [], []
    for h in range(3):
        part = slice(4 * h, 4 * h + 4)
        w = norm_1inf(maps["v"][part].T @ maps["o"][:, part].T)
        before = {n: network.maps[0][n] for n in "qk"}
        q, k = (first @ m.weight.detach().numpy()[part].T + m.bias.detach().numpy()[part] for m in before.values())
        C1.append(w * np.abs(maps["q"][part].T @ maps["k"][part]).sum(axis=0).max())
        C2.append(w * np.abs(0.5 * q @ k.T).sum(axis=0).max())
    r = norm_1inf(residual(second))
    assert found[1].printed == pytest.approx(4 * 3 * 0.5 * (max(C1) * r**3 + max(C2) * r) / 2, rel=1e-9)


@pytest.mark.parametrize("hidden", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(5))
def test_bounds_along_depth_are_kept_and_are_those_of_the_theorem(hidden, seed):
    config = AttentionOnly(**SMALL, weights="xavier", norm="none", alpha_hidden=hidden)
    network, X = AttentionNetwork(config, seed), 2 * tokens(seed=seed)
    found = dict(zip(ALONG, along_depth(network, torch.from_numpy(X)).T, strict=True))
    for n, state in enumerate(written_out(network, X)[0]):
        assert found["measured"][n] == pytest.approx(math.log10(norm_1inf(residual(state))), abs=1e-4)
    assert (found["measured"] > found["floor"]).all()
    for bound in ("repaired", "corrected"):
        assert (found["measured"] <= found[bound]).all()
    dk, c1 = config.dim, 0.0
    for maps in network.maps:
        q, k, v, o = (maps[name].weight.detach().numpy() for name in "qkvo")
        for part in (slice(h * dk, (h + 1) * dk) for h in range(config.heads)):
            c1 = max(c1, norm_1inf(v[part].T @ o[:, part].T) * norm_1(q[part].T @ k[part]))
    if hidden == 0:
        a, first = 8 * config.heads * c1 / math.sqrt(dk), norm_1inf(residual(X))
        assert found["printed"][-1] == pytest.approx(d3_decades(a, 0.0, first, 3, printed=True))
        assert found["corrected"][-1] == pytest.approx(d3_decades(a, 0.0, first, 3))
    else:
        plain = AttentionNetwork(AttentionOnly(**SMALL, weights="xavier", norm="none"), seed)
        assert found["corrected"][0] < along_depth(plain, torch.from_numpy(X))[0, ALONG.index("corrected")]  # H_0 is 0
    with pytest.raises(hs.InputError, match="neither a skip nor a norm"):
        along_depth(AttentionNetwork(AttentionOnly(**SMALL)), torch.from_numpy(X))


def test_weights_are_drawn_as_they_are_said_to_be():
    bound = 1 / math.sqrt(192)
    default = AttentionNetwork(AttentionOnly(depth=1), seed=0).maps[0]["q"]
    assert 0.95 * bound < default.weight.abs().max() <= bound and 0.9 * bound < default.bias.abs().max() <= bound
    xavier = AttentionNetwork(AttentionOnly(depth=1, weights="xavier"), seed=0).maps[0]["q"]
    assert 0.95 < xavier.weight.abs().max() / math.sqrt(6 / 384) <= 1 and not xavier.bias.any()


def test_cells_share_their_weights_and_the_seed_settles_them():
    networks = [AttentionNetwork(config, seed=3) for config in four_variants(AttentionOnly(**SMALL)).values()]
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    other = AttentionNetwork(AttentionOnly(**SMALL), seed=3)
    assert torch.equal(before, torch.random.get_rng_state())  # nobody else's random numbers are used up
    for network in (*networks, other):
        for a, b in zip(network.parameters(), networks[0].parameters(), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(AttentionNetwork(AttentionOnly(**SMALL), 4).maps[0]["q"].weight, other.maps[0]["q"].weight)


def test_patch_tokens_are_patches():
    images = np.random.default_rng(0).integers(0, 255, size=(2, 28, 28))
    found = patch_tokens(images, seed=1, width=8, size=28, patch=7)
    assert found.shape == (2, 17, 8) and found.dtype == torch.float64
    brighter = patch_tokens(images * 3.0 + 5, seed=1, width=8, size=28, patch=7)
    assert torch.allclose(found, brighter, atol=1e-12)  # standardised
    same = patch_tokens(np.stack([images[0], images[0]]), seed=1, width=8, size=28, patch=7)
    assert torch.equal(same[0], same[1])
    assert torch.equal(found[0, 0], found[1, 0]) and not torch.equal(found[0, 1], found[1, 1])  # the class token


# ---------------------------------------------------------------------- table 1


def by_depth(config, n_seed, n_image):
    """Mean over images of the metric (n_seed, depth)."""
    images, _ = hs.sample_images()
    found = []
    for seed in range(n_seed):
        X = patch_tokens(images[n_image * seed : n_image * (seed + 1)], seed=seed)
        with torch.no_grad():
            layers = AttentionNetwork(config, seed=seed).layers(X)
            found.append([relative_residual(layer.states.numpy()).mean() for layer in layers])
    return np.array(found)


def test_table_1_is_reproduced_to_the_order_of_magnitude():
    found = by_depth(AttentionOnly(depth=3), n_seed=10, n_image=6)
    ours = found.mean(axis=0)
    for depth, (nearest, printed) in enumerate([(0.54, 0.489), (0.05, 0.0773), (5e-4, 8.1e-4)]):
        assert 0.1 < ours[depth] / nearest < 10 and 0.1 < ours[depth] / printed < 10
        assert found[:, depth].min() < printed < found[:, depth].max()
    assert ours[0] > 3 * ours[1] and ours[1] > 10 * ours[2]  # ever faster


def test_the_skip_does_the_work_and_the_hidden_state_slows_collapse_alone():
    cells = four_variants(AttentionOnly(depth=6, weights="xavier", norm="none"))
    end = {name: by_depth(config, 2, 1)[:, -1].mean() for name, config in cells.items()}
    assert min(end["skip, a'=0"], end["skip, a'=0.5"]) > 0.1
    assert 0.8 < end["skip, a'=0.5"] / end["skip, a'=0"] < 1.25
    assert end["no skip, a'=0"] < 1e-12 < 1e3 * end["no skip, a'=0"] < end["no skip, a'=0.5"] < 1e-6


def test_bad_configurations_are_refused():
    for wrong, message in [
        ({"depth": 0}, "do not make a network"),
        ({"heads": 5}, "heads divide the width"),
        ({"alpha": 1.0}, "alpha must be at least 0 and below 1, not 1.0"),
        ({"alpha_hidden": -0.1}, "alpha_hidden must be at least 0"),
        ({"weights": "orthogonal"}, "weights must be one of default, xavier"),
        ({"norm": "post"}, "norm must be one of pre, none"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            AttentionOnly(**wrong)
    with pytest.raises(hs.InputError, match=r"takes \(batch, token, 12\), not \(5, 12\)"):
        AttentionNetwork(AttentionOnly(**SMALL))(torch.ones(5, 12, dtype=torch.float64))
    with pytest.raises(hs.InputError, match="patches of 16 fill 50"):
        patch_tokens(np.ones((1, 28, 28)), size=50)
