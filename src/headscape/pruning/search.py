"""Search: a large set of heads whose removal stays within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headscape.errors import InputError
from headscape.tree import PartitionTree

__all__ = ["Search", "within_budget"]


@dataclass(frozen=True)
class Search:
    """The heads found (indices, in the order of removal), their cost, and every trial as (number of heads, cost)."""

    heads: tuple[int, ...]
    cost: float
    trials: tuple[tuple[int, float], ...]


def within_budget(
    order: Sequence[int],
    cost: Callable[[Sequence[int]], float],
    budget: float,
    *,
    tree: PartitionTree | None = None,
    evaluations: int = 40,
) -> Search:
    """Remove as many heads as a budget allows.

    First the longest beginning of the ranking that stays within the budget, by bisection. Then greedily, on top of it:
    clusters of remaining heads in the head tree, lowest-ranked first, then single heads in the order of the ranking;
    each is measured together with all heads removed before, and stays removed if the budget still holds.

    Parameters
    ----------
    order
        Heads by their indices, lowest-ranked first.
    cost
        What removing heads costs, on inputs that the outcome is not judged on.
    budget
        Largest cost, above 0.
    tree
        The consensus tree of the heads; without it only single heads are tried.
    evaluations
        How often `cost` may be called.

    >>> prices = np.array([0.1, 0.2, 5.0, 0.3])
    >>> within_budget([0, 1, 2, 3], lambda heads: prices[list(heads)].sum(), 0.65).heads
    (0, 1, 3)
    """
    if not budget > 0:
        raise InputError(f"the budget must be above 0, not {budget:.3g}: removing anything costs something")
    trials: list[tuple[int, float]] = []

    def allowed(heads: Sequence[int]) -> bool:
        trials.append((len(heads), float(cost(heads))))
        return trials[-1][1] <= budget

    low, high = 0, len(order) - 1  # at least one head stays
    best = 0.0
    while low < high and len(trials) < evaluations:
        middle = (low + high + 1) // 2
        if allowed(order[:middle]):
            low, best = middle, trials[-1][1]
        else:
            high = middle - 1
    removed = list(order[:low])
    for candidate in _candidates(order, low, tree):
        new = [h for h in candidate if h not in removed]
        if len(trials) >= evaluations:
            break
        if new and len(removed) + len(new) < len(order) and allowed([*removed, *new]):
            removed, best = [*removed, *new], trials[-1][1]
    return Search(tuple(removed), best, tuple(trials))


def _candidates(order: Sequence[int], start: int, tree: PartitionTree | None) -> list[tuple[int, ...]]:
    """Clusters of a few remaining heads, then single heads; the next of the ranking is known to cost too much."""
    place = {head: i for i, head in enumerate(order)}
    left = set(order[start:])
    found: list[tuple[int, ...]] = []
    if tree is not None:
        folders = tree.folders()
        few = max(2, len(order) // 20)
        for first, last in zip(folders.start, folders.stop, strict=True):
            heads = tuple(int(h) for h in tree.order[first:last] if int(h) in left)
            if 2 <= len(heads) <= few:
                found.append(heads)
    by_rank = sorted(set(found), key=lambda heads: (np.mean([place[h] for h in heads]), heads))
    return [*by_rank[: max(4, len(order) // 30)], *((h,) for h in order[start + 1 :])]
