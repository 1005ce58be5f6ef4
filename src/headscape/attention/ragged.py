"""Ragged networks: every attention layer keeps its own heads, possibly none, and stays a module of transformers.

The layers of a stock network are cut in place; `PLAN_FILE` beside the weights says how, so that a folder can be loaded
again. Stock layers assume that all layers have the same heads; where they do not:

* key/value heads may serve different numbers of queries: see `uneven`;
* a position bias or ALiBi computed for all heads is reduced to the layer's own;
* a layer without heads adds a constant, and only counts tokens in the cache.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headscape.attention.projections import SHARED, keep_heads, layout_of, output_width, set_bias
from headscape.attention.uneven import LayerConfig, set_groups
from headscape.errors import InputError
from headscape.storage import read_json, write_json

__all__ = [
    "PLAN_FILE",
    "RAGGED_NOTE",
    "LayerPlan",
    "cut_layer",
    "is_ragged",
    "ragged_class",
    "read_plans",
    "write_plans",
]

PLAN_FILE = "headscape-module.json"
FORMAT = 1
RAGGED_NOTE = "ragged: every layer keeps its own heads, renumbered from 0; layers without heads are not counted"
_T5_BIAS = (
    "has_relative_attention_bias",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "is_decoder",
    "_relative_position_bucket",
)


@dataclass(frozen=True)
class LayerPlan:
    """How one layer is cut.

    `name` and `output` are the attention module and its output projection, `n_heads` the number of query heads it had,
    `heads` those it keeps, `key_values` the key/value head of each (both numbered as in the intact layer), `bias` whether
    the output projection gets a bias that the stock layer does not have.
    """

    name: str
    output: str
    n_heads: int
    heads: tuple[int, ...]
    key_values: tuple[int, ...]
    bias: bool = False


def write_plans(folder: Path, plans: Sequence[LayerPlan]) -> None:
    """Write the plan of a ragged network beside its weights."""
    write_json(folder / PLAN_FILE, {"format": FORMAT, "kind": "ragged", "layers": [asdict(plan) for plan in plans]})


def read_plans(folder: Path) -> tuple[LayerPlan, ...]:
    """Read what `write_plans` wrote. Raises an `InputError` when it is damaged or of a newer format."""
    file = folder / PLAN_FILE
    try:
        said = read_json(file)
        if said["format"] != FORMAT or said["kind"] != "ragged":
            raise InputError(f"{folder} was exported by a newer headscape (format {said['format']}); update headscape")
        rows = [{**row, "heads": tuple(row["heads"]), "key_values": tuple(row["key_values"])} for row in said["layers"]]
        return tuple(LayerPlan(**row) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} is damaged ({error!r}); export the model again") from None


def ragged_class(kind: Any, folder: Path) -> Any:
    """The stock class of a network, changed to cut its layers by the folder's plan when it is built.

    `from_pretrained` then allocates, fills, ties and checks as it does for the stock class.
    """
    plans = read_plans(folder)

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, config, *args, **kwargs)
        for plan in plans:
            try:
                cut_layer(self, plan)
            except AttributeError as error:
                raise InputError(f"{folder / PLAN_FILE} does not fit the network: {error}") from None

    # the same name and home, so that transformers and headscape see the class they know
    own = {"__init__": build, "__module__": kind.__module__, "headscape_plans": plans}
    return type(kind.__name__, (kind,), own)


def is_ragged(network: nn.Module) -> bool:
    """Whether a network was loaded from a ragged export."""
    return hasattr(network, "headscape_plans")


def cut_layer(network: nn.Module, plan: LayerPlan) -> None:
    """Cut one attention layer down to the heads of its plan, in place."""
    module: Any = network.get_submodule(plan.name)
    output = network.get_submodule(plan.output)
    layout = layout_of(module, output, plan.n_heads)
    if not plan.heads:
        network.set_submodule(plan.output, _Constant(output, plan.bias))
        network.set_submodule(plan.name, NoHeads(network.get_submodule(plan.name)))
        return
    counts = Counter(plan.key_values)
    kv_heads = sorted(counts)
    keep_heads(module, output, layout, plan.heads, kv_heads)
    if plan.bias and output.bias is None:
        set_bias(output)
    _update_counts(module, len(plan.heads), len(kv_heads), layout.dim)
    set_groups(module, [counts[head] for head in kv_heads])
    stock: Any = type(module)
    if {"position_bias", "alibi"} & set(_signature(stock).parameters):
        module.headscape_heads, module.headscape_n_heads = list(plan.heads), plan.n_heads
        module.__class__ = _with_own_heads(stock)


def _update_counts(module: Any, n_heads: int, n_kv_heads: int, dim: int) -> None:
    """Update the numbers that the stock forward pass reads."""
    for name in ("num_heads", "num_attention_heads", "n_heads"):
        if hasattr(module, name):
            setattr(module, name, n_heads)
    for name in ("num_key_value_heads", "num_kv_heads"):
        if hasattr(module, name):
            setattr(module, name, n_kv_heads)
    for name in ("all_head_size", "inner_dim", "split_size"):
        if hasattr(module, name):
            setattr(module, name, n_heads * dim)
    if hasattr(module, "qkv_proj"):  # Phi-3 asks the configuration of the whole network where its queries end
        module.config = LayerConfig(module.config, n_heads)


class _Constant(nn.Module):
    """An output projection without inputs: its bias, or zero."""

    def __init__(self, output: nn.Module, bias: bool) -> None:
        super().__init__()
        self.width = output_width(output)
        kept: Any = output.bias
        if kept is None and bias:
            set_bias(output)
            kept = output.bias
        self.register_parameter("bias", kept)

    def forward(self, x: Tensor) -> Tensor:
        zero = x.new_zeros(*x.shape[:-1], self.width)
        bias: Any = self.bias
        return zero if bias is None else zero + bias


@cache
def _signature(stock: Any) -> inspect.Signature:
    return inspect.signature(stock.forward)


def _named(stock: type, module: nn.Module, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a stock forward pass by name, however they were passed."""
    bound = _signature(stock).bind(module, *args, **kwargs).arguments
    given = dict(bound)
    del given["self"]
    given.update(given.pop("kwargs", {}))
    return given


def _position_bias(stock: Any, module: Any, given: dict[str, Any]) -> Tensor:
    """T5's bias for all heads (1, n_head, n_query, n_key), which its first layer computes for all layers."""
    hidden, past = given["hidden_states"], _self_cache(given)
    n_query = hidden.shape[1]
    n_past, n_key = 0, n_query
    if past is not None:
        n_past, n_key = past.get_seq_length(module.layer_idx), past.get_mask_sizes(n_query, module.layer_idx)[0]
    bias: Tensor = stock.compute_bias(module, n_query, n_key, device=hidden.device, past_seen_tokens=n_past)
    return bias


def _self_cache(given: dict[str, Any]) -> Any:
    past = given.get("past_key_values", given.get("layer_past"))
    return getattr(past, "self_attention_cache", past)


def _is_cross(given: dict[str, Any]) -> bool:
    return given.get("key_value_states") is not None or given.get("encoder_hidden_states") is not None


def _is_t5(stock: type) -> bool:
    """Whether the layer returns the position bias it used, for the next one."""
    return hasattr(stock, "compute_bias") and "position_bias" in _signature(stock).parameters


@cache
def _with_own_heads(stock: Any) -> type:
    """A subclass that reduces what was computed for all heads to the layer's own."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = _named(stock, self, args, kwargs)
        whole = given.get("position_bias")
        if _is_t5(stock):
            if _is_cross(given):
                whole = None  # always zero; every layer makes its own
            elif whole is None and self.has_relative_attention_bias:
                whole = _position_bias(stock, self, given)
            given["position_bias"] = whole
        for name in ("position_bias", "alibi", "attention_mask"):
            if isinstance(given.get(name), Tensor):
                given[name] = _own(given[name], name, self.headscape_heads, self.headscape_n_heads)
        result = stock.forward(self, **given)
        return (result[0], whole, *result[2:]) if _is_t5(stock) else result

    return type(f"Ragged{stock.__name__}", (stock,), {"forward": forward, "__module__": __name__})


def _own(x: Tensor, name: str, heads: list[int], n_heads: int) -> Tensor:
    """The rows of some heads: of (batch, head, query, key), (head, query, key) or ALiBi's (batch * head, 1, key)."""
    if name == "alibi" and x.dim() == 3:
        return x.reshape(-1, n_heads, *x.shape[1:])[:, heads].flatten(0, 1)
    axis = x.dim() - 3
    if axis < 0 or x.shape[axis] != n_heads:  # a mask for all heads alike
        return x
    return x.index_select(axis, torch.tensor(heads, device=x.device))


class NoHeads(nn.Module):
    """Takes the place of an attention layer that lost all its heads: it returns the bias of the output projection.

    Its name does not say attention, since nothing is computed here that could be captured.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.stock = type(module)
        self.layer_idx = getattr(module, "layer_idx", None)
        self.output: str | None = None
        for name, child in module.named_children():
            if isinstance(child, _Constant):
                self.output = name
                self.add_module(name, child)
            elif name in SHARED:
                self.add_module(name, child)
        if hasattr(self.stock, "compute_bias"):  # what T5's computation of the position bias reads
            for name in _T5_BIAS:
                setattr(self, name, getattr(module, name))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _named(self.stock, self, args, kwargs)
        hidden, past = given["hidden_states"], _self_cache(given)
        bias = given.get("position_bias")
        if _is_t5(self.stock) and bias is None and self.has_relative_attention_bias:
            bias = _position_bias(self.stock, self, given)
        if past is not None and not _is_cross(given):
            # the length of the cache is asked of its first layer, whichever layer lost its heads
            counted = hidden.new_zeros(hidden.shape[0], 1, hidden.shape[1], 1)
            past.update(counted, counted, self.layer_idx)
        result = hidden.new_empty(*hidden.shape[:-1], 0)
        if self.output is not None:
            result = getattr(self, self.output)(result)
        if "residual" in given:  # Bloom adds it within the layer
            result = result + given["residual"]
        return (result, bias, None) if _is_t5(self.stock) else (result, None)
