"""Watch a forward pass: queries, keys, values, maps and outputs of each layer, and hidden states by depth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention.depth import SeenError, as_array, finite, followed, one_batch
from headscape.attention.layers import NOT_PRODUCTS, LayerData
from headscape.attention.samples import Sample
from headscape.attention.sites import Site, run
from headscape.attention.tapping import tapped, way_of
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import check_weights
from headscape.attention.wrapping import Model

__all__ = ["LayerData", "Watched", "embedded", "headed", "watch_layers"]

Array = npt.NDArray[Any]
OFF = 1e-3
"""Largest relative difference between what is rebuilt (rotated queries, scaled products) and what the model has."""


class _Watcher(Tap):
    """Collects one layer, hands it over when the layer has run, and forgets it."""

    blockwise = False

    def __init__(self, model: Model, sites: Sequence[Site], take: Callable[[LayerData], None]) -> None:
        modules = dict(model.module.named_modules())
        self.sites = {id(modules[site.name]): site for site in sites}
        self.modules = [modules[site.name] for site in sites]
        self.take = take
        self.intercepted = way_of(model.module, model.attention) == "softmax"
        self._plain: dict[int, tuple[Tensor, Tensor]] = {}
        self._turned: dict[int, tuple[Tensor, Tensor]] = {}
        self._entering: dict[int, Tensor] = {}
        self._asking = False
        self._kept: dict[str, Tensor] = {}

    def ask(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: note the layer's input, and call it with rotations by 0 to see queries and keys unrotated."""
        entering = args[0] if args else kwargs.get("hidden_states")
        if isinstance(entering, Tensor):
            self._entering[id(module)] = entering
        turn = kwargs.get("position_embeddings")
        if self.intercepted or not isinstance(turn, tuple) or len(turn) != 2:
            return
        cos, sin = turn
        self._turned[id(module)] = (cos, sin)
        self._asking = True
        try:
            with suppress(SeenError):
                module.forward(*args, **kwargs | {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))})
        finally:
            self._asking = False

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        if self._asking:
            self._plain[id(call.module)] = (query, key)
            raise SeenError
        self._kept |= {"queries": query, "keys": key, "values": value}

    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        self._kept["scores"] = scores
        return scores

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        self._kept["probs"] = probs
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        kept, self._kept = self._kept, {}
        key = id(call.module)
        plain, turn = self._plain.pop(key, None), self._turned.pop(key, None)
        if key in self.sites:
            shaped = outputs.reshape(len(kept["probs"]), -1, *outputs.shape[-2:]).transpose(1, 2)
            layer = self.sites[key].layer
            entering = self._entering.pop(key, None)
            data = _layer_data(layer, call.module, kept, shaped, plain, turn, self.intercepted)
            self.take(replace(data, inputs=None if entering is None else as_array(entering)))
        return outputs


def _layer_data(
    layer: int,
    module: nn.Module,
    kept: dict[str, Tensor],
    outputs: Tensor,
    plain: tuple[Tensor, Tensor] | None,
    turn: tuple[Tensor, Tensor] | None,
    intercepted: bool,
) -> LayerData:
    whole: dict[str, Any] = {name: as_array(kept[name]) for name in ("scores", "probs")} | {
        "outputs": as_array(outputs)
    }
    if "queries" not in kept:
        note = "a layer does not expose its queries and keys"
        return LayerData(layer, None, None, None, **whole, rotations=None, scaling=float("nan"), note=note)
    query, key, value = (kept[name].float() for name in ("queries", "keys", "values"))
    notes = []
    scaling, off = _scaling(query, key, kept["scores"].float(), kept["probs"] > 0)
    if off > OFF:
        scaling = float("nan")
        notes.append(NOT_PRODUCTS)
    rotations = None
    if turn is not None and plain is not None:
        rotations = _rotations(module, *turn, query.shape[-1])
        if rotations is not None and _follows(plain, (query, key), rotations):
            query, key = (part.float() for part in plain)
        else:
            rotations = None
    if rotations is None and (turn is not None or intercepted):
        notes.append(f"queries and keys are taken after {'rotation' if turn else 'any rotation'}")
    mixed = kept["probs"].float() @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    values: Array | None = as_array(value)
    if not (mixed - outputs).norm() <= OFF * outputs.norm():
        values = None
        notes.append("a layer's outputs are not its maps applied to its values")
    return LayerData(
        layer,
        as_array(query),
        as_array(key),
        values,
        **whole,
        rotations=None if rotations is None else as_array(rotations),
        scaling=scaling,
        note="; ".join(notes),
    )


def _rotations(module: nn.Module, cos: Tensor, sin: Tensor, dim: int) -> Tensor | None:
    """The rotary embedding of a layer as a matrix per position: (n_token, dim, dim)."""
    rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    width = cos.shape[-1]
    if rotate is None or width > dim:
        return None
    basis = torch.eye(width, device=cos.device, dtype=cos.dtype)[None, :, None].expand(1, width, cos.shape[-2], width)
    try:
        turned = rotate(basis, basis, cos[:1], sin[:1])[0][0].transpose(0, 1).float()
    except (RuntimeError, TypeError, ValueError):
        return None
    out = torch.eye(dim, device=cos.device).repeat(cos.shape[-2], 1, 1)
    out[:, :width, :width] = turned  # some models rotate only the first dimensions
    return out


def _follows(plain: tuple[Tensor, Tensor], turned: tuple[Tensor, Tensor], rotations: Tensor) -> bool:
    """Whether the rotations turn the plain queries and keys into those that the scores are made of."""
    for before, after in zip(plain, turned, strict=True):
        rebuilt = torch.einsum("bhnd,nde->bhne", before.float(), rotations)
        if not (rebuilt - after).norm() <= OFF * after.norm():
            return False
    return True


def _scaling(query: Tensor, key: Tensor, scores: Tensor, present: Tensor) -> tuple[float, float]:
    """The factor between products of queries with keys and scores, and the relative size of what it does not explain.

    Only entries that are present count: where softmax is intercepted, masked scores are not known.
    """
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    products = torch.where(present, query @ key.transpose(2, 3), 0.0)
    scores = torch.where(present, scores, 0.0)
    factor = float((products * scores).sum() / (products * products).sum())
    return factor, float((scores - factor * products).norm() / scores.norm())


class Watched(NamedTuple):
    """What a pass returned: states (n_input, n, d) entering each layer and, last, leaving the stack; what a head reads.

    None for a model that has no such output.
    """

    states: list[Array] | None
    last: Array | None


def watch_layers(
    model: Model,
    samples: Sequence[Sample],
    block: str,
    take: Callable[[LayerData], None],
    follow: Callable[[Array], None] | None = None,
) -> Watched:
    """Run all samples at once and `take` each layer of a block after it has run.

    `follow` gets what `by_depth` measures of the model as it is. Raises an `InputError` for weights that are NaN or
    infinite.
    """
    check_weights(model.module)
    sites = [site for site in model.sites if site.block == block]
    watcher = _Watcher(model, sites, take)
    with ExitStack() as hooks, torch.no_grad():
        for module in watcher.modules:
            hooks.callback(module.register_forward_pre_hook(watcher.ask, with_kwargs=True).remove)
        if follow is not None:
            hooks.enter_context(followed(model, True, lambda state: follow(finite(model, state))))
        hooks.enter_context(tapped(model.module, watcher, model.attention))
        result = run(model, one_batch(samples), whole=False, hidden=model.task != "module")
    name = {"seq2seq-lm": f"{block.split('.')[0]}_hidden_states"}.get(model.task, "hidden_states")
    states, last = getattr(result, name, None), getattr(result, "last_hidden_state", None)
    return Watched(
        None if states is None else [as_array(state) for state in states], None if last is None else as_array(last)
    )


class _Ran:
    """What a base model returns, of which only the last state is known."""

    def __init__(self, last: Tensor) -> None:
        self.last_hidden_state = last

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: int) -> Tensor | None:
        return self.last_hidden_state if place == 0 else None


def embedded(model: Model, ids: Array | None = None) -> Array:
    """What the embedding module outputs for token ids (...,), or for the whole vocabulary: (..., dim).

    Not the rows of its table: Gemma's module multiplies them by the root of the hidden size.
    """
    module: Any = model.module
    embed = module.get_input_embeddings()
    asked = torch.arange(len(embed.weight)) if ids is None else torch.from_numpy(np.ascontiguousarray(ids))
    with torch.no_grad():
        return np.asarray(embed(asked.to(model.device)).float().cpu().numpy())


def headed(model: Model, sample: Sample, last: Array) -> Tensor:
    """Logits (1, n, n_vocabulary) of a causal language model that has run up to its head: `last` (n, d) is what it reads.

    The whole model runs where its head does not call its base model.
    """
    module: Any = model.module
    base = module.base_model
    if base is module or "forward" in base.__dict__:
        whole: Tensor = run(model, sample.arguments).logits
        return whole
    state = torch.from_numpy(last[None]).to(model.device, getattr(torch, model.dtype))
    base.forward = lambda *_, **__: _Ran(state)
    try:
        with torch.no_grad():
            logits: Tensor = run(model, sample.arguments).logits
    finally:
        del base.forward
    return logits
