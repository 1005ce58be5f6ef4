"""Pruned copies of a network, in one of three forms: masked, ragged, uniform. The network itself does not change.

A copy shares all weights with the original except those it changes, so it takes little memory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from headscape.attention import projections
from headscape.attention.models import Model
from headscape.attention.projections import Layout
from headscape.attention.ragged import LayerPlan, cut_layer
from headscape.attention.sites import Site
from headscape.errors import InputError
from headscape.pruning.compensation import Fitted
from headscape.pruning.evidence import Evidence
from headscape.pruning.units import units_of
from headscape.tensor import HeadId

__all__ = ["PrunedCopy", "check_uniform", "fill_groups", "is_uniform", "masked", "ragged", "uniform", "uniform_sets"]

Removed = Mapping[str, Fitted]
"""The heads to remove and their compensation, by the name of their attention module."""
BIAS_BY_CONFIG = ("gemma", "gemma2", "gemma3_text", "llama", "qwen3")  # attention_bias=True: for q, k, v and W_O alike


@dataclass(frozen=True)
class PrunedCopy:
    """The changed copy; `zeroed` are heads that are still there with a zero output; `plans` only for ragged."""

    module: nn.Module
    zeroed: tuple[HeadId, ...] = ()
    plans: tuple[LayerPlan, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Request:
    """What to remove from which model."""

    model: Model
    removed: Removed

    @cached_property
    def outputs(self) -> dict[str, str]:
        """The output projection of every attention module."""
        return projections.output_projections(self.model)

    def copy(self) -> Any:
        """A copy of the network that shares its parameters and buffers, except the changed output projections."""
        shared: dict[int, Any] = {id(p): p for p in (*self.model.module.parameters(), *self.model.module.buffers())}
        network = copy.deepcopy(self.model.module, shared)
        for name, layer in self.removed.items():
            projections.set_columns(network.get_submodule(self.outputs[name]), layer.weight(self._weight(name)))
        return network

    def constants(self) -> dict[str, Tensor]:
        """What to add to the bias of the output projections, (out,), where there is something to add."""
        constant = {
            name: layer
            for name, layer in self.removed.items()
            if layer.constant is not None or layer.offset is not None
        }
        return {name: layer.bias(self._weight(name)) for name, layer in constant.items()}

    def _weight(self, name: str) -> Tensor:
        return projections.columns_of(self.model.module.get_submodule(self.outputs[name])).double().cpu()

    def layouts(self) -> dict[str, Layout]:
        """How every layer of the intact network stores its heads; raises where the layout is unknown."""
        part = self.model.module.get_submodule
        return {
            s.name: projections.layout_of(part(s.name), part(self.outputs[s.name]), s.n_heads) for s in self.model.sites
        }


def _add_constant(output: Any, constant: Tensor) -> None:
    projections.set_bias(output, constant if output.bias is None else output.bias.detach().double() + constant)


def _add_stock_biases(request: _Request, network: Any) -> None:
    """Add constants to the output bias of a network that keeps its stock architecture."""
    constants = request.constants()
    if not constants:
        return
    outputs = {name: network.get_submodule(path) for name, path in request.outputs.items()}
    family = str(network.config.model_type)
    if any(output.bias is None for output in outputs.values()):
        if family not in BIAS_BY_CONFIG:
            raise InputError(
                f"{family} has no output bias to keep the mean of removed heads in; export it as 'ragged', or without means"
            )
        network.config.attention_bias = True
        for name, layout in request.layouts().items():
            module = network.get_submodule(name)
            for linear in (*(getattr(module, part) for part in layout.maps), outputs[name]):
                if linear.bias is None:
                    projections.set_bias(linear)
    for name, constant in constants.items():
        _add_constant(outputs[name], constant)


def masked(model: Model, removed: Removed) -> PrunedCopy:
    """The same architecture; the columns of W_O that read the removed heads are zero.

    W_V is never touched: with grouped queries the other heads of the group use it.
    """
    request = _Request(model, removed)
    network = request.copy()
    _add_stock_biases(request, network)
    return PrunedCopy(network, tuple(site.heads[h] for site in model.sites for h in _heads(removed, site.name)))


def ragged(model: Model, removed: Removed) -> PrunedCopy:
    """Every layer keeps just its own heads: weights are cut, and key/value heads without a query are removed too."""
    request = _Request(model, removed)
    network = request.copy()
    layouts = request.layouts()
    constants = request.constants()
    plans, empty = [], []
    for site in model.sites:
        if site.name not in removed:
            continue
        output: Any = network.get_submodule(request.outputs[site.name])
        kept = tuple(h for h in range(site.n_heads) if h not in removed[site.name].heads)
        key_values = tuple(h // layouts[site.name].group for h in kept)
        bias = output.bias is None and site.name in constants
        plan = LayerPlan(site.name, request.outputs[site.name], site.n_heads, kept, key_values, bias)
        if site.name in constants:
            _add_constant(output, constants[site.name])
        cut_layer(network, plan)
        plans.append(plan)
        empty += [] if kept else [f"{site.block}.{site.layer}"]
    notes = (f"without any head: layer {', '.join(empty)}",) if empty else ()
    return PrunedCopy(network, plans=tuple(plans), notes=notes)


class _Stock(NamedTuple):
    """Where a stock configuration has the number of heads, and whether the hidden size must be a multiple of it."""

    heads: str
    kv_heads: str | None
    dim: str
    divides: bool


_LLAMA = _Stock("num_attention_heads", "num_key_value_heads", "head_dim", divides=True)
_QWEN = _LLAMA._replace(divides=False)
UNIFORM = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "llama"), _LLAMA),
    **dict.fromkeys(("mistral", "qwen2", "qwen3"), _QWEN),
    "t5": _Stock("num_heads", None, "d_kv", divides=False),
    "vit": _Stock("num_attention_heads", None, "head_dim", divides=False),
}


def check_uniform(model: Model) -> None:
    """Raise an `InputError` where no stock configuration has fewer heads."""
    family = str(model.config.model_type)
    if family not in UNIFORM:
        raise InputError(
            f"no stock configuration of {family} has fewer heads of the same size, since heads times head size must be "
            f"its hidden size; export it as 'ragged' (smaller) or 'masked' (loads everywhere). 'uniform' is for "
            f"{', '.join(sorted(UNIFORM))}"
        )


def uniform(model: Model, removed: Removed) -> PrunedCopy:
    """A stock configuration with fewer heads: the same number of key/value heads, and of queries to each, in every layer.

    Every layer must keep the same numbers. Where the choice of heads does not allow that, some heads to be removed stay,
    with zeroed columns of W_O, up to the smallest numbers the configuration accepts.
    """
    check_uniform(model)
    family = str(model.config.model_type)
    stock = UNIFORM[family]
    request = _Request(model, removed)
    network = request.copy()
    layouts = request.layouts()
    kept = _kept(model, removed, shared=family == "t5")
    some = next(iter(layouts.values()))
    if any(layout != some for layout in layouts.values()):
        raise InputError(f"the layers of {model.source} differ in their heads; export it as 'ragged'")
    n_kv, size = _smallest(model, family, stock, some, kept)
    zeroed: list[HeadId] = []
    for site in model.sites:
        module: Any = network.get_submodule(site.name)
        output = network.get_submodule(request.outputs[site.name])
        chosen, kv_heads = _fill(kept[site.name], n_kv, size, some)
        zeroed += [site.heads[h] for h in chosen if h in _heads(removed, site.name)]
        if hasattr(module, "relative_attention_bias"):
            table = module.relative_attention_bias
            table.weight = nn.Parameter(table.weight.detach()[:, chosen])
        projections.keep_heads(module, output, some, chosen, kv_heads)
    setattr(network.config, stock.heads, n_kv * size)
    setattr(network.config, stock.dim, some.dim)
    if stock.kv_heads is not None:
        setattr(network.config, stock.kv_heads, n_kv)
    _add_stock_biases(request, network)
    groups = f" in {n_kv} groups" if size > 1 else ""
    note = f"{len(zeroed)} of the heads to be removed stay as zeros: every layer needs {n_kv * size} heads{groups}"
    return PrunedCopy(network, tuple(zeroed), notes=(note,) if zeroed else ())


def uniform_sets(evidence: Evidence, score: npt.NDArray[np.float64]) -> list[list[HeadId]]:
    """Growing sets of heads that stock configurations describe: equally many whole groups of every layer, lowest first."""
    model = evidence.network
    check_uniform(model)
    family = str(model.config.model_type)
    if family == "t5":
        raise InputError("T5 needs the same heads in every layer, and no such choices are searched; use kind 'ragged'")
    by_head = dict(zip(evidence.heads, score, strict=True))
    groups = units_of(model, "group")
    counts = {(len(own), site.n_heads) for site in model.sites for own in (groups[site.name],)}
    if len(counts) > 1 or len(by_head) < sum(site.n_heads for site in model.sites):
        raise InputError(f"the layers of {model.source} differ in their heads; use kind 'ragged'")
    n_groups, n_heads = counts.pop()
    hidden = int(getattr(model.config, "hidden_size", 0))
    kept = [
        n for n in range(n_groups - 1, 0, -1) if not (UNIFORM[family].divides and hidden % (n * n_heads // n_groups))
    ]
    if not kept:
        raise InputError(f"no stock configuration of {family} has fewer than {n_groups} key/value heads; use 'ragged'")

    def mean_score(site: Site, own: Sequence[int]) -> float:
        return float(np.mean([by_head[site.heads[h]] for h in own]))

    ranked = [(site, sorted(groups[site.name], key=partial(mean_score, site))) for site in model.sites]
    return [[site.heads[h] for site, order in ranked for own in order[: n_groups - n] for h in own] for n in kept]


def _heads(removed: Removed, name: str) -> tuple[int, ...]:
    return removed[name].heads if name in removed else ()


def _kept(model: Model, removed: Removed, shared: bool) -> dict[str, list[int]]:
    """The heads each layer keeps; `shared`: self-attention of a stack must keep the same (T5's position bias)."""
    kept = {s.name: [h for h in range(s.n_heads) if h not in _heads(removed, s.name)] for s in model.sites}
    for block in {site.block for site in model.sites if shared and not site.block.endswith(".cross")}:
        names = [site.name for site in model.sites if site.block == block]
        union = sorted(set().union(*(kept[name] for name in names)))
        kept |= dict.fromkeys(names, union)
    return kept


def _groups(kept: list[int], layout: Layout) -> list[list[int]]:
    """The kept heads by the key/value head they share."""
    return [[h for h in kept if h // layout.group == j] for j in range(layout.n_kv_heads)]


def _smallest(
    model: Model, family: str, stock: _Stock, layout: Layout, kept: Mapping[str, list[int]]
) -> tuple[int, int]:
    """The cheapest (key/value heads, queries to each) that holds every layer's heads and a stock config describes."""
    by_layer = [_groups(found, layout) for found in kept.values()]
    least_kv = max(1, *(sum(bool(group) for group in groups) for groups in by_layer))
    least_size = max(1, *(len(group) for groups in by_layer for group in groups))
    hidden = int(getattr(model.config, "hidden_size", 0))
    valid = [
        (n_kv, size)
        for n_kv in range(1, layout.n_kv_heads + 1)
        for size in range(1, layout.group + 1)
        if n_kv * size < layout.n_heads and not (stock.divides and hidden % (n_kv * size))
    ]
    fitting = [(n_kv, size) for n_kv, size in valid if n_kv >= least_kv and size >= least_size]
    if not fitting:
        counts = ", ".join(str(n) for n in sorted({n_kv * size for n_kv, size in valid})) or "no other number of"
        most = f"{least_kv} heads"
        if layout.group > 1:
            most = f"heads in {least_kv} key/value groups, or {least_size} heads in one"
        raise InputError(
            f"no stock configuration of {family} describes this choice: every layer needs the same number of heads, "
            f"fewer than {layout.n_heads} ({counts} are valid), and some layer keeps {most}; remove more from that "
            "layer, or export it as 'ragged' (smaller) or 'masked' (loads everywhere)"
        )
    # W_Q and W_O have n_kv * size heads, W_K and W_V n_kv
    return min(fitting, key=lambda pair: (pair[0] * (pair[1] + 1), pair))


def fill_groups(kept: list[int], layout: Layout) -> tuple[list[int], list[int]]:
    """Query heads and key/value heads of one layer, with heads added until every group that is left has equally many."""
    groups = [group for group in _groups(kept, layout) if group]
    return _fill(kept, max(1, len(groups)), max([1, *map(len, groups)]), layout)


def is_uniform(model: Model, removed: Removed) -> bool:
    """Whether a stock configuration describes the network without these heads, none of them left as zeros."""
    try:
        return not uniform(model, removed).zeroed
    except InputError:
        return False


def _fill(kept: list[int], n_kv: int, size: int, layout: Layout) -> tuple[list[int], list[int]]:
    """Add heads, lowest first, until there are `n_kv` groups of `size`; returns query heads and key/value heads."""
    groups = _groups(kept, layout)
    by_need = sorted(range(layout.n_kv_heads), key=lambda j: (not groups[j], j))
    kv_heads = sorted(by_need[:n_kv])
    chosen = []
    for j in kv_heads:
        members = range(j * layout.group, (j + 1) * layout.group)
        spare = [h for h in members if h not in groups[j]]
        chosen += sorted(groups[j] + spare[: size - len(groups[j])])
    return chosen, kv_heads
