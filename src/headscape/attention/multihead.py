"""torch.nn.MultiheadAttention, computed through `attend` so that taps see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.attention.taps import AttentionCall, Formula, Tap, attend, split_heads
from headscape.errors import InputError

__all__ = ["through_multihead"]


class _Seen(Tap):
    """Looks at whole maps and leaves them: where the caller wants them back they must be computed."""

    blockwise = False

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        return probs


def _multihead_forward(module: nn.MultiheadAttention, taps: list[Tap]) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The forward of one MultiheadAttention, through `attend`."""
    if module.bias_k is not None or module.add_zero_attn:
        raise InputError("MultiheadAttention with add_bias_kv or add_zero_attn is not supported")

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        single = query.dim() == 2
        streams = [x.unsqueeze(0 if module.batch_first else 1) if single else x for x in (query, key, value)]
        if not module.batch_first:
            streams = [x.transpose(0, 1) for x in streams]
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        biases = module.in_proj_bias.chunk(3) if module.in_proj_bias is not None else (None, None, None)

        def heads(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return split_heads(F.linear(x, weight, bias), module.num_heads).transpose(1, 2)

        q, k, v = (heads(x, w, b) for x, w, b in zip(streams, weights, biases, strict=True))
        mask = _additive(attn_mask, q.dtype)
        if mask is not None and mask.dim() == 3:
            mask = mask.view(-1, module.num_heads, *mask.shape[1:])
        padding = _additive(key_padding_mask, q.dtype)
        if padding is not None:
            padding = (padding[None] if single else padding)[:, None, None, :]
            mask = padding if mask is None else mask + padding
        seen = [*taps, _Seen()] if need_weights else taps
        out, probs = attend(seen, module, q, k, v, mask, Formula(dropout=module.dropout))
        projected = module.out_proj(out.flatten(2))
        if not module.batch_first:
            projected = projected.transpose(0, 1)
        if single:
            projected = projected.squeeze(0 if module.batch_first else 1)
        if not need_weights or probs is None:
            return projected, None
        probs = probs.mean(dim=1) if average_attn_weights else probs
        return projected, probs.squeeze(0) if single else probs

    return forward


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Torch's masks say True = absent; turn them into what is added to scores."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))


@contextmanager
def through_multihead(network: nn.Module, taps: list[Tap]) -> Iterator[None]:
    """Replace the forward of every MultiheadAttention in the network, and put it back."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the fused encoder layer would not call the forward below
    modules = [m for m in network.modules() if isinstance(m, nn.MultiheadAttention)]
    try:
        for module in modules:
            module.__dict__["forward"] = _multihead_forward(module, taps)
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)
        torch.backends.mha.set_fastpath_enabled(fast)
