"""Uneven groups: attention whose key/value heads serve different numbers of query heads.

Stock implementations of grouped queries assume the same number of queries for every key/value head. A function
registered with transformers' attention interface brings an uneven layer into that form and passes it on to the
implementation the network is set to; the cache keeps each key/value head once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

__all__ = ["LayerConfig", "set_groups"]

INTERFACE = "headscape_uneven"


class LayerConfig:
    """A network's configuration as one layer sees it: its own number of heads, and attention by `INTERFACE`."""

    def __init__(self, config: Any, n_heads: int, uneven: bool = False) -> None:
        self._config, self.num_attention_heads = config, n_heads
        if uneven:
            self._attn_implementation = INTERFACE

    @property
    def chosen(self) -> str:
        """The implementation the network is set to."""
        return str(self._config._attn_implementation)

    def __getattr__(self, name: str) -> Any:
        if name == "_config":  # not yet there while being copied
            raise AttributeError(name)
        return getattr(self._config, name)


@dataclass(frozen=True)
class _Groups:
    """Two ways to even out: repeat key/value heads (`repeated`), or pad queries to `largest` per group and unpad."""

    repeated: tuple[int, ...]
    padded: tuple[int, ...]
    kept: tuple[int, ...]
    largest: int


def set_groups(module: Any, counts: Sequence[int]) -> None:
    """Tell a layer how many queries each of its key/value heads serves, in order.

    Equal counts need only the number. Otherwise the layer's configuration is replaced by a `LayerConfig`.
    """
    shared = math.gcd(*counts)
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = shared
    largest = max(counts)
    if largest == min(counts):
        return
    starts = [sum(counts[:j]) for j in range(len(counts))]
    module.headscape_groups = _Groups(
        repeated=tuple(j for j, n in enumerate(counts) for _ in range(n // shared)),
        padded=tuple(start + min(i, n - 1) for start, n in zip(starts, counts, strict=True) for i in range(largest)),
        kept=tuple(j * largest + i for j, n in enumerate(counts) for i in range(n)),
        largest=largest,
    )
    from transformers import AttentionInterface

    AttentionInterface.register(INTERFACE, _attend)
    module.config = LayerConfig(module.config, sum(counts), uneven=True)


@cache
def _index(entries: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(entries, device=device)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    groups: _Groups = module.headscape_groups
    name = module.config.chosen
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    stock: Any = ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)
    if name == "sdpa" and query.shape[2] == 1 and attention_mask is None:
        # a single token: padding its queries is cheaper than repeating all keys and values before it
        alike = SimpleNamespace(num_key_value_groups=groups.largest, is_causal=False)
        padded = query.index_select(1, _index(groups.padded, query.device))
        outputs, probs = stock(alike, padded, key, value, None, **kwargs)
        return outputs.index_select(2, _index(groups.kept, query.device)), probs
    index = _index(groups.repeated, key.device)
    outputs, probs = stock(
        module, query, key.index_select(1, index), value.index_select(1, index), attention_mask, **kwargs
    )
    return outputs, probs
