"""Tapping: how a tap is put on a network, whatever its kind, and taken off again without a trace.

* transformers models built on the attention interface: a registered function (`attend`) takes the place of theirs;
* `torch.nn.MultiheadAttention`: its forward is replaced by the same computation through `attend`;
* everything else (Bloom, Falcon, MPNet, a network of the user's): softmax and fused attention are intercepted while
  one of the attention submodules runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

from torch import Tensor, nn

from headscape.attention import taps
from headscape.attention.intercept import through_softmax
from headscape.attention.masks import RowMask, mask_in_rows
from headscape.attention.multihead import through_multihead
from headscape.attention.taps import Formula, Tap, attend

__all__ = ["attention_implementation", "masks_in_rows", "tapped", "untapped", "way_of"]

INTERFACE = "headscape"  # name under which `attend` is registered with transformers
INTERFACE_ROWS = "headscape-rows"  # the same with large masks in blocks of rows

_stacks: dict[int, list[Tap]] = {}  # id of a network -> the taps on it, outermost first
_owner: dict[int, list[Tap]] = {}  # id of any of its submodules -> the same list


@contextmanager
def tapped(network: nn.Module, tap: Tap, attention: Sequence[str] | None = None) -> Iterator[None]:
    """Put a tap on a network inside the with block; blocks nest, the inner tap sees what the outer one made.

    `attention` names the submodules that compute attention, for networks of no known kind; without it every submodule
    that calls softmax over a (batch, head, query, key) tensor counts.
    """
    stack = _stacks.get(id(network))
    if stack is not None:
        stack.append(tap)
        try:
            yield
        finally:
            stack.pop()
        return
    stack = [tap]
    with ExitStack() as restore:
        _stacks[id(network)] = stack
        restore.callback(_stacks.pop, id(network))
        for module in network.modules():
            _owner[id(module)] = stack
            restore.callback(_owner.pop, id(module))
        way = way_of(network, attention)
        if way == "interface":
            restore.enter_context(_through_interface(network))
        elif way == "multihead":
            restore.enter_context(through_multihead(network, stack))
        else:
            restore.enter_context(attention_implementation(network, "eager"))
            restore.enter_context(through_softmax(network, stack, attention))
        yield


@contextmanager
def untapped(network: nn.Module) -> Iterator[None]:
    """Lift all taps off a network inside the with block, so that it can be seen as it is."""
    stack = _stacks.get(id(network), [])
    lifted = stack[:]
    stack.clear()
    try:
        yield
    finally:
        stack[:] = lifted


def way_of(network: nn.Module, attention: Sequence[str] | None = None) -> Literal["interface", "multihead", "softmax"]:
    """How a network is tapped; see the module's docstring."""
    if attention is None:
        can_switch = getattr(network, "_can_set_attn_implementation", None)
        if can_switch is not None and can_switch():
            return "interface"
    named = [m for name, m in network.named_modules() if attention is None or name in attention]
    if any(isinstance(m, nn.MultiheadAttention) for m in named):
        return "multihead"
    return "softmax"


def _interface_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | RowMask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    formula = Formula(
        scaling,
        dropout,
        softcap=kwargs.get("softcap"),
        position_bias=kwargs.get("position_bias"),
        sinks=kwargs.get("s_aux", getattr(module, "sinks", None)),
    )
    return attend(_owner[id(module)], module, query, key, value, attention_mask, formula)


@contextmanager
def _through_interface(network: Any) -> Iterator[None]:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    # without a mask builder decoders lose their causal mask, silently
    for name, builder in ((INTERFACE, eager_mask), (INTERFACE_ROWS, mask_in_rows(lambda: taps.BLOCK_BYTES))):
        AttentionInterface.register(name, _interface_function)
        AttentionMaskInterface.register(name, builder)
    with attention_implementation(network, INTERFACE_ROWS if masks_in_rows(network) else INTERFACE):
        yield


def masks_in_rows(network: nn.Module) -> bool:
    """Whether a network hands its mask on without looking into it, so that it may come in blocks of rows.

    Those that can run flex attention do: its mask is not a tensor either.
    """
    parts = [m for m in network.modules() if _is_pretrained(m)]
    return bool(parts) and all(getattr(m, "_supports_flex_attn", False) for m in parts)


@contextmanager
def attention_implementation(network: Any, name: str) -> Iterator[None]:
    """Switch all parts of a transformers network to an attention implementation, and back; others are left alone.

    Architectures with attention of their own (Falcon) read the setting too, at every forward pass.
    """
    configs = {id(m.config): m.config for m in network.modules() if _is_pretrained(m)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        if configs and network._can_set_attn_implementation():
            network.set_attn_implementation(name)
        for config in configs.values():
            config._attn_implementation = name
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _is_pretrained(module: nn.Module) -> bool:
    return hasattr(module, "set_attn_implementation") and hasattr(
        getattr(module, "config", None), "_attn_implementation"
    )
