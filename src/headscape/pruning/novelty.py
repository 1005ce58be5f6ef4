"""Novelty: what a head adds that the other heads of its layer cannot predict, by block elimination.

With C the covariance of a layer's head outputs, P = (C + ridge)^-1 and W = W_O, removing block g with the best linear
compensation raises the square error of the layer's output by tr(W_g P_gg^-1 W_g^T). Then

    W <- W - W_g P_gg^-1 P_g.,      P <- P - P_.g P_gg^-1 P_g.,

and the next block is measured on these: additive and exact. This is Optimal Brain Surgeon for blocks of weights (Hassibi
and Stork 1993; for heads of language models SlimGPT, Ling et al. 2024).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headscape.pruning.compensation import RIDGE
from headscape.pruning.evidence import Evidence

__all__ = ["Elimination", "novelty"]

FloatArray = npt.NDArray[np.float64]


class Elimination:
    """Blocks of a layer's inputs to W_O, removed one after the other with the best linear compensation.

    S are the second moments with the mean as last row (n + 1, n + 1), W_O is (out, n), `blocks` index its inputs.
    """

    def __init__(self, S: Tensor, weight: Tensor, blocks: list[Tensor]) -> None:
        mean = S[-1, :-1]
        C = S[:-1, :-1] - torch.outer(mean, mean)
        ridge = RIDGE * C.diagonal().mean().clamp_min(torch.finfo(C.dtype).tiny)
        self.P = torch.linalg.inv(C + ridge * torch.eye(len(C), dtype=C.dtype))
        self.W = weight.clone()
        self.left = dict(enumerate(blocks))

    def rises(self) -> dict[int, float]:
        """By how much the error rises when one more block is removed, for each that is left."""
        return {i: float((self.W[:, g] @ self._solved(g) * self.W[:, g]).sum()) for i, g in self.left.items()}

    def remove(self, block: int) -> None:
        """Remove a block; the others take over what they can."""
        g = self.left.pop(block)
        share = self._solved(g) @ self.P[g]
        self.W -= self.W[:, g] @ share
        self.P -= self.P[:, g] @ share

    def _solved(self, g: Tensor) -> Tensor:
        """P_gg^-1."""
        inverse: Tensor = torch.linalg.inv(self.P[g][:, g])
        return inverse


def novelty(e: Evidence) -> FloatArray:
    """What a unit of heads adds that the others of its layer cannot predict, as its place in the order of removal.

    Units are removed one at a time, the smallest rise of the error of the layer's output first, as a share of the
    median square norm of the layer's input. No gradients, no loss: forward passes for moments, then linear algebra.
    """
    sites = e.network.sites
    layers = []
    for site in sites:
        weight = e.projections[site.name]
        by_head = torch.arange(weight.shape[1]).reshape(site.n_heads, -1)
        blocks = [by_head[list(heads)].flatten() for heads in e.units[site.name]]
        layers.append(Elimination(e.moments[site.name].cpu(), weight, blocks))
    power = [e.calibration.power[site.name] for site in sites]
    waiting = {(i, u): rise / power[i] for i, layer in enumerate(layers) for u, rise in layer.rises().items()}
    places: dict[str, FloatArray] = {site.name: np.zeros(site.n_heads) for site in sites}
    for place in range(len(waiting)):
        i, u = min(waiting, key=lambda key: (waiting[key], key))
        places[sites[i].name][list(e.units[sites[i].name][u])] = place
        layers[i].remove(u)
        del waiting[i, u]
        waiting |= {(i, other): rise / power[i] for other, rise in layers[i].rises().items()}
    return e.gather(places)
