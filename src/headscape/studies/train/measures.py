"""What is measured in a network while it trains: tokens and attention by layer, and what it loses without attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.collapse.residual import effective_rank, relative_residual
from headscape.collapse.similarity import ALIKE, attention_entropy, histogram, token_similarities
from headscape.hopfield.layer import HopfieldAttention
from headscape.hopfield.networks import Transformer
from headscape.hopfield.pretrained import Pretrained

__all__ = ["LESIONS", "Lesion", "by_layer", "learned_alphas", "lesioned"]

Lesion = Literal["uniform", "removed"]
LESIONS: tuple[Lesion, ...] = ("uniform", "removed")


class _Entropies(Tap):
    """Keeps the mean entropy of every head's rows in a pass, layer by layer; of a layer that iterates the last time."""

    blockwise = False

    def __init__(self, causal: bool) -> None:
        self.causal = causal
        self.found: dict[int, Any] = {}

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        n_query, n_key = probs.shape[-2:]
        present = np.tri(n_query, n_key, n_key - n_query) if self.causal else None
        rows = attention_entropy(probs.detach().float().cpu().numpy(), present)
        self.found[id(call.module)] = np.nanmean(rows, axis=-1)
        return probs


class _Lesioned(Tap):
    """Attention that is the same for every key a token may see, or whose output is 0."""

    blockwise = False

    def __init__(self, how: Lesion, causal: bool) -> None:
        self.how, self.causal = how, causal

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        if self.how == "removed":
            return torch.zeros_like(probs)
        n_query, n_key = probs.shape[-2:]
        flat = torch.ones(n_query, n_key, dtype=probs.dtype, device=probs.device)
        flat = flat.tril(n_key - n_query) if self.causal else flat
        return (flat / flat.sum(dim=-1, keepdim=True)).expand_as(probs)


def _tapped(network: Transformer | Pretrained, tap: Tap) -> AbstractContextManager[None]:
    if isinstance(network, Pretrained):
        return tapped(network.network, tap)
    return tapped(network, tap, [n for n, m in network.named_modules() if isinstance(m, HopfieldAttention)])


@contextmanager
def lesioned(network: Transformer | Pretrained, how: Lesion) -> Iterator[None]:
    """Make all attention of a network uniform, or remove its output, inside the with block."""
    with _tapped(network, _Lesioned(how, network.config.kind != "vit")):
        yield


def learned_alphas(network: nn.Module) -> list[list[float]]:
    """The a' of every layer and head, where they are learned."""
    logits = [m.hidden_logit for m in network.modules() if isinstance(m, HopfieldAttention)]
    return [torch.sigmoid(logit.detach()).tolist() for logit in logits if logit is not None]


@torch.no_grad()
def by_layer(network: Transformer | Pretrained, inputs: list[Tensor]) -> dict[str, Any]:
    """Tokens before layer 1 and after each layer, and attention of each layer and head, over sequences.

    Lists by layer: relative residual and effective rank, mean over sequences; of the cosines of pairs of tokens mean,
    share at or above `ALIKE` and histogram; entropy by layer and head. On text only pairs of different tokens count:
    the same byte twice is alike from the start.
    """
    network.eval()
    causal = network.config.kind != "vit"
    entropies: list[_Entropies] = []
    found: list[dict[str, list[Any]]] = []
    for x in inputs:
        entropies.append(_Entropies(causal))
        with _tapped(network, entropies[-1]):
            states = network(x).hidden
        found = found or [{"residual": [], "rank": [], "cosines": []} for _ in states]
        for layer, hidden in zip(found, states, strict=True):
            tokens = hidden.float().cpu().numpy()
            layer["residual"] += relative_residual(tokens).tolist()
            layer["rank"] += effective_rank(tokens).tolist()
            layer["cosines"] += [
                token_similarities(each, x[i].cpu() if causal else None) for i, each in enumerate(tokens)
            ]
    cosines = [np.concatenate(layer["cosines"]) for layer in found]
    measured = {
        "residual": [float(np.mean(layer["residual"])) for layer in found],
        "rank": [float(np.mean(layer["rank"])) for layer in found],
        "entropy": [
            np.concatenate(layer).mean(axis=0).tolist()
            for layer in zip(*(one.found.values() for one in entropies), strict=True)
        ],
        "similarity": [float(c.mean()) if len(c) else math.nan for c in cosines],
        "aligned": [float((c >= ALIKE).mean()) if len(c) else math.nan for c in cosines],
        "counts": [histogram(c).tolist() for c in cosines],
    }
    alphas = learned_alphas(network)
    return measured | ({"alphas": alphas} if alphas else {})
