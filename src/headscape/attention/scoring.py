"""What determines the scores of a head: distance, key, or pair; and which features make the first key a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscape.attention.samples import Sample
from headscape.attention.sites import run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import Part, parts_of, read
from headscape.attention.wrapping import Model
from headscape.tensor import HeadId

__all__ = ["PARTS", "score_parts", "score_shares", "sink_features"]

PARTS = ("score_distance", "score_key", "score_pair")
LARGEST = 5
"""Features of the first token that count as its largest."""
LINEAR = 0.1
"""A key that differs by more than this from the weights times their input has been normalized."""


def score_shares(probs: Tensor) -> Tensor:
    """Shares of the variance of scores within rows due to distance, key and pair: (3, n_head), adding to 1 for each head.

    probs are (n_head, n_query, n_key) after softmax; the logarithm of a row is its scores up to a constant, so masks,
    biases, rotations and norms are all in. First comes the mean at each distance of query and key, then the mean of
    what is left at each key, then the rest, which only the pair of tokens can explain. NaN where all keys are alike.
    """
    present = probs > 0
    logs = torch.where(present, probs.double().clamp_min(torch.finfo(torch.float64).tiny).log(), 0.0)
    rows = present.sum(-1, keepdim=True).clamp_min(1)
    scores = torch.where(present, logs - logs.sum(-1, keepdim=True) / rows, 0.0)
    n_head, n_query, n_key = scores.shape
    places = torch.arange(n_query)[:, None] - torch.arange(n_key)[None, :] + n_key - 1
    flat, bins = places.reshape(-1), n_query + n_key - 1
    sums, counts = (
        torch.zeros(n_head, bins, dtype=torch.float64).index_add_(1, flat, x.reshape(n_head, -1).double())
        for x in (scores, present)
    )
    beyond = torch.where(present, scores - (sums / counts.clamp_min(1))[:, places], 0.0)
    by_key = beyond.sum(1, keepdim=True) / present.sum(1, keepdim=True).clamp_min(1)
    rest = torch.where(present, beyond - by_key, 0.0)
    whole, after_distance, after_key = (x.square().sum((1, 2)) for x in (scores, beyond, rest))
    shares = torch.stack([whole - after_distance, after_distance - after_key, after_key]) / whole
    return torch.where(whole > 0, shares, torch.nan)


class _Shares(Tap):
    blockwise = False

    def __init__(self) -> None:
        self.found: dict[int, list[Tensor]] = {}

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        self.found.setdefault(id(call.module), []).extend(score_shares(one.float().cpu()) for one in probs)
        return probs


def score_parts(model: Model, samples: Sequence[Sample]) -> dict[str, dict[HeadId, float]]:
    """`score_shares` of every head by the name of the part, mean over inputs."""
    tap = _Shares()
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        for sample in samples:
            run(model, sample.arguments, whole=False)
    modules = dict(model.module.named_modules())
    found: dict[str, dict[HeadId, float]] = {name: {} for name in PARTS}
    for site in model.sites:
        mean = torch.stack(tap.found[id(modules[site.name])]).mean(0)
        for name, values in zip(PARTS, mean, strict=True):
            found[name] |= {head: float(values[head.head]) for head in site.heads}
    return found


class _Queries(Tap):
    """The mean query of every head, and the key of the first token."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        self.found[id(call.module)] = (query[0, :, 1:].float().mean(1).cpu(), key[0, :, 0].float().cpu())


def sink_features(model: Model, samples: Sequence[Sample]) -> dict[HeadId, float]:
    """The share of the first key's mean score that is due to the five largest features of its token, by head.

    The features are those of the layer's input, gains of the norm before it included. NaN where keys are not linear in
    them (norms on keys) or the matrices cannot be read. Near 1: a few outlier features make the sink; near LARGEST
    over the width: they are like any other.
    """
    keys = {(part.block, part.layer): part for part in parts_of(model)[0] if part.kind == "k"}
    modules: Mapping[str, Any] = dict(model.module.named_modules())
    weights = {place: part.by_head(read(model, part)).astype(np.float64) for place, part in keys.items()}
    found: dict[HeadId, list[float]] = {head: [] for site in model.sites for head in site.heads}
    for sample in samples:
        tap, seen = _Queries(), dict[tuple[str, int], Any]()
        with ExitStack() as hooks, torch.no_grad(), tapped(model.module, tap, model.attention):
            for place, part in keys.items():
                hooks.callback(_watched(modules[part.module], seen, place))
            run(model, sample.arguments, whole=False)
        for site in model.sites:
            place = (site.block, site.layer)
            if place not in seen or id(modules[site.name]) not in tap.found:
                continue
            queries, key = (x.numpy().astype(np.float64) for x in tap.found[id(modules[site.name])])
            key = key - _bias(modules[keys[place].module], keys[place], key.shape)
            shares = _sink_shares(queries, key, weights[place], seen[place])
            for head in site.heads:
                found[head].append(shares[head.head])
    return {head: float(np.mean(values)) if values else float("nan") for head, values in found.items()}


def _watched(module: Any, seen: dict[tuple[str, int], Any], place: tuple[str, int]) -> Callable[[], None]:
    """Keep the first token of a module's input; returns a handle that stops it."""

    def keep(_: Any, given: tuple[Any, ...]) -> None:
        seen[place] = given[0].detach().reshape(-1, given[0].shape[-1])[0].double().cpu().numpy()

    stop: Callable[[], None] = module.register_forward_pre_hook(keep).remove
    return stop


def _bias(module: Any, part: Part, shape: tuple[int, ...]) -> Any:
    """What the map of a part adds to every token, by head."""
    bias = getattr(module, "bias", None)
    if bias is None:
        return np.zeros(shape)
    values = bias.detach().double().cpu().numpy()
    return (values if part.rows is None else values[list(part.rows)]).reshape(shape)


def _sink_shares(queries: Any, key: Any, W_k: Any, x: Any) -> Any:
    """One number per query head: (n_head, d), (n_kv_head, d), (n_kv_head, d, dim) and (dim,)."""
    linear = W_k @ x
    scale = np.linalg.norm(key, axis=1)
    apart = np.linalg.norm(key - linear, axis=1) / np.where(scale > 0, scale, 1.0)
    largest = np.argsort(-np.abs(x))[:LARGEST]
    shared = len(queries) // len(W_k)
    shares = np.full(len(queries), np.nan)
    for h, query in enumerate(queries):
        if apart[h // shared] <= LINEAR:
            terms = (query @ W_k[h // shared]) * x
            shares[h] = terms[largest].sum() / terms.sum()
    return shares
