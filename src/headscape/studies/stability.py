"""Stability: whether the same heads come out lowest and highest in every batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, rankdata

from headscape.results import Interval

__all__ = ["Stability", "kendall_w", "stability"]

FloatArray = npt.NDArray[np.float64]


def kendall_w(values: npt.ArrayLike) -> tuple[float, float]:
    """Kendall's coefficient of concordance of rankings (n_batch, n_head), with its chi-square p; ties corrected.

    1 when all batches rank alike, 1/n_batch on average when they rank at random.

    >>> kendall_w([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])[0]
    1.0
    """
    ranks = np.array([rankdata(row) for row in np.asarray(values, dtype=float)])
    m, n = ranks.shape
    if m < 2 or n < 2:
        return float("nan"), float("nan")
    ties = sum(float((counts**3 - counts).sum()) for counts in (np.unique(r, return_counts=True)[1] for r in ranks))
    spread = float(((ranks.sum(axis=0) - ranks.sum() / n) ** 2).sum())
    room = (m**2 * (n**3 - n) - m * ties) / 12
    if room == 0:
        return float("nan"), float("nan")
    w = spread / room
    return w, float(chi2.sf(m * (n - 1) * w, n - 1))


@dataclass(frozen=True)
class Stability:
    """How stable the extreme tenth of the heads is over batches, by one measure.

    bottom, top: in how many batches each head is among the lowest or highest tenth (at least one head). Jaccard is the
    mean overlap of the sets of two batches, with a bootstrap interval over batches; `chance` its mean for random sets.
    """

    measure: str
    n_batches: int
    n_extreme: int
    bottom: npt.NDArray[np.int64]
    top: npt.NDArray[np.int64]
    jaccard_bottom: Interval
    jaccard_top: Interval
    chance: float
    w: float
    w_p: float

    @property
    def always_bottom(self) -> int:
        """Heads that are in the lowest tenth of every batch."""
        return int((self.bottom == self.n_batches).sum())

    @property
    def always_top(self) -> int:
        """Heads that are in the highest tenth of every batch."""
        return int((self.top == self.n_batches).sum())

    @property
    def always_by_chance(self) -> float:
        """Expected number of heads that random sets would have in common over all batches."""
        n_heads = len(self.bottom)
        return n_heads * float((self.n_extreme / n_heads) ** self.n_batches)


def _sets(values: FloatArray, n: int, highest: bool) -> npt.NDArray[np.bool_]:
    order = np.argsort(-values if highest else values, axis=1, kind="stable")[:, :n]
    chosen = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


def _jaccard(sets: npt.NDArray[np.bool_], random_state: int, n_draws: int = 2000) -> Interval:
    """Mean Jaccard overlap over pairs of different batches, bootstrapped over batches."""
    m = len(sets)
    if m < 2:
        return Interval(float("nan"), float("nan"), float("nan"))
    as_int = sets.astype(np.int64)
    both = as_int @ as_int.T
    either = as_int.sum(axis=1)[:, None] + as_int.sum(axis=1)[None, :] - both
    overlap = both / either
    pairs = np.triu_indices(m, 1)
    rng = np.random.default_rng(random_state)
    means = []
    for draw in rng.integers(m, size=(n_draws, m)):
        a, b = draw[pairs[0]], draw[pairs[1]]
        different = a != b  # the same batch drawn twice would count as full agreement
        if different.any():
            means.append(overlap[a[different], b[different]].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(overlap[pairs].mean()), float(low), float(high))


def stability(values: npt.ArrayLike, measure: str, random_state: int = 0, share: float = 0.1) -> Stability:
    """Measure stability of values (n_batch, n_head): counts, Jaccard overlap and Kendall's W.

    >>> stable = stability(np.tile(np.arange(20.0), (5, 1)), "l1_all")
    >>> stable.always_bottom, stable.jaccard_bottom.value, stable.w
    (2, 1.0, 1.0)
    """
    x = np.asarray(values, dtype=float)
    n_batches, n_heads = x.shape
    n = max(1, round(share * n_heads))
    low, high = _sets(x, n, False), _sets(x, n, True)
    rng = np.random.default_rng(random_state)
    random = [np.isin(rng.permutation(n_heads)[:n], rng.permutation(n_heads)[:n]).sum() for _ in range(2000)]
    chance = float(np.mean([k / (2 * n - k) for k in random]))
    w, p = kendall_w(x)
    return Stability(
        measure,
        n_batches,
        n,
        low.sum(axis=0),
        high.sum(axis=0),
        _jaccard(low, random_state),
        _jaccard(high, random_state),
        chance,
        w,
        p,
    )
