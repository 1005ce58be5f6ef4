"""Judging: what removing heads costs on the inputs that nothing was chosen by; criteria beside their controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headscape.intervals import Interval, mean_interval
from headscape.pruning.compensation import COMPENSATIONS
from headscape.pruning.criteria import draw_order
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.ranking import FloatArray, Ranking
from headscape.tensor import HeadId

__all__ = ["Curve", "curves", "measured", "rivals"]

Sets = Mapping[tuple[str, str], Sequence[Sequence[Sequence[HeadId]]]]
"""Heads to remove by criterion and compensation: [draw][step along the curve]."""

RANDOM_DRAWS = 3


@dataclass(frozen=True, eq=False)
class Curve:
    """Costs of removing more and more heads by one criterion, on the judging inputs.

    `n` are numbers of removed heads; `losses` and `costs` are (n_draw, len(n), n_sequence): several draws for a random
    order, else one. `proposal`: it belongs to the comparison with the proposal, at the proposal's number of heads.
    """

    criterion: str
    compensation: str
    n: tuple[int, ...]
    losses: FloatArray
    costs: FloatArray
    proposal: bool = False

    def cost(self, i: int) -> Interval:
        """Cost with n[i] heads removed, mean over draws; the interval is over sequences."""
        return mean_interval(self.costs[:, i].mean(axis=0))

    def band(self, i: int) -> tuple[float, float]:
        """Least and largest cost of the draws."""
        means = self.costs[:, i].mean(axis=1)
        return float(means.min()), float(means.max())

    @property
    def area(self) -> Interval:
        """Mean cost along the curve; the interval is over sequences."""
        return mean_interval(self.costs.mean(axis=(0, 1)))

    @property
    def by_draw(self) -> Interval:
        """The same with the interval over random draws."""
        return mean_interval(self.costs.mean(axis=(1, 2)))

    def minus(self, other: Curve, i: int | None = None) -> Interval:
        """How much more it costs than another with n[i] heads removed, or along the curve; paired by sequence."""
        which = slice(None) if i is None else slice(i, i + 1)
        return mean_interval(self.costs[:, which].mean(axis=(0, 1)) - other.costs[:, which].mean(axis=(0, 1)))


def _draws(ranking: Ranking) -> list[FloatArray]:
    rng = np.random.default_rng(ranking.evaluations.pruning.seed)
    return [draw_order(len(ranking.heads), rng) for _ in range(RANDOM_DRAWS)]


def measured(evaluations: Evaluations, stage: str, on: str, sets: Sets, proposal: bool = False) -> list[Curve]:
    """Curves by criterion and compensation, from the heads to remove at every step of every draw."""
    evaluations.make(stage, on, [(heads, c) for (_, c), draws in sets.items() for steps in draws for heads in steps])
    found = []
    for (name, c), draws in sets.items():
        losses = np.array([[evaluations.loss(on, heads, c).values for heads in steps] for steps in draws])
        costs = np.array([[evaluations.cost(on, heads, c) for heads in steps] for steps in draws])
        found.append(Curve(name, c, tuple(len(heads) for heads in draws[0]), losses, costs, proposal))
    return found


def curves(ranking: Ranking, chosen: str, compensation: str, fractions: Sequence[float]) -> list[Curve]:
    """Every criterion without and with the chosen compensation; the chosen one, gradients and l1_all with each."""
    both = list(dict.fromkeys(["none", compensation]))
    wanted = [(n, c) for n in ranking.scores for c in both]
    wanted += [(n, c) for n in (chosen, "gradient", "l1_all") if n in ranking.scores for c in COMPENSATIONS]
    orders = {(n, c): [ranking.scores[n]] for n, c in wanted} | {("random", c): _draws(ranking) for c in both}
    counts = ranking.counts(fractions)
    sets = {pair: [[ranking.lowest(o, n) for n in counts] for o in several] for pair, several in orders.items()}
    return measured(ranking.evaluations, "judging criteria", "judge", sets)


def rivals(ranking: Ranking, chosen: str, compensation: str, proposal: Sequence[HeadId]) -> list[Curve]:
    """The proposal, and as many heads by the criteria it is compared with, under the same compensation."""
    names = [n for n in ("gradient", "l1_top", "l1_all") if n in ranking.scores and n != chosen]
    orders = {name: [ranking.scores[name]] for name in names} | {"random": _draws(ranking)}
    lowest = {n: [[ranking.lowest(order, len(proposal))] for order in several] for n, several in orders.items()}
    sets = {(name, compensation): draws for name, draws in {"proposal": [[list(proposal)]], **lowest}.items()}
    return measured(ranking.evaluations, "judging the proposal", "judge", sets, proposal=True)
