"""Intervals: how certain an estimate is, from the inputs it was measured on. The only place that makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, t

__all__ = [
    "Interval",
    "another",
    "distinct",
    "exactly",
    "geometric_interval",
    "jackknife",
    "mean_interval",
    "mean_of_pairs",
    "median_interval",
    "of_draws",
    "share_change",
    "share_interval",
    "student_interval",
]

LEVEL = 0.95
NAN = float("nan")
TOO_FEW = "too few to say"
DECADES, ENOUGH = 2.0, 10
"""Spread of logarithms (sd) beyond which fewer inputs than `ENOUGH` have no interval. Samples of such a law that spread
less have one, and it covers less than 90 % (docs/verdicts.md has the table): no lower limit mends that."""
FAR = 1000.0
"""An interval is not shown if an end lies further from the estimate than this many times the estimate. Two inputs that
differ by a factor of 3 give such an interval: it covers, and says nothing."""
UNANIMOUS = 6
"""How many inputs must agree before that is evidence: fewer agree by chance more than 1 time in 20 if half of all inputs
lie above their value."""
ALIKE = "all inputs agree, so no interval"
"""Inputs that agree to round-off show no spread: they have an interval only where it is known in which steps they are
counted (`within`)."""
DIGITS = range(3, 9)
"""Digits of a number that is printed: the fewest that keep the ends of its interval apart."""


@dataclass(frozen=True)
class Interval:
    """An estimate from n inputs with its 95 % interval; NaN at both ends where there is none, and `why`.

    Ends so far away that they say nothing have a `why` too: they decide, and are not shown.

    >>> str(hs.Interval(0.5, 0.4, 0.61, 8))
    '0.5 [0.4, 0.61] (n = 8)'
    >>> str(hs.Interval(0.5, np.nan, np.nan, 1))
    '0.5 (n = 1)'
    >>> str(hs.mean_interval([0.2, 1.2]))
    '0.7 (n = 2, too few to say)'
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

    @property
    def readable(self) -> bool:
        """Whether there is an interval whose ends are worth showing; all that are known decide."""
        return self.known and not self.why

    def __str__(self) -> str:
        apart = [d for d in DIGITS if f"{self.low:.{d}g}" != f"{self.high:.{d}g}"] if self.readable else []
        digits = apart[0] if apart else DIGITS[0]
        ends = f" [{self.low:.{digits}g}, {self.high:.{digits}g}]" if apart else ""
        facts = ", ".join(([f"n = {self.n}"] if self.n else []) + ([self.why] if self.why else []))
        return f"{self.value:.{digits}g}{ends}" + (f" ({facts})" if facts else "")

    def scaled(self, factor: float) -> Interval:
        """The same in another unit.

        >>> str(Interval(0.02, 0.01, 0.03, 8).scaled(100))
        '2 [1, 3] (n = 8)'
        """
        low, high = sorted((factor * self.low, factor * self.high)) if self.known else (NAN, NAN)
        return Interval(factor * self.value, low, high, self.n, self.why)

    def within(self, low: float, high: float, step: float | None = None) -> Interval:
        """The part of it that can be, of a quantity with bounds.

        Inputs that all agree can differ by less than a `step`, if the quantity is counted in steps (a share of 12 heads:
        1/12). Their interval is Student's with one more input a step above and one a step below, as in `share_change`.

        >>> str(Interval(0.9, 0.7, 1.1, 8).within(0, 1)), str(mean_interval([0.0] * 8).within(0, 1, step=1 / 12))
        ('0.9 [0.7, 1] (n = 8)', '0 [0, 0.0281] (n = 8)')
        """
        if self.why == ALIKE and step:
            padded = np.append(np.full(self.n, self.value), [self.value - step, self.value + step])
            return _about(self.value, padded, skewed=False)._of(self.n).within(low, high)
        ends = (max(self.low, low), min(self.high, high)) if self.known else (NAN, NAN)
        return Interval(self.value, *ends, self.n, "" if self.known else self.why)

    def _of(self, n: int) -> Interval:
        return Interval(self.value, self.low, self.high, n, self.why)

    def columns(self, name: str) -> dict[str, float]:
        """As columns of a table: NAME, NAME_low, NAME_high, NAME_n."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high, f"{name}_n": self.n}


def exactly(value: float, n: int = 0) -> Interval:
    """A number that is known, not estimated: a constant, a bound, a count (of n things).

    >>> str(exactly(69, n=72))
    '69 (n = 72)'
    """
    return Interval(float(value), float(value), float(value), n)


def distinct(values: npt.ArrayLike) -> int:
    """How many distinct inputs there are, judged by what was measured on each, or by name (first axis).

    >>> distinct([[0.1, 0.2], [0.3, 0.1], [0.1, 0.2]]), distinct(["a", "b", "a"])
    (2, 2)
    """
    rows = np.asarray(values)
    return len({row.tobytes() for row in rows})


def mean_interval(values: npt.ArrayLike) -> Interval:
    """Mean of independent inputs with its interval; for a paired difference give the differences.

    Student's interval covers 95 % for normal inputs whatever their number, and too little for skewed ones. Inputs of
    one sign may be skewed: for them it is joined with Cox's interval for log-normal inputs, exp(m + s^2/2 +- t
    sqrt(s^2/n + s^4/2(n + 1))) with m and s those of the logarithms, which is the same where inputs hardly vary; normal
    inputs whose mean is 2 to 4 standard deviations are then covered up to 97.3 %. Few
    inputs over many orders of magnitude have none, and neither have inputs that all agree. NaN inputs are left out and do
    not count.

    >>> hs.mean_interval([-1.0, 0.0, 1.0])
    Interval(value=0.0, low=-2.484..., high=2.484..., n=3, why='')
    >>> hs.mean_interval([1.0, 2.0, 3.0]).high > 2 + 2.484
    True
    >>> hs.mean_interval([1.0]).known
    False
    >>> str(hs.mean_interval([1e-9, 1e-4, 1.0])), str(hs.mean_interval([0.5, 0.5, 0.5]))
    ('0.333 (n = 3, too few to say)', '0.5 (n = 3, too few to say)')
    """
    x = np.asarray(values, dtype=float).ravel()
    x = x[~np.isnan(x)]
    if len(x) == 0:
        return Interval(NAN, n=0, why="no input")
    return _about(float(x.mean()), x, skewed=bool((x > 0).all() or (x < 0).all()))


def geometric_interval(values: npt.ArrayLike) -> Interval:
    """Geometric mean of positive inputs with its interval: for ratios, and for what differs by orders of magnitude.

    The mean of a ratio of two alike things lies above 1; its geometric mean does not.

    >>> str(geometric_interval([0.5, 2.0, 0.25, 4.0]))
    '1 [0.133, 7.49] (n = 4)'
    """
    with np.errstate(over="ignore", divide="ignore"):  # two inputs can leave an interval open to infinity
        span = mean_interval(np.log10(np.asarray(values, dtype=float)))
        value, low, high = (float(np.power(10.0, end)) for end in (span.value, span.low, span.high))
    return Interval(value, low, high, span.n, span.why)


def student_interval(values: npt.ArrayLike) -> Interval:
    """Mean of independent inputs with Student's interval alone.

    For quantities that may have either sign, such as the difference of two trained networks: that a few of them have
    the same sign says nothing about skew, so the interval for log-normal inputs of `mean_interval` has no place.

    >>> student_interval([1.0, 2.0, 3.0])
    Interval(value=2.0, low=-0.484..., high=4.484..., n=3, why='')
    """
    x = np.asarray(values, dtype=float).ravel()
    x = x[~np.isnan(x)]
    return _about(float(x.mean()), x, skewed=False) if len(x) else Interval(NAN, n=0, why="no input")


def share_interval(shares: npt.ArrayLike, step: float, low: float = 0.0) -> Interval:
    """Mean of the share that each input has of things counted in steps (of 12 heads: 1/12); of a difference, `low` is -1.

    `mean_interval` joined with Student's for one more input a step above and one a step below: where inputs all agree, or
    nearly, they show too little of how they vary. It covers where things happen one by one; where those of an input go
    together, the step is all of them.

    >>> str(share_interval([0.0] * 8, 1 / 12)), str(share_interval([0.0] * 7 + [1 / 12], 1 / 12))
    ('0 [0, 0.0281] (n = 8)', '0.0104 [0, 0.0441] (n = 8)')
    """
    found = mean_interval(shares).within(low, 1.0, step)
    if not found.known:
        return found
    x = np.append(np.asarray(shares, dtype=float).ravel(), [found.value - step, found.value + step])
    padded = student_interval(x).within(low, 1.0)
    return Interval(found.value, min(found.low, padded.low), max(found.high, padded.high), found.n)


def share_change(changes: npt.ArrayLike) -> Interval:
    """Change of a share from paired inputs: 1 where an input was lost, -1 where one was won, 0 where none was.

    Student's interval with one more input of either sign (Bonett and Price 2012). Without these it covers 40 to 90 %
    where few inputs change, and has no width where none does. A change may be the mean of several draws.

    >>> str(share_change([0.0] * 98)), str(share_change([1.0] + [0.0] * 97))
    ('0 [-0.0282, 0.0282] (n = 98)', '0.0102 [-0.0245, 0.0445] (n = 98)')
    """
    x = np.asarray(changes, dtype=float).ravel()
    if len(x) < 2:
        return Interval(float(x.mean()) if len(x) else NAN, n=len(x))
    padded = np.append(x, [-1.0, 1.0])
    middle, reach = float(padded.mean()), _reach(padded)
    return Interval(float(x.mean()), max(middle - reach, -1.0), min(middle + reach, 1.0), len(x))


def another(values: npt.ArrayLike) -> Interval:
    """Student's prediction interval for one more input like these: to compare a single draw with several.

    >>> another([-1.0, 0.0, 1.0])
    Interval(value=0.0, low=-4.968..., high=4.968..., n=3, why='')
    """
    x = np.asarray(values, dtype=float).ravel()
    mean = _about(float(x.mean()) if len(x) else NAN, x, skewed=False)
    reach = (mean.high - mean.value) * (1 + len(x)) ** 0.5
    return Interval(mean.value, mean.value - reach, mean.value + reach, len(x), mean.why)


def of_draws(value: float, draws: npt.ArrayLike, n: int) -> Interval:
    """An estimate from n inputs with the middle 95 % of its bootstrap draws; no interval where a draw failed.

    >>> str(of_draws(0.5, np.linspace(0, 1, 101), 8))
    '0.5 [0.025, 0.975] (n = 8)'
    """
    x = np.asarray(draws, dtype=float).ravel()
    if not len(x) or not np.isfinite(x).all():
        return Interval(value, n=n, why=TOO_FEW if len(x) else "")
    low, high = np.quantile(x, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high), n)


def jackknife(statistic: Callable[[npt.NDArray[np.intp]], float], n: int) -> Interval:
    """A smooth statistic of n independent inputs, with Student's interval over its jackknife values.

    `statistic` takes the indices of the inputs to use. For a mean this is Student's interval; it also serves ratios of
    means, correlations, and means over pairs of inputs. Not for medians or extremes, which are not smooth.

    >>> x = np.array([-1.0, 2.0, 3.0])
    >>> jackknife(lambda chosen: x[chosen].mean(), 3) == mean_interval(x)
    True
    """
    every = np.arange(n)
    whole = float(statistic(every)) if n else NAN
    if n < 2:
        return Interval(whole, n=n)
    without = np.array([statistic(np.delete(every, i)) for i in every])
    if not np.isfinite(without).all():
        return Interval(whole, n=n, why=TOO_FEW)
    return _about(whole, n * whole - (n - 1) * without, skewed=False)


def mean_of_pairs(matrix: npt.NDArray[np.float64]) -> Interval:
    """Mean over pairs of different inputs of a symmetric matrix (n, n), with its interval over inputs, not pairs.

    >>> str(mean_of_pairs(np.ones((8, 8))))
    '1 (n = 8, all inputs agree, so no interval)'
    """

    def mean(chosen: npt.NDArray[np.intp]) -> float:
        pairs = matrix[np.ix_(chosen, chosen)][np.triu_indices(len(chosen), 1)]
        return float(pairs.mean()) if len(pairs) else NAN

    return jackknife(mean, len(matrix))


@cache
def _quantile(n: int) -> float:
    """The quantile of Student's distribution for n inputs."""
    return float(t.ppf((1 + LEVEL) / 2, n - 1))


def _reach(x: npt.NDArray[np.float64]) -> float:
    """How far Student's interval of a mean reaches to each side."""
    return float(_quantile(len(x)) * x.std(ddof=1) / np.sqrt(len(x)))


def _agree(x: npt.NDArray[np.float64]) -> bool:
    """Whether inputs are equal up to round-off."""
    return bool(np.ptp(x) <= 4 * len(x) * np.finfo(float).eps * np.abs(x).max())


def _about(value: float, x: npt.NDArray[np.float64], skewed: bool) -> Interval:
    """The interval of a mean of x, about an estimate of it; x of one sign may be skewed."""
    n = len(x)
    if n < 2 or not np.isfinite(value) or not np.isfinite(x).all():
        return Interval(value, n=n)
    if _agree(x):
        return Interval(value, n=n, why=TOO_FEW if n < UNANIMOUS else ALIKE)
    reach = _reach(x)
    low, high = value - reach, value + reach
    if skewed:
        logs = np.log(np.abs(x))
        variance = float(logs.var(ddof=1))
        if variance > DECADES**2 and n < ENOUGH:
            return Interval(value, n=n, why=TOO_FEW)
        middle = float(logs.mean()) + variance / 2
        reach = _quantile(n) * (variance / n + variance**2 / (2 * (n + 1))) ** 0.5
        ends = np.sign(x[0]) * np.exp(np.clip([middle - reach, middle + reach], -700, 700))
        low, high = min(low, float(ends.min())), max(high, float(ends.max()))
        if max(value - low, high - value) > FAR * abs(value):
            return Interval(value, low, high, n, TOO_FEW)
    return Interval(value, low, high, n)


def median_interval(values: npt.ArrayLike) -> Interval:
    """Median of independent inputs with the interval of order statistics, which holds for any distribution.

    Five inputs or fewer cannot give one: even their extremes miss the median more often than 1 in 20. Where the ends
    agree, the nearest inputs further out that differ are taken; inputs that all agree have none. NaN inputs are left out.

    >>> median_interval(range(1, 10))
    Interval(value=5.0, low=2.0, high=8.0, n=9, why='')
    >>> str(median_interval([1, 2, 3])), str(median_interval([0.5] * 8))
    ('2 (n = 3, too few to say)', '0.5 (n = 8, all inputs agree, so no interval)')
    """
    x = np.sort(np.asarray(values, dtype=float).ravel())
    x = x[~np.isnan(x)]
    n = len(x)
    value = float(np.median(x)) if n else NAN
    k = int(binom.ppf((1 - LEVEL) / 2, n, 0.5)) if n else 0
    while k > 0 and (2 * binom.cdf(k - 1, n, 0.5) > 1 - LEVEL or (_agree(x[k - 1 : n - k + 1]) and not _agree(x))):
        k -= 1
    if k < 1:
        return Interval(value, n=n, why=TOO_FEW if n > 1 else "")
    return Interval(value, n=n, why=ALIKE) if _agree(x) else Interval(value, float(x[k - 1]), float(x[n - k]), n)
