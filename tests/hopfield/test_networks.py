import math

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from headscape.errors import InputError
from headscape.hopfield.convert import to_hopfield
from headscape.hopfield.networks import ARMS, Attention, NetworkConfig, RelativeAttention, Transformer, arm
from headscape.hopfield.presets import PRESETS, preset
from headscape.hopfield.state import SCALED_ONLY

TINY = {"layers": 3, "heads": 4, "dim": 32, "outputs": 50, "tokens": 12}


def grown(config, attention=None, seed=0):
    """A network whose weights are large enough that its attention is far from uniform."""
    torch.manual_seed(seed)
    network = Transformer(config, attention).double().eval()
    for name, p in network.named_parameters():
        if p.dim() > 1:
            p.data.mul_(8)
        elif "bias" in name:
            p.data.normal_(std=0.1)
    return network


def as_gpt2(network):
    """The same weights in transformers' GPT-2."""
    c = network.config
    theirs = GPT2LMHeadModel(
        GPT2Config(
            n_embd=c.dim,
            n_layer=c.layers,
            n_head=c.heads,
            n_positions=c.tokens,
            vocab_size=c.outputs,
            activation_function="gelu",
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    theirs = theirs.double().eval()
    t = theirs.transformer
    with torch.no_grad():
        t.wte.weight.copy_(network.embedding.weight)
        t.wpe.weight.copy_(network.positions[0])
        for ours, block in zip(network.blocks, t.h, strict=True):
            a = ours.attention
            block.attn.c_attn.weight.copy_(torch.cat([p.weight for p in (a.q_proj, a.k_proj, a.v_proj)]).T)
            block.attn.c_attn.bias.copy_(torch.cat([p.bias for p in (a.q_proj, a.k_proj, a.v_proj)]))
            pairs = [(block.attn.c_proj, a.out_proj), (block.mlp.c_fc, ours.mlp.up), (block.mlp.c_proj, ours.mlp.down)]
            for conv, linear in pairs:
                conv.weight.copy_(linear.weight.T)
                conv.bias.copy_(linear.bias)
            block.ln_1.load_state_dict(ours.norm1.state_dict())
            block.ln_2.load_state_dict(ours.norm2.state_dict())
        t.ln_f.load_state_dict(network.norm.state_dict())
    return theirs


@pytest.mark.parametrize("name", [name for name in ARMS if arm(name).scheme not in SCALED_ONLY])
def test_the_gpt_of_every_arm_is_gpt2_converted(name):
    attention = arm(name, alpha=0.3, alpha_hidden=0.6)
    network = grown(NetworkConfig("gpt", **TINY), attention)
    theirs = as_gpt2(network)
    ids = torch.randint(0, 50, (2, 12))
    with torch.no_grad():
        ours = network(ids).logits
        own = {n: v for n, v in vars(attention).items() if n not in ("learned", "start")}
        with to_hopfield(theirs, **own):
            expected = theirs(ids, use_cache=False).logits
    torch.testing.assert_close(ours, expected, atol=1e-9, rtol=1e-7)


def test_arms_start_from_the_same_weights():
    states = {}
    for name in ARMS:
        torch.manual_seed(3)
        states[name] = Transformer(NetworkConfig("gpt", **TINY), arm(name)).state_dict()
    for name, state in states.items():
        for key, first in states["standard"].items():
            grown = 1.0
            if name == "rescaled" and key.endswith(("out_proj.weight", "down.weight")):
                left = (1 - 0.5**6) / (1 - 0.25)  # of three layers, in a stream that each of them halves
                grown = math.sqrt(3 / left) * (2 if key.endswith("out_proj.weight") else 1)
            torch.testing.assert_close(state[key], grown * first, rtol=1e-6, atol=0 if grown == 1 else 1e-9)


@pytest.mark.parametrize("kind", ["gpt", "xl", "modern"])
def test_language_models_look_back_only(kind):
    config = NetworkConfig("xl" if kind == "xl" else "gpt", **TINY, modern=kind == "modern")
    network = grown(config, Attention(alpha_hidden=0.6, skip="scaled"))
    ids = torch.randint(0, 50, (1, 12))
    changed = ids.clone()
    changed[0, 7] = (ids[0, 7] + 1) % 50
    with torch.no_grad():
        a, b = network(ids).logits, network(changed).logits
    torch.testing.assert_close(a[:, :7], b[:, :7], atol=1e-12, rtol=0)
    assert (a[:, 7:] - b[:, 7:]).abs().amax(-1).min() > 1e-4


def test_relative_scores_entry_by_entry():
    torch.manual_seed(0)
    layer = RelativeAttention(8, 2).double()
    layer.u.data.normal_()
    layer.v.data.normal_()
    n_query, n_key = 3, 7
    query, key = torch.randn(1, 2, n_query, 4).double(), torch.randn(1, 2, n_key, 4).double()
    got = layer.scores(query, key)
    for h in range(2):
        for i in range(n_query):
            for j in range(n_key - n_query + i + 1):  # the rest lies ahead
                back = n_key - n_query + i - j
                angle = [back * 10000.0 ** (-d / 8) for d in range(0, 8, 2)]
                wave = torch.tensor([math.sin(a) for a in angle] + [math.cos(a) for a in angle]).double()
                r = (layer.r_proj.weight @ wave)[4 * h : 4 * h + 4]
                expected = (query[0, h, i] + layer.u[h, 0]) @ key[0, h, j] + (query[0, h, i] + layer.v[h, 0]) @ r
                assert got[0, h, i, j].item() == pytest.approx(expected.item() / 2, rel=1e-4, abs=1e-5)


def test_memory_lengthens_the_view_of_a_transformer_xl():
    network = grown(NetworkConfig("xl", 1, 2, 8, outputs=20, tokens=5, memory=5), Attention(alpha_hidden=0.5))
    ids = torch.randint(0, 20, (2, 10))
    with torch.no_grad():
        first = network(ids[:, :5])
        second = network(ids[:, 5:], first.memory)
        whole = network(ids)
        alone = network(ids[:, 5:])
    # one layer deep, two segments with a memory see what the whole sequence sees
    torch.testing.assert_close(second.logits, whole.logits[:, 5:], atol=1e-6, rtol=1e-6)
    assert (second.logits - alone.logits).abs().max() > 1e-3
    assert [tuple(m.shape) for m in second.memory] == [(2, 5, 8)] and not second.memory[0].requires_grad


def test_vit_sees_all_patches_and_a_llama_type_has_no_biases():
    vit = grown(NetworkConfig("vit", 2, 4, 32, outputs=10, patch=7), Attention(alpha_hidden=0.5))
    x = torch.randn(1, 1, 28, 28, dtype=torch.float64)
    changed = x.clone()
    changed[..., -1, -1] += 1
    with torch.no_grad():
        assert vit(x).logits.shape == (1, 10) and len(vit(x).hidden) == 3
        assert (vit(x).logits - vit(changed).logits).abs().max() > 1e-4
    modern = Transformer(NetworkConfig("gpt", **TINY, modern=True, kv_heads=2))
    assert not [name for name, _ in modern.named_parameters() if "bias" in name]


def test_drop_path_leaves_layers_out_in_training_only():
    network = Transformer(NetworkConfig("gpt", **TINY, drop_path=0.9))
    ids = torch.randint(0, 50, (64, 12))
    network.eval()
    assert torch.equal(network(ids).logits, network(ids).logits)
    network.train()
    hidden = network(ids).hidden
    untouched = (hidden[-1] == hidden[-2]).flatten(1).all(1).float().mean()
    assert untouched > 0.5


PARAMETERS = {"gpt2-small": 124, "gpt2-medium": 354, "vit-t": 5.5, "vit-s": 21.7, "vit-b": 85.8, "vit-l": 303}


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_have_the_papers_sizes(name):
    with torch.device("meta"):
        network = Transformer(preset(name).network)
    if name in PARAMETERS:
        assert network.n_parameters / 1e6 == pytest.approx(PARAMETERS[name], rel=0.02)
    assert preset(name).steps > preset(name).warmup > 0


def test_wrong_requests():
    with pytest.raises(InputError, match="no network 'gpt5'"):
        preset("gpt5")
    with pytest.raises(InputError, match="no arm 'none'"):
        arm("none")
    with pytest.raises(InputError, match="alpha must be at least 0"):
        arm("both", alpha=1.0)
    with pytest.raises(InputError, match="patches of 5 do not divide"):
        NetworkConfig("vit", 2, 2, 8, patch=5)
    with pytest.raises(InputError, match="layers must be at least 1"):
        NetworkConfig("gpt", 0, 2, 8)
    with pytest.raises(InputError, match="at most 12"):
        Transformer(NetworkConfig("gpt", **TINY))(torch.zeros(1, 13, dtype=torch.long))
