"""Rivals: published ways to choose heads, each with its authors' allocation over layers and their compensation.

A rival takes the evidence and a number of heads, and returns what to remove and what replaces it. Where a paper
prunes channels, its score is taken for heads; shares of layers are rounded to whole heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention.samples import grouped
from headscape.attention.sites import Site, run
from headscape.attention.stack import Stack, stack_of
from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.errors import InputError
from headscape.pruning.compensation import Fitted, fit_compensation, without_heads
from headscape.pruning.criteria import scores
from headscape.pruning.evidence import Evidence
from headscape.pruning.novelty import Elimination

__all__ = ["RIVALS", "remove_by"]

FloatArray = npt.NDArray[np.float64]
Removal = dict[str, Fitted]


def remove_by(name: str, e: Evidence, n: int) -> Removal:
    """Remove n heads as a rival does; besides those of `RIVALS`, any criterion without compensation."""
    if name in RIVALS:
        return RIVALS[name](e, n)
    criterion, _, compensation = name.partition(" + ")
    return _lowest(e, scores(criterion, e), n, compensation or "none")


def _lowest(e: Evidence, score: FloatArray, n: int, compensation: str) -> Removal:
    """The n heads with the lowest scores over all layers."""
    names = {(site.block, site.layer): site.name for site in e.network.sites}
    chosen: dict[str, list[int]] = {}
    for i in np.argsort(score, kind="stable")[:n]:
        head = e.heads[i]
        chosen.setdefault(names[head.block, head.layer], []).append(head.head)
    return fit_compensation(e.network, chosen, e.moments, compensation)


def _shared(sites: Sequence[Site], weights: FloatArray, n: int) -> list[int]:
    """How many heads each layer loses: in proportion to weights, n in all, at least one head left in each."""
    room = np.array([site.n_heads - 1 for site in sites], dtype=float)
    wanted = weights * np.array([site.n_heads for site in sites])
    low, high = 0.0, n * len(sites) / max(wanted.min(), 1e-9)
    for _ in range(100):  # the factor for which the capped shares sum to n
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(middle * wanted, room).sum() < n else (low, middle)
    exact = np.minimum(high * wanted, room)
    counts = np.floor(exact + 1e-9).astype(int)
    for i in np.argsort(-(exact - counts), kind="stable")[: max(0, n - int(counts.sum()))]:
        counts[i] += int(counts[i] < room[i])
    return [int(c) for c in counts]


def flap(e: Evidence, n: int) -> Removal:
    """FLAP (An et al. 2024): Var(x_j) |W_:j|^2, mean over a head, standardized within its layer; means in the bias."""
    found = {}
    for site in e.network.sites:
        S, W = e.moments[site.name].cpu(), e.projections[site.name]
        each = (S.diagonal()[:-1] - S[-1, :-1] ** 2) * W.square().sum(0)
        by_head = each.reshape(site.n_heads, -1).mean(1).numpy()
        found[site.name] = (by_head - by_head.mean()) / (by_head.std() or 1.0)
    return _lowest(e, e.gather(found), n, "mean")


def wanda(e: Evidence, n: int) -> Removal:
    """Wanda-style (Sun et al. 2024): sum over a head of |W_ij| |x_j|_2, equal shares of every layer; no compensation."""
    sites = e.network.sites
    counts = _shared(sites, np.ones(len(sites)), n)
    chosen = {}
    for site, k in zip(sites, counts, strict=True):
        norm = e.moments[site.name].cpu().diagonal()[:-1].sqrt()
        score = (e.projections[site.name].abs().sum(0) * norm).reshape(site.n_heads, -1).sum(1)
        chosen[site.name] = torch.argsort(score, stable=True)[:k].tolist()
    return fit_compensation(e.network, {name: heads for name, heads in chosen.items() if heads}, None)


def slimllm(e: Evidence, n: int) -> Removal:
    """SlimLLM (Guo et al. 2025): heads whose absence keeps the layer's output correlated with itself.

    A head scores -Pearson(Y, Y without it) over all entries of the layer's output Y; then a removed and a kept head are
    exchanged while the correlation rises. Layers that change their input less (by cosine) lose more; the output matrix is
    refitted by linear regression.
    """
    sites = e.network.sites
    chosen = {}
    for site, k in zip(sites, _shared(sites, _cosines(e), n), strict=True):
        correlation = _Correlation(e.moments[site.name].cpu(), e.projections[site.name], site.n_heads)
        order = sorted(range(site.n_heads), key=lambda h: -correlation.without([h]))
        gone, kept = order[:k], order[k:]
        best = correlation.without(gone)
        while True:
            swaps = [(correlation.without([*(x for x in gone if x != g), h]), g, h) for g in gone for h in kept]
            if not swaps or max(swaps)[0] <= best + 1e-12:
                break
            best, g, h = max(swaps)
            gone, kept = [*(x for x in gone if x != g), h], [*(x for x in kept if x != h), g]
        chosen[site.name] = gone
    return fit_compensation(e.network, {name: heads for name, heads in chosen.items() if heads}, e.moments, "linear")


class _Correlation:
    """Pearson correlation over all positions and entries of W o with the same without some heads, from moments."""

    def __init__(self, S: Tensor, W: Tensor, n_heads: int) -> None:
        self.n_heads, self.out = n_heads, len(W)
        self.sum = W.sum(0) * S[-1, :-1]  # each input's share of the sum of outputs
        self.products = (W.T @ W) * S[:-1, :-1]

    def without(self, heads: Sequence[int]) -> float:
        kept = torch.ones(self.n_heads, len(self.sum) // self.n_heads, dtype=torch.float64)
        kept[list(heads)] = 0
        part = kept.flatten()
        means = [float((self.sum * k).sum()) / self.out for k in (torch.ones_like(part), part)]
        cross, whole, own = (
            float(a @ self.products @ b) / self.out
            for a, b in ((torch.ones_like(part), part), (torch.ones_like(part),) * 2, (part, part))
        )
        spread = (whole - means[0] ** 2) * (own - means[1] ** 2)
        return (cross - means[0] * means[1]) / spread**0.5 if spread > 0 else 0.0


def _cosines(e: Evidence) -> FloatArray:
    """Mean cosine of what enters and leaves the layer of every attention module, on four samples; 1 without a stack."""
    stack = stack_of(e.network)
    if stack is None:
        return np.ones(len(e.network.sites))
    with torch.no_grad():
        passes = [run(e.network, inputs, whole=False, hidden=True) for inputs, _ in grouped(e.samples[:4], 1)]
    layers = [
        np.mean(
            [float(torch.cosine_similarity(p.hidden_states[i], p.hidden_states[i + 1], dim=-1).mean()) for p in passes]
        )
        for i in range(len(stack.layers))
    ]
    return np.array([max(float(layers[stack.place[site.name]]), 1e-3) for site in e.network.sites])


class _Stop(Exception):  # noqa: N818
    """The layer whose outputs were wanted has been run."""


class _Outputs(Tap):
    """Sums of products of the head outputs of one attention module; the pass ends there."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.total = module, torch.zeros(())

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        if call.module is not self.module:
            return outputs
        flat = outputs.detach().flatten(-2).flatten(0, -2).float()
        with_one = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1)
        self.total = self.total + (with_one.T @ with_one).double()
        raise _Stop


def slimgpt(e: Evidence, n: int) -> Removal:
    """SlimGPT (Ling et al. 2024): block elimination layer by layer, each calibrated on the model pruned so far.

    The share removed rises logarithmically with depth, from none in the first layer.
    """
    model, stack = e.network, stack_of(e.network)
    if stack is None or not stack.one_attention_each:
        raise InputError(
            "slimgpt goes through a stack of layers with one attention each; this network is built differently"
        )
    counts = _shared(model.sites, np.log1p(np.arange(len(model.sites))) + 1e-9, n)
    inputs = [arguments for arguments, _ in grouped(e.fit or e.samples, 4)]
    before: list[list[object]] = [[] for _ in inputs]
    fitted: Removal = {}
    for i, (site, k) in enumerate(zip(model.sites, counts, strict=True)):
        tap = _Outputs(model.module.get_submodule(site.name))
        with torch.no_grad(), without_heads(model, fitted), tapped(model.module, tap, model.attention):
            for seen, arguments in zip(before, inputs, strict=True):
                with _from(stack, seen, i), suppress(_Stop):
                    run(model, arguments, whole=False)
        S = tap.total / tap.total[-1, -1]
        by_head = torch.arange(len(S) - 1).reshape(site.n_heads, -1)
        layer = Elimination(S, e.projections[site.name], list(by_head))
        for _ in range(k):
            rises = layer.rises()
            layer.remove(min(rises, key=lambda h: (rises[h], h)))
        gone = [h for h in range(site.n_heads) if h not in layer.left]
        fitted |= fit_compensation(model, {site.name: gone} if gone else {}, {site.name: S}, "linear")
    return fitted


@contextmanager
def _from(stack: Stack, seen: list[object], first: int) -> Iterator[None]:
    """Replay the outputs of layers below `first - 1`, and note that of layer `first - 1`, which has just been pruned."""
    with stack.replayed(seen, len(seen)):
        handle = None
        if first:
            previous = list(stack.layers.values())[first - 1]
            handle = previous.register_forward_hook(lambda _, __, result: seen.append(result))
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()


def _michel(e: Evidence, n: int) -> Removal:
    return _lowest(e, scores("gradient", e), n, "none")


RIVALS: Mapping[str, Callable[[Evidence, int], Removal]] = {
    "novelty": lambda e, n: _lowest(e, scores("novelty", e), n, "linear"),
    "michel": _michel,
    "flap": flap,
    "slimgpt": slimgpt,
    "slimllm": slimllm,
    "wanda": wanda,
}
"""By name; `novelty` is this package's, `michel` |dL/d gate| (Michel et al. 2019) over all layers, without compensation."""
