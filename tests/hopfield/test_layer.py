"""The layer against its equations written out, and against torch where it has no memory.

Also tests hopfield.state.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.hopfield.layer import HopfieldAttention
from headscape.hopfield.state import HiddenState, carry


def slow_softmax(row, allowed):
    top = max(s for s, ok in zip(row, allowed, strict=True) if ok)
    e = [math.exp(s - top) if ok else 0.0 for s, ok in zip(row, allowed, strict=True)]
    return [v / sum(e) for v in e]


def slow_network(layers, x, allowed):
    """The equations, entry by entry: one sequence x (token, dim), allowed[i][j]; H is kept for every layer and head."""
    n, dim = x.shape
    hidden = []
    for depth, layer in enumerate(layers, start=1):
        dk, group = layer.head_dim, layer.n_heads // layer.n_kv_heads
        q, k, v = (p(x) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
        a = layer.alpha_hidden
        now = torch.zeros(layer.n_heads, n, n, dtype=x.dtype)
        heads = torch.zeros(n, dim, dtype=x.dtype)
        for h in range(layer.n_heads):
            own, shared = slice(h * dk, (h + 1) * dk), slice(h // group * dk, (h // group + 1) * dk)
            for i in range(n):
                for j in range(n):
                    score = float(q[i, own] @ k[j, shared]) / math.sqrt(dk)
                    before = float(hidden[-1][h, i, j]) if hidden else 0.0
                    now[h, i, j] = a * before + (1 - a) * score
                    if not hidden and layer.init == "first":
                        now[h, i, j] = score
                scale = 1 - a**depth if layer.init == "debias" else 1.0
                probs = slow_softmax([float(s) / scale for s in now[h, i]], allowed[i])
                heads[i, own] = sum(p * v[j, shared] for j, p in enumerate(probs))
        hidden.append(now)
        out = layer.out_proj(heads)
        x = layer.alpha * x + (1 - layer.alpha) * out if layer.skip == "scaled" else x + out
    return x, hidden[-1]


def stack(n_layers=3, **options):
    torch.manual_seed(0)
    layers = [HopfieldAttention(8, 4, **options).double().eval() for _ in range(n_layers)]
    for layer in layers:
        for p in layer.parameters():
            p.data.mul_(2.5)
    return layers


def through(layers, x, **options):
    state = None
    for layer in layers:
        x, state = layer(x, state, **options)
    return x, state


@pytest.mark.parametrize("init", ["zero", "first", "debias"])
@pytest.mark.parametrize("skip", ["scaled", "residual"])
@pytest.mark.parametrize("masked", ["none", "causal", "padding", "both"])
def test_the_layer_is_the_equations_written_out(init, skip, masked):
    layers = stack(init=init, skip=skip, alpha=0.3, alpha_hidden=0.6, n_kv_heads=2)
    n = 5
    x = torch.randn(2, n, 8, dtype=torch.float64)
    kept = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool() if masked in ("padding", "both") else None
    causal = masked in ("causal", "both")
    mask = None if kept is None else kept[:, None, None, :]
    with torch.no_grad():
        ours, state = through(layers, x, mask=mask, causal=causal)
        for b in range(2):
            present = [True] * n if kept is None else kept[b].tolist()
            allowed = [[present[j] and (j <= i or not causal) for j in range(n)] for i in range(n)]
            expected, hidden = slow_network(layers, x[b], allowed)
            torch.testing.assert_close(ours[b], expected, atol=1e-12, rtol=1e-10)
            torch.testing.assert_close(state.scores[b], hidden, atol=1e-12, rtol=1e-10)  # masks are not in it
    assert state.depth == 3


@given(st.integers(1, 3), st.integers(2, 6), st.floats(0, 0.95), st.floats(0, 0.95), st.booleans())
@settings(max_examples=25, deadline=None)
def test_random_settings_agree_with_the_slow_twin(n_layers, n, alpha, alpha_hidden, causal):
    layers = stack(n_layers, alpha=alpha, alpha_hidden=alpha_hidden)
    x = torch.randn(1, n, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    with torch.no_grad():
        ours, _ = through(layers, x, causal=causal)
        expected, _ = slow_network(layers, x[0], [[j <= i or not causal for j in range(n)] for i in range(n)])
    torch.testing.assert_close(ours[0], expected, atol=1e-11, rtol=1e-9)


def test_without_memory_it_is_torchs_attention():
    ours = HopfieldAttention(8, 4, alpha=0.0, alpha_hidden=0.0).eval()
    theirs = torch.nn.MultiheadAttention(8, 4, batch_first=True).eval()
    with torch.no_grad():
        projections = (ours.q_proj, ours.k_proj, ours.v_proj)
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    x = torch.randn(2, 6, 8)
    out, state = ours(x)
    torch.testing.assert_close(out, theirs(x, x, x)[0])
    assert state is None


@pytest.mark.parametrize("init", ["zero", "first", "debias"])
def test_gradients_agree_with_finite_differences(init):
    layers = stack(2, init=init, alpha_hidden=0.6, alpha=0.4)

    def f(x, *weights):
        names = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight")
        state = None
        for layer in layers:
            given = dict(zip(names, weights, strict=True))
            x, state = torch.func.functional_call(layer, given, (x, state), {"causal": True})
        return x, state.scores

    x = torch.randn(1, 4, 8, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(8, 8, dtype=torch.float64).div(2).requires_grad_() for _ in range(4)]
    assert torch.autograd.gradcheck(f, (x, *weights), atol=1e-6)


@pytest.mark.parametrize("skip", ["scaled", "residual"])
def test_autocast_to_bfloat16_rounds_and_nothing_else(skip):
    torch.manual_seed(0)
    layers = [HopfieldAttention(8, 4, skip=skip, alpha_hidden=0.6) for _ in range(3)]
    x = torch.randn(2, 5, 8)
    exact, _ = through(layers, x, causal=True)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, state = through(layers, x, causal=True)
        rounded.sum().backward()
    assert rounded.dtype == torch.float32  # the stream, as in x + attention(x)
    assert state.scores.dtype == torch.bfloat16
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.05)
    assert all(torch.isfinite(p.grad).all() for layer in layers for p in layer.parameters())


def test_the_first_scores_by_each_start():
    scores = torch.randn(1, 2, 3, 3)
    entering, state = carry(None, scores, 0.75, "zero")
    torch.testing.assert_close(entering, 0.25 * scores)
    assert torch.equal(carry(None, scores, 0.75, "first")[0], scores)
    torch.testing.assert_close(carry(None, scores, 0.75, "debias")[0], scores)
    assert carry(None, scores, 0.0) == (scores, None)
    same = state
    for _ in range(60):  # equal scores in every layer: the average tends to them, debiased it is them
        entering, same = carry(same, scores, 0.75, "debias")
        torch.testing.assert_close(entering, scores)
    torch.testing.assert_close(same.scores, scores, atol=1e-4, rtol=1e-4)


def test_memory_is_looked_at_and_does_not_look():
    layer = stack(1)[0]
    memory, x = torch.randn(2, 3, 8).double(), torch.randn(2, 4, 8).double()
    with torch.no_grad():
        out, state = layer(x, memory=memory, causal=True)
        whole, _ = layer(torch.cat([memory, x], dim=1), causal=True)
    assert state.scores.shape == (2, 4, 4, 7)
    torch.testing.assert_close(out, whole[:, 3:])


def test_a_row_with_nothing_to_look_at_stays_finite():
    layer = HopfieldAttention(8, 2)
    mask = torch.zeros(1, 1, 3, 3, dtype=torch.bool)
    out, _ = layer(torch.randn(1, 3, 8), mask=mask)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, "alpha must be at least 0 and below 1, not 1.0"),
        ({"alpha": -0.1}, "alpha must be at least 0"),
        ({"alpha_hidden": 1.5}, "alpha_hidden must be at least 0"),
        ({"alpha_hidden": float("nan")}, "alpha_hidden must be at least 0"),
        ({"init": "one"}, "init must be one of zero, first, debias"),
        ({"skip": "no"}, "skip must be one of scaled, residual"),
        ({"n_kv_heads": 3}, "key heads do not divide"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(InputError, match=message):
        HopfieldAttention(8, 4, **options)


def test_wrong_inputs():
    layer = HopfieldAttention(8, 4)
    with pytest.raises(InputError, match="tokens must be"):
        layer(torch.randn(2, 3, 9))
    with pytest.raises(InputError, match="layer 2 has scores of shape"):
        layer(torch.randn(2, 3, 8), HiddenState(torch.zeros(2, 2, 3, 3), 1))


def test_scores_add_up_without_decay():
    scores = [torch.randn(1, 2, 3, 3) for _ in range(3)]
    state = None
    for n, s in enumerate(scores):
        entering, state = carry(state, s, 0.0, scheme="sum")
        torch.testing.assert_close(entering, sum(scores[: n + 1]))
    assert state.depth == 3


@pytest.mark.parametrize("init", ["zero", "first", "debias"])
def test_a_learned_share_of_each_head_is_that_number_for_the_head(init):
    shares, scores = torch.tensor([0.2, 0.7]), [torch.randn(1, 2, 3, 3) for _ in range(3)]
    state, single = None, [None, None]
    for s in scores:
        entering, state = carry(state, s, shares[:, None, None], init)
        for h in range(2):
            expected, single[h] = carry(single[h], s[:, h : h + 1], float(shares[h]), init)
            torch.testing.assert_close(entering[:, h : h + 1], expected)


@pytest.mark.parametrize("skip", ["scaled", "residual"])
def test_learned_alphas_start_where_they_are_told_and_get_gradients(skip):
    torch.manual_seed(0)
    fixed = HopfieldAttention(8, 2, alpha=0.3, alpha_hidden=0.2, skip=skip)
    learned = HopfieldAttention(8, 2, alpha=0.3, alpha_hidden=0.2, skip=skip, learned=True)
    learned.load_state_dict(fixed.state_dict(), strict=False)
    x = torch.randn(2, 5, 8)
    fixed.out_proj.bias.data.zero_()
    learned.out_proj.bias.data.zero_()
    expected, state = fixed(*fixed(x))
    found, _ = learned(*learned(x))
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    names = ["hidden_logit", "skip_logit"] if skip == "scaled" else ["hidden_logit"]
    assert [n for n, p in learned.named_parameters() if n.endswith("logit") and p.grad.abs().min() > 0] == names
    with pytest.raises(InputError, match="a learned value must start above 0"):
        HopfieldAttention(8, 2, alpha_hidden=0.0, learned=True)
