"""Projections: the linear maps through which heads enter and leave an attention layer, and keeping only some heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headscape.attention.placing import on_disk, present
from headscape.attention.sites import example_input, run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.wrapping import Model
from headscape.errors import InputError

__all__ = [
    "Layout",
    "columns_of",
    "input_width",
    "keep_heads",
    "layout_of",
    "output_projections",
    "output_width",
    "set_bias",
    "set_columns",
]

# names of the query, key and value maps: Llama, Mistral, Qwen, Gemma, ViT, BART, GPT-J; BERT; T5, MPNet; DeBERTa
SEPARATE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("query_proj", "key_proj", "value_proj"),
)
FUSED = ("c_attn", "qkv_proj", "Wqkv", "query_key_value")  # GPT-2; Phi-3; MPT; Bloom and Falcon
BESIDE = ("pos_key_proj", "pos_query_proj")  # DeBERTa's maps of positions, with as many heads as the queries
PER_HEAD = ("sinks",)  # GPT-OSS: one number per query head
SHARED = ("relative_attention_bias",)  # T5: one row per head, but used by all layers of the stack, so it stays whole


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or _is_transposed(module)


def _is_transposed(module: nn.Module) -> bool:
    """Whether the weight is (in, out): the Conv1D of GPT-2."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def _weight(linear: nn.Module) -> Tensor:
    weight = linear.weight
    assert isinstance(weight, Tensor)
    return weight


def input_width(linear: nn.Module) -> int:
    """Number of inputs of a linear map, whichever way its weight lies."""
    return _weight(linear).shape[0 if _is_transposed(linear) else 1]


def output_width(linear: nn.Module) -> int:
    """Number of outputs of a linear map, whichever way its weight lies."""
    return _weight(linear).shape[1 if _is_transposed(linear) else 0]


def columns_of(linear: nn.Module) -> Tensor:
    """The weight as (out, in); a copy where it lies on disk."""
    if on_disk(linear):
        with present(linear):
            return _columns(linear).clone()
    return _columns(linear)


def _columns(linear: nn.Module) -> Tensor:
    return _weight(linear).detach().T if _is_transposed(linear) else _weight(linear).detach()


class _Outputs(Tap):
    """Finds the linear map whose input is a layer's head outputs side by side, by running the network once.

    Layers on the attention interface show their outputs before that map is called; where softmax is intercepted they
    are shown from within its call. So both the outputs still to be matched and the last call are remembered.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Tensor] = {}
        self.found: dict[int, nn.Module] = {}
        self.last: tuple[nn.Module, Tensor] | None = None

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        merged = outputs.detach().flatten(-2)
        key = id(call.module)
        if self.last is not None and _same(self.last[1], merged):
            self.found[key] = self.last[0]
        else:
            self.waiting[key] = merged
        return outputs

    def called(self, linear: nn.Module, args: Any) -> None:
        """Forward pre-hook of every linear map."""
        if not args or not isinstance(args[0], Tensor):
            return
        self.last = (linear, args[0].detach())
        for key in [key for key, merged in self.waiting.items() if _same(args[0], merged)]:
            self.found[key] = linear
            del self.waiting[key]


def _same(x: Tensor, merged: Tensor) -> bool:
    return (
        x.shape[-1] == merged.shape[-1] and x.numel() == merged.numel() and torch.equal(x.reshape(merged.shape), merged)
    )


def output_projections(model: Model) -> dict[str, str]:
    """Name of the output projection W_O of every attention layer, {site: module}, found by one short run.

    Raises an `InputError` when a layer's heads do not go side by side into one linear map.
    """
    tap = _Outputs()
    names = {id(module): name for name, module in model.module.named_modules()}
    with ExitStack() as restore:
        for module in model.module.modules():
            if _is_linear(module):
                restore.callback(module.register_forward_pre_hook(tap.called).remove)
        with torch.no_grad(), tapped(model.module, tap, model.attention):
            run(model, example_input(model), whole=False)
    modules = dict(model.module.named_modules())
    missing = [site.name for site in model.sites if id(modules[site.name]) not in tap.found]
    if missing:
        raise InputError(
            f"{model.source}: the output projection of {missing[0]} is not a linear map of the heads side by side; "
            "its heads cannot be removed from the weights, only temporarily: with hs.ablate(...)"
        )
    return {site.name: names[id(tap.found[id(modules[site.name])])] for site in model.sites}


@dataclass(frozen=True)
class Layout:
    """How an attention layer holds its heads: `maps` are the names of its input projections.

    separate: one map each for queries, keys and values; stacked: one map, all queries, then all keys, then all values;
    interleaved: one map, query, key and value of the first head, then of the second, ...
    """

    kind: Literal["separate", "stacked", "interleaved"]
    maps: tuple[str, ...]
    n_heads: int
    n_kv_heads: int
    dim: int

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.n_heads // self.n_kv_heads


def layout_of(module: nn.Module, output: nn.Module, n_heads: int) -> Layout:
    """Recognise the input projections of an attention layer with `n_heads` query heads.

    Raises an `InputError` for a layer built otherwise, naming what is understood.
    """
    found = _layout(module, n_heads)
    if found is not None and input_width(output) % n_heads == 0 and n_heads % found.n_kv_heads == 0:
        stray = _stray_parameter(module, output, found)
        if stray is None:
            return found
    separate = ", ".join("/".join(names) for names in SEPARATE)
    raise InputError(
        f"{type(module).__name__} holds its {n_heads} heads in a way that cannot be cut; understood are input "
        f"projections {separate} and the fused {', '.join(FUSED)}; export it as 'masked'"
    )


def _layout(module: nn.Module, n_heads: int) -> Layout | None:
    for names in SEPARATE:
        maps = [getattr(module, name, None) for name in names]
        if all(isinstance(m, nn.Module) and _is_linear(m) for m in maps):
            query, key, value = (output_width(m) for m in maps if m is not None)
            dim, rest = divmod(query, n_heads)
            if rest or not dim or key % dim or key != value:
                return None
            return Layout("separate", names, n_heads, key // dim, dim)
    width = getattr(module, "head_dim", None)
    for name in FUSED:
        fused = getattr(module, name, None)
        if not (isinstance(fused, nn.Module) and _is_linear(fused) and isinstance(width, int)):
            continue
        blocks, rest = divmod(output_width(fused), width)
        if rest or (blocks - n_heads) % 2 or getattr(module, "new_decoder_architecture", False):
            return None  # Falcon's newer form interleaves groups of queries with their keys
        if name == "query_key_value" and blocks == 3 * n_heads:
            return Layout("interleaved", (name,), n_heads, n_heads, width)
        return Layout("stacked", (name,), n_heads, (blocks - n_heads) // 2, width)
    return None


def _stray_parameter(module: nn.Module, output: nn.Module, layout: Layout) -> str | None:
    """A parameter of the layer that depends on the number of heads and is not known: cutting would go wrong."""
    known = {id(p) for p in output.parameters()}
    for name in (*layout.maps, *BESIDE):
        part = getattr(module, name, None)
        known |= {id(p) for p in part.parameters()} if isinstance(part, nn.Module) else set()
    sizes = {layout.n_heads, layout.n_heads * layout.dim, layout.n_kv_heads * layout.dim} - {layout.dim, 1}
    for name, parameter in module.named_parameters():
        expected = id(parameter) in known or name.split(".")[0] in (*PER_HEAD, *SHARED)
        if not expected and sizes & set(parameter.shape):
            return name
    return None


def _entries(blocks: Iterable[int], dim: int, start: int = 0) -> list[int]:
    return [start + block * dim + i for block in blocks for i in range(dim)]


def _taken(parameter: Tensor, axis: int, entries: Sequence[int]) -> nn.Parameter:
    index = torch.tensor(entries, dtype=torch.long, device=parameter.device)
    return nn.Parameter(parameter.detach().index_select(axis, index), requires_grad=parameter.requires_grad)


def _keep_outputs(linear: Any, entries: Sequence[int]) -> None:
    transposed = _is_transposed(linear)
    linear.weight = _taken(linear.weight, 1 if transposed else 0, entries)
    if linear.bias is not None:
        linear.bias = _taken(linear.bias, 0, entries)
    setattr(linear, "nf" if transposed else "out_features", len(entries))


def _keep_inputs(linear: Any, entries: Sequence[int]) -> None:
    transposed = _is_transposed(linear)
    linear.weight = _taken(linear.weight, 0 if transposed else 1, entries)
    setattr(linear, "nx" if transposed else "in_features", len(entries))


def keep_heads(module: Any, output: nn.Module, layout: Layout, heads: Sequence[int], kv_heads: Sequence[int]) -> None:
    """Cut the weights of a layer down to some query heads and key/value heads, in the order given.

    New parameters take the place of the old ones, which are left as they were.
    """
    if layout.kind == "interleaved":
        _keep_outputs(getattr(module, layout.maps[0]), _entries(heads, 3 * layout.dim))
    elif layout.kind == "stacked":
        keys = layout.n_heads * layout.dim
        values = keys + layout.n_kv_heads * layout.dim
        entries = _entries(heads, layout.dim)
        entries += _entries(kv_heads, layout.dim, keys) + _entries(kv_heads, layout.dim, values)
        _keep_outputs(getattr(module, layout.maps[0]), entries)
    else:
        for name, kept in zip(layout.maps, (heads, kv_heads, kv_heads), strict=True):
            _keep_outputs(getattr(module, name), _entries(kept, layout.dim))
    for name in BESIDE:
        if hasattr(module, name):
            _keep_outputs(getattr(module, name), _entries(heads, layout.dim))
    for name in PER_HEAD:
        if hasattr(module, name):
            setattr(module, name, _taken(getattr(module, name), 0, heads))
    _keep_inputs(output, _entries(heads, input_width(output) // layout.n_heads))


def set_columns(linear: Any, columns: Tensor) -> None:
    """Give a linear map the weight (out, in); the parameter that was there is left as it was."""
    old = _weight(linear)
    weight = (columns.T if _is_transposed(linear) else columns).to(old).contiguous()
    linear.weight = nn.Parameter(weight, requires_grad=old.requires_grad)


def set_bias(linear: Any, bias: Tensor | None = None) -> None:
    """Give a linear map a bias, zero unless told; the parameter it had is left as it was."""
    weight = _weight(linear)
    if bias is None:
        bias = weight.new_zeros(output_width(linear))
    linear.bias = nn.Parameter(bias.to(weight), requires_grad=weight.requires_grad)
