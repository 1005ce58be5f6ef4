"""Convert a network to Modern Hopfield Attention and back: same weights, no new parameters.

Scores are changed by a tap, as every intervention is. The skip a x + (1 - a) attention is made where the network adds
its residual: in the first sum after a layer's attention that has the layer's own input tensor as one term.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscape.attention.models import Model, wrap_module
from headscape.attention.sites import Site, example_input, run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import check_weights
from headscape.errors import HeadscapeError, InputError
from headscape.hopfield.layer import HiddenState, Init, Scheme, Skip, carry, check_alphas, skip_over

__all__ = ["to_hopfield"]

_IN_PLACE = (torch.Tensor.add_, torch.Tensor.__iadd__)
_SUMS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, *_IN_PLACE)
_NO_CACHE = "a hidden state runs along depth for all tokens at once; pass use_cache=False (generate takes it too)"

Network = TypeVar("Network", Model, nn.Module)
_converted: set[int] = set()  # ids of the networks inside a block of `to_hopfield`


@contextmanager
def to_hopfield(
    model: Network,
    alpha: float = 0.5,
    alpha_hidden: float = 0.5,
    init: Init = "zero",
    skip: Skip = "scaled",
    scheme: Scheme = "forward-backward",
) -> Iterator[Network]:
    """Give a network Modern Hopfield Attention inside the `with` block.

    Along the layers of each block of the network, H_n = a' H_n-1 + (1 - a') S_n replaces the scores S_n (all that
    softmax sees except masks: after rotation and scaling, with position biases, per query head; heads are matched by
    index), and with `skip="scaled"` a x + (1 - a) attention replaces x + attention; what follows (norm, MLP) stays.
    Works in training and under autocast, with masks, grouped queries, `capture` and other interventions.

    Parameters
    ----------
    model
        From `load_model`, or any module that `capture` takes.
    alpha, alpha_hidden
        a of the skip and a' of the scores, at least 0 and below 1; with alpha_hidden 0 and `skip="residual"` the
        network is unchanged.
    init
        "zero", "first" or "debias": how the hidden state starts (`headscape.hopfield.layer.carry`).
    skip
        "scaled", or "residual" to keep the network's own; alpha is then unused.
    scheme
        "forward-backward", the equations above; "sum" adds scores up without decay (RealFormer).

    Raises
    ------
    InputError
        Alphas out of range, NaN or infinite weights, layers with different numbers of heads, a KV cache, gradient
        checkpointing, attention and MLP that share one skip (GPT-J) when it is to be scaled.

    >>> import headscape as hs  # doctest: +SKIP
    >>> with hs.to_hopfield(model, alpha_hidden=0.5, skip="residual"):  # doctest: +SKIP
    ...     logits = model.module(ids, use_cache=False).logits
    """
    check_alphas(alpha, alpha_hidden, init, skip, scheme)
    carried = alpha_hidden > 0 or scheme == "sum"
    network: nn.Module = model.module if isinstance(model, Model) else model
    if id(network) in _converted:
        raise InputError("this network is already inside a to_hopfield block; leave that one first")
    check_weights(network)
    if getattr(network, "is_gradient_checkpointing", False):
        raise InputError("gradient checkpointing runs layers twice and out of order; switch it off to convert")
    with _evaluating(network):
        described = model if isinstance(model, Model) else wrap_module(network)
        sites = described.sites
        if carried:
            _check_heads(sites)
        if skip == "scaled":
            _check_skips(described)
    with ExitStack() as restore:
        _converted.add(id(network))
        restore.callback(_converted.discard, id(network))
        restore.callback(network.register_forward_pre_hook(_refuse_cache, with_kwargs=True).remove)
        if skip == "scaled":
            restore.enter_context(_scaled_skips(described, _Skips(alpha)))
        if carried:  # without a hidden state scores stay as they are, and attention may stay fused
            states = _HiddenStates(described, alpha_hidden, init, scheme)
            restore.enter_context(tapped(network, states, described.attention))
        yield model


class _HiddenStates(Tap):
    """Carries H from layer to layer of each block; layer 0 starts it anew, the last layer drops it."""

    blockwise = False

    def __init__(self, model: Model, alpha_hidden: float, init: Init, scheme: Scheme) -> None:
        modules = dict(model.module.named_modules())
        self.sites = {id(modules[site.name]): site for site in model.sites}
        self.last = {site.block: site.layer for site in model.sites}
        self.known = model.task != "module"  # in a network of the user's own, keys may rightly outnumber queries
        self.alpha_hidden, self.init, self.scheme = alpha_hidden, init, scheme
        self.states: dict[str, HiddenState | None] = {}
        self.reached: dict[str, int] = {}

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Refuse keys of tokens that are not among the queries: they come from a cache."""
        site, n_query, n_key = self.sites.get(id(call.module)), query.shape[2], key.shape[2]
        if site is not None and self.known and not site.block.endswith(".cross") and n_query < n_key:
            raise InputError(f"{site.name} sees {n_key} keys for {n_query} queries, a KV cache: {_NO_CACHE}")

    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        site = self.sites.get(id(call.module))
        if site is None:
            raise HeadscapeError(f"{type(call.module).__name__} computes attention but was not found before")
        block, layer = site.block, site.layer
        if layer and self.reached.get(block) != layer - 1:
            raise HeadscapeError(
                f"layer {layer} of block {block!r} did not run right after layer {layer - 1}; its hidden state is not "
                "known (is a layer skipped, or run again by checkpointing?)"
            )
        before = self.states.get(block) if layer else None
        entering, state = carry(before, scores, self.alpha_hidden, self.init, self.scheme)
        self.reached[block] = layer
        self.states[block] = None if layer == self.last[block] else state
        return entering


def _refuse_cache(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    if kwargs.get("past_key_values") is not None or kwargs.get("use_cache"):
        raise InputError(f"{type(module).__name__} was called with a KV cache: {_NO_CACHE}")


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


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Switch dropout off inside the block; every submodule's training flag is restored."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
