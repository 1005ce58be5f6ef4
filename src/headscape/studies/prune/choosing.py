"""Choosing: which criterion and compensation do best, and how many heads fit the budget; on inputs that do not judge."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from headscape.pruning.search import Search, within_budget
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.ranking import FloatArray, Ranking

__all__ = ["choose", "search"]

FINALISTS = 4
MIDDLE = 0.2
"""Share of heads removed when criteria are compared for the first time."""


def choose(
    evaluations: Evaluations,
    ranking: Ranking,
    criteria: Sequence[str],
    compensations: Sequence[str],
    fractions: Sequence[float],
) -> pd.DataFrame:
    """Mean rise of the loss by criterion and compensation, best first.

    All pairs are compared with a fifth of the heads removed, the best four at every share. The loss decides, also for a
    classifier: it is finer than a count of correct answers.
    """
    every, middle = ranking.counts(fractions), ranking.counts([MIDDLE])

    def compared(pairs: Sequence[tuple[str, str]], counts: Sequence[int], stage: str, name: str) -> pd.DataFrame:
        sets = {(n, c): [(ranking.lowest(ranking.scores[n], k), c) for k in counts] for n, c in pairs}
        evaluations.make(stage, "choose", [one for several in sets.values() for one in several])
        intact = evaluations.loss("choose").mean
        costs = [sum(evaluations.loss("choose", *one).mean - intact for one in sets[p]) / len(counts) for p in pairs]
        frame = pd.DataFrame(list(pairs), columns=["criterion", "compensation"]).assign(cost=costs, compared=name)
        return frame.sort_values("cost", kind="stable", ignore_index=True)

    pairs = [(n, c) for n in criteria for c in compensations]
    first = compared(pairs, middle, "comparing criteria", f"{MIDDLE:.0%} removed")
    best = list(first[["criterion", "compensation"]].head(FINALISTS).itertuples(index=False, name=None))
    final = compared(best, every, "comparing the best", "all shares")
    return pd.concat([final, first[FINALISTS:]], ignore_index=True)


def search(evaluations: Evaluations, score: FloatArray, compensation: str, budget: float, n_trials: int) -> Search:
    """As many heads as the budget allows, by a ranking; at most `n_trials` sets are tried."""
    heads, steps = evaluations.heads, evaluations.work.stage("searching", n_trials)

    def price(chosen: Sequence[int]) -> float:
        found = evaluations.cost("choose", [heads[i] for i in chosen], compensation)
        steps.one()
        return float(found.mean())

    order = [int(i) for i in score.argsort(kind="stable")]
    found = within_budget(order, price, budget, tree=evaluations.live.evidence.tree, evaluations=n_trials)
    for _ in range(n_trials - len(found.trials)):  # it may be done earlier
        steps.one()
    if not found.heads:
        evaluations.work.say(f"no head can be removed within {budget:.2%}")
    return found
