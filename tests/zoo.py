"""Tiny random-init networks of many families, for tests that need the architecture and not the training."""

import torch
import transformers as T

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64, **IDS}

ZOO = {
    "gpt2": lambda: T.GPT2LMHeadModel(T.GPT2Config(**GPT)),
    "llama": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SMALL, num_key_value_heads=2)),
    "llama-bias": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SMALL, num_key_value_heads=2, attention_bias=True)),
    "bert": lambda: T.BertForMaskedLM(T.BertConfig(**SMALL)),
    "vit": lambda: T.ViTForImageClassification(
        T.ViTConfig(**{k: SMALL[k] for k in list(SMALL)[:4]}, image_size=28, patch_size=7, num_channels=1)
    ),
    "t5": lambda: T.T5ForConditionalGeneration(
        T.T5Config(
            d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, decoder_start_token_id=0, **IDS
        )
    ),
    "mistral": lambda: T.MistralForCausalLM(T.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=5)),
    "qwen3": lambda: T.Qwen3ForCausalLM(T.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=16)),
    "gemma2": lambda: T.Gemma2ForCausalLM(T.Gemma2Config(**SMALL, num_key_value_heads=1, head_dim=16)),
    "gemma3": lambda: T.Gemma3ForCausalLM(
        T.Gemma3TextConfig(**SMALL, num_key_value_heads=1, head_dim=16, sliding_window=8)
    ),
    "gpt-oss": lambda: T.GptOssForCausalLM(
        T.GptOssConfig(**SMALL, num_key_value_heads=2, head_dim=16, num_local_experts=2, num_experts_per_tok=1)
    ),
    "falcon": lambda: T.FalconForCausalLM(
        T.FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=100, **IDS)
    ),
    "falcon-alibi": lambda: T.FalconForCausalLM(
        T.FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=100, alibi=True, **IDS)
    ),
    "bloom": lambda: T.BloomForCausalLM(T.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=100, **IDS)),
    "mpt": lambda: T.MptForCausalLM(
        T.MptConfig(d_model=32, n_heads=4, n_layers=2, vocab_size=100, max_seq_len=64, **IDS)
    ),
    "mpnet": lambda: T.MPNetForMaskedLM(T.MPNetConfig(**SMALL)),
    "gptj": lambda: T.GPTJForCausalLM(T.GPTJConfig(**GPT, rotary_dim=4)),
    "deberta": lambda: T.DebertaV2Model(T.DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["c2p"])),
    "bart": lambda: T.BartForConditionalGeneration(
        T.BartConfig(
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            vocab_size=100,
            **IDS,
        )
    ),
}
OWN_ATTENTION = ("falcon", "falcon-alibi", "bloom", "mpt", "mpnet", "gptj", "deberta")


PARALLEL = ["falcon", "falcon-alibi", "gptj"]
"""Attention and MLP share one skip connection."""


def make(name, seed=0):
    """A tiny network with weights large enough that its attention is far from uniform."""
    torch.manual_seed(seed)
    network = ZOO[name]().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2 and name != "t5":  # T5 starts far from uniform
                parameter.mul_(6.0)
    return network


def eager_reference(network, arguments):
    """The model's own maps and logits under its own eager attention, {block: [layer maps]}."""
    before = network.config._attn_implementation
    network.config._attn_implementation = "eager"
    if hasattr(network, "set_attn_implementation") and network._can_set_attn_implementation():
        network.set_attn_implementation("eager")
    with torch.no_grad():
        result = network(**arguments, output_attentions=True)
    if hasattr(network, "set_attn_implementation") and network._can_set_attn_implementation():
        network.set_attn_implementation(before)
    network.config._attn_implementation = before
    found = {
        "decoder": getattr(result, "decoder_attentions", None),
        "decoder.cross": getattr(result, "cross_attentions", None),
        "encoder": getattr(result, "encoder_attentions", None),
        "": getattr(result, "attentions", None),
    }
    logits = result.logits if hasattr(result, "logits") else result.last_hidden_state
    return {block: list(maps) for block, maps in found.items() if maps}, logits
