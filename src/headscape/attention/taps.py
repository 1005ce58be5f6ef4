"""Taps: what may look at, or change, each step of an attention layer; and that layer's computation, open to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.attention.masks import RowMask, additive_rows, seen_keys

__all__ = ["BLOCK_BYTES", "AttentionCall", "Formula", "Tap", "attend", "split_heads"]

BLOCK_BYTES = 8 << 20  # a map larger than this is computed in blocks of rows when every tap allows it


@dataclass(frozen=True)
class AttentionCall:
    """Which module computes attention now, and which of its query rows."""

    module: nn.Module
    rows: slice | None = None  # None where it does not apply: inputs and outputs come whole


class Formula(NamedTuple):
    """What a layer computes: softmax(softcap(scaling q k^T + position bias) + mask) v; sinks take a share of each row."""

    scaling: float | None = None  # None for 1/sqrt(dim)
    dropout: float = 0.0
    softcap: float | None = None
    position_bias: Tensor | None = None
    sinks: Tensor | None = None


class Tap:
    """Looks at attention, and changes it where a method returns something else. Override only what is needed.

    Scores and probabilities are (batch, head, query, key), outputs (..., head, dim) before the output projection.
    """

    blockwise = True  # may be called with a block of rows at a time (`call.rows`)
    narrow = False  # may then be given maps without the last keys, where no row of the block sees them

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        """See queries (batch, head, query, dim), keys and values (batch, kv_head, key, dim), after rotation."""

    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        """Everything softmax sees but causal and padding masks."""
        return scores

    def softmax(self, call: AttentionCall, scores: Tensor, mask: Tensor | None) -> Tensor | None:
        """Probabilities in place of softmax(scores + mask); None leaves softmax alone."""
        return None

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        """What softmax gave."""
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        """Each head's weighted values, before the output projection mixes the heads."""
        return outputs

    def overrides(self, *names: str) -> bool:
        """Whether this tap cares about any of the methods named."""
        return any(getattr(type(self), name) is not getattr(Tap, name) for name in names)


def _softmax(
    scores: Tensor, mask: Tensor | None, sinks: Tensor | None, dtype: torch.dtype, reuse: bool = False
) -> Tensor:
    """Row softmax in float32 at least; a learned sink (GPT-OSS) takes part in the sum and is then dropped.

    `reuse` allows the scores to be overwritten.
    """
    if mask is not None:
        scores = scores.add_(mask) if reuse else scores + mask
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], 1)
        scores = torch.cat([scores, column.to(scores.dtype)], dim=-1)
        scores = scores - scores.max(dim=-1, keepdim=True).values
    accumulate = torch.promote_types(scores.dtype, torch.float32)
    probs = F.softmax(scores, dim=-1, dtype=accumulate).to(dtype)
    return probs[..., :-1] if sinks is not None else probs


def split_heads(x: Tensor, n_head: int) -> Tensor:
    """(..., head * dim) as (..., head, dim)."""
    return x.reshape(*x.shape[:-1], n_head, -1)


def _fused(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | RowMask | None, formula: Formula
) -> Tensor:
    """Outputs (batch, query, head, dim) by torch's fused attention; a mask too large to be built whole goes by rows."""
    n_query, n_key, position_bias = query.shape[2], key.shape[2], formula.position_bias
    step = max(1, BLOCK_BYTES // (4 * n_key)) if isinstance(mask, RowMask) else max(n_query, 1)
    found = []
    for start in range(0, n_query, step):
        rows = slice(start, min(start + step, n_query))
        added = additive_rows(mask, rows, n_key, query.dtype)
        if position_bias is not None:
            bias = position_bias if position_bias.shape[-2] == 1 else position_bias[..., rows, :]
            added = bias if added is None else bias + added
        found.append(
            F.scaled_dot_product_attention(
                *(query[:, :, rows], key, value),
                attn_mask=added,
                dropout_p=formula.dropout if module.training else 0.0,
                scale=formula.scaling,
                enable_gqa=key.shape[1] != query.shape[1],
            )
        )
    outputs = found[0] if len(found) == 1 else torch.cat(found, dim=2)
    return outputs.transpose(1, 2).contiguous()


@dataclass(frozen=True)
class _Layer:
    """What one call of an attention layer is given; `rows` computes some rows of its map and what they attend to."""

    taps: Sequence[Tap]
    module: nn.Module
    query: Tensor
    keys: Tensor  # transposed
    value: Tensor
    mask: Tensor | RowMask | None
    scaling: float
    formula: Formula

    def rows(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Outputs and attention of some rows, with every step open to the taps."""
        n_key, dtype = self.keys.shape[-1], self.query.dtype
        call = AttentionCall(self.module, rows)
        here = additive_rows(self.mask, rows, n_key, dtype)
        narrow = isinstance(self.mask, RowMask) and all(tap.narrow for tap in self.taps)
        n = seen_keys(here) if narrow and here is not None else n_key
        here = None if here is None else here[..., :n]
        scores = torch.matmul(self.query[:, :, rows], self.keys[..., :n])
        scores = scores * self.scaling if torch.is_grad_enabled() else scores.mul_(self.scaling)
        bias = self.formula.position_bias
        if bias is not None:
            scores = scores + (bias if bias.shape[-2] == 1 else bias[..., rows, :])[..., :n]
        if (cap := self.formula.softcap) is not None:
            scores = torch.tanh(scores / cap) * cap
        for tap in self.taps:
            scores = tap.scores(call, scores)
        replaced = (tap.softmax(call, scores, here) for tap in reversed(self.taps))  # the innermost replacement wins
        probs = next((given for given in replaced if given is not None), None)
        if probs is None:
            ours = not torch.is_grad_enabled() and not any(tap.overrides("scores", "softmax") for tap in self.taps)
            probs = _softmax(scores, here, self.formula.sinks, dtype, ours)
        del scores
        for tap in self.taps:
            probs = tap.probs(call, probs)
        dropped = F.dropout(probs, p=self.formula.dropout, training=self.module.training)
        return torch.matmul(dropped, self.value[:, :, :n]), probs


def attend(
    taps: Sequence[Tap],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | RowMask | None,
    formula: Formula,
) -> tuple[Tensor, Tensor | None]:
    """The attention of a layer, by its formula, with every step open to the taps.

    Where no tap looks at a map, torch's fused attention computes the outputs and no map is made. Query
    (batch, head, query, dim); keys and values may have fewer heads (grouped queries). Returns the outputs as
    (batch, query, head, dim) and the map, or None for the map when it was computed in blocks of rows.
    """
    for tap in taps:
        tap.inputs(AttentionCall(module), query, key, value)
    if (
        not any(tap.overrides("scores", "softmax", "probs") for tap in taps)
        and formula.softcap is None
        and formula.sinks is None
    ):
        outputs = _fused(module, query, key, value, mask, formula)
        for tap in taps:
            outputs = tap.outputs(AttentionCall(module), outputs)
        return outputs, None
    n_head, n_query, n_key = query.shape[1], query.shape[2], key.shape[2]
    if key.shape[1] != n_head:
        key = key.repeat_interleave(n_head // key.shape[1], dim=1)
        value = value.repeat_interleave(n_head // value.shape[1], dim=1)
    scaling = query.shape[-1] ** -0.5 if formula.scaling is None else formula.scaling
    layer = _Layer(taps, module, query, key.transpose(2, 3), value, mask, scaling, formula)
    step = max(1, BLOCK_BYTES // (query.shape[0] * n_head * n_key * 4))
    if step >= n_query or not all(tap.blockwise for tap in taps) or torch.is_grad_enabled():
        outputs, probs = layer.rows(slice(0, n_query))
        kept: Tensor | None = probs
    else:
        outputs, kept = query.new_empty(*query.shape[:3], value.shape[-1]), None
        for start in range(0, n_query, step):
            rows = slice(start, min(start + step, n_query))
            outputs[:, :, rows] = layer.rows(rows)[0]
    outputs = outputs.transpose(1, 2).contiguous()
    for tap in taps:
        outputs = tap.outputs(AttentionCall(module), outputs)
    return outputs, kept
