"""Choosing: which criterion and compensation do best, and how many heads fit the budget; on inputs that do not judge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from headscape.pruning.search import Search, within_budget
from headscape.studies.prune.judging import measured
from headscape.studies.prune.ranking import Ranking

__all__ = ["choose", "search"]

FINALISTS = 4
MIDDLE = 0.2
"""Share of heads removed when criteria are compared for the first time."""


def choose(
    ranking: Ranking, criteria: Sequence[str], compensations: Sequence[str], fractions: Sequence[float]
) -> pd.DataFrame:
    """Mean rise of the loss by criterion and compensation, best first.

    All pairs are compared with a fifth of the heads removed, the best four at every share. The loss decides, also for a
    classifier: it is finer than a count of correct answers.
    """

    def compared(pairs: Iterable[tuple[str, str]], shares: Sequence[float], stage: str, name: str) -> pd.DataFrame:
        counts = ranking.counts(shares)
        sets = {(n, c): [[ranking.lowest(ranking.scores[n], k) for k in counts]] for n, c in pairs}
        found = measured(ranking.evaluations, stage, "choose", sets)
        intact = ranking.evaluations.loss("choose").mean
        rows = [(c.criterion, c.compensation, float(c.losses.mean()) - intact, name) for c in found]
        frame = pd.DataFrame(rows, columns=["criterion", "compensation", "cost", "compared"])
        return frame.sort_values("cost", kind="stable", ignore_index=True)

    pairs = [(n, c) for n in criteria for c in compensations]
    first = compared(pairs, [MIDDLE], "comparing criteria", f"{MIDDLE:.0%} removed")
    best = list(first[["criterion", "compensation"]].head(FINALISTS).itertuples(index=False, name=None))
    final = compared(best, fractions, "comparing the best", "all shares")
    return pd.concat([final, first[FINALISTS:]], ignore_index=True)


def search(ranking: Ranking, criterion: str, compensation: str, budget: float, n_trials: int) -> Search:
    """As many heads as the budget allows, by a ranking; at most `n_trials` sets are tried."""
    evaluations, heads = ranking.evaluations, ranking.heads
    steps = evaluations.work.stage("searching", n_trials)

    def price(chosen: Sequence[int]) -> float:
        found = evaluations.cost("choose", [heads[i] for i in chosen], compensation)
        steps.one()
        return float(found.mean())

    order = [int(i) for i in ranking.scores[criterion].argsort(kind="stable")]
    found = within_budget(order, price, budget, tree=evaluations.live.evidence.tree, evaluations=n_trials)
    for _ in range(n_trials - len(found.trials)):  # it may be done earlier
        steps.one()
    if not found.heads:
        evaluations.work.say(f"no head can be removed within {budget:.2%}")
    return found
