"""Change a model inside a with block: remove heads, scale scores, put maps in place, gate, replace softmax.

Every function is a context manager and leaves the model exactly as it was. Blocks nest; capture and loss inside a block
see the changed model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.models import Model
from headscape.attention.samples import Sample, grouped, samples_of
from headscape.attention.sites import run, select_heads
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.checks import finite, renamed
from headscape.errors import InputError
from headscape.tensor import HeadId

__all__ = ["ablate", "gates", "mean_outputs", "mean_outputs_on", "patch_maps", "replace_attention", "scale_scores"]


def _modules(model: Model) -> dict[str, torch.nn.Module]:
    return dict(model.module.named_modules())


class _Ablation(Tap):
    def __init__(self, model: Model, heads: dict[str, list[int]], fill: Mapping[HeadId, npt.NDArray[Any]] | None):
        modules, sites = _modules(model), {site.name: site for site in model.sites}
        self.heads = {id(modules[name]): found for name, found in heads.items()}
        self.fill: dict[int, Tensor] = {}
        if fill is None:
            return
        for name, found in heads.items():
            rows = [fill[sites[name].heads[h]] for h in found]
            self.fill[id(modules[name])] = torch.as_tensor(np.stack(rows))

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        found = self.heads.get(id(call.module))
        if not found:
            return outputs
        changed = outputs.clone()
        fill = self.fill.get(id(call.module))
        changed[..., found, :] = 0.0 if fill is None else fill.to(outputs)
        return changed


@contextmanager
def ablate(
    model: Model,
    heads: Iterable[Any],
    how: Literal["zero", "mean"] = "zero",
    *,
    means: Mapping[HeadId, npt.NDArray[Any]] | None = None,
) -> Iterator[Model]:
    """Remove heads: their output before the output projection becomes zero, or its mean.

    Parameters
    ----------
    heads
        `HeadId`, "decoder.3.7", or (layer, head) where there is one block. With grouped queries a query head is
        removed alone; its key and value stay for the others of the group.
    how
        "zero", or "mean" with `means` from `mean_outputs`.

    >>> text = ["the cat sat on the mat"]
    >>> intact = hs.loss(model, text).mean
    >>> with hs.ablate(model, [(0, 1), (1, 3)]):
    ...     print(hs.loss(model, text).mean == intact)
    False
    >>> hs.loss(model, text).mean == intact  # restored
    True
    """
    if how not in ("zero", "mean"):
        raise InputError(f"how is 'zero' or 'mean', not {how!r}")
    if how == "mean" and means is None:
        raise InputError("mean ablation needs means=mean_outputs(model, inputs)")
    chosen = select_heads(model, heads)
    with tapped(model.module, _Ablation(model, chosen, means if how == "mean" else None), model.attention):
        yield model


class _Means(Tap):
    def __init__(self) -> None:
        self.sums: dict[int, Tensor] = {}
        self.counts: dict[int, int] = {}

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        flat = outputs.detach().double().reshape(-1, *outputs.shape[-2:])
        key = id(call.module)
        self.sums[key] = self.sums.get(key, torch.zeros_like(flat[0])) + flat.sum(0)
        self.counts[key] = self.counts.get(key, 0) + len(flat)
        return outputs


@renamed("seed", "random_state")
def mean_outputs(
    model: Model, inputs: Any, tokens: int = 256, batches: int | None = 10, random_state: int = 0
) -> dict[HeadId, npt.NDArray[np.float32]]:
    """Mean output of every head over all positions of the inputs, before the output projection: (dim,) per head.

    >>> means = hs.mean_outputs(model, ["the cat sat on the mat"])
    >>> means[hs.HeadId("decoder", 0, 1)].shape
    (8,)
    >>> with hs.ablate(model, [(0, 1)], how="mean", means=means):
    ...     without = hs.loss(model, ["the dog ran"])
    """
    return mean_outputs_on(model, samples_of(model, inputs, tokens, batches, seed=random_state)[0])


def mean_outputs_on(model: Model, samples: Sequence[Sample]) -> dict[HeadId, npt.NDArray[np.float32]]:
    """The same on samples already chosen."""
    tap = _Means()
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        for arguments, _ in grouped(samples, size=8):
            run(model, arguments, whole=False)
    modules = _modules(model)
    means: dict[HeadId, npt.NDArray[np.float32]] = {}
    for site in model.sites:
        key = id(modules[site.name])
        mean = (tap.sums[key] / tap.counts[key]).float().cpu().numpy()
        means |= {head: mean[head.head] for head in site.heads}
    return means


class _Factors(Tap):
    """A number per head, by layer."""

    def __init__(self, model: Model, factors: dict[str, Tensor]) -> None:
        modules = _modules(model)
        self.factors = {id(modules[name]): factor for name, factor in factors.items()}


class _Scaling(_Factors):
    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        factor = self.factors.get(id(call.module))
        return scores if factor is None else scores * factor.to(scores)[:, None, None]


@contextmanager
def scale_scores(model: Model, heads: Iterable[Any], factor: float) -> Iterator[Model]:
    """Multiply what softmax sees of these heads by a factor (an inverse temperature).

    >>> with hs.scale_scores(model, [(0, 1)], 0.0):  # no score differs from any other
    ...     flat = hs.capture(model, "the cat").tensor(0)
    >>> flat.head(0, 1).values[3].round(2)
    array([0.25, 0.25, 0.25, 0.25, 0.  , 0.  , 0.  ], dtype=float32)
    """
    finite("factor", factor)
    factors = {}
    sizes = {site.name: site.n_heads for site in model.sites}
    for name, found in select_heads(model, heads).items():
        factors[name] = torch.ones(sizes[name], device=model.device)
        factors[name][found] = factor
    with tapped(model.module, _Scaling(model, factors), model.attention):
        yield model


class _Patch(Tap):
    def __init__(self, model: Model, maps: Mapping[HeadId, Tensor]) -> None:
        modules = _modules(model)
        places = {(site.block, site.layer): id(modules[site.name]) for site in model.sites}
        self.maps: dict[int, list[tuple[int, Tensor]]] = {}
        for head, given in maps.items():
            self.maps.setdefault(places[head.block, head.layer], []).append((head.head, given))

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        found = self.maps.get(id(call.module))
        if not found:
            return probs
        rows = call.rows or slice(None)
        changed = probs.clone()
        for head, given in found:
            here = given[rows].to(probs)
            if here.shape != probs.shape[-2:]:
                raise InputError(
                    f"the map for head {head} has shape {tuple(given.shape)}, attention here {tuple(probs.shape[-2:])}"
                )
            changed[:, head] = here
        return changed


@contextmanager
def patch_maps(model: Model, maps: Mapping[Any, Any]) -> Iterator[Model]:
    """Put given maps (n_query, n_key) in place of the heads' own probabilities; they are used as they are.

    >>> with hs.patch_maps(model, {(0, 1): np.eye(7)}):  # every letter looks at itself
    ...     patched = hs.capture(model, "the cat").tensor(0)
    >>> patched.head(0, 1).values.diagonal()
    array([1., 1., 1., 1., 1., 1., 1.], dtype=float32)
    """
    plain: dict[HeadId, Tensor] = {}
    for head, given in maps.items():
        name, found = next(iter(select_heads(model, [head]).items()))
        site = next(site for site in model.sites if site.name == name)
        plain[site.heads[found[0]]] = torch.as_tensor(given)
        if plain[site.heads[found[0]]].dim() != 2:
            raise InputError(f"the map for head {head} has shape {np.shape(given)}; it must be (n_query, n_key)")
    with tapped(model.module, _Patch(model, plain), model.attention):
        yield model


class _Gates(_Factors):
    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        gate = self.factors.get(id(call.module))
        return outputs if gate is None else outputs * gate.to(outputs)[:, None]


@contextmanager
def gates(model: Model) -> Iterator[dict[str, Tensor]]:
    """Multiply every head's output by a gate of 1 that carries gradients; yields {site name: (n_head,) tensor}.

    A backward pass inside the block leaves dL/dgate in each `.grad` (Michel et al. 2019).

    >>> import torch
    >>> ids = torch.arange(8)[None]
    >>> with hs.gates(model) as gates:
    ...     model.module(ids, labels=ids).loss.backward()
    >>> [gate.grad.shape for gate in gates.values()]  # one number per head: how much the loss depends on it
    [torch.Size([4]), torch.Size([4])]
    """
    values = {site.name: torch.ones(site.n_heads, device=model.device, requires_grad=True) for site in model.sites}
    with tapped(model.module, _Gates(model, values), model.attention):
        yield values


class _Replacement(Tap):
    blockwise = False

    def __init__(self, function: Callable[[Tensor, Tensor | None], Tensor], chosen: set[int] | None) -> None:
        self.function, self.chosen = function, chosen

    def softmax(self, call: AttentionCall, scores: Tensor, mask: Tensor | None) -> Tensor | None:
        if self.chosen is not None and id(call.module) not in self.chosen:
            return None
        return self.function(scores, mask)


@contextmanager
def replace_attention(
    model: Model, function: Callable[[Tensor, Tensor | None], Tensor], layers: Iterable[int] | None = None
) -> Iterator[Model]:
    """Put a function of (scores, mask) in place of softmax(scores + mask).

    Scores are (batch, head, query, key); the mask is added to scores where entries are absent, or None.

    >>> import torch
    >>> def uniform(scores, mask):
    ...     return torch.softmax(0 * scores if mask is None else mask + 0 * scores, dim=-1)
    >>> with hs.replace_attention(model, uniform, layers=[1]):
    ...     changed = hs.loss(model, ["the cat sat"])
    """
    modules = _modules(model)
    wanted = None if layers is None else set(layers)
    chosen = None if wanted is None else {id(modules[s.name]) for s in model.sites if s.layer in wanted}
    with tapped(model.module, _Replacement(function, chosen), model.attention):
        yield model
