"""Tiny networks with a tokenizer of letters, and arrays of attention, for tests that need no training."""

import numpy as np
import torch

import headscape as hs
from headscape.attention.sites import example_input
from zoo import make


class Letters:
    """A tokenizer for tiny networks: one letter a token, no special tokens."""

    chat_template = None

    def encode(self, text, add_special_tokens=True, verbose=True):
        return [10 + ord(c) % 80 for c in text]

    def decode(self, ids, **_):
        return "".join(chr(97 + i % 26) for i in ids)


def captured(name, network=None, keep=("probs",), **options):
    model = hs.wrap_module(network or make(name), tokenizer=Letters())
    batch = example_input(model)
    if model.images is not None:
        inputs = batch["pixel_values"].permute(0, 2, 3, 1).numpy() * 0.5 + 0.5  # undone by the preparation
    else:
        inputs = ["the quick brown fox jumps over the lazy dog"]
    options = {"tokens": 12, "batches": 1, "dtype": "float32", **options}
    return model, hs.capture(model, inputs, keep=keep, **options)


def arguments_of(model, cap):
    """The arguments the capture ran, rebuilt from what it stored."""
    if model.images is not None:
        return {"pixel_values": torch.from_numpy(cap.pixels(0))[None]}
    ids = torch.from_numpy(cap.input_ids(0))[None]
    if model.task != "seq2seq-lm":
        return {"input_ids": ids}
    start = torch.tensor([[model.config.decoder_start_token_id]])
    return {"input_ids": ids, "decoder_input_ids": torch.cat([start, ids[:, :-1]], dim=1)}


def attention(seed=0, shape=(2, 3, 5, 5)):
    """Causal attention of random scores: (layer, head, query, key)."""
    scores = np.random.default_rng(seed).standard_normal(shape)
    weights = np.exp(scores) * np.tri(shape[-2], shape[-1])
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
