"""Exported networks are loaded again, as a user would, and compared with the same heads ablated: what such tests share."""

import numpy as np
import pytest
import torch
import transformers as T

import headscape as hs
from headscape.attention.sites import example_input, run
from tiny import Letters
from zoo import IDS, SMALL, ZOO, make

MORE = {
    "phi3": lambda: T.Phi3ForCausalLM(T.Phi3Config(**SMALL, num_key_value_heads=2)),
    "qwen2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**SMALL, num_key_value_heads=2)),
    "llama-mha": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SMALL)),
    # as SmolLM2: three queries to each of three key/value heads
    "llama-nine": lambda: T.LlamaForCausalLM(
        T.LlamaConfig(**{**SMALL, "hidden_size": 36, "num_attention_heads": 9}, num_key_value_heads=3)
    ),
    "falcon-new": lambda: T.FalconForCausalLM(
        T.FalconConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_kv_heads=2,
            new_decoder_architecture=True,
            vocab_size=100,
            **IDS,
        )
    ),
}

RAGGED = [*ZOO, "phi3", "qwen2", "llama-nine"]

CAUSAL = [
    "gpt2",
    "llama",
    "mistral",
    "qwen3",
    "gemma3",
    "gpt-oss",
    "falcon",
    "bloom",
    "mpt",
    "gptj",
    "phi3",
    "llama-nine",
]

TEXT = ["the quick brown fox jumps over the lazy dog"]


def model_of(name):
    with pytest.MonkeyPatch.context() as patch:
        if name in MORE:
            patch.setitem(ZOO, name, MORE[name])
        return hs.wrap_module(make(name), tokenizer=Letters())


def logits(model, tokens=40):
    with torch.no_grad():
        result = run(model, example_input(model, tokens))
    return result.logits if hasattr(result, "logits") else result[0]


def relative(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def ablated_logits(model, heads, means=None):
    with hs.ablate(model, heads, "zero" if means is None else "mean", means=means):
        return logits(model)


def some_heads(model, seed=0):
    """A third of the heads of every layer or so, and a layer left whole."""
    rng = np.random.default_rng(seed)
    heads = [head for site in model.sites[:-1] for head in site.heads]
    return [heads[i] for i in sorted(rng.choice(len(heads), max(1, len(heads) // 3), replace=False))]


def check(model, heads, report, loaded, means=None):
    """The loaded model is the ablated one, and not the intact one."""
    expected = ablated_logits(model, heads, means)
    assert relative(expected, logits(model)) > 1e-3
    assert relative(logits(loaded), expected) < 1e-5
    assert report.max_difference <= 1e-5 * report.scale
    assert report.heads == tuple(sorted(heads, key=[h for s in model.sites for h in s.heads].index))


def stock(path, network):
    """Loaded by transformers alone, from what the folder says."""
    kinds = {
        "ForCausalLM": T.AutoModelForCausalLM,
        "LMHeadModel": T.AutoModelForCausalLM,
        "ForMaskedLM": T.AutoModelForMaskedLM,
        "ForImageClassification": T.AutoModelForImageClassification,
        "ForConditionalGeneration": T.AutoModelForSeq2SeqLM,
    }
    auto = next(kind for ending, kind in kinds.items() if type(network).__name__.endswith(ending))
    found, info = auto.from_pretrained(path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(found) is type(network)
    return hs.wrap_module(found)


def load_ragged(model, path):
    loaded = hs.load_model(path, device="cpu")
    loaded.tokenizer = model.tokenizer
    assert type(loaded.module).__name__ == type(model.module).__name__ and "ragged" in loaded.notes[0]
    return loaded


def whole_layer(model, layer=0):
    """All heads of one layer of every block, and one of the next."""
    heads = [head for site in model.sites if site.layer == layer for head in site.heads]
    return heads + [site.heads[1] for site in model.sites if site.layer == 1 - layer]


def means_of(model):
    inputs = TEXT
    if model.images is not None:
        inputs = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    return hs.mean_outputs(model, inputs, tokens=12, batches=None)
