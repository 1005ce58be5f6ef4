"""A converted network is its layers written out, and the network itself afterwards."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import headscape as hs
from headscape.attention.capture import main_output
from headscape.attention.sites import example_input, run
from headscape.attention.tapping import attention_implementation, tapped
from headscape.attention.taps import Tap
from headscape.hopfield.convert import RECORD, to_hopfield
from reference_hopfield import attention, heads, reference
from zoo import PARALLEL, ZOO, make

FOUR = ["gpt2", "llama", "bert", "vit"]


def output(model, batch):
    with torch.no_grad():
        return main_output(run(model, batch))


def batch_of(name, padded):
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return {"pixel_values": torch.randn(2, 1, 28, 28, generator=generator, dtype=torch.float64)}
    ids = torch.randint(3, 100, (2, 6), generator=generator)
    if not padded:
        return {"input_ids": ids}
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("init", ["zero", "first", "debias"])
@pytest.mark.parametrize("skip", ["scaled", "residual"])
@pytest.mark.parametrize("name", FOUR)
def test_the_converted_network_is_its_layers_written_out(name, skip, init):
    network = make(name).double()
    batch = batch_of(name, padded=True)
    with torch.no_grad():
        expected = reference(name, network, batch, 0.3, 0.6, init, skip)
        own = main_output(network(**batch))
        with to_hopfield(network, 0.3, 0.6, init, skip):
            ours = main_output(network(**batch))
        seen = batch["attention_mask"].bool() if "attention_mask" in batch else slice(None)
    torch.testing.assert_close(ours[seen], expected[seen], atol=1e-9, rtol=1e-7)
    assert (ours - own)[seen].abs().max() > 1e-3
    assert torch.equal(main_output(network(**batch)), own)


NEXT_TO_NOTHING = 1e-12  # an a' that takes the way of the hidden state and changes no score


@pytest.mark.parametrize("name", ZOO)
def test_without_hidden_state_and_with_residual_nothing_changes(name):
    model = hs.wrap_module(make(name))
    batch = example_input(model)
    own = output(model, batch)
    with to_hopfield(model, 0.5, 0.0, skip="residual") as same:
        assert same is model
        ours = output(model, batch)
    assert (ours - own).abs().max() <= 1e-6
    assert torch.equal(output(model, batch), own)


@pytest.mark.parametrize("name", [n for n in ZOO if n != "falcon-alibi"])  # its fused path has other logits of its own
def test_carrying_next_to_nothing_changes_nothing(name):
    """a' = 0 is left to the network's own attention; here every layer takes the way of the hidden state."""
    model = hs.wrap_module(make(name))
    batch = example_input(model)
    own = output(model, batch)
    with to_hopfield(model, 0.5, NEXT_TO_NOTHING, "first", "residual"):
        ours = output(model, batch)
    assert (ours - own).abs().max() <= 1e-6 * max(1.0, float(own.abs().max()))


@pytest.mark.models
def test_smollm2_is_unchanged_without_hidden_state(load):
    model = load("smollm2-135m")
    batch = example_input(model, 32)
    own = output(model, batch)
    with to_hopfield(model, 0.5, 0.0, skip="residual"):
        assert (output(model, batch) - own).abs().max() <= 1e-6
    with attention_implementation(model.module, "eager"):
        eager = output(model, batch)
    with to_hopfield(model, 0.5, NEXT_TO_NOTHING, "first", "residual"):
        ours = output(model, batch)
    assert (ours - eager).abs().max() <= 1e-6
    assert (ours - own).abs().max() <= 1e-5 * float(own.abs().max())  # fused attention rounds otherwise
    with to_hopfield(model, 0.5, 0.5, skip="residual"):
        assert (output(model, batch) - own).abs().max() > 0.1
    assert torch.equal(output(model, batch), own)


@pytest.mark.parametrize("name", [n for n in ZOO if n not in ("bert", "mpnet", "deberta", "bart", *PARALLEL)])
def test_a_scaled_skip_changes_a_network_and_is_undone(name):
    model = hs.wrap_module(make(name))
    batch = example_input(model)
    own = output(model, batch)
    with to_hopfield(model, 0.5, 0.0):
        assert (output(model, batch) - own).abs().max() > 1e-2
    assert torch.equal(output(model, batch), own)


@pytest.mark.parametrize("name", ["bert", "mpnet", "deberta", "bart"])
def test_half_a_skip_is_a_whole_one_where_a_norm_follows(name):
    # LayerNorm(x/2 + f/2) = LayerNorm(x + f): in post-norm networks a = 1/2 is the usual skip
    model = hs.wrap_module(make(name))
    batch = example_input(model)
    own = output(model, batch)
    with to_hopfield(model, 0.5, 0.0):
        assert (output(model, batch) - own).abs().max() < 1e-4
    with to_hopfield(model, 0.2, 0.0):
        assert (output(model, batch) - own).abs().max() > 1e-2


@pytest.mark.parametrize("name", PARALLEL)
def test_a_skip_shared_with_an_mlp_is_not_scaled(name):
    model = hs.wrap_module(make(name))
    batch = example_input(model)
    own = output(model, batch)
    with pytest.raises(hs.InputError, match="share one skip"), to_hopfield(model):
        pass
    with to_hopfield(model, skip="residual"):
        assert (output(model, batch) - own).abs().max() > 1e-2
    assert torch.equal(output(model, batch), own)


def hooks(network):
    return [
        (len(m._forward_hooks), len(m._forward_pre_hooks), m.training, "forward" in vars(m)) for m in network.modules()
    ]


@pytest.mark.parametrize("name", ["gpt2", "bloom", "t5"])
def test_everything_is_put_back(name):
    network = make(name).train()
    before, kept = hooks(network), {k: v.clone() for k, v in network.state_dict().items()}
    implementation = network.config._attn_implementation

    def fail():
        with to_hopfield(network):
            assert network.training and len(list(network.parameters())) == len(list(make(name).parameters()))
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert hooks(network) == before and network.config._attn_implementation == implementation
    assert all(torch.equal(v, kept[k]) for k, v in network.state_dict().items())


@pytest.mark.parametrize("skip", ["scaled", "residual"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_gradients_agree_with_finite_differences(name, skip):
    network = make(name).double()
    if name == "llama":  # its own norm rounds to float32, too coarse for differences
        for layer in network.model.layers:
            layer.input_layernorm, layer.post_attention_layernorm = (nn.RMSNorm(32, dtype=torch.float64) for _ in "ab")
        network.model.norm = nn.RMSNorm(32, dtype=torch.float64)
    batch = batch_of(name, padded=True)
    weight = network.get_submodule(
        {
            "gpt2": "transformer.h.0.attn.c_attn",
            "llama": "model.layers.0.self_attn.q_proj",
            "bert": "bert.encoder.layer.0.attention.self.key",
        }[name]
    ).weight

    def objective():
        return main_output(network(**batch)).pow(2).mean()

    with to_hopfield(network, 0.3, 0.7, skip=skip):
        objective().backward()
        step = 1e-5
        for i, j in [(0, 0), (3, 7), (20, 5)]:
            with torch.no_grad():
                values = []
                for sign in (1, -1):
                    weight[i, j] += sign * step
                    values.append(objective().item())
                    weight[i, j] -= sign * step
            assert weight.grad[i, j].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("skip", ["scaled", "residual"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_autocast_works(name, skip, dtype):
    network = make(name)
    batch = batch_of(name, padded=False)
    with to_hopfield(network, 0.3, 0.6, skip=skip):
        exact = main_output(network(**batch))
        with torch.autocast("cpu", dtype):
            rounded = main_output(network(**batch))
            rounded.float().pow(2).mean().backward()
    assert (rounded - exact).abs().max() < 0.1 * exact.abs().max()
    assert all(torch.isfinite(p.grad).all() for p in network.parameters() if p.grad is not None)


def test_training_with_dropout_learns():
    torch.manual_seed(0)
    network = make("gpt2").train()
    ids = torch.randint(3, 100, (4, 12))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    losses = []
    with to_hopfield(network, 0.5, 0.5):
        for _ in range(30):
            loss = network(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad is not None for p in network.parameters())


def test_a_share_by_layer_is_a_schedule_or_is_learned():
    network = make("gpt2").double()
    ids = torch.randint(3, 100, (1, 6))
    logits = torch.zeros(2, 4, 1, 1, dtype=torch.float64, requires_grad=True)
    with to_hopfield(network, alpha_hidden=0.5, skip="residual"):
        expected = network(ids).logits
    with to_hopfield(network, alpha_hidden=lambda layer: torch.sigmoid(logits[layer]), skip="residual"):
        found = network(ids).logits
    torch.testing.assert_close(found, expected)
    found.pow(2).mean().backward()
    assert (logits.grad.abs().amin(dim=(1, 2, 3)) > 0).all()


def test_a_layer_without_a_share_hands_on_its_own_scores():
    network = make("llama").double()
    ids = torch.randint(3, 100, (1, 6))
    found = {}
    for init in ("zero", "first", "debias"):
        with to_hopfield(network, alpha_hidden=[0.0, 0.5], init=init, skip="residual"):
            found[init] = network(ids).logits
    with to_hopfield(network, alpha_hidden=0.5, init="first", skip="residual"):  # H_1 = S_1, as with a' = 0 there
        expected = network(ids).logits
    for logits in found.values():
        torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("given", [[[0.1, 0.2], [0.3, 0.4]], [0.5], [], [0.5, [0.1] * 3]])
def test_a_list_of_shares_has_one_for_each_layer_or_head(given):
    message = "a number, or one per head"
    with pytest.raises(hs.InputError, match=message), to_hopfield(make("llama"), alpha_hidden=given, skip="residual"):
        pass


def test_learned_shares_are_saved_as_a_list_and_a_function_says_that_it_is_not(tmp_path):
    network, ids = make("llama"), torch.randint(3, 100, (1, 9))
    learned = torch.linspace(0.1, 0.8, 8).view(2, 4)
    with torch.no_grad():
        with to_hopfield(network, alpha_hidden=lambda layer: learned[layer][:, None, None], skip="residual"):
            expected = network(ids).logits
            network.save_pretrained(tmp_path / "function")
        with to_hopfield(network, alpha_hidden=learned.tolist(), skip="residual"):
            torch.testing.assert_close(network(ids).logits, expected)
            network.save_pretrained(tmp_path / "list")
        model = hs.load_model(tmp_path / "list", device="cpu")
        torch.testing.assert_close(model.module(ids).logits, expected, atol=1e-5, rtol=1e-5)
        model.module.headscape_conversion.close()
    with pytest.raises(hs.InputError, match="function of the layer, which no file holds"):
        hs.load_model(tmp_path / "function", device="cpu")


def test_gradient_checkpointing_gives_the_same_gradients():
    grads = {}
    for checkpointed in (False, True):
        network = make("llama").train()
        if checkpointed:
            network.gradient_checkpointing_enable({"use_reentrant": False})
        ids = torch.randint(3, 100, (2, 7), generator=torch.Generator().manual_seed(0))
        with to_hopfield(network, alpha_hidden=0.6, skip="residual"):
            network(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        grads[checkpointed] = {name: p.grad for name, p in network.named_parameters()}
    assert all(torch.allclose(grads[True][name], grad, atol=1e-7) for name, grad in grads[False].items())
    with pytest.raises(hs.InputError, match="scaled skip does not work with gradient"), to_hopfield(network):
        pass
    network.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(hs.InputError, match="use_reentrant"), to_hopfield(network, skip="residual"):
        pass


@pytest.mark.parametrize("skip", ["scaled", "residual"])
def test_a_conversion_is_saved_with_the_model_and_restored(tmp_path, skip):
    network = make("llama")
    ids = torch.randint(3, 100, (1, 9))
    with torch.no_grad():
        own = network(ids).logits
        with to_hopfield(network, 0.3, 0.6, "debias", skip):
            converted = network(ids).logits
            network.save_pretrained(tmp_path)
        assert not hasattr(network.config, RECORD) and torch.equal(network(ids).logits, own)
        model = hs.load_model(tmp_path, device="cpu")
        try:
            torch.testing.assert_close(model.module(ids).logits, converted, atol=1e-5, rtol=1e-5)
            assert getattr(model.config, RECORD)["alpha_hidden"] == 0.6 and "Hopfield" in model.notes[-1]
            with pytest.raises(hs.InputError, match="already converted"), to_hopfield(model):
                pass
        finally:
            model.module.headscape_conversion.close()
        torch.testing.assert_close(model.module(ids).logits, own, atol=1e-5, rtol=1e-5)


class Encoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0, **options)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x)


@pytest.mark.parametrize("norm_first", [True, False])
def test_networks_of_torch_layers(norm_first):
    torch.manual_seed(0)
    network = Encoder(norm_first=norm_first).double().eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    model = hs.wrap_module(network, example=x)

    def by_hand(alpha, a):
        y, hidden = x, None
        for depth, layer in enumerate(network.encoder.layers, start=1):
            s = layer.self_attn
            z = layer.norm1(y) if norm_first else y
            q, k, v = (heads(t, 4) for t in F.linear(z, s.in_proj_weight, s.in_proj_bias).chunk(3, -1))
            out, hidden = attention(q, k, v, hidden, a, torch.ones(2, 5, 5).bool(), depth, "zero")
            y = alpha * y + (1 - alpha) * s.out_proj(out.transpose(1, 2).flatten(2))
            y = y if norm_first else layer.norm1(y)
            z = layer.linear2(F.relu(layer.linear1(layer.norm2(y) if norm_first else y)))
            y = y + z if norm_first else layer.norm2(y + z)
        return y

    with torch.no_grad(), to_hopfield(model, 0.2, 0.7):
        torch.testing.assert_close(network(x), by_hand(0.2, 0.7), atol=1e-10, rtol=1e-8)


def test_capture_sees_the_hidden_state():
    network = make("llama")
    ids = torch.randint(3, 100, (1, 8))

    class Keep(Tap):
        def __init__(self):
            self.kept = []

        def scores(self, call, scores):
            self.kept.append(scores)
            return scores

    own, seen = Keep(), Keep()
    with torch.no_grad():
        with tapped(network, own):
            network(ids)
        with to_hopfield(network, 0.0, 0.5, skip="residual"), tapped(network, seen):
            network(ids)
    torch.testing.assert_close(seen.kept[0], own.kept[0] / 2)  # the first layer sees the same tokens
    assert (seen.kept[1] - own.kept[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, "alpha must be at least 0 and below 1"),
        ({"alpha": -0.5}, "alpha must be at least 0 and below 1"),
        ({"alpha_hidden": 1.0}, "alpha_hidden must be at least 0 and below 1"),
        ({"init": "ones"}, "init must be one of"),
        ({"skip": "dense"}, "skip must be one of"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(hs.InputError, match=message), to_hopfield(make("gpt2"), **options):
        pass


def test_nan_weights_are_refused():
    network = make("gpt2")
    network.transformer.h[1].mlp.c_fc.weight.data[3, 4] = float("nan")
    with pytest.raises(hs.InputError, match=r"h\.1\.mlp\.c_fc\.weight holds NaN"), to_hopfield(network):
        pass


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(16, 4, batch_first=True)
        self.b = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        x = x + self.a(x, x, x)[0]
        return x + self.b(x, x, x)[0]


def test_layers_with_different_heads_are_refused():
    x = torch.randn(1, 5, 16)
    model = hs.wrap_module(Uneven(), example=x)
    with pytest.raises(hs.InputError, match="b has 2 heads and a has 4"), to_hopfield(model):
        pass
    with to_hopfield(model, 0.5, 0.0):  # without a hidden state there is nothing to match
        pass


def test_a_pass_that_failed_leaves_nothing_behind():
    network = make("llama")
    ids = torch.randint(3, 100, (1, 6))
    with torch.no_grad(), to_hopfield(network, 0.3, 0.6):
        own = network(ids).logits
        handle = network.model.layers[1].self_attn.o_proj.register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            network(ids)
        handle.remove()
        assert torch.equal(network(ids).logits, own)


def test_no_skip_no_scaled_skip():
    class Bare(Uneven):
        def forward(self, x):
            return self.a(x, x, x)[0]

    bare = Bare()
    del bare.b
    model = hs.wrap_module(bare, example=torch.randn(1, 5, 16))
    with pytest.raises(hs.InputError, match="no skip connection was found around a"), to_hopfield(model):
        pass


def test_conversions_do_not_nest():
    network = make("gpt2")
    with to_hopfield(network), pytest.raises(hs.InputError, match="already converted"), to_hopfield(network):
        pass


def test_layers_out_of_order_are_an_error():
    network = make("llama")
    with to_hopfield(network, skip="residual"):
        network.model.layers = nn.ModuleList([network.model.layers[1], network.model.layers[0]])
        with pytest.raises(hs.HeadscapeError, match="did not run right after"):
            network(torch.randint(3, 100, (1, 5)))
