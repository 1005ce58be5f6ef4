"""Compensation: what replaces a removed head, as an affine map of the outputs of the heads its layer keeps.

The outputs of a layer's heads lie side by side before the output projection W_O. With o_k the outputs of the kept heads
and o_r those of the removed ones,

    o_k' = scale o_k,      o_r' = mix^T o_k + constant,

covers every compensation here. All of it folds into W_O and its bias b, so it costs nothing at run time:
W_k' = scale W_k + W_r mix^T, W_r' = 0, b' = b + W_r constant. With `linear` this is Optimal Brain Surgeon for heads
(Hassibi and Stork 1993; SlimGPT 2024 and SlimLLM 2025 for language models).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention.models import Model
from headscape.attention.placing import present
from headscape.attention.projections import columns_of, output_projections
from headscape.attention.samples import Sample, grouped
from headscape.attention.sites import run
from headscape.attention.stack import stack_of
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.errors import InputError

__all__ = [
    "COMPENSATIONS",
    "Calibration",
    "Fitted",
    "Moments",
    "calibrated",
    "digest_of",
    "fit_compensation",
    "moments_on",
    "without_heads",
]

CALIBRATED_AT_ONCE = 4  # samples in one forward pass
RIDGE = 1e-3  # of the mean square of an output: keeps the prediction from relying on noise


@dataclass(frozen=True, eq=False)
class Fitted:
    """What one layer of `n_heads` heads outputs without the removed `heads`: its fitted compensation.

    With k inputs of W_O from kept heads and r from removed ones, `mix` is (k, r) and `constant` (r,); None is zero. A
    healed layer has its whole W_O in `folded` (out, in), and in `offset` (out,) what is added to its bias.
    """

    heads: tuple[int, ...]
    n_heads: int
    mix: npt.NDArray[np.float64] | None = None
    constant: npt.NDArray[np.float64] | None = None
    scale: float = 1.0
    folded: npt.NDArray[np.float64] | None = None
    offset: npt.NDArray[np.float64] | None = None

    def inputs(self, width: int) -> tuple[Tensor, Tensor]:
        """Which of the `width` inputs of W_O come from kept, and which from removed heads."""
        head = torch.arange(width) // (width // self.n_heads)
        removed = torch.isin(head, torch.tensor(self.heads))
        return torch.nonzero(~removed)[:, 0], torch.nonzero(removed)[:, 0]

    def outputs(self, outputs: Tensor) -> Tensor:
        """The compensated outputs of the heads, (..., n_head, dim) like the given ones."""
        changed = outputs * self.scale if self.scale != 1 else outputs.clone()
        filled = outputs.new_zeros(()) if self.constant is None else torch.as_tensor(self.constant).to(outputs)
        if self.mix is not None:
            flat = outputs.flatten(-2)
            kept, _ = self.inputs(flat.shape[-1])
            filled = filled + flat[..., kept.to(flat.device)] @ torch.as_tensor(self.mix).to(flat)
        if filled.dim():
            filled = filled.reshape(*filled.shape[:-1], len(self.heads), -1)
        changed[..., list(self.heads), :] = filled
        return changed

    def weight(self, weight: Tensor) -> Tensor:
        """W_O (out, in) with the compensation folded in; the columns of removed heads are zero."""
        if self.folded is not None:
            return torch.as_tensor(self.folded).to(weight)
        kept, removed = self.inputs(weight.shape[1])
        folded = torch.zeros_like(weight)
        folded[:, kept] = self.scale * weight[:, kept]
        if self.mix is not None:
            folded[:, kept] += weight[:, removed] @ torch.as_tensor(self.mix).to(weight).T
        return folded

    def bias(self, weight: Tensor) -> Tensor:
        """What to add to the bias of W_O, from the original W_O."""
        if self.offset is not None:
            return torch.as_tensor(self.offset).to(weight)
        if self.constant is None:
            return weight.new_zeros(len(weight))
        return weight[:, self.inputs(weight.shape[1])[1]] @ torch.as_tensor(self.constant).to(weight)


def digest_of(fitted: Mapping[str, Fitted]) -> str:
    """SHA-256 of a fitted compensation, to its last bit."""
    found = hashlib.sha256()
    for name, layer in sorted(fitted.items()):
        found.update(f"{name} {layer.heads} {layer.n_heads} {layer.scale!r}".encode())
        for array in (layer.mix, layer.constant, layer.folded, layer.offset):
            found.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


Moments = Mapping[str, Tensor]
"""For each attention module the mean of (o, 1)(o, 1)^T over all positions, (n + 1, n + 1) in float64."""


class _Collect(Tap):
    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        flat = outputs.detach().flatten(-2).flatten(0, -2).float()
        with_one = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1)
        here = (with_one.T @ with_one).double()
        key = id(call.module)
        self.sums[key] = self.sums[key] + here if key in self.sums else here
        return outputs


@dataclass(frozen=True)
class Calibration:
    """What is measured on the calibration samples.

    `power` is the square norm of what enters the layer of each attention module, median over positions; 1 where the
    layers are not a plain stack.
    """

    moments: Moments
    power: Mapping[str, float]


def calibrated(model: Model, samples: Sequence[Sample], step: Callable[[], None] = lambda: None) -> Calibration:
    """Run the model on some samples, calling `step` after each; moments and powers over all positions."""
    tap, stack = _Collect(), stack_of(model)
    entering: dict[int, list[Tensor]] = {}

    def note(layer: nn.Module, args: Any, kwargs: Any) -> None:
        states = args[0] if args else kwargs["hidden_states"]
        entering.setdefault(id(layer), []).append(states.detach().double().square().sum(-1).flatten())

    with torch.no_grad(), tapped(model.module, tap, model.attention), ExitStack() as hooks:
        for layer in () if stack is None else stack.layers.values():
            hooks.callback(layer.register_forward_pre_hook(note, with_kwargs=True).remove)
        for arguments, part in grouped(samples, size=CALIBRATED_AT_ONCE):
            run(model, arguments, whole=False)
            for _ in part:
                step()
    modules = dict(model.module.named_modules())
    sums = {site.name: tap.sums[id(modules[site.name])] for site in model.sites}
    power = dict.fromkeys(sums, 1.0)
    if stack is not None:
        medians = [float(torch.cat(entering[id(layer)]).median()) or 1.0 for layer in stack.layers.values()]
        power = {site.name: medians[stack.place[site.name]] for site in model.sites}
    return Calibration({name: total / total[-1, -1] for name, total in sums.items()}, power)


def moments_on(model: Model, samples: Sequence[Sample]) -> Moments:
    """Second moments of the head outputs of every layer, over all positions of some samples."""
    return calibrated(model, samples).moments


def _none(fitted: Fitted, S: Tensor, weight: Tensor) -> Fitted:
    """Zero."""
    return fitted


def _mean(fitted: Fitted, S: Tensor, weight: Tensor) -> Fitted:
    """The mean output of a removed head (as FLAP, 2024)."""
    _, removed = fitted.inputs(len(S) - 1)
    return replace(fitted, constant=S[-1, removed].numpy())


def _scale(fitted: Fitted, S: Tensor, weight: Tensor) -> Fitted:
    """One factor c for the kept heads (as HARP, 2025): the mean square of W o - c W_k o_k is least."""
    kept, _ = fitted.inputs(len(S) - 1)
    along = torch.trace(weight[:, kept] @ S[kept, :-1] @ weight.T)
    power = torch.trace(weight[:, kept] @ S[kept][:, kept] @ weight[:, kept].T)
    return replace(fitted, scale=float(along / power) if power > 0 else 1.0)


def _linear(fitted: Fitted, S: Tensor, weight: Tensor) -> Fitted:
    """Least squares with a small ridge on the mix, none on the constant: centred moments, then the means."""
    kept, removed = fitted.inputs(len(S) - 1)
    if not len(kept):
        return _mean(fitted, S, weight)
    mean_kept, mean_removed = S[-1, kept], S[-1, removed]
    A = S[kept][:, kept] - torch.outer(mean_kept, mean_kept)
    B = S[kept][:, removed] - torch.outer(mean_kept, mean_removed)
    ridge = RIDGE * A.diagonal().mean().clamp_min(torch.finfo(A.dtype).tiny)
    mix = torch.linalg.solve(A + ridge * torch.eye(len(A), dtype=A.dtype, device=A.device), B)
    return replace(fitted, mix=mix.numpy(), constant=(mean_removed - mix.T @ mean_kept).numpy())


COMPENSATIONS: Mapping[str, Callable[[Fitted, Tensor, Tensor], Fitted]] = {
    "none": _none,
    "mean": _mean,
    "scale": _scale,
    "linear": _linear,
}
"""By name; each takes a layer without compensation, its second moments, and W_O."""


def fit_compensation(
    model: Model, heads: Mapping[str, Sequence[int]], moments: Moments | None, compensation: str = "none"
) -> dict[str, Fitted]:
    """Fit every layer that loses heads, {attention module: heads}; moments may be None for "none" only."""
    if compensation not in COMPENSATIONS:
        raise InputError(f"no compensation '{compensation}'; there are {', '.join(COMPENSATIONS)}")
    sizes = {site.name: site.n_heads for site in model.sites}
    plain = {name: Fitted(tuple(sorted(found)), sizes[name]) for name, found in heads.items()}
    if compensation == "none" or not plain:
        return plain
    if moments is None:
        raise InputError(f"compensation '{compensation}' is fitted on text: give moments")
    part = model.module.get_submodule
    projections = output_projections(model) if compensation == "scale" else {}
    fitted = {}
    for name, layer in plain.items():
        S = moments[name].cpu()
        weight = columns_of(part(projections[name])).double().cpu() if projections else S
        fitted[name] = COMPENSATIONS[compensation](layer, S, weight)
    return fitted


class _Compensating(Tap):
    def __init__(self, model: Model, fitted: Mapping[str, Fitted]) -> None:
        self.fitted = {id(model.module.get_submodule(name)): layer for name, layer in fitted.items()}

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        layer = self.fitted.get(id(call.module))
        return outputs if layer is None else layer.outputs(outputs)


@contextmanager
def without_heads(model: Model, fitted: Mapping[str, Fitted]) -> Iterator[Model]:
    """Run the model without the heads that `fitted` removes, compensated; it is restored afterwards."""
    healed = {name: layer for name, layer in fitted.items() if layer.folded is not None}
    plain = {name: layer for name, layer in fitted.items() if layer.folded is None}
    with ExitStack() as restore:
        if plain:
            restore.enter_context(tapped(model.module, _Compensating(model, plain), model.attention))
        paths = output_projections(model) if healed else {}
        for name, layer in healed.items():
            output = model.module.get_submodule(paths[name])
            restore.callback(output.register_forward_hook(_healed(layer, output)).remove)
        yield model


def _healed(layer: Fitted, output: Any) -> Callable[..., Tensor]:
    """What an output projection computes once it is healed."""
    columns = columns_of(output)
    weight = layer.weight(columns)
    with present(output):
        bias = layer.bias(columns) + (0 if output.bias is None else output.bias.detach())
    return lambda _, args, __: nn.functional.linear(args[0], weight, bias)
