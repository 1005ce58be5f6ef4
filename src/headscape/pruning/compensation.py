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
from dataclasses import dataclass

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
    """What one layer puts out without its removed heads; indices count the inputs of W_O.

    Shapes: `kept` (k,), `gone` (g,), `mix` (k, g), `constant` (g,).
    """

    kept: Tensor
    gone: Tensor
    mix: Tensor
    constant: Tensor
    scale: float = 1.0

    def outputs(self, outputs: Tensor) -> Tensor:
        """The changed outputs, (..., n_head, dim) as they come."""
        flat = outputs.flatten(-2)
        changed = flat * self.scale if self.scale != 1 else flat.clone()
        filled = self.constant.to(flat)
        if self.mix.any():
            filled = filled + flat[..., self.kept] @ self.mix.to(flat)
        changed[..., self.gone] = filled
        return changed.view(outputs.shape)

    def weight(self, weight: Tensor) -> Tensor:
        """W_O (out, in) that does the same; the columns of removed heads are zero."""
        folded = torch.zeros_like(weight)
        folded[:, self.kept] = self.scale * weight[:, self.kept] + weight[:, self.gone] @ self.mix.to(weight).T
        return folded

    def bias(self, weight: Tensor) -> Tensor:
        """What to add to the bias of W_O, from W_O as it was."""
        return weight[:, self.gone] @ self.constant.to(weight)


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


def _none(S: Tensor, kept: Tensor, gone: Tensor, weight: Tensor) -> Fold:
    return Fold(kept, gone, S.new_zeros(len(kept), len(gone)), S.new_zeros(len(gone)))


def _mean(S: Tensor, kept: Tensor, gone: Tensor, weight: Tensor) -> Fold:
    return Fold(kept, gone, S.new_zeros(len(kept), len(gone)), S[-1, gone])


def _scale(S: Tensor, kept: Tensor, gone: Tensor, weight: Tensor) -> Fold:
    """The factor c that brings c W_k o_k nearest to W o in mean square."""
    every = torch.cat([kept, gone])
    along = torch.trace(weight[:, kept] @ S[kept][:, every] @ weight[:, every].T)
    power = torch.trace(weight[:, kept] @ S[kept][:, kept] @ weight[:, kept].T)
    plain = _none(S, kept, gone, weight)
    return Fold(kept, gone, plain.mix, plain.constant, float(along / power) if power > 0 else 1.0)


def _linear(S: Tensor, kept: Tensor, gone: Tensor, weight: Tensor) -> Fold:
    """Least squares with a small ridge on the mix, none on the constant: centred moments, then the means."""
    mean_kept, mean_gone = S[-1, kept], S[-1, gone]
    if not len(kept):
        return _mean(S, kept, gone, weight)
    A = S[kept][:, kept] - torch.outer(mean_kept, mean_kept)
    B = S[kept][:, gone] - torch.outer(mean_kept, mean_gone)
    ridge = RIDGE * A.diagonal().mean().clamp_min(torch.finfo(A.dtype).tiny)
    mix = torch.linalg.solve(A + ridge * torch.eye(len(A), dtype=A.dtype, device=A.device), B)
    return Fold(kept, gone, mix, mean_gone - mix.T @ mean_kept)


@dataclass(frozen=True)
class Compensation:
    """A named compensation; `bias`: it needs a bias behind W_O."""

    name: str
    function: Callable[[Tensor, Tensor, Tensor, Tensor], Fold]
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
    folds = {}
    for name, found in heads.items():
        width = _width(model, name) if moments is None else len(moments[name]) - 1
        dim = width // sizes[name]
        removed = torch.zeros(sizes[name], dim, dtype=torch.bool)
        removed[sorted(found)] = True
        indices = torch.arange(width)
        kept, gone = indices[~removed.flatten()], indices[removed.flatten()]
        S = torch.zeros(1, 1, dtype=torch.float64) if moments is None else moments[name].cpu()
        weight = columns_of(modules[projections[name]]).detach().double().cpu() if projections else S
        folds[name] = COMPENSATIONS[compensation].function(S, kept, gone, weight)
    return folds


def _width(model: Model, name: str) -> int:
    return columns_of(model.module.get_submodule(output_projections(model)[name])).shape[1]


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
