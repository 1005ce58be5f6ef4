"""Stability: whether the same heads rank lowest and highest in every batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, hypergeom, rankdata

from headscape.intervals import Interval, mean_of_pairs

__all__ = ["Stability", "kendall_w", "overlaps", "stability"]

FloatArray = npt.NDArray[np.float64]


def kendall_w(values: npt.ArrayLike) -> tuple[float, float]:
    """Kendall's coefficient of concordance of rankings (n_batch, n_head), with its chi-square p; ties corrected.

    1 if all batches give the same ranking, 1/n_batch on average for random rankings.

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

    bottom, top: in how many batches each head is among the lowest or highest tenth (at least one head). overlaps
    are the Jaccard overlaps of the sets of two batches, (n_batch, n_batch); `chance` is their mean for random sets.
    """

    measure: str
    n_batches: int
    n_extreme: int
    bottom: npt.NDArray[np.int64]
    top: npt.NDArray[np.int64]
    overlaps_bottom: FloatArray
    chance: float
    w: float
    w_p: float

    @property
    def jaccard_bottom(self) -> Interval:
        """Mean overlap of the lowest tenths of two batches."""
        return mean_of_pairs(self.overlaps_bottom).within(0, 1, self.step)

    @property
    def step(self) -> float:
        """What one head that a batch exchanges takes from the overlaps with it, twice: a pair has two batches."""
        return 4 / (self.n_extreme + 1)

    @property
    def always_bottom(self) -> int:
        """Heads that are in the lowest tenth of every batch."""
        return int((self.bottom == self.n_batches).sum())

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


def overlaps(sets: npt.NDArray[np.bool_]) -> FloatArray:
    """Jaccard overlap of the sets of every two batches: (n_batch, n_batch)."""
    as_int = sets.astype(np.int64)
    both = as_int @ as_int.T
    sizes = as_int.sum(axis=1)
    return np.asarray(both / (sizes[:, None] + sizes[None, :] - both))


def stability(values: npt.ArrayLike, measure: str, share: float = 0.1) -> Stability:
    """Measure stability of values (n_batch, n_head): counts, Jaccard overlap and Kendall's W.

    >>> stable = stability(np.tile(np.arange(20.0), (5, 1)), "l1_all")
    >>> stable.always_bottom, stable.jaccard_bottom.value, stable.w
    (2, 1.0, 1.0)
    """
    x = np.asarray(values, dtype=float)
    n_batches, n_heads = x.shape
    n = max(1, round(share * n_heads))
    low, high = _sets(x, n, False), _sets(x, n, True)
    common = np.arange(n + 1)  # how many heads two random sets have in common
    chance = float(hypergeom.pmf(common, n_heads, n, n) @ (common / (2 * n - common)))
    w, p = kendall_w(x)
    counts = low.sum(axis=0), high.sum(axis=0)
    return Stability(measure, n_batches, n, *counts, overlaps(low), chance, w, p)
