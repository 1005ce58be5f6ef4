"""Convert a network to Modern Hopfield Attention and back: same weights, no new parameters.

Scores are changed by a tap, as every intervention is. The skip a x + (1 - a) attention is made where the network adds
its residual: in the first sum after a layer's attention that has the layer's own input tensor as one term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscape.attention.sites import Site, example_input, run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import check_weights
from headscape.attention.wrapping import Model, evaluating, wrap_module
from headscape.errors import HeadscapeError, InputError
from headscape.hopfield.state import SCALED_ONLY, HiddenState, Init, Scheme, Skip, carry, check_alphas, skip_over

__all__ = ["RECORD", "restored", "to_hopfield"]

RECORD = "headscape_hopfield"
"""Entry of a converted model's config: what it was converted with. `hs.load_model` converts it again."""

_IN_PLACE = (torch.Tensor.add_, torch.Tensor.__iadd__)
_SUMS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, *_IN_PLACE)
By = Callable[[int], float | Tensor]
Share = float | Sequence[float | Sequence[float]] | By

Network = TypeVar("Network", Model, nn.Module)
_converted: set[int] = set()  # ids of the networks inside a block of `to_hopfield`


@contextmanager
def to_hopfield(
    model: Network,
    alpha: float = 0.5,
    alpha_hidden: Share = 0.5,
    init: Init = "zero",
    skip: Skip = "scaled",
    scheme: Scheme = "forward-backward",
) -> Iterator[Network]:
    """Give a network Modern Hopfield Attention inside the `with` block.

    Along the layers of each block of the network, H_n = a' H_n-1 + (1 - a') S_n replaces the scores S_n (all that
    softmax sees except masks: after rotation and scaling, with position biases, per query head; heads are matched by
    index), and with `skip="scaled"` a x + (1 - a) attention replaces x + attention; what follows (norm, MLP) stays.
    Works in training and under autocast, with masks, grouped queries, `capture` and other interventions, and in
    generation with a KV cache: a step carries the scores of its own tokens along depth, and keeps nothing for the next.
    A model whose layers have different windows gets a cache that drops no keys, since upper layers need those of lower
    ones. Inside the block the config says how the model was converted: saved there, it is restored by `load_model`.

    Parameters
    ----------
    model
        From `load_model`, or any module that `capture` takes.
    alpha, alpha_hidden
        a of the skip and a' of the scores, at least 0 and below 1; with alpha_hidden 0 and `skip="residual"` the
        network is unchanged. alpha_hidden may be a list with one number, or one number per head, for each layer; or a
        function of the layer (0, 1, ...) that returns a number or a tensor which broadcasts to (batch, head, query,
        key): a schedule, or weights (head, 1, 1) that are learned. A function is not saved with the model, a list is.
    init
        "zero", "first" or "debias": how the hidden state starts (`headscape.hopfield.state.carry`).
    skip
        "scaled", or "residual" to keep the network's own; alpha is then unused.
    scheme
        "forward-backward", the equations above; "forward-forward": scores arrive one layer late; "sum" adds scores up
        without decay (RealFormer).

    Raises
    ------
    InputError
        Alphas out of range, NaN or infinite weights, layers with different numbers of heads, a cache that has dropped
        keys of some layers, gradient checkpointing that is reentrant or with a scaled skip, attention and MLP that
        share one skip (GPT-J) when it is to be scaled.

    >>> usual = hs.loss(model, ["the cat sat"]).mean
    >>> with hs.to_hopfield(model, alpha_hidden=0.5, skip="residual"):
    ...     print(hs.loss(model, ["the cat sat"]).mean == usual)
    False
    """
    most = _most(alpha_hidden, alpha, init, skip, scheme)
    if scheme in SCALED_ONLY:
        raise InputError(f"the scheme {scheme} changes more than scores: build the network from hs.HopfieldAttention")
    carried = most > 0 or scheme in ("sum", "forward-forward")
    network: nn.Module = model.module if isinstance(model, Model) else model
    if id(network) in _converted:
        raise InputError("this network is already converted, by a to_hopfield block or as it was saved")
    check_weights(network)
    _check_checkpointing(network, skip)
    with evaluating(network):
        described = model if isinstance(model, Model) else wrap_module(network)
        sites = described.sites
        if carried:
            _check_heads(sites)
        if isinstance(alpha_hidden, Sequence):
            _check_shares(alpha_hidden, sites)
        if skip == "scaled":
            _check_skips(described)
    with ExitStack() as restore:
        _converted.add(id(network))
        restore.callback(_converted.discard, id(network))
        if carried:
            restore.callback(network.register_forward_pre_hook(_whole_cache, with_kwargs=True).remove)
        if hasattr(network, "config"):
            said = None if callable(alpha_hidden) else alpha_hidden
            record = {"alpha": alpha, "alpha_hidden": said, "init": init, "skip": skip, "scheme": scheme}
            setattr(network.config, RECORD, record)
            restore.callback(delattr, network.config, RECORD)
        if skip == "scaled":
            restore.enter_context(_scaled_skips(described, _Skips(alpha)))
        if carried:  # without a hidden state scores stay as they are, and attention may stay fused
            states = _HiddenStates(described, _by_layer(alpha_hidden), init, scheme)
            restore.enter_context(tapped(network, states, described.attention))
        yield model


def _most(alpha_hidden: Share, alpha: float, init: Init, skip: Skip, scheme: Scheme) -> float:
    """Check all alphas; the largest a', or 0.5 of a function."""
    if callable(alpha_hidden):
        every: list[float] = [0.5]
    elif isinstance(alpha_hidden, Sequence):
        every = [a for own in alpha_hidden for a in (own if isinstance(own, Sequence) else [own])]
    else:
        every = [alpha_hidden]
    for each in every:
        check_alphas(alpha, each, init, skip, scheme)
    return max(every, default=0.0)


def _check_shares(alpha_hidden: Sequence[float | Sequence[float]], sites: list[Site]) -> None:
    """Raise unless there is a number, or one per head, for each layer."""
    for site in sites:
        own = alpha_hidden[site.layer] if site.layer < len(alpha_hidden) else []
        if isinstance(own, Sequence) and len(own) != site.n_heads:
            raise InputError(
                f"alpha_hidden gives layer {site.layer} {len(own)} values, it has {site.n_heads} heads: give every layer "
                "a number, or one per head"
            )


def _by_layer(alpha_hidden: Share) -> By:
    """A' as a function of the layer: a number, or (head, 1, 1)."""
    if callable(alpha_hidden):
        return alpha_hidden
    if not isinstance(alpha_hidden, Sequence):
        fixed: float = alpha_hidden
        return lambda _: fixed
    made = [torch.tensor(own)[:, None, None] if isinstance(own, Sequence) else own for own in alpha_hidden]
    return made.__getitem__


class _HiddenStates(Tap):
    """Carries H from layer to layer of each block; layer 0 starts it again, the last layer drops it."""

    blockwise = False

    def __init__(self, model: Model, alpha_hidden: By, init: Init, scheme: Scheme) -> None:
        modules = dict(model.module.named_modules())
        self.network = model.module
        self.sites = {id(modules[site.name]): site for site in model.sites}
        self.last = {site.block: site.layer for site in model.sites}
        self.alpha_hidden, self.init, self.scheme = alpha_hidden, init, scheme
        self.states: dict[str, HiddenState | None] = {}
        self.reached: dict[str, int] = {}
        self.entered: dict[tuple[str, int], HiddenState | None] = {}  # what layers were given, for checkpointing

    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        site = self.sites.get(id(call.module))
        if site is None:
            raise HeadscapeError(f"{type(call.module).__name__} computes attention but was not found before")
        block, layer = site.block, site.layer
        share = self.alpha_hidden(layer)
        if isinstance(share, Tensor):
            share = share.to(scores.device)
        if torch._C._current_graph_task_id() != -1:  # a checkpointed layer runs again, in the backward pass
            return carry(self.entered.pop((block, layer)), scores, share, self.init, self.scheme)[0]
        if layer and self.reached.get(block) != layer - 1:
            raise HeadscapeError(
                f"layer {layer} of block {block!r} did not run right after layer {layer - 1}; its hidden state is not "
                "known (is a layer skipped?)"
            )
        before = self.states.get(block) if layer else None
        if getattr(self.network, "is_gradient_checkpointing", False) and self.network.training:
            self.entered[block, layer] = before
        entering, state = carry(before, scores, share, self.init, self.scheme)
        self.reached[block] = layer
        if state is None:  # a' = 0 in this layer: the next one gets its scores as they are
            state = HiddenState(scores, layer + 1, 0.0)
        self.states[block] = None if layer == self.last[block] else state
        return entering


def _check_checkpointing(network: nn.Module, skip: Skip) -> None:
    """Raise where layers that run again in the backward pass would not find their hidden state or skip."""
    if not getattr(network, "is_gradient_checkpointing", False):
        return
    ways = [getattr(m, "_gradient_checkpointing_func", None) for m in network.modules()]
    if any(getattr(way, "keywords", {}).get("use_reentrant") for way in ways):
        raise InputError(
            "a hidden state needs gradient_checkpointing_enable({'use_reentrant': False}); reentrant checkpointing cuts its "
            "gradients off"
        )
    if skip == "scaled":
        raise InputError("a scaled skip does not work with gradient checkpointing: switch it off, or skip='residual'")


def _whole_cache(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Before a forward pass: where layers have different windows, a cache that drops no keys."""
    config: Any = getattr(module, "config", None)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else None
    if len(set(getattr(text, "layer_types", None) or [])) < 2:
        return None
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = kwargs.get("past_key_values")
    if cache is None:
        if kwargs.get("use_cache", getattr(text, "use_cache", False)):
            return args, kwargs | {"past_key_values": DynamicCache()}
        return None
    short = [i for i, layer in enumerate(cache.layers) if getattr(layer, "is_sliding", False)]
    if short and (cache.get_seq_length() > 0 or not isinstance(cache, DynamicCache)):
        raise InputError(
            f"the cache drops keys of layer {short[0]}, which a layer above needs for its hidden state; begin with "
            "transformers.DynamicCache() inside the block"
        )
    for i in short:
        cache.layers[i] = DynamicLayer()  # type: ignore[no-untyped-call]
    return None


def restored(model: Model, record: Mapping[str, Any]) -> None:
    """Convert a model that was saved while converted; it stays converted."""
    if record.get("alpha_hidden") is None:
        raise InputError(
            f"{model.source} was saved while alpha_hidden was a function of the layer, which no file holds: save it "
            f"with a list of numbers, or take {RECORD} out of its config.json to load it unconverted"
        )
    conversion = ExitStack()
    conversion.enter_context(to_hopfield(model, **record))
    model.module.headscape_conversion = conversion  # type: ignore[assignment]


class _Skips(TorchFunctionMode):
    """Turns the residual sum after each layer's attention, x + out, into a x + (1 - a) out."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.entered: dict[int, list[Tensor]] = {}  # the inputs of each module that is running now
        self.waiting: tuple[Site, list[Tensor]] | None = None  # the layer whose sum is still to come, and x
        self.found: dict[str, Tensor] = {}  # by attention layer, the other term of the sum; kept only while checking
        self.checking = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.waiting is None or func not in _SUMS:
            return func(*args, **kwargs)
        terms = [*args, *(kwargs[name] for name in ("input", "other") if name in kwargs)]
        site, candidates = self.waiting
        which = next((i for i, term in enumerate(terms) if any(term is x for x in candidates)), None)
        if which is None or len(terms) != 2 or not isinstance(terms[1 - which], Tensor):
            return func(*args, **kwargs)
        self.waiting = None
        x, out = terms[which], terms[1 - which]
        if which == 0 and "alpha" in kwargs:
            out = out * kwargs["alpha"]
        if self.checking:
            self.found[site.name] = out
        scaled = skip_over(x, out, self.alpha, "scaled")
        return args[0].copy_(scaled) if func in _IN_PLACE else scaled

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Forward pre-hook of the attention modules and of what they are part of."""
        given = [*args, *kwargs.values()]
        self.entered[id(module)] = [x for x in given if isinstance(x, Tensor) and x.is_floating_point()]

    def leave(self, module: nn.Module, args: Any, result: Any) -> None:
        """Forward hook of the same."""
        self.entered.pop(id(module), None)


class _Attended(Tap):
    """Tells the skips that a layer's attention was computed; while checking, sets every head's output to 0."""

    def __init__(self, skips: _Skips, sites: dict[int, tuple[Site, list[int]]], zero: bool) -> None:
        self.skips, self.sites, self.zero = skips, sites, zero

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        """The next sum with the layer's input is its skip."""
        if id(call.module) in self.sites:
            site, path = self.sites[id(call.module)]
            before = self.skips.waiting[0] if self.skips.waiting else None  # left by a pass that failed, if at all
            if before and not self.zero and (before.block, before.layer + 1) == (site.block, site.layer):
                raise HeadscapeError(f"the network did not add the residual around {before.name} as it did before")
            self.skips.waiting = site, [x for key in path for x in self.skips.entered.get(key, [])]
        return torch.zeros_like(outputs) if self.zero else outputs


@contextmanager
def _scaled_skips(model: Model, skips: _Skips) -> Iterator[None]:
    network = model.module
    modules = dict(network.named_modules())
    paths: dict[int, tuple[Site, list[int]]] = {}
    watched: dict[int, nn.Module] = {}
    for site in model.sites:
        parts = site.name.split(".")
        above = [modules[".".join(parts[:k])] for k in range(len(parts) + 1)]  # from the network to the layer itself
        paths[id(modules[site.name])] = site, [id(m) for m in above]
        watched |= {id(m): m for m in above}
    with ExitStack() as restore:
        for module in watched.values():
            restore.callback(module.register_forward_pre_hook(skips.enter, with_kwargs=True).remove)
            restore.callback(module.register_forward_hook(skips.leave).remove)
        restore.enter_context(tapped(network, _Attended(skips, paths, skips.checking), model.attention))
        restore.enter_context(skips)
        yield


def _check_skips(model: Model) -> None:
    """Run a short input with all attention set to 0 and check that each layer has a skip, for attention alone.

    The other term of the sum is then the output projection of 0, the same for every token. Where it differs between
    tokens, something else (an MLP beside attention) is in the same sum.
    """
    skips = _Skips(0.5)
    skips.checking = True
    with torch.no_grad(), _scaled_skips(model, skips):
        run(model, example_input(model), whole=False)
    for site in model.sites:
        if site.name not in skips.found:
            raise InputError(
                f"no skip connection was found around {site.name} of {model.source}; convert with skip='residual'"
            )
        out = skips.found[site.name].float()
        spread = (out - out[:, :1]).abs().max()
        if spread > 1e-4 * max(1e-3, float(out.abs().max())):
            raise InputError(
                f"attention and another branch (an MLP beside it) share one skip around {site.name} of "
                f"{model.source}, so it cannot be scaled for attention alone; convert with skip='residual'"
            )


def _check_heads(sites: list[Site]) -> None:
    first: dict[str, Site] = {}
    for site in sites:
        before = first.setdefault(site.block, site)
        if site.n_heads != before.n_heads:
            raise InputError(
                f"{site.name} has {site.n_heads} heads and {before.name} has {before.n_heads}; a hidden state carries "
                "each head to the one of the same index, so all layers need the same number"
            )
