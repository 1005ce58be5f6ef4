"""Induction and duplicate-token scores, on a random sequence that is repeated once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.models import Model
from headscape.attention.sites import run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.wrapping import evaluating
from headscape.errors import InputError
from headscape.tensor import HeadId

__all__ = ["repeated_sequence_scores"]

SIZES = ("vocab_size", "d_vocab")
"""How configurations call the number of tokens a network knows: those of transformers, and of TransformerLens."""


class _Offsets(Tap):
    """Mean attention of the second copy on the keys at given distances back."""

    blockwise = False

    def __init__(self, first: int, distances: dict[str, int]) -> None:
        self.first, self.distances = first, distances
        self.sums: dict[int, dict[str, Tensor]] = {}

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        queries = torch.arange(self.first, probs.shape[2], device=probs.device)
        found = self.sums.setdefault(id(call.module), {})
        for name, distance in self.distances.items():
            mass = probs[:, :, queries, queries - distance].float().mean(dim=(0, 2)).cpu()
            found[name] = found.get(name, torch.zeros_like(mass)) + mass
        return probs


def repeated_sequence_scores(
    model: Model, length: int = 64, n_sequences: int = 4, seed: int = 0
) -> dict[str, dict[HeadId, float]]:
    """Score every head of a decoder: {"induction": {head: share}, "duplicate": {head: share}, "chance": {head: share}}.

    `length` random tokens are shown twice. In the second copy, an induction head attends to the token after the earlier
    occurrence (length - 1 back), a duplicate-token head to the occurrence itself (length back). Random tokens have no
    other structure; chance is what a head scores that spreads its attention evenly. No tokenizer is needed.
    """
    with evaluating(model):
        config = getattr(model.module, "cfg", None) if model.reads_ids else model.config
        size = next((int(n) for name in SIZES if (n := getattr(config, name, None))), 0)
        if model.task == "seq2seq-lm" or model.images is not None or not size or not model.causal:
            raise InputError(f"induction needs a decoder that reads text, and {model.source} is not one")
        prefix = list(model.prefix)
        ordinary = _ordinary(model, size)
        limit = model.max_tokens or getattr(config, "n_ctx", None) or 2 * length + len(prefix)
        length = min(length, (limit - len(prefix)) // 2, len(ordinary))
        return _scores(model, prefix, ordinary, length, n_sequences, seed)


def _ordinary(model: Model, size: int) -> npt.NDArray[np.int64]:
    """The ids of tokens that are not special."""
    special = getattr(model.tokenizer, "all_special_ids", None)
    if special is None:
        special = [getattr(model.config, f"{name}_token_id", None) for name in ("bos", "eos", "pad")]
    return np.setdiff1d(np.arange(size), np.array([i for i in special if isinstance(i, int)], dtype=np.int64))


def _scores(
    model: Model, prefix: list[int], ordinary: npt.NDArray[np.int64], length: int, n_sequences: int, seed: int
) -> dict[str, dict[HeadId, float]]:
    rng = np.random.default_rng(seed)
    tap = _Offsets(len(prefix) + length, {"induction": length - 1, "duplicate": length})
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        for _ in range(n_sequences):
            half: npt.NDArray[Any] = rng.choice(ordinary, length, replace=False)
            ids = torch.tensor([[*prefix, *half.tolist(), *half.tolist()]])
            run(model, {"input_ids": ids}, whole=False)
    modules = dict(model.module.named_modules())
    scores: dict[str, dict[HeadId, float]] = {"induction": {}, "duplicate": {}}
    for site in model.sites:
        for name, mass in tap.sums[id(modules[site.name])].items():
            scores[name] |= {head: float(mass[head.head]) / n_sequences for head in site.heads}
    even = float((1 / np.arange(len(prefix) + length + 1, len(prefix) + 2 * length + 1)).mean())
    return scores | {"chance": {head: even for site in model.sites for head in site.heads}}
