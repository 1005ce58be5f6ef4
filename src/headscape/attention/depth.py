"""Versions of a model by depth: what enters its stack and leaves each layer, also without skip connections, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscape.attention.intervene import scale_scores
from headscape.attention.projections import output_projections
from headscape.attention.samples import Sample
from headscape.attention.sites import run
from headscape.attention.stack import stack_of
from headscape.attention.wrapping import Model
from headscape.errors import HeadscapeError, InputError

__all__ = [
    "SeenError",
    "as_array",
    "by_depth",
    "finite",
    "followed",
    "in_double",
    "layers_and_outputs",
    "one_batch",
    "precision",
]

Array = npt.NDArray[Any]
ROUNDING = 256
"""Units of rounding below which a spread of tokens is not a measurement; tokens that are one show some 10 of them."""


class SeenError(Exception):
    """Ends a call that was made only to see part of it: queries and keys, or the output of attention."""


def as_array(tensor: Tensor) -> Array:
    """As float32, on the CPU."""
    return tensor.detach().float().cpu().numpy()


def one_batch(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """Samples of one shape as one batch of arguments.

    Raises an `InputError` when their shapes differ: what follows is measured position by position.
    """
    shapes = {tuple((name, tuple(part.shape)) for name, part in sample.arguments.items()) for sample in samples}
    if len(shapes) > 1:
        raise InputError("the captured inputs differ in length; capture again without --keep-short")
    return {name: torch.cat([sample.arguments[name] for sample in samples]) for name in samples[0].arguments}


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
    """Let a layer return what `attended` holds when it is stopped by `SeenError`, and leave out the rest of its work.

    False, and nothing is changed, where something else has replaced the layer's forward and may have work to do after it.
    """
    if "forward" in layer.__dict__:
        yield False
        return
    whole = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        try:
            return whole(*args, **kwargs)
        except SeenError:
            entering = args[0] if args else kwargs["hidden_states"]
            return attended[0].reshape(entering.shape)

    layer.forward = forward
    try:
        yield True
    finally:
        del layer.forward


@contextmanager
def followed(model: Model, skip: bool | float, take: Callable[[Tensor], None]) -> Iterator[None]:
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
                    raise SeenError

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


def finite(model: Model, state: Tensor, alpha: float = 1.0, skip: bool | float = True) -> Array:
    """A state as an array; a `HeadscapeError` for one that is not finite."""
    array = state.cpu().numpy() if state.dtype == torch.float64 else as_array(state)
    if not np.isfinite(array).all():
        raise HeadscapeError(f"{model.source} gives infinite states with alpha = {alpha:g}, skip = {skip}")
    return array


def by_depth(
    model: Model,
    samples: Sequence[Sample],
    measure: Callable[[Array], Any] = lambda state: state,
    *,
    skip: bool | float = True,
    alpha: float = 1.0,
) -> list[Any]:
    """Measure the hidden states (n_input, n_token, dim) entering the stack and leaving each layer, one by one.

    `skip` False is attention alone, a number s of it s of the input beside 1 - s of attention (`followed`).

    `alpha` scales the spectra of all Wq and Wk (biases too), which multiplies every score by alpha^2; it is applied to
    the scores, so that QK-norm does not undo it.
    """
    heads = [head for site in model.sites for head in site.heads]
    found: list[Any] = []

    def take(state: Tensor) -> None:
        found.append(measure(finite(model, state, alpha, skip)))

    scaled = nullcontext() if alpha == 1 else scale_scores(model, heads, alpha**2)
    with torch.no_grad(), scaled, followed(model, skip, take):
        run(model, one_batch(samples), whole=False)
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
