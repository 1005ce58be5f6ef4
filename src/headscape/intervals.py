"""Intervals: how sure an estimate is, from the inputs it was measured on. The only place that makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, t

__all__ = ["Interval", "exactly", "jackknife", "mean_interval", "median_interval"]

LEVEL = 0.95
NAN = float("nan")


@dataclass(frozen=True)
class Interval:
    """An estimate from n inputs with its 95 % interval; NaN at both ends where there is none, and `why`.

    >>> str(Interval(0.5, 0.4, 0.61, 8))
    '0.5 [0.4, 0.61] (n = 8)'
    >>> str(Interval(0.5, NAN, NAN, 1))
    '0.5 (n = 1)'
    """

    value: float
    low: float = NAN
    high: float = NAN
    n: int = 0
    why: str = ""

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return self.low == self.low and self.high == self.high

    def __str__(self) -> str:
        ends = f" [{self.low:.3g}, {self.high:.3g}]" if self.known and (self.n or self.low < self.high) else ""
        facts = ", ".join(([f"n = {self.n}"] if self.n else []) + ([self.why] if self.why and not self.known else []))
        return f"{self.value:.3g}{ends}" + (f" ({facts})" if facts else "")

    def scaled(self, factor: float) -> Interval:
        """The same in another unit."""
        low, high = sorted((factor * self.low, factor * self.high)) if self.known else (NAN, NAN)
        return Interval(factor * self.value, low, high, self.n, self.why)


def exactly(value: float) -> Interval:
    """A number that is known, not estimated: a constant, a bound, a count."""
    return Interval(float(value), float(value), float(value))


def mean_interval(values: npt.ArrayLike) -> Interval:
    """Mean of independent inputs with Student's interval; for a paired difference give the differences.

    It covers 95 % for normal inputs whatever their number. NaN inputs are left out and do not count.

    >>> mean_interval([1.0, 2.0, 3.0])
    Interval(value=2.0, low=-0.484..., high=4.484..., n=3, why='')
    >>> mean_interval([1.0]).known
    False
    """
    x = np.asarray(values, dtype=float).ravel()
    x = x[~np.isnan(x)]
    if len(x) == 0:
        return Interval(NAN, n=0, why="no input")
    return _student(float(x.mean()), x)


def jackknife(statistic: Callable[[npt.NDArray[np.intp]], float], n: int) -> Interval:
    """A smooth statistic of n independent inputs, with Student's interval over its jackknife values.

    `statistic` takes the indices of the inputs to use. Of a mean this is `mean_interval`; it also serves ratios of
    means, correlations, and means over pairs of inputs. Not for medians or extremes, which are not smooth.

    >>> x = np.array([1.0, 2.0, 3.0])
    >>> jackknife(lambda chosen: x[chosen].mean(), 3) == mean_interval(x)
    True
    """
    every = np.arange(n)
    whole = float(statistic(every)) if n else NAN
    if n < 2:
        return Interval(whole, n=n)
    without = np.array([statistic(np.delete(every, i)) for i in every])
    if not np.isfinite(without).all():
        return Interval(whole, n=n, why="too few to say")
    return _student(whole, n * whole - (n - 1) * without)


def _student(value: float, x: npt.NDArray[np.float64]) -> Interval:
    n = len(x)
    if n < 2 or not np.isfinite(value):
        return Interval(value, n=n)
    reach = float(t.ppf((1 + LEVEL) / 2, n - 1)) * float(x.std(ddof=1)) / n**0.5
    return Interval(value, value - reach, value + reach, n)


def median_interval(values: npt.ArrayLike) -> Interval:
    """Median of independent inputs with the interval of order statistics, which holds for any distribution.

    Five inputs or fewer cannot give one: even their extremes miss the median more often than 1 in 20.

    >>> median_interval(range(1, 10))
    Interval(value=5.0, low=2.0, high=8.0, n=9, why='')
    >>> str(median_interval([1, 2, 3]))
    '2 (n = 3, too few to say)'
    """
    x = np.sort(np.asarray(values, dtype=float).ravel())
    x = x[~np.isnan(x)]
    n = len(x)
    value = float(np.median(x)) if n else NAN
    k = int(binom.ppf((1 - LEVEL) / 2, n, 0.5)) if n else 0
    while k > 0 and 2 * binom.cdf(k - 1, n, 0.5) > 1 - LEVEL:
        k -= 1
    if k < 1:
        return Interval(value, n=n, why="too few to say" if n > 1 else "")
    return Interval(value, float(x[k - 1]), float(x[n - k]), n)
