"""Choosing: which criterion and compensation do best, and how many units fit the budget; on inputs kept for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import sem

from headscape.pruning.search import Search, within_budget
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.ranking import Ranking
from headscape.tensor import HeadId

__all__ = ["bounds_of", "choose", "search", "worst"]

MIDDLE = 0.2
"""Share of heads removed when criteria are compared."""
FIRST = 2
"""A set of heads is tried on this many inputs of every ability first."""
HOPELESS = 2.0
"""In budgets: a set that costs more on the first inputs is not measured on the others."""


def bounds_of(evaluations: Evaluations, budget: float | Mapping[str, float]) -> dict[str, float]:
    """The budget of every ability that binds; a single number applies to each, "copy" to copying of any kind."""
    frame = evaluations.abilities
    binding = [str(name) for name in frame["ability"][frame["binds"]]]
    if not isinstance(budget, Mapping):
        return dict.fromkeys(binding, float(budget))
    named = {one: budget.get(one, budget.get(one.partition(".")[0])) for one in binding}
    return {name: float(bound) for name, bound in named.items() if bound is not None}


def worst(costs: Mapping[str, npt.NDArray[np.float64]], bounds: Mapping[str, float]) -> float:
    """The largest cost over its budget.

    Of the first, the loss or accuracy itself, the mean counts. An ability is shown by few items, whose noise alone may
    exceed a budget of 1 %: its cost counts as the mean less its standard error, which it likely exceeds.

    >>> worst({"text": np.array([0.01, 0.03])}, {"text": 0.01})
    2.0
    >>> worst({"text": np.zeros(2), "retrieval": np.array([0.0, 0.04])}, {"text": 0.01, "retrieval": 0.01})
    0.0
    """
    main = next(iter(costs))
    sure = {n: float(c.mean()) - (0.0 if n == main or len(c) < 2 else float(sem(c))) for n, c in costs.items()}
    return max(sure[name] / bound for name, bound in bounds.items() if name in costs)


def choose(ranking: Ranking, criteria: Sequence[str], compensations: Sequence[str]) -> pd.DataFrame:
    """Mean cost over abilities by criterion and compensation, best first, by successive halving.

    All pairs are compared with a fifth of the heads removed on the first few inputs, the better half on twice as many,
    and so on. The loss decides, also for a classifier: it is finer than a count of correct answers.
    """
    pairs = [(n, c) for n in criteria for c in compensations]
    columns = ["criterion", "compensation", "cost", "compared on"]
    if len(pairs) == 1:
        return pd.DataFrame([(*pairs[0], np.nan, "nothing: the only one")], columns=columns)
    evaluations = ranking.evaluations
    full = max(len(keys) for keys in evaluations.live.judge("choose").parts.values())
    n, few = ranking.counts([MIDDLE])[0], FIRST
    rows: list[tuple[str, str, float, str]] = []
    while pairs:
        on = f"choose:{few}" if few < full else "choose"
        sets = {(name, c): ranking.lowest(ranking.scores[name], n) for name, c in pairs}
        evaluations.make(f"comparing {len(pairs)}", on, [(heads, c) for (_, c), heads in sets.items()])
        found = {pair: _mean_cost(evaluations, on, heads, pair[1]) for pair, heads in sets.items()}
        order = sorted(pairs, key=lambda pair: (found[pair], pairs.index(pair)))
        kept = order[: len(order) // 2] if few < full else []
        share = f"{few} inputs" if few < full else "all inputs"  # of images one file holds many
        rows = [(*pair, found[pair], share) for pair in order if pair not in kept] + rows
        pairs, few = kept, 2 * few
    return pd.DataFrame(rows, columns=columns)


def _mean_cost(evaluations: Evaluations, on: str, heads: Sequence[HeadId], compensation: str) -> float:
    """Rise of the loss over the scale of each ability, mean over abilities."""
    intact, now = evaluations.losses(on), evaluations.losses(on, heads, compensation)
    scale = {n: evaluations.scales.get(n, loss.mean or 1.0) for n, loss in intact.items()}
    return float(np.mean([(now[n].mean - intact[n].mean) / scale[n] for n in now]))


def search(
    ranking: Ranking, sets: Sequence[Sequence[HeadId]], compensation: str, bounds: Mapping[str, float], n_trials: int
) -> Search:
    """The last of several growing sets of heads that stays within the budgets; at most `n_trials` are tried."""
    evaluations = ranking.evaluations
    steps = evaluations.work.stage("searching", n_trials)

    def ratio(n: int) -> float:
        heads = sets[n - 1]
        found = worst(evaluations.costs(f"choose:{FIRST}", heads, compensation), bounds)
        if found <= HOPELESS:
            found = worst(evaluations.costs("choose", heads, compensation), bounds)
        steps.one()
        return found

    found = within_budget(len(sets) + 1, ratio, n_trials)
    for _ in range(n_trials - len(found.trials)):  # it may be done earlier
        steps.one()
    return found
