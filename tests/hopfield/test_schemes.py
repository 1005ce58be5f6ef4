"""The discretizations of section F as torch layers, against the plain functions of numpy, and with a cache."""

import numpy as np
import pytest
import torch

from headscape.errors import HeadscapeError, InputError
from headscape.hopfield.dynamics import Field, State, central_step, step
from headscape.hopfield.layer import HopfieldAttention, KeyValues
from headscape.hopfield.networks import ARMS, Attention, NetworkConfig, Transformer, arm

IMPLICIT = ("backward-forward", "backward-backward")


def one_head(scheme, alpha, alpha_hidden):
    torch.manual_seed(0)
    options = {"alpha": alpha, "alpha_hidden": alpha_hidden, "scheme": scheme, "bias": False}
    layer = HopfieldAttention(6, 1, **options).double()
    q, k, v, o = (p.weight.detach().numpy().T for p in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj))
    return layer, Field.of(q, k, v @ o), np.random.default_rng(0).normal(size=(5, 6))


@pytest.mark.parametrize("scheme", ["forward-backward", "forward-forward", *IMPLICIT])
def test_layers_are_the_steps_of_their_discretization(scheme, monkeypatch):
    monkeypatch.setattr("headscape.hopfield.layer.TOLERANCE", 1e-12)
    rho, rho_hidden = 0.4, 0.5
    visible, hidden = scheme.split("-")
    alpha = 1 - rho if visible == "forward" else 1 / (1 + rho)
    alpha_hidden = 1 - rho_hidden if hidden == "forward" else 1 / (1 + rho_hidden)
    layer, field, x = one_head(scheme, alpha, alpha_hidden)
    start = (1 - alpha_hidden) * field.scores(x) if scheme == "forward-backward" else np.zeros((5, 5))
    expected, tokens, state = State(x, start), torch.from_numpy(x)[None], None
    for _ in range(4):
        tokens, state = layer(tokens, state)
        expected = step(expected, field, rho, rho_hidden, visible, hidden)
        np.testing.assert_allclose(tokens[0].detach().numpy(), expected.x, atol=1e-9)
    assert state.depth == 4


def test_central_differences_step_by_step():
    layer, field, x = one_head("central", 0.6, 0.5)
    before = State(x, np.zeros((5, 5)))
    now = step(before, field, 0.4, 0.5, "forward", "forward")
    tokens, state = layer(torch.from_numpy(x)[None])
    np.testing.assert_allclose(tokens[0].detach().numpy(), now.x, atol=1e-12)
    for _ in range(3):
        tokens, state = layer(tokens, state)
        before, now = now, central_step(before, now, field, 0.4, 0.5)
        np.testing.assert_allclose(tokens[0].detach().numpy(), now.x, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["delayed", "implicit", "implicit-delayed", "central", "realformer", "learned", "both"]
)
def test_every_scheme_can_be_trained(name):
    torch.manual_seed(0)
    network = Transformer(NetworkConfig("gpt", 3, 2, 16, outputs=20, tokens=8), arm(name, alpha_hidden=0.3))
    ids = torch.randint(0, 20, (4, 9))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(12):
        loss = torch.nn.functional.cross_entropy(network(ids[:, :-1]).logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    late = ("q_proj", "k_proj") if name in ("delayed", "central") else ()  # nobody waits for the last layer's scores
    without = {n for n, p in network.named_parameters() if p.grad is None}
    assert without == {f"blocks.2.attention.{side}.{part}" for side in late for part in ("weight", "bias")}


@pytest.mark.parametrize("scheme", IMPLICIT)
def test_gradients_flow_through_the_iteration(scheme, monkeypatch):
    monkeypatch.setattr("headscape.hopfield.layer.TOLERANCE", 1e-13)
    layer, _, x = one_head(scheme, 0.7, 0.5)
    tokens = torch.from_numpy(x)[None].requires_grad_()
    assert torch.autograd.gradcheck(lambda t: layer(*layer(t))[0], (tokens,), atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", ["forward-forward", "backward-forward", "backward-backward", "central", "sum"])
def test_every_scheme_works_under_autocast(scheme, dtype):
    torch.manual_seed(0)
    layers = [HopfieldAttention(16, 2, scheme=scheme) for _ in range(3)]

    def through(x):
        state = None
        for layer in layers:
            x, state = layer(x, state, causal=True)
        return x

    x = torch.randn(2, 7, 16)
    exact = through(x)
    with torch.autocast("cpu", dtype):
        rounded = through(x)
    rounded.float().pow(2).mean().backward()
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.05)
    grads = [p.grad for layer in layers for p in layer.parameters() if p.grad is not None]  # late scores may be unused
    assert len(grads) > 16 and all(torch.isfinite(grad).all() for grad in grads)


def test_a_step_that_is_too_large_is_an_error():
    layer, _, x = one_head("backward-backward", 0.0, 0.5)
    layer.v_proj.weight.data.mul_(50)
    with pytest.raises(HeadscapeError, match="take a larger alpha"):
        layer(torch.from_numpy(x)[None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "central", "skip": "residual"}, "take skip='scaled'"),
        ({"scheme": "forward-forward", "init": "debias"}, "does not apply to the scheme"),
        ({"scheme": "backward-forward", "dropout": 0.1}, "take dropout=0"),
        ({"scheme": "sideways"}, "scheme must be one of forward-backward"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(InputError, match=message):
        HopfieldAttention(8, 2, **options)


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("name", ["standard", "hidden", "both", "realformer", "learned", "delayed", "central"])
def test_a_cache_changes_no_token(name, modern):
    torch.manual_seed(0)
    config = NetworkConfig("gpt", 3, 4, 16, outputs=30, tokens=14, modern=modern, kv_heads=2)
    network = Transformer(config, arm(name)).eval()
    for p in network.parameters():
        if p.dim() > 1:
            p.data.mul_(8)
    ids = torch.randint(0, 30, (2, 5))
    cache, whole, given = [KeyValues() for _ in range(3)], ids, ids
    with torch.no_grad():
        for _ in range(8):
            with_cache = network(given, cache=cache).logits[:, -1]
            torch.testing.assert_close(with_cache, network(whole).logits[:, -1], atol=1e-4, rtol=1e-4)
            given = with_cache.argmax(-1, keepdim=True)
            whole = torch.cat([whole, given], dim=1)
    assert len(cache[0]) == 12


def test_a_cache_is_refused_where_it_cannot_work():
    layer = HopfieldAttention(8, 2, scheme="backward-forward")
    with pytest.raises(InputError, match="nor with an implicit scheme"):
        layer(torch.randn(1, 3, 8), cache=KeyValues())
    assert Attention(**vars(arm("implicit"))) == arm("implicit") and set(ARMS) >= {"delayed", "implicit", "central"}
