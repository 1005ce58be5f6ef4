"""Compensation: what stands for a removed head, as an affine map of what the layer's kept heads put out.

The outputs of a layer's heads lie side by side before the output projection W_O. With k the kept and g the removed
(gone) ones of them,

    o_k' = scale o_k,      o_g' = mix^T o_k + constant,

covers every compensation here, and folds into W_O and its bias without a trace: W_k' = scale W_k + W_g mix^T, W_g' = 0,
b' = b + W_g constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headscape.attention.models import Model
from headscape.attention.projections import columns_of, output_projections
from headscape.attention.samples import Sample, grouped
from headscape.attention.sites import run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.errors import InputError

__all__ = ["COMPENSATIONS", "Compensation", "Fold", "Moments", "folded", "folds_of", "moments_on"]

RIDGE = 1e-3  # of the mean square of an output: keeps the prediction from leaning on noise


@dataclass(frozen=True)
class Fold:
    """What one layer of `n_heads` heads puts out without the `heads` that are removed.

    Shapes, with k inputs of W_O from kept heads and g from removed ones: `mix` (k, g), `constant` (g,); None is zero.
    """

    heads: tuple[int, ...]
    n_heads: int
    mix: Tensor | None = None
    constant: Tensor | None = None
    scale: float = 1.0

    def inputs(self, width: int) -> tuple[Tensor, Tensor]:
        """Which of the `width` inputs of W_O come from kept, and which from removed heads."""
        head = torch.arange(width) // (width // self.n_heads)
        gone = torch.isin(head, torch.tensor(self.heads))
        return torch.nonzero(~gone)[:, 0], torch.nonzero(gone)[:, 0]

    def outputs(self, outputs: Tensor) -> Tensor:
        """The changed outputs, (..., n_head, dim) as they come."""
        changed = outputs * self.scale if self.scale != 1 else outputs.clone()
        filled = outputs.new_zeros(()) if self.constant is None else self.constant.to(outputs)
        if self.mix is not None:
            flat = outputs.flatten(-2)
            kept, _ = self.inputs(flat.shape[-1])
            filled = filled + flat[..., kept.to(flat.device)] @ self.mix.to(flat)
        if filled.dim():
            filled = filled.reshape(*filled.shape[:-1], len(self.heads), -1)
        changed[..., list(self.heads), :] = filled
        return changed

    def weight(self, weight: Tensor) -> Tensor:
        """W_O (out, in) that does the same; the columns of removed heads are zero."""
        kept, gone = self.inputs(weight.shape[1])
        folded = torch.zeros_like(weight)
        folded[:, kept] = self.scale * weight[:, kept]
        if self.mix is not None:
            folded[:, kept] += weight[:, gone] @ self.mix.to(weight).T
        return folded

    def bias(self, weight: Tensor) -> Tensor:
        """What to add to the bias of W_O, from W_O as it was."""
        if self.constant is None:
            return weight.new_zeros(len(weight))
        return weight[:, self.inputs(weight.shape[1])[1]] @ self.constant.to(weight)


Moments = Mapping[str, Tensor]
"""For each site the mean of (o, 1)(o, 1)^T over all positions, (n + 1, n + 1) in float64."""


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


def moments_on(model: Model, samples: Sequence[Sample]) -> Moments:
    """Second moments of what the heads of every layer put out, on samples."""
    tap = _Collect()
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        for arguments, _ in grouped(samples, size=8):
            run(model, arguments, whole=False)
    modules = dict(model.module.named_modules())
    sums = {site.name: tap.sums[id(modules[site.name])] for site in model.sites}
    return {name: total / total[-1, -1] for name, total in sums.items()}


def _none(fold: Fold, S: Tensor, weight: Tensor) -> Fold:
    return fold


def _mean(fold: Fold, S: Tensor, weight: Tensor) -> Fold:
    _, gone = fold.inputs(len(S) - 1)
    return replace(fold, constant=S[-1, gone])


def _scale(fold: Fold, S: Tensor, weight: Tensor) -> Fold:
    """The factor c that brings c W_k o_k nearest to W o in mean square."""
    kept, _ = fold.inputs(len(S) - 1)
    along = torch.trace(weight[:, kept] @ S[kept, :-1] @ weight.T)
    power = torch.trace(weight[:, kept] @ S[kept][:, kept] @ weight[:, kept].T)
    return replace(fold, scale=float(along / power) if power > 0 else 1.0)


def _linear(fold: Fold, S: Tensor, weight: Tensor) -> Fold:
    """Least squares with a small ridge on the mix, none on the constant: centred moments, then the means."""
    kept, gone = fold.inputs(len(S) - 1)
    if not len(kept):
        return _mean(fold, S, weight)
    mean_kept, mean_gone = S[-1, kept], S[-1, gone]
    A = S[kept][:, kept] - torch.outer(mean_kept, mean_kept)
    B = S[kept][:, gone] - torch.outer(mean_kept, mean_gone)
    ridge = RIDGE * A.diagonal().mean().clamp_min(torch.finfo(A.dtype).tiny)
    mix = torch.linalg.solve(A + ridge * torch.eye(len(A), dtype=A.dtype, device=A.device), B)
    return replace(fold, mix=mix, constant=mean_gone - mix.T @ mean_kept)


@dataclass(frozen=True)
class Compensation:
    """A named compensation; `bias`: it needs a bias behind W_O."""

    name: str
    function: Callable[[Fold, Tensor, Tensor], Fold]
    about: str
    bias: bool


COMPENSATIONS = {
    c.name: c
    for c in (
        Compensation("none", _none, "a removed head puts out zero", bias=False),
        Compensation("mean", _mean, "its mean output stays, folded into the bias (as FLAP)", bias=True),
        Compensation("scale", _scale, "the layer's kept heads are rescaled by one factor (as HARP)", bias=False),
        Compensation("linear", _linear, "its best linear prediction from the layer's kept heads", bias=True),
    )
}


def folds_of(
    model: Model, heads: Mapping[str, Sequence[int]], moments: Moments | None, compensation: str = "none"
) -> dict[str, Fold]:
    """The fold of every site that loses heads, {site: heads}; moments may be None for "none" only."""
    if compensation not in COMPENSATIONS:
        raise InputError(f"no compensation '{compensation}'; there are {', '.join(COMPENSATIONS)}")
    if moments is None and compensation != "none":
        raise InputError(f"compensation '{compensation}' is fitted on text: give moments")
    modules = dict(model.module.named_modules())
    projections = output_projections(model) if compensation == "scale" else {}
    sizes = {site.name: site.n_heads for site in model.sites}
    folds = {name: Fold(tuple(sorted(found)), sizes[name]) for name, found in heads.items()}
    if moments is None:
        return folds
    for name, fold in folds.items():
        S = moments[name].cpu()
        weight = columns_of(modules[projections[name]]).detach().double().cpu() if projections else S
        folds[name] = COMPENSATIONS[compensation].function(fold, S, weight)
    return folds


class _Folding(Tap):
    def __init__(self, model: Model, folds: Mapping[str, Fold]) -> None:
        modules = dict(model.module.named_modules())
        self.folds = {id(modules[name]): fold for name, fold in folds.items()}

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        fold = self.folds.get(id(call.module))
        return outputs if fold is None else fold.outputs(outputs)


@contextmanager
def folded(model: Model, folds: Mapping[str, Fold]) -> Iterator[Model]:
    """Run the model with these folds; it is restored afterwards."""
    if not folds:
        yield model
        return
    with tapped(model.module, _Folding(model, folds), model.attention):
        yield model
