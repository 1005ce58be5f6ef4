"""One model on one input, as the collapse study sees it: in float64, with or without a skip, inputs shuffled or not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention.samples import Sample
from headscape.attention.sites import Site, run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import Part, check_weights, parts_of, read, read_bias
from headscape.collapse.bounds import BOUNDS, LayerBounds, layer_bounds
from headscape.collapse.similarity import attention_entropy
from headscape.errors import InputError
from headscape.hopfield.convert import to_hopfield
from headscape.studies.collapse.study import measures, present_of

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["Arm", "arms_of", "in_double", "look", "shuffled"]

Array = npt.NDArray[Any]
OFF = 1e-4
"""Largest relative difference between what weights say (values, scores) and what the model has."""


@dataclass(frozen=True)
class Arm:
    """One way to run the network: which weights and inputs, with the model's own skip or none, and a'."""

    name: str
    weights: Literal["trained", "random"] = "trained"
    shuffled: bool = False
    skip: bool = True
    alpha_hidden: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether the network is as it was built."""
        return self.skip and self.alpha_hidden == 0


def arms_of(alpha_hidden: float, with_control: bool, with_cells: bool) -> list[Arm]:
    """The model as it is and its controls; with cells, {skip, no skip} x {a' = 0, a' > 0} of both sets of weights."""
    found = [Arm("standard"), Arm("shuffled", shuffled=True)]
    sets: tuple[Literal["trained", "random"], ...] = ("trained", "random") if with_control else ("trained",)
    for weights in sets:
        prefix = "random, " if weights == "random" else ""
        if weights == "random":
            found.append(Arm("random", weights))
        if with_cells:
            found.append(Arm(f"{prefix}hidden", weights, alpha_hidden=alpha_hidden))
            found.append(Arm(f"{prefix}no skip", weights, skip=False))
            found.append(Arm(f"{prefix}no skip, hidden", weights, skip=False, alpha_hidden=alpha_hidden))
    return found


def in_double(model: Model) -> Model:
    """A copy of a model that computes in float64, as far as its own code lets it (Llama's norms stay in float32).

    Raises an `InputError` for weights that are NaN or infinite.
    """
    check_weights(model.module)
    device = "cpu" if model.device.startswith("mps") else model.device  # which has no float64
    return replace(model, module=copy.deepcopy(model.module).to(device).double(), device=device, dtype="float64")


def shuffled(model: Model, sample: Sample, seed: int) -> Sample:
    """The same input in another order: tokens but for special ones, or the patches of an image."""
    rng = np.random.default_rng(seed)
    arguments, stored = dict(sample.arguments), dict(sample.stored)
    if "pixel_values" in arguments:
        size = model.config.patch_size
        rows, columns = (size, size) if isinstance(size, int) else size
        image = arguments["pixel_values"][0]
        channels, height, width = image.shape
        grid = image.reshape(channels, height // rows, rows, width // columns, columns).permute(1, 3, 0, 2, 4)
        patches = grid.reshape(-1, channels, rows, columns)[rng.permutation(grid.shape[0] * grid.shape[1])]
        back = patches.reshape(grid.shape).permute(2, 0, 3, 1, 4).reshape(image.shape)
        return replace(sample, arguments={**arguments, "pixel_values": back[None]})
    ids = np.asarray(arguments["input_ids"][0])
    special = np.array(getattr(model.tokenizer, "all_special_ids", []), dtype=np.int64)
    free = np.flatnonzero(~np.isin(ids, special))
    mixed = ids.copy()
    mixed[free] = ids[rng.permutation(free)]
    arguments["input_ids"] = torch.from_numpy(mixed)[None]
    if "decoder_input_ids" in arguments:  # the same text, one step behind
        start = arguments["decoder_input_ids"][:, :1]
        arguments["decoder_input_ids"] = torch.cat([start, arguments["input_ids"][:, :-1]], dim=1)
    return replace(sample, arguments=arguments, stored={**stored, "input_ids": mixed})


def look(model: Model, sample: Sample, arm: Arm, block: str) -> dict[str, Array]:
    """Run a model once and measure: see `measures`; and for plain arms the bounds of every layer.

    bounds is (n_layer, 6) by `BOUNDS`, NaN where a layer's weights are not understood, spread by head (n_head,).

    Raises
    ------
    InputError
        If hidden states are not shown, or the model cannot do without its skip or carry a hidden state.
    """
    if model.task == "module":
        raise InputError(f"{model.source} is a plain module, which does not show its hidden states")
    sites = [site for site in model.sites if site.block == block]
    if not sites:
        raise InputError(f"{model.source} has no block {block!r}")
    watch = _Watch(model, sites, with_bounds=arm.plain and not arm.shuffled)
    with torch.no_grad(), _as_arm(model, arm), watch.running():
        result = run(model, sample.arguments, whole=False, hidden=True)
    states = np.stack([state[0].detach().double().cpu().numpy() for state in _states(model, result, block)])
    labels = None
    ids = sample.arguments.get("decoder_input_ids" if block.startswith("decoder") else "input_ids")
    if ids is None:
        ids = sample.arguments.get("input_ids")
    if ids is not None and len(ids[0]) == states.shape[1]:
        labels = np.asarray(ids[0])
    return measures(states, labels, watch.entropies) | watch.bounds()


@contextmanager
def _as_arm(model: Model, arm: Arm) -> Iterator[None]:
    if arm.plain:
        yield
        return
    skip: Literal["scaled", "residual"] = "residual" if arm.skip else "scaled"
    with to_hopfield(model, alpha=0.0, alpha_hidden=arm.alpha_hidden, skip=skip):
        yield


def _states(model: Model, result: Any, block: str) -> Any:
    if model.task == "seq2seq-lm":
        return getattr(result, f"{block.removesuffix('.cross')}_hidden_states")
    if block != model.sites[0].block:
        raise InputError(f"hidden states are those of block {model.sites[0].block!r}, not of {block!r}")
    return result.hidden_states


class _Watch(Tap):
    """Takes the entropy of every row as a layer runs and, where asked, what its bounds need."""

    blockwise = False

    def __init__(self, model: Model, sites: list[Site], with_bounds: bool) -> None:
        self.model = model
        modules = dict(model.module.named_modules())
        self.modules = {id(modules[site.name]): modules[site.name] for site in sites}
        self.sites = {id(modules[site.name]): site for site in sites}
        self.with_bounds = with_bounds
        self.entropies: dict[int, Array] = {}
        self.seen: dict[int, LayerBounds | None] = {}
        self._entering: dict[int, Tensor] = {}
        self._scores: Tensor | None = None
        self._masked: Tensor | None = None
        self._values: Tensor | None = None
        self._parts: dict[tuple[int, str], Part] = {}
        if with_bounds:
            parts, _ = parts_of(model)
            self._parts = {(part.layer, part.kind): part for part in parts if part.block == sites[0].block}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the network for the time of the block."""
        with ExitStack() as hooks:
            if self.with_bounds:
                for module in self.modules.values():
                    hooks.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            with tapped(self.model.module, self, self.model.attention):
                yield

    def _enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given = [*args, *(kwargs[name] for name in ("hidden_states", "query") if name in kwargs)]
        found = [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]
        if found:
            self._entering[id(module)] = found[0]

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep the values (1, kv_head, key, dim) of the running layer."""
        self._values = value

    def softmax(self, call: AttentionCall, scores: Tensor, mask: Tensor | None) -> Tensor | None:
        """Keep the scores of the running layer, and leave softmax alone."""
        if self.with_bounds and id(call.module) in self.sites:
            self._scores, self._masked = scores, scores if mask is None else scores + mask
        return None

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        """Take the entropies."""
        site = self.sites.get(id(call.module))
        if site is not None:
            maps = probs[0].detach().double().cpu().numpy()
            self.entropies[site.layer] = attention_entropy(maps, present_of(site.mask, maps.shape[1:]))
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        """The layer is complete, and its values were seen in every family: take its bounds."""
        site = self.sites.get(id(call.module))
        if site is not None and self.with_bounds:
            self.seen[site.layer] = self._bounds(call.module, site)
            self._values = None
        return outputs

    def _bounds(self, module: nn.Module, site: Site) -> LayerBounds | None:
        entering, scores, masked = self._entering.get(id(module)), self._scores, self._masked
        self._scores = self._masked = None
        wanted = [self._parts.get((site.layer, kind)) for kind in "qkvo"]
        if site.mask == "causal" or entering is None or scores is None or masked is None:
            return None
        if any(part is None for part in wanted):
            return None
        X = entering[0].detach().double().cpu().numpy()
        q, k, v, o = (part.by_head(read(self.model, part).astype(np.float64)) for part in wanted if part)
        bq, bk, bv = (self._bias(part) for part in wanted[:3] if part)
        queries, keys, values = (X @ w.swapaxes(1, 2) + b for w, b in ((q, bq), (k, bk), (v, bv)))
        if self._values is None or not _close(values, self._values):
            return None
        k, v, keys = (np.repeat(a, len(q) // len(a), axis=0) for a in (k, v, keys))
        W = v.swapaxes(1, 2) @ o.swapaxes(1, 2)
        dim = q.shape[1]
        products = queries @ keys.swapaxes(1, 2) / np.sqrt(dim)  # not so with rotary or relative positions
        W_QK = q.swapaxes(1, 2) @ k if _close(products, scores) else None
        return layer_bounds(X, masked[0].detach().double().cpu().numpy(), W, W_QK, dim)

    def _bias(self, part: Part) -> Array:
        bias = read_bias(self.model, part)
        return np.zeros(1) if bias is None else bias.astype(np.float64).reshape(part.n_heads, 1, -1)

    def bounds(self) -> dict[str, Array]:
        """What was seen of the bounds; see `look`."""
        if not self.with_bounds:
            return {}
        rows, spread = [], []
        for site in sorted(self.sites.values(), key=lambda site: site.layer):
            found = self.seen.get(site.layer)
            if found is None:
                rows.append(np.full(len(BOUNDS), np.nan))
                spread.append(np.full(site.n_heads, np.inf if site.mask == "causal" else np.nan))
                continue
            rows.append(found.row)
            spread.append(found.spread)
        return {"bounds": np.stack(rows), "spread": np.concatenate(spread).astype(np.float64)}


def _close(said: Array, seen: Tensor) -> bool:
    found = seen[0].detach().double().cpu().numpy()
    return said.shape == found.shape and bool(np.abs(said - found).max() <= OFF * max(1e-12, np.abs(found).max()))
