"""Circuits of single heads, from the weights alone: what a head writes when it attends to a token."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headscape.attention.norm_gains import norms_beside
from headscape.attention.placing import present
from headscape.attention.weights import parts_of, read
from headscape.attention.wrapping import Model
from headscape.errors import InputError
from headscape.tensor import HeadId

__all__ = ["copying_scores"]


def copying_scores(model: Model) -> dict[HeadId, float]:
    """How far each head raises the logit of the token it attends to: between -1 and 1, about 0 for random weights.

    The full OV circuit W_U W_O W_V W_E takes a token that is attended to into logits. Its eigenvalues are those of the
    small matrix W_V W_E W_U W_O; the score is the sum of their real parts over the sum of their sizes (Elhage et al.
    2021). The gains of the norms before W_V, after W_O and before W_U are part of the circuit, as is the mean they take
    off; other layers are not, nor the feed-forward parts, nor the dense layer that masked language models have before
    W_U.

    Raises an `InputError` for a model without token embeddings and an output head, an encoder-decoder, whose encoder
    writes no logits, or one whose heads cannot be read.
    """
    if model.task == "seq2seq-lm":
        raise InputError(f"{model.source} is an encoder-decoder, whose heads in the encoder write no logits")
    embedding, unembedding, head = _embeddings(model)
    between = (embedding.T.double() @ unembedding.double()).numpy()  # (dim, dim): W_E W_U summed over the vocabulary
    parts, _ = parts_of(model)
    values = {(part.block, part.layer): part for part in parts if part.kind == "v"}
    outputs = {(part.block, part.layer): part for part in parts if part.kind == "o"}
    modules = dict(model.module.named_modules())
    reading, writing = ([modules[part.module] for part in of.values()] for of in (values, outputs))
    norms = norms_beside(model, [*reading, head], writing)

    def through(module: Any, X: Any) -> Any:
        return norms[module] @ X if module in norms else X

    found: dict[HeadId, float] = {}
    for site in model.sites:
        place = (site.block, site.layer)
        if place not in values or place not in outputs:
            raise InputError(f"the values or the output projection of {site.name} cannot be read")
        W_v = values[place].by_head(read(model, values[place]))  # (n_kv_head, d, dim)
        W_o = outputs[place].by_head(read(model, outputs[place]))  # (n_head, dim, d)
        shared = site.n_heads // len(W_v)
        attended = through(modules[values[place].module], between)
        for h in site.heads:
            written = through(head, through(modules[outputs[place].module], W_o[h.head].astype(float)))
            small = W_v[h.head // shared].astype(float) @ attended @ written
            eigenvalues = np.linalg.eigvals(small)
            size = float(np.abs(eigenvalues).sum())
            found[h] = float(eigenvalues.real.sum() / size) if size > 0 else 0.0
    return found


def _embeddings(model: Model) -> tuple[Tensor, Tensor, nn.Module]:
    """The matrices of token embeddings and of the output head, (n_vocabulary, dim) each, and that head."""
    network = model.module
    try:
        embedding, head = network.get_input_embeddings(), network.get_output_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        embedding = head = None
    if embedding is None or head is None:
        raise InputError(f"{model.source} has no token embeddings and output head to copy tokens with")
    with torch.no_grad(), present(embedding), present(head):
        return embedding.weight.detach().float().cpu(), head.weight.detach().float().cpu(), head
