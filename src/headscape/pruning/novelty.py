"""Novelty: what a head says that the other heads of its layer cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.samples import grouped
from headscape.attention.sites import run
from headscape.attention.stack import stack_of
from headscape.pruning.compensation import RIDGE
from headscape.pruning.evidence import Evidence

__all__ = ["novelty"]

FloatArray = npt.NDArray[np.float64]


def novelty(e: Evidence) -> FloatArray:
    """What a head adds that the other heads of its layer cannot say, in the order in which heads go.

    With o_h the head's output and p_h its best linear prediction from the kept heads of the layer, the added error is
    E |W_O (o_g - p_g)|^2 over all removed g, as a share of the mean square of the layer's input. Heads go one at a
    time, the smallest rise of that error first, each measured anew once a head of its layer has gone; the score is the
    place in that order. No gradients, no loss: forward passes for second moments, then linear algebra.
    """
    power = _input_power(e)
    layers = [_Layer(e.moments[s.name].cpu(), e.projections[s.name], s.n_heads, power[s.name]) for s in e.network.sites]
    waiting = {(i, h): rise for i, layer in enumerate(layers) for h, rise in layer.rises().items()}
    places: dict[tuple[int, int], int] = {}
    while waiting:
        i, h = min(waiting, key=lambda key: (waiting[key], key))
        places[i, h] = len(places)
        layers[i].gone.append(h)
        waiting = {key: rise for key, rise in waiting.items() if key[0] != i}
        waiting |= {(i, other): rise for other, rise in layers[i].rises().items()}
    scores = {
        site.name: np.array([float(places[i, h]) for h in range(site.n_heads)])
        for i, site in enumerate(e.network.sites)
    }
    return e.gather(scores)


class _Layer:
    """Error of a layer's output without some heads, the rest predicting them as well as they can."""

    def __init__(self, S: Tensor, weight: Tensor, n_heads: int, power: float) -> None:
        self.n_heads, self.power = n_heads, power
        mean = S[-1, :-1]
        self.covariance = S[:-1, :-1] - torch.outer(mean, mean)
        self.gram = weight.T @ weight
        self.ridge = RIDGE * self.covariance.diagonal().mean()
        self.gone: list[int] = []

    def rises(self) -> dict[int, float]:
        """By how much the error rises when one more head goes, for each that is left."""
        before = self.error(self.gone)
        left = [h for h in range(self.n_heads) if h not in self.gone]
        return {h: (self.error([*self.gone, h]) - before) / self.power for h in left}

    def error(self, heads: Sequence[int]) -> float:
        if not heads:
            return 0.0
        removed = torch.zeros(self.n_heads, len(self.covariance) // self.n_heads, dtype=torch.bool)
        removed[list(heads)] = True
        gone, kept = removed.flatten(), ~removed.flatten()
        left = self.covariance[gone][:, gone]
        if kept.any():
            A = self.covariance[kept][:, kept]
            B = self.covariance[kept][:, gone]
            mix = torch.linalg.solve(A + self.ridge * torch.eye(len(A), dtype=A.dtype), B)
            cross = mix.T @ B
            left = left - cross - cross.T + mix.T @ A @ mix
        return float((left * self.gram[gone][:, gone]).sum())


def _input_power(e: Evidence) -> dict[str, float]:
    """Mean square norm of what enters each layer, in the median position; 1 where the layers are not a plain stack."""
    stack = stack_of(e.network)
    if stack is None:
        return {site.name: 1.0 for site in e.network.sites}
    layers = list(stack.layers.values())
    seen: list[list[Tensor]] = [[] for _ in layers]

    def look(i: int) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = args[0] if args else kwargs["hidden_states"]
            seen[i].append(given.detach().double().square().sum(-1).flatten().cpu())

        return hook

    handles = [layer.register_forward_pre_hook(look(i), with_kwargs=True) for i, layer in enumerate(layers)]
    try:
        with torch.no_grad():
            for arguments, _ in grouped(e.samples[:4], 4):
                run(e.network, arguments, whole=False)
    finally:
        for handle in handles:
            handle.remove()
    powers = [float(torch.cat(values).median()) for values in seen]
    return {site.name: powers[stack.place[site.name]] or 1.0 for site in e.network.sites}
