"""Watch a forward pass: queries, keys, values, maps and outputs of each layer, and hidden states by depth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscape.attention.intervene import scale_scores
from headscape.attention.layers import LayerData
from headscape.attention.projections import output_projections
from headscape.attention.samples import Sample
from headscape.attention.sites import Site, run
from headscape.attention.stack import stack_of
from headscape.attention.tapping import tapped, way_of
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import check_weights
from headscape.errors import HeadscapeError, InputError

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["LayerData", "by_depth", "in_double", "joined", "layers_and_outputs", "precision", "watch_layers"]

Array = npt.NDArray[Any]
OFF = 1e-3
"""Largest relative difference between what is rebuilt (rotated queries, scaled products) and what the model has."""
ROUNDING = 256
"""Units of rounding below which a spread of tokens is not a measurement; tokens that are one show some 10 of them."""


class _SeenError(Exception):
    """Ends a call that was made only to see part of it: queries and keys, or the output of attention."""


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
            with suppress(_SeenError):
                module.forward(*args, **kwargs | {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))})
        finally:
            self._asking = False

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        if self._asking:
            self._plain[id(call.module)] = (query, key)
            raise _SeenError
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
            self.take(replace(data, inputs=None if entering is None else _numpy(entering)))
        return outputs


def _numpy(tensor: Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()


def _layer_data(
    layer: int,
    module: nn.Module,
    kept: dict[str, Tensor],
    outputs: Tensor,
    plain: tuple[Tensor, Tensor] | None,
    turn: tuple[Tensor, Tensor] | None,
    intercepted: bool,
) -> LayerData:
    whole: dict[str, Any] = {name: _numpy(kept[name]) for name in ("scores", "probs")} | {"outputs": _numpy(outputs)}
    if "queries" not in kept:
        note = "a layer does not expose its queries and keys"
        return LayerData(layer, None, None, None, **whole, rotations=None, scaling=float("nan"), note=note)
    query, key, value = (kept[name].float() for name in ("queries", "keys", "values"))
    notes = []
    scaling, off = _scaling(query, key, kept["scores"].float(), kept["probs"] > 0)
    if off > OFF:
        scaling = float("nan")
        notes.append("scores are not scaled products of queries and keys: a bias or a cap is applied")
    rotations = None
    if turn is not None and plain is not None:
        rotations = _rotations(module, *turn, query.shape[-1])
        if rotations is not None and _follows(plain, (query, key), rotations):
            query, key = (part.float() for part in plain)
        else:
            rotations = None
    if rotations is None and (turn is not None or intercepted):
        notes.append("queries and keys are taken after rotation")
    mixed = kept["probs"].float() @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    values: Array | None = _numpy(value)
    if not (mixed - outputs).norm() <= OFF * outputs.norm():
        values = None
        notes.append("a layer's outputs are not its maps applied to its values")
    return LayerData(
        layer,
        _numpy(query),
        _numpy(key),
        values,
        **whole,
        rotations=None if rotations is None else _numpy(rotations),
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


def joined(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Samples of one shape as one batch of arguments.

    Raises an `InputError` when their shapes differ: what follows is measured position by position.
    """
    shapes = {tuple((name, tuple(part.shape)) for name, part in sample.arguments.items()) for sample in samples}
    if len(shapes) > 1:
        raise InputError("the captured inputs differ in length; capture again without --keep-short")
    return {name: torch.cat([sample.arguments[name] for sample in samples]) for name in samples[0].arguments}


def watch_layers(
    model: Model, samples: Sequence[Sample], block: str, take: Callable[[LayerData], None]
) -> list[Array] | None:
    """Run all samples at once and `take` each layer of a block after it has run; returns hidden states (n_input, n, d).

    These are the states entering each layer and, last, those leaving the stack; None for a model that has no such
    output. Raises an `InputError` for weights that are NaN or infinite.
    """
    check_weights(model.module)
    sites = [site for site in model.sites if site.block == block]
    watcher = _Watcher(model, sites, take)
    with ExitStack() as hooks, torch.no_grad():
        for module in watcher.modules:
            hooks.callback(module.register_forward_pre_hook(watcher.ask, with_kwargs=True).remove)
        hooks.enter_context(tapped(model.module, watcher, model.attention))
        result = run(model, joined(samples), whole=False, hidden=model.task != "module")
    name = {"seq2seq-lm": f"{block.split('.')[0]}_hidden_states"}.get(model.task, "hidden_states")
    states = getattr(result, name, None)
    return None if states is None else [_numpy(state) for state in states]


# --- versions of a model, by depth -----------------------------------------------------------------------------------


def layers_and_outputs(model: Model) -> list[tuple[nn.Module, nn.Module]]:
    """The layers of a model that is one stack, each with the output projection of its attention.

    Raises an `InputError` for a model of several stacks, or with layers that have no attention or more than one.
    """
    stack = stack_of(model)
    if stack is None or not stack.one_attention_each:
        raise InputError(f"{model.source} is not one stack of layers with one attention each")
    modules = dict(model.module.named_modules())
    outputs = {stack.place[site]: modules[output] for site, output in output_projections(model).items()}
    return [(layer, outputs[number]) for number, layer in enumerate(stack.layers.values())]


@contextmanager
def _cut_short(layer: nn.Module, attended: list[Tensor]) -> Iterator[bool]:
    """Let a layer return what `attended` holds when it is stopped by `_SeenError`, and leave out the rest of its work.

    False, and nothing is changed, where something else has replaced the layer's forward and may have work to do after it.
    """
    if "forward" in layer.__dict__:
        yield False
        return
    whole = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            return whole(*args, **kwargs)
        except _SeenError:
            entering = args[0] if args else kwargs["hidden_states"]
            return attended[0].reshape(entering.shape)

    layer.forward = forward
    try:
        yield True
    finally:
        del layer.forward


@contextmanager
def _followed(model: Model, skip: bool | float, take: Callable[[Tensor], None]) -> Iterator[None]:
    """`take` what enters the stack and what leaves each layer; without skip a layer gives its attention's output alone.

    That is the model of Wertich's hypothesis (2024, section 7.2.3): no skip connection, no feed-forward part; biases
    stay. The whole output is scaled to the size of the input, which the norm before the next layer undoes, if any. A
    number s is the advanced form of the hypothesis: s of the input and 1 - s of that output.
    """

    def size(x: Tensor) -> Tensor:
        rows = torch.linalg.vector_norm(x, dim=-1)  # row by row: the number of threads must not change a byte
        whole: Tensor = torch.linalg.vector_norm(rows)
        return whole

    with ExitStack() as hooks:
        entered: list[bool] = []
        returned: list[type] = []  # what a layer returns, known once the first has run as a whole
        for layer, output in layers_and_outputs(model):
            attended: list[Tensor] = []
            short = skip is not True and hooks.enter_context(_cut_short(layer, attended))

            def note(
                _: nn.Module, __: Any, out: Tensor, attended: list[Tensor] = attended, short: bool = short
            ) -> None:
                attended[:] = [out]
                if short and returned == [Tensor]:
                    raise _SeenError

            def leave(_: nn.Module, args: Any, kwargs: Any, out: Any, attended: list[Tensor] = attended) -> Any:
                entering = args[0] if args else kwargs["hidden_states"]
                if not entered:
                    entered.append(True)
                    take(entering.detach())
                after = out[0] if isinstance(out, tuple) else out
                returned[:] = [type(out)]
                if skip is not True:
                    mixed = attended[0].reshape(after.shape)
                    mixed = mixed * (size(entering) / size(mixed).clamp_min(torch.finfo(mixed.dtype).tiny))
                    after = skip * entering + (1 - skip) * mixed if skip else mixed
                take(after.detach())
                return (after, *out[1:]) if isinstance(out, tuple) else after

            hooks.callback(output.register_forward_hook(note).remove)
            hooks.callback(layer.register_forward_hook(leave, with_kwargs=True).remove)
        yield


def by_depth(
    model: Model,
    samples: Sequence[Sample],
    measure: Callable[[Array], Any] = lambda state: state,
    *,
    skip: bool | float = True,
    alpha: float = 1.0,
) -> list[Any]:
    """Measure the hidden states (n_input, n_token, dim) entering the stack and leaving each layer, one by one.

    `skip` False is attention alone, a number s of it s of the input beside 1 - s of attention (`_followed`).

    `alpha` scales the spectra of all Wq and Wk (biases too), which multiplies every score by alpha^2; it is applied to
    the scores, so that QK-norm does not undo it.
    """
    heads = [head for site in model.sites for head in site.heads]
    found: list[Any] = []

    def take(state: Tensor) -> None:
        array = state.cpu().numpy() if state.dtype == torch.float64 else _numpy(state)
        if not np.isfinite(array).all():
            raise HeadscapeError(f"{model.source} gives infinite states with alpha = {alpha:g}, skip = {skip}")
        found.append(measure(array))

    scaled = nullcontext() if alpha == 1 else scale_scores(model, heads, alpha**2)
    with torch.no_grad(), scaled, _followed(model, skip, take):
        run(model, joined(samples), whole=False)
    return found


def precision(model: Model) -> float:
    """Relative size below which what a model computes is rounding: `ROUNDING` units of its number type."""
    return ROUNDING * float(torch.finfo(getattr(torch, model.dtype)).eps)


class _Double(TorchFunctionMode):
    """Keeps in float64 what a network would turn into float32 on its way, as the norms of Llama do."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def double(x: Any) -> Any:
            return torch.float64 if x is torch.float32 else x

        named = {name: double(value) for name, value in (kwargs or {}).items()}
        return (Tensor.double if function is Tensor.float else function)(*map(double, args), **named)


@contextmanager
def in_double(model: Model) -> Iterator[None]:
    """Let a model compute in float64 inside a with block; its weights are exactly as before after it.

    On a device without float64 (mps) nothing changes; `precision` tells.
    """
    if model.device.startswith("mps"):
        yield
        return
    tensors = [x for x in (*model.module.parameters(), *model.module.buffers()) if x.is_floating_point()]
    before, name = [x.dtype for x in tensors], model.dtype
    try:
        for x in tensors:
            x.data = x.data.double()
        model.dtype = "float64"
        with _Double():
            yield
    finally:
        model.dtype = name
        for x, dtype in zip(tensors, before, strict=True):
            x.data = x.data.to(dtype)
