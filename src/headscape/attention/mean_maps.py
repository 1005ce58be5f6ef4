"""Maps of every layer of one pass, averaged over heads: evenly, and by the size of what each head adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.models import Model
from headscape.attention.sites import run
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.weights import parts_of, read

__all__ = ["MeanMaps", "mean_maps"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class MeanMaps:
    """Maps of all layers, (n_layer, n, n): the mean over heads, and the mean weighted by the size of what each head adds.

    measured is (n_layer,), the mean over heads of a measure of single maps. by_output says whether sizes were taken
    after the output projection.
    """

    mean: Array
    weighted: Array
    measured: Array
    by_output: bool


class _Averaging(Tap):
    """Reduces every layer to its mean maps as it runs."""

    blockwise = False

    def __init__(self, outputs: dict[int, Tensor], measure: Callable[[Array], Array]) -> None:
        self.projections, self.measure = outputs, measure
        self.probs_of: dict[int, Tensor] = {}
        self.found: dict[int, tuple[Array, Array, float]] = {}

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        self.probs_of[id(call.module)] = probs[0].detach()
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        key = id(call.module)
        probs = self.probs_of.pop(key).float()
        flat = outputs.detach().reshape(-1, *outputs.shape[-2:]).float()  # (query, head, dim)
        heads = self.projections.get(key)
        added = flat if heads is None else torch.einsum("qhe,hde->qhd", flat, heads.to(flat))
        size = added.norm(dim=-1).T  # (head, query)
        share = size / size.sum(0).clamp(min=1e-30)
        maps = probs.cpu().numpy()
        weighted = torch.einsum("hq,hqk->qk", share, probs).cpu().numpy()
        self.found[key] = (maps.mean(axis=0), weighted, float(np.mean(self.measure(maps))))
        return outputs


def mean_maps(model: Model, ids: Sequence[int], measure: Callable[[Array], Array]) -> MeanMaps:
    """Run one text and average the maps of every layer; `measure` takes the maps (n_head, n, n) of a layer."""
    modules = dict(model.module.named_modules())
    places = {(site.block, site.layer): site.name for site in model.sites}
    projections = {}
    for part in parts_of(model)[0]:
        if part.kind == "o":
            heads = torch.from_numpy(part.by_head(read(model, part)))
            projections[id(modules[places[part.block, part.layer]])] = heads.to(model.device)
    tap = _Averaging(projections, measure)
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        run(model, {"input_ids": torch.tensor([list(ids)])}, whole=False)
    found = [tap.found[id(modules[site.name])] for site in model.sites]
    mean, weighted = (np.stack([layer[k] for layer in found]).astype(np.float32) for k in (0, 1))
    return MeanMaps(mean, weighted, np.array([layer[2] for layer in found]), len(projections) == len(model.sites))
