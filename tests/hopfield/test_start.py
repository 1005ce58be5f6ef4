"""How networks start, and that the modern one is LLaMA."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from headscape.hopfield.networks import STD, NetworkConfig, Transformer

SIZES = {"layers": 3, "heads": 4, "dim": 32, "outputs": 50, "tokens": 12}


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_a_modern_network_is_llama(kv_heads):
    torch.manual_seed(0)
    ours = Transformer(NetworkConfig("gpt", **SIZES, mlp=48, modern=True, kv_heads=kv_heads)).double().eval()
    for parameter in ours.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(8)  # far from uniform attention: places count
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, num_key_value_heads=kv_heads or 4, vocab_size=50, rms_norm_eps=2.220446049250313e-16)
    theirs = LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        theirs.model.embed_tokens.weight.copy_(ours.embedding.weight)
        theirs.lm_head.weight.copy_(ours.head.weight)
        theirs.model.norm.weight.copy_(ours.norm.weight)
        for block, layer in zip(ours.blocks, theirs.model.layers, strict=True):
            for side in "qkv":
                getattr(layer.self_attn, f"{side}_proj").weight.copy_(getattr(block.attention, f"{side}_proj").weight)
            layer.self_attn.o_proj.weight.copy_(block.attention.out_proj.weight)
            for side in ("up", "gate", "down"):
                getattr(layer.mlp, f"{side}_proj").weight.copy_(getattr(block.mlp, side).weight)
            layer.input_layernorm.weight.copy_(block.norm1.weight)
            layer.post_attention_layernorm.weight.copy_(block.norm2.weight)
        ids = torch.randint(0, 50, (2, 12))
        torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt", "vit", "xl"])
def test_weights_start_normal_and_what_enters_the_stream_smaller(kind):
    torch.manual_seed(0)
    network = Transformer(NetworkConfig(kind, 3, 4, 64, outputs=80, tokens=40))
    checked = 0
    for name, parameter in network.named_parameters():
        if name.endswith((".u", ".v", "bias")):
            assert not parameter.any(), name
        elif parameter.dim() == 1:
            assert (parameter == 1).all(), name  # of norms
        else:
            into_stream = name.endswith(("out_proj.weight", "down.weight"))
            std = STD / math.sqrt(2 * 3) if into_stream else STD
            assert parameter.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * parameter.numel())), name
            checked += 1
    assert checked > 3 * 6


@pytest.mark.parametrize(("layers", "rates"), [(1, [0.0]), (2, [0.0, 0.3]), (4, [0.0, 0.1, 0.2, 0.3])])
def test_layers_are_left_out_more_often_the_deeper_they_are(layers, rates):
    network = Transformer(NetworkConfig("gpt", layers, 2, 8, drop_path=0.3))
    assert [block.drop_path for block in network.blocks] == pytest.approx(rates)


def test_what_is_left_out_is_made_up_for_on_average():
    torch.manual_seed(0)
    block = Transformer(NetworkConfig("gpt", 2, 2, 8, drop_path=0.75)).blocks[1].train()
    x, new = torch.zeros(20_000, 1, 1), torch.ones(20_000, 1, 1)
    found = block._dropped(x, new)
    assert set(found.unique().tolist()) == {0.0, 4.0} and found.mean().item() == pytest.approx(1, abs=0.06)
    assert torch.equal(block.eval()._dropped(x, new), new)
