"""Search: as many units of a ranking as a budget allows, in few trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headscape.errors import InputError

__all__ = ["Search", "within_budget"]

START = 0.15  # share of the units tried first
CLOSE = 0.02  # of the units between what is allowed and what is too many: near enough
NEAR = 0.9  # of the budget: a trial that uses that much ends the search
STEEP = 1.7  # how costs grow with the number removed, until two trials tell: cost ~ n ** STEEP
AIM = 0.95  # of the budget


@dataclass(frozen=True)
class Search:
    """How many units to remove, and every trial as (number of units, cost over budget)."""

    n: int
    trials: tuple[tuple[int, float], ...]


def within_budget(n_units: int, ratio: Callable[[int], float], evaluations: int = 8) -> Search:
    """The largest number of units found whose cost stays within the budget.

    Costs grow about as a power of the number removed, so each trial is where the power law through the nearest trials
    meets the budget; the trials around it close in from both sides.

    Parameters
    ----------
    n_units
        At least one of them stays.
    ratio
        Cost of removing the first n units over the budget, at most 1 where it holds.
    evaluations
        How often `ratio` may be called.

    >>> within_budget(100, lambda n: (n / 37) ** 2).n
    37
    """
    if evaluations < 1:
        raise InputError(f"the search needs at least 1 evaluation, not {evaluations}")
    known: dict[int, float] = {}
    low, high = 0, n_units
    guess = min(max(1, round(START * n_units)), n_units - 1)
    while (
        high - low > max(1, round(CLOSE * n_units))
        and len(known) < evaluations
        and not NEAR <= known.get(low, 0.0) <= 1
    ):
        known[guess] = ratio(guess)
        if known[guess] <= 1:
            low = guess
        else:
            high = guess
        guess = _next(known, low, high, n_units)
    return Search(low, tuple(known.items()))


def _next(known: dict[int, float], low: int, high: int, n_units: int) -> int:
    """Where the cost should meet the budget, strictly between the largest n that is allowed and the next too many."""
    below, above = max(known.get(low, 0.0), 0.02), known.get(high)
    if above is None:
        guess = low * (AIM / below) ** (1 / STEEP)
    elif low == 0:
        guess = high * (AIM / above) ** (1 / STEEP)
    else:  # in proportion to the logarithm of the cost
        guess = low + (high - low) * max(0.0, 1 - below) / (above - min(below, 1.0))
    margin = (high - low) // 8
    return int(min(max(round(guess), low + max(1, margin)), high - max(1, margin), n_units - 1))
