"""Networks with their own attention code: the softmax or fused attention of a running attention module is intercepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headscape.attention.taps import AttentionCall, Formula, Tap, attend, split_heads
from headscape.errors import InputError

__all__ = ["through_softmax"]

_SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)
_ADDED_PRODUCTS = (torch.baddbmm, torch.Tensor.baddbmm)
_PRODUCTS = (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.bmm, torch.Tensor.__matmul__)


class _Interceptor(TorchFunctionMode):
    """Hands the softmax, the fused attention and the output projection of the running attention module to the taps."""

    def __init__(self, taps: list[Tap], named: bool) -> None:
        super().__init__()
        self.taps, self.named = taps, named
        self.running: list[nn.Module] = []
        self.open: nn.Module | None = None  # the module whose softmax was seen and whose output was not yet
        self.n_head = 0
        self.products: list[tuple[Tensor, Tensor]] = []  # since the running module was entered
        self.queries_keys: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.running:
            return func(*args, **kwargs)
        module = self.running[-1]
        if func is F.scaled_dot_product_attention:
            return self._fused(module, *args, **kwargs)
        if func in _SOFTMAX and self._is_map(module, args[0], args[1:], kwargs):
            return self._softmax(module, func, args, kwargs)
        linear = func is F.linear or (func in _PRODUCTS and args[1].dim() == 2)  # Falcon writes x @ W.T
        if linear and self.open is module:
            return func(self._outputs(module, args[0]), *args[1:], **kwargs)
        if func in _PRODUCTS and not linear:
            self.products.append((args[0], args[1]))
            if self.open is module:
                self._values(module, args[1])
        elif func in _ADDED_PRODUCTS:
            self.products.append(args[1:3] if len(args) > 2 else (kwargs["batch1"], kwargs["batch2"]))
        return func(*args, **kwargs)

    def _is_map(self, module: nn.Module, x: Tensor, rest: Any, kwargs: Any) -> bool:
        dim = kwargs.get("dim", rest[0] if rest else None)
        if x.dim() == 4 and dim in (-1, 3):
            return True
        if self.named and x.dim() >= 3:
            raise InputError(
                f"{type(module).__name__} applies softmax to a tensor of shape {tuple(x.shape)} along dim {dim}; "
                "headscape understands (batch, head, query, key) along the last"
            )
        return False

    def _softmax(self, module: nn.Module, func: Any, args: Any, kwargs: Any) -> Tensor:
        masked = args[0]
        self.open, self.n_head = module, masked.shape[1]
        call = AttentionCall(module, slice(0, masked.shape[2]))
        # queries and keys are known when just one product gave a map; several (relative positions) would be a guess
        made = [(a, b) for a, b in self.products if (a.shape[-2], b.shape[-1]) == tuple(masked.shape[-2:])]
        self.queries_keys = made[0] if len(made) == 1 else None
        replaced: Tensor | None = None
        if any(tap.overrides("scores", "softmax") for tap in self.taps):
            # the mask was added before we could see the scores: absent entries hold its huge negative value
            absent = masked <= torch.finfo(masked.dtype).min / 2
            scores = masked.masked_fill(absent, 0.0)
            mask = torch.zeros_like(masked).masked_fill(absent, torch.finfo(masked.dtype).min)
            for tap in self.taps:
                scores = tap.scores(call, scores)
            given = (tap.softmax(call, scores, mask) for tap in reversed(self.taps))
            replaced = next((probs for probs in given if probs is not None), None)
            args = (scores + mask, *args[1:])
        probs = func(*args, **kwargs) if replaced is None else replaced
        for tap in self.taps:
            probs = tap.probs(call, probs)
        return probs

    def _values(self, module: nn.Module, value: Tensor) -> None:
        if self.queries_keys is None or not any(tap.overrides("inputs") for tap in self.taps):
            return
        query, key = self.queries_keys
        parts = [query, key.transpose(-1, -2), value]
        parts = [x if x.dim() == 4 else x.reshape(-1, self.n_head, *x.shape[1:]) for x in parts]
        self.queries_keys = None
        for tap in self.taps:
            tap.inputs(AttentionCall(module), *parts)

    def _fused(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if is_causal:
            present = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
            attn_mask = present.tril()[None, None]
        outputs, _ = attend(self.taps, module, query, key, value, attn_mask, Formula(scale, dropout_p))
        return outputs.transpose(1, 2)

    def _outputs(self, module: nn.Module, merged: Tensor) -> Tensor:
        self.open = None
        if not any(tap.overrides("outputs") for tap in self.taps):
            return merged
        outputs = split_heads(merged, self.n_head)
        for tap in self.taps:
            outputs = tap.outputs(AttentionCall(module), outputs)
        return outputs.flatten(-2)

    def enter(self, module: nn.Module, args: Any) -> None:
        """Forward pre-hook of an attention module."""
        self.running.append(module)

    def leave(self, module: nn.Module, args: Any, result: Any) -> Any:
        """Forward hook: a module that ends without an output projection of its own returns the merged heads."""
        self.running.pop()
        self.products.clear()
        if self.open is not module:
            return result
        if isinstance(result, tuple):
            return (self._outputs(module, result[0]), *result[1:])
        return self._outputs(module, result)


@contextmanager
def through_softmax(network: nn.Module, taps: list[Tap], attention: Sequence[str] | None) -> Iterator[None]:
    """Hand what attention modules compute to the taps; `attention` names them, else their class names tell."""
    interceptor = _Interceptor(taps, named=attention is not None)
    with ExitStack() as restore:
        for module in _attention_modules(network, attention):
            restore.callback(module.register_forward_pre_hook(interceptor.enter).remove)
            restore.callback(module.register_forward_hook(interceptor.leave).remove)
        restore.enter_context(interceptor)
        yield


def _attention_modules(network: nn.Module, attention: Sequence[str] | None) -> list[nn.Module]:
    modules = dict(network.named_modules())
    if attention is not None:
        missing = [name for name in attention if name not in modules]
        if missing:
            raise InputError(f"{type(network).__name__} has no submodule '{missing[0]}'")
        return [modules[name] for name in attention]
    # without names: every module with children that is called an attention, innermost first
    named = [m for m in modules.values() if "attention" in type(m).__name__.lower() and list(m.children())]
    return [m for m in named if not any(other is not m and other in list(m.modules()) for other in named)]
