"""Novelty: what a head adds that the other heads of its layer cannot predict."""

from __future__ import annotations

from collections.abc import Sequence

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
    """What a head adds that the other heads of its layer cannot predict, as its place in the order of removal.

    With o_r the outputs of the removed heads and p_r their best linear prediction from the kept heads of the layer, the
    added error is E |W_O (o_r - p_r)|^2, as a share of the mean square of the layer's input. Heads are removed one at a
    time, the smallest rise of that error first, and the heads of a layer are measured again when one of them is removed.
    No gradients, no loss: forward passes for second moments, then linear algebra.
    """
    power = _input_power(e)
    layers = [_Layer(e.moments[s.name].cpu(), e.projections[s.name], s.n_heads, power[s.name]) for s in e.network.sites]
    waiting = {(i, h): rise for i, layer in enumerate(layers) for h, rise in layer.rises().items()}
    places: dict[tuple[int, int], int] = {}
    while waiting:
        i, h = min(waiting, key=lambda key: (waiting[key], key))
        places[i, h] = len(places)
        layers[i].removed.append(h)
        waiting = {key: rise for key, rise in waiting.items() if key[0] != i}
        waiting |= {(i, other): rise for other, rise in layers[i].rises().items()}
    sites = enumerate(e.network.sites)
    return e.gather({s.name: np.array([float(places[i, h]) for h in range(s.n_heads)]) for i, s in sites})


class _Layer:
    """Error of a layer's output without some heads, where the others predict them as well as they can."""

    def __init__(self, S: Tensor, weight: Tensor, n_heads: int, power: float) -> None:
        self.n_heads, self.power = n_heads, power
        mean = S[-1, :-1]
        self.covariance = S[:-1, :-1] - torch.outer(mean, mean)
        self.gram = weight.T @ weight
        self.ridge = RIDGE * self.covariance.diagonal().mean()
        self.removed: list[int] = []

    def rises(self) -> dict[int, float]:
        """How much the error rises when one more head is removed, for each that is left."""
        before = self.error(self.removed)
        left = [h for h in range(self.n_heads) if h not in self.removed]
        return {h: (self.error([*self.removed, h]) - before) / self.power for h in left}

    def error(self, heads: Sequence[int]) -> float:
        if not heads:
            return 0.0
        of_head = torch.zeros(self.n_heads, len(self.covariance) // self.n_heads, dtype=torch.bool)
        of_head[list(heads)] = True
        removed, kept = of_head.flatten(), ~of_head.flatten()
        left = self.covariance[removed][:, removed]
        if kept.any():
            A = self.covariance[kept][:, kept]
            B = self.covariance[kept][:, removed]
            mix = torch.linalg.solve(A + self.ridge * torch.eye(len(A), dtype=A.dtype), B)
            cross = mix.T @ B
            left = left - cross - cross.T + mix.T @ A @ mix
        return float((left * self.gram[removed][:, removed]).sum())


def _input_power(e: Evidence) -> dict[str, float]:
    """Square norm of what enters each layer, median over positions; 1 where the layers are not a plain stack."""
    stack = stack_of(e.network)
    if stack is None:
        return {site.name: 1.0 for site in e.network.sites}
    with torch.no_grad():
        passes = [run(e.network, inputs, whole=False, hidden=True) for inputs, _ in grouped(e.samples[:4], 4)]
    entering = [
        torch.cat([found.hidden_states[i].flatten(0, -2) for found in passes]) for i in range(len(stack.layers))
    ]
    powers = [float(states.double().square().sum(-1).median()) for states in entering]
    return {site.name: powers[stack.place[site.name]] or 1.0 for site in e.network.sites}
