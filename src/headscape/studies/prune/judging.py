"""Judging: what removing heads costs on held-out inputs; criteria beside their controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headscape.intervals import Interval, another, mean_interval, share_change
from headscape.pruning.compensation import COMPENSATIONS, Fitted, without_heads
from headscape.pruning.criteria import draw_order
from headscape.pruning.judges import by_answers
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.ranking import FloatArray, Ranking
from headscape.tensor import HeadId

__all__ = ["Curve", "curves", "healed", "measured", "rivals"]

Sets = Mapping[tuple[str, str], Sequence[Sequence[Sequence[HeadId]]]]
"""Heads to remove by criterion and compensation: [draw][step along the curve]."""

RANDOM_DRAWS = 3


@dataclass(frozen=True, eq=False)
class Curve:
    """Costs of removing more and more heads by one criterion, on the judging inputs.

    `n` are numbers of removed heads; `losses` and `costs` are (n_draw, len(n), n_sequence): several draws for a random
    order, else one. `proposal`: it belongs to the comparison with the proposal, at the proposal's number of heads.
    `answers`: a cost counts answers that are no longer right.
    """

    criterion: str
    compensation: str
    ability: str
    n: tuple[int, ...]
    losses: FloatArray
    costs: FloatArray
    proposal: bool = False
    answers: bool = False

    def _mean(self, costs: FloatArray) -> Interval:
        return share_change(costs) if self.answers else mean_interval(costs)

    def cost(self, i: int) -> Interval:
        """Cost with n[i] heads removed, mean over draws; the interval is over sequences."""
        return self._mean(self.costs[:, i].mean(axis=0))

    def band(self, i: int) -> tuple[float, float]:
        """Least and largest cost of the draws."""
        means = self.costs[:, i].mean(axis=1)
        return float(means.min()), float(means.max())

    @property
    def area(self) -> Interval:
        """Mean cost along the curve; the interval is over sequences."""
        return self._mean(self.costs.mean(axis=(0, 1)))

    @property
    def by_draw(self) -> Interval:
        """The same as a prediction interval for another random draw."""
        return another(self.costs.mean(axis=(1, 2)))

    def minus(self, other: Curve, i: int | None = None) -> Interval:
        """How much more it costs than another with n[i] heads removed, or along the curve; paired by sequence."""
        which = slice(None) if i is None else slice(i, i + 1)
        return self._mean(self.costs[:, which].mean(axis=(0, 1)) - other.costs[:, which].mean(axis=(0, 1)))


def _draws(ranking: Ranking) -> list[FloatArray]:
    rng = np.random.default_rng(ranking.evaluations.pruning.seed)
    return [draw_order(len(ranking.heads), rng) for _ in range(RANDOM_DRAWS)]


def measured(evaluations: Evaluations, stage: str, on: str, sets: Sets, proposal: bool = False) -> list[Curve]:
    """Curves by criterion, compensation and ability, from the heads to remove at every step of every draw."""
    evaluations.make(stage, on, [(heads, c) for (_, c), draws in sets.items() for steps in draws for heads in steps])
    found = []
    for (name, c), draws in sets.items():
        losses = [[evaluations.losses(on, heads, c) for heads in steps] for steps in draws]
        costs = [[evaluations.costs(on, heads, c) for heads in steps] for steps in draws]
        counts = tuple(len(heads) for heads in draws[0])
        for ability in losses[0][0]:
            values = np.array([[step[ability].values for step in steps] for steps in losses])
            prices = np.array([[step[ability] for step in steps] for steps in costs])
            answers = by_answers(losses[0][0][ability], evaluations.judged_by(ability))
            found.append(Curve(name, c, ability, counts, values, prices, proposal, answers))
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


def healed(
    evaluations: Evaluations, proposal: Sequence[HeadId], compensation: str, fitted: Mapping[str, Fitted]
) -> list[Curve]:
    """The proposal after healing, by ability."""
    judge, model = evaluations.live.judging, evaluations.live.evidence.network
    intact, found = evaluations.losses("judge"), {}
    with torch.no_grad(), without_heads(model, fitted):
        for key, tasks in judge.pieces:
            found[key] = judge.join([judge.run(task) for task in tasks])
    curves = []
    losses = judge.by_ability(found)
    for ability, price in evaluations.priced(intact, losses).items():
        arrays, n = (losses[ability].values[None, None], price[None, None]), (len(proposal),)
        answers = by_answers(intact[ability], evaluations.judged_by(ability))
        curves.append(Curve("healed", compensation, ability, n, *arrays, True, answers))
    return curves


def rivals(
    ranking: Ranking, chosen: str, compensation: str, proposal: Sequence[HeadId], study: bool = True
) -> list[Curve]:
    """The proposal, and in a `study` as many heads by the criteria it is compared with, under the same compensation."""
    names = [n for n in ("gradient", "l1_top", "l1_all") if n in ranking.scores and n != chosen]
    orders = {name: [ranking.scores[name]] for name in names} | {"random": _draws(ranking)} if study else {}
    lowest = {n: [[ranking.lowest(order, len(proposal))] for order in several] for n, several in orders.items()}
    sets = {(name, compensation): draws for name, draws in {"proposal": [[list(proposal)]], **lowest}.items()}
    return measured(ranking.evaluations, "judging the proposal", "judge", sets, proposal=True)
