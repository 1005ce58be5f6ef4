"""One forward pass of a model in one variant: with its skip or without, with a hidden state, inputs shuffled or not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscape.attention.samples import Sample
from headscape.attention.sending import Named, received
from headscape.attention.sites import Site, run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.threads import torch_threads
from headscape.attention.weights import Part, check_weights, parts_of, read, read_bias
from headscape.attention.wrapping import Model
from headscape.collapse.bounds import BOUNDS, LayerBounds, layer_bounds
from headscape.collapse.residual import roundoff
from headscape.collapse.similarity import attention_entropy
from headscape.errors import InputError
from headscape.hopfield.convert import to_hopfield
from headscape.storage import write_arrays
from headscape.studies.collapse.measures import measures, present_of

__all__ = ["Variant", "double_copy", "look", "measure", "shuffled", "variants_of"]

Array = npt.NDArray[Any]
Weights = Literal["trained", "random"]
OFF = 1e-4
"""Largest relative difference between values or scores computed from weights and those of the model."""


@dataclass(frozen=True)
class Variant:
    """One way to run the network: which weights and inputs, a', and the model's own skip or a x + (1 - a) attention.

    `skip` False is a = 0, no skip; otherwise a is `alpha`, None for the model's own.
    """

    name: str
    weights: Weights = "trained"
    shuffled: bool = False
    skip: bool = True
    alpha_hidden: float = 0.0
    alpha: float | None = None

    @property
    def plain(self) -> bool:
        """Whether the network is as it was built."""
        return self.skip and self.alpha is None and self.alpha_hidden == 0


def variants_of(alpha_hidden: float, with_random: bool, with_four: bool, alpha: float | None = None) -> list[Variant]:
    """The model and its controls; with four, {skip, no skip} x {a' = 0, a' > 0} for each set of weights.

    With `alpha` also the paper's own cell, a scaled skip a x + (1 - a) attention, with and without a hidden state.
    """
    found = [Variant("standard"), Variant("shuffled", shuffled=True)]
    sets: list[tuple[Weights, str]] = [("trained", ""), ("random", "random, ")]
    for weights, prefix in sets[: 1 + with_random]:
        found += [Variant("random", weights)] if prefix else []
        if with_four:
            found.append(Variant(f"{prefix}hidden", weights, alpha_hidden=alpha_hidden))
            found.append(Variant(f"{prefix}no skip", weights, skip=False))
            found.append(Variant(f"{prefix}no skip, hidden", weights, skip=False, alpha_hidden=alpha_hidden))
        if alpha is not None:
            found.append(Variant(f"{prefix}scaled skip", weights, alpha=alpha))
            found.append(Variant(f"{prefix}scaled skip, hidden", weights, alpha=alpha, alpha_hidden=alpha_hidden))
    return found


def double_copy(model: Model) -> Model:
    """A copy of a model that computes in float64, as far as its own code allows (Llama's norms stay in float32).

    Raises an `InputError` for weights that are NaN or infinite.
    """
    check_weights(model.module)
    device = "cpu" if model.device.startswith("mps") else model.device  # which has no float64
    return replace(model, module=copy.deepcopy(model.module).to(device).double(), device=device, dtype="float64")


def shuffled(model: Model, sample: Sample, seed: int) -> Sample:
    """The same input in another order: all tokens except special ones, or the patches of an image."""
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


_kept_double = lru_cache(maxsize=1)(double_copy)  # in a process of its own, where nobody else changes the model


def measure(
    path: Path,
    given: Model | Named,
    sample: Sample,
    variant: Variant,
    block: str,
    seed: int,
    double: bool,
    threads: int | None,
) -> None:
    """The unit of work: look at one input in one variant and write what was measured, or why it was left out.

    `double` makes a copy of the model in float64, for a separate process.
    """
    with torch_threads(threads), received(given, torch.get_num_threads() if threads is None else threads) as own:
        model = _kept_double(own) if double else own
        shown = shuffled(model, sample, seed) if variant.shuffled else sample
        try:
            write_arrays(path, look(model, shown, variant, block))
        except InputError as error:
            if variant.plain:
                raise
            write_arrays(path, {}, {"left out": str(error)})


def look(model: Model, sample: Sample, variant: Variant, block: str) -> dict[str, Array]:
    """Run a model once and measure: see `measures`; floor, the residual that is round-off; for plain variants bounds.

    bounds is (n_layer, 6) by `BOUNDS`, NaN where a layer's weights are not understood; spread is by head (n_head,).

    Raises
    ------
    InputError
        If the model does not return hidden states, cannot run without its skip, or cannot carry a hidden state.
    """
    if model.task == "module":
        raise InputError(f"{model.source} is a plain module, which does not return its hidden states")
    sites = [site for site in model.sites if site.block == block]
    if not sites:
        raise InputError(f"{model.source} has no block {block!r}")
    watch = _Watch(model, sites, with_bounds=variant.plain and not variant.shuffled)
    own = variant.skip and variant.alpha is None
    alpha = variant.alpha if variant.skip and variant.alpha is not None else 0.0
    skip: Literal["scaled", "residual"] = "residual" if own else "scaled"
    converted = nullcontext(model) if variant.plain else to_hopfield(model, alpha, variant.alpha_hidden, skip=skip)
    with torch.no_grad(), converted, watch.running(), _Roundings() as roundings:
        result = run(model, sample.arguments, whole=False, hidden=True)
    hidden = _states(model, result, block)
    floor = max(roundoff(torch.finfo(dtype).eps) for dtype in {hidden[-1].dtype} | roundings.seen)
    states = np.stack([_array(state) for state in hidden])
    ids = sample.arguments.get("decoder_input_ids" if block.startswith("decoder") else "input_ids")
    ids = sample.arguments.get("input_ids") if ids is None else ids
    labels = None if ids is None else np.asarray(ids[0])
    return measures(states, labels, watch.entropies) | watch.bounds() | {"floor": np.array(floor)}


class _Roundings(TorchFunctionMode):
    """Notes the number types to which a network rounds its activations on the way (norms in float32, say)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[torch.dtype] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.is_floating_point() and result.dim() > 2 and result.shape[-1] > 1:
            given = args[0] if args and isinstance(args[0], Tensor) else result
            if given.is_floating_point() and given.dtype.itemsize > result.dtype.itemsize:
                self.seen.add(result.dtype)
        return result


def _states(model: Model, result: Any, block: str) -> Any:
    if model.task == "seq2seq-lm":
        return getattr(result, f"{block.removesuffix('.cross')}_hidden_states")
    if block != model.sites[0].block:
        raise InputError(f"the model returns hidden states of block {model.sites[0].block!r}, not of {block!r}")
    return result.hidden_states


class _Watch(Tap):
    """Takes the entropy of every row as a layer runs and, if requested, the layer's bounds."""

    blockwise = False

    def __init__(self, model: Model, sites: list[Site], with_bounds: bool) -> None:
        self.model, self.with_bounds = model, with_bounds
        modules = dict(model.module.named_modules())
        self.modules = [modules[site.name] for site in sites]
        self.sites = dict(zip(map(id, self.modules), sites, strict=True))
        self.entropies: dict[int, Array] = {}
        self.seen: dict[int, LayerBounds | None] = {}
        self._kept: dict[str, Tensor] = {}  # of the layer that runs now
        parts = parts_of(model)[0] if with_bounds else []
        self._parts: dict[tuple[int, str], Part] = {
            (part.layer, part.kind): part for part in parts if part.block == sites[0].block
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the network inside the block."""
        with ExitStack() as hooks:
            for module in self.modules if self.with_bounds else ():
                hooks.callback(module.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
            with tapped(self.model.module, self, self.model.attention):
                yield

    def _enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given = [*args, *(kwargs[name] for name in ("hidden_states", "query") if name in kwargs)]
        found = [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]
        self._kept = {"entering": found[0]} if found else {}

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        self._kept["values"] = value

    def softmax(self, call: AttentionCall, scores: Tensor, mask: Tensor | None) -> Tensor | None:
        self._kept |= {"scores": scores, "masked": scores if mask is None else scores + mask}
        return None

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        site = self.sites.get(id(call.module))
        if site is not None:
            maps = _array(probs)
            self.entropies[site.layer] = attention_entropy(maps, present_of(site.mask, maps.shape[1:]))
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        kept, self._kept = self._kept, {}
        site = self.sites.get(id(call.module))
        if site is not None and self.with_bounds:
            self.seen[site.layer] = self._bounds(site, kept)
        return outputs

    def _bounds(self, site: Site, kept: dict[str, Tensor]) -> LayerBounds | None:
        parts = [self._parts[site.layer, kind] for kind in "qkvo" if (site.layer, kind) in self._parts]
        if site.mask == "causal" or len(kept) < 4 or len(parts) < 4:
            return None
        X = _array(kept["entering"])
        q, k, v, o = (part.by_head(read(self.model, part).astype(np.float64)) for part in parts)
        queries, keys, values = (
            X @ w.swapaxes(1, 2) + self._bias(part) for w, part in zip((q, k, v), parts[:3], strict=True)
        )
        if not _close(values, kept["values"]):
            return None
        k, v, keys = (np.repeat(a, len(q) // len(a), axis=0) for a in (k, v, keys))
        dim = q.shape[1]
        products = queries @ keys.swapaxes(1, 2) / np.sqrt(dim)  # not so with rotary or relative positions
        W_QK = q.swapaxes(1, 2) @ k if _close(products, kept["scores"]) else None
        return layer_bounds(X, _array(kept["masked"]), v.swapaxes(1, 2) @ o.swapaxes(1, 2), W_QK, dim)

    def _bias(self, part: Part) -> Array:
        bias = read_bias(self.model, part)
        return np.zeros(1) if bias is None else bias.astype(np.float64).reshape(part.n_heads, 1, -1)

    def bounds(self) -> dict[str, Array]:
        """The bounds of all layers; see `look`."""
        rows, spread = [], []
        for site in sorted(self.sites.values(), key=lambda site: site.layer) if self.with_bounds else ():
            found, unknown = self.seen.get(site.layer), np.inf if site.mask == "causal" else np.nan
            rows.append(np.full(len(BOUNDS), np.nan) if found is None else found.row)
            spread.append(np.full(site.n_heads, unknown) if found is None else found.spread)
        return {"bounds": np.stack(rows), "spread": np.concatenate(spread).astype(np.float64)} if rows else {}


def _array(tensor: Tensor) -> Array:
    """The first of a batch, in float64."""
    return np.asarray(tensor[0].detach().double().cpu().numpy())


def _close(said: Array, seen: Tensor) -> bool:
    found = _array(seen)
    return said.shape == found.shape and bool(np.abs(said - found).max() <= OFF * max(1e-12, np.abs(found).max()))
