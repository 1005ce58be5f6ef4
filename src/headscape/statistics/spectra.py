r"""Spectra: singular values of weight matrices, beside the law of Marchenko and Pastur for a random matrix.

An m x n matrix of independent entries with mean 0 and variance s^2 has its squared singular values, as it grows, on

.. math:: [\,s^2(\sqrt n - \sqrt m)^2,\; s^2(\sqrt n + \sqrt m)^2\,]

What lies beyond did not come from such noise. (The thesis prints 4 s^2 for the upper edge of a square matrix; it is
4 n s^2.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigvalsh, svdvals
from scipy.linalg.blas import dsyrk
from scipy.optimize import brentq

from headscape.errors import InputError
from headscape.tensor import check_finite

__all__ = [
    "MarchenkoPastur",
    "describe_spectrum",
    "energy_rank",
    "fit_marchenko_pastur",
    "participation_ratio",
    "random_participation",
    "rounding_variance",
    "singular_values",
    "stable_rank",
]

FloatArray = npt.NDArray[np.float64]
Method = Literal["auto", "svd", "gram"]

GRAM_FROM = 128
"""Smaller side from which the Gram matrix is used. Below, it saves a millisecond at best, and svd has no error; see
`benchmarks/spectra.py`."""
GRAM_BLOCK = 1024
"""Rows converted to float64 at a time."""
ROUNDED = 16
"""Weights in a row that share one step, in every block format of GGUF."""
TRACY_WIDOM = 2.02
"""99 % quantile of the Tracy-Widom law: how far, in units of its width, the largest value of noise may lie outside."""
BISECTIONS = 60
"""Of the interval between the edges, for quantiles of the law: as many as float64 has digits."""
FEW = 0.1
"""Largest share of values that counts as a few outliers on noise; with more, the law does not describe the matrix."""


def singular_values(matrix: npt.ArrayLike, method: Method = "auto") -> FloatArray:
    r"""All singular values of a matrix (m, n), largest first: (min(m, n),).

    Parameters
    ----------
    method
        "svd" asks LAPACK for the values alone. "gram" takes the roots of the eigenvalues of the smaller of W W^T and
        W^T W, in float64 and summed over blocks of rows: several times faster on large matrices, without a copy of
        them. Its error, up to 1e-8 of the largest value, is below the rounding of float32 weights. "auto" uses it
        where the smaller side is at least 128.

    Raises an `InputError` for what is not a matrix, is empty, or has an entry that is not finite.

    >>> singular_values([[3.0, 0.0], [0.0, -4.0], [0.0, 0.0]])
    array([4., 3.])
    """
    W = np.asarray(matrix)
    if W.ndim != 2 or 0 in W.shape:
        raise InputError(f"a matrix has rows and columns, this array has shape {W.shape}")
    if method not in ("auto", "svd", "gram"):
        raise InputError(f"method is auto, svd or gram, not {method!r}")
    check_finite(W, ("row", "column"))
    if method == "svd" or (method == "auto" and min(W.shape) < GRAM_FROM):
        values: FloatArray = svdvals(W.astype(np.float64), check_finite=False, overwrite_a=True)
        return values
    tall = W if W.shape[0] >= W.shape[1] else W.T
    gram = np.zeros((tall.shape[1],) * 2, order="F")
    for start in range(0, len(tall), GRAM_BLOCK):
        block = tall[start : start + GRAM_BLOCK].astype(np.float64, order="C")
        gram = dsyrk(1.0, block.T, beta=1.0, c=gram, lower=1, overwrite_c=1)  # in place, the lower half alone
    squares = eigvalsh(gram, check_finite=False, overwrite_a=True)[::-1]
    return np.sqrt(np.maximum(squares, 0.0))


def rounding_variance(matrix: npt.ArrayLike) -> float:
    r"""Variance of the rounding in weights (m, n) that were stored as a few equally spaced levels per block of a row.

    A block of 16 weights shares a step, the smallest difference between two of them; rounding to it leaves an error of
    variance step^2 / 12. Only for weights known to be quantized: of others every difference would count as a step.

    >>> rounding_variance(np.tile(np.arange(16.0), (2, 2)))
    0.0833...
    """
    W = np.asarray(matrix)
    whole = W.shape[1] // ROUNDED * ROUNDED
    gaps = np.diff(np.sort(W[:, :whole].reshape(-1, ROUNDED), axis=1), axis=1).astype(np.float64)
    step = np.where(gaps > 0, gaps, np.inf).min(axis=1, initial=np.inf)
    known = step[np.isfinite(step)]
    return float((known**2).mean() / 12) if len(known) else 0.0


def _squares(values: npt.ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64) ** 2


def stable_rank(values: npt.ArrayLike) -> float:
    r"""Sum of squared singular values over the largest: :math:`\|W\|_F^2 / \|W\|_2^2`; 0 for a matrix of zeros.

    >>> stable_rank([2.0, 2.0, 0.0])
    2.0
    """
    squares = _squares(values)
    return float(squares.sum() / squares.max()) if squares.max(initial=0) > 0 else 0.0


def participation_ratio(values: npt.ArrayLike) -> float:
    r"""How many singular values carry the energy: :math:`(\sum \sigma^2)^2 / \sum \sigma^4`; 0 for zeros.

    >>> participation_ratio([1.0, 1.0, 1.0, 0.0])
    3.0
    """
    squares = _squares(values)
    return float(squares.sum() ** 2 / (squares**2).sum()) if squares.max(initial=0) > 0 else 0.0


def random_participation(m: int, n: int) -> float:
    r"""The participation ratio of an m x n matrix of noise, :math:`mn / (m + n + 1)` to leading order."""
    return m * n / (m + n + 1)


def _leading_energy(matrix: FloatArray) -> float:
    """A lower bound of the largest squared singular value, by power iteration from the sum of the rows."""
    v = matrix.sum(axis=0)
    for _ in range(3):
        v = matrix.T @ (matrix @ _unit(v))
    return float(np.square(matrix @ _unit(v)).sum())


def _unit(v: FloatArray) -> FloatArray:
    size = float(np.linalg.norm(v))
    return v / size if size > 0 else v


def energy_rank(spectrum: npt.ArrayLike, share: float = 0.9) -> int:
    """How many singular values, largest first, hold a share of the energy: of a spectrum (n,) or of a matrix (m, n).

    >>> energy_rank([3.0, 1.0, 1.0]), energy_rank(np.eye(10)), energy_rank(np.full((10, 10), 0.1))
    (2, 9, 1)
    """
    if not 0 < share <= 1:
        raise InputError(f"a share of energy lies above 0 and up to 1, not at {share}")
    values = np.asarray(spectrum, dtype=np.float64)
    if values.ndim == 2:  # eigenvalues of the smaller Gram matrix: the squares themselves, in less time than an SVD
        energy = np.square(values).sum()
        if energy > 0 and _leading_energy(values) >= share * energy:  # the map of a sink
            return 1
        wide = values if values.shape[0] <= values.shape[1] else values.T
        squares = np.maximum(np.linalg.eigvalsh(wide @ wide.T), 0.0)
    else:
        squares = _squares(values)
    kept = np.cumsum(np.sort(squares)[::-1])
    if not kept[-1] > 0:
        return 0
    return int(np.searchsorted(kept, share * kept[-1] * (1 - 1e-12)) + 1)


@dataclass(frozen=True)
class MarchenkoPastur:
    """The law of the squared singular values of an m x n matrix with entries of this variance.

    >>> MarchenkoPastur(400, 100, 1.0).edges
    (100.0, 900.0)
    """

    m: int
    n: int
    variance: float

    def __post_init__(self) -> None:
        if self.m < 1 or self.n < 1 or not self.variance >= 0:
            raise InputError(f"no such law: {self.m} x {self.n} entries of variance {self.variance}")

    @property
    def ratio(self) -> float:
        """Smaller side over larger."""
        return min(self.m, self.n) / max(self.m, self.n)

    @property
    def unit(self) -> float:
        """Larger side times variance: mean of the squared singular values."""
        return max(self.m, self.n) * self.variance

    @property
    def edges(self) -> tuple[float, float]:
        r"""Where squared singular values lie in the limit: :math:`s^2 (\sqrt n \mp \sqrt m)^2`."""
        a, b = np.sqrt(self.m), np.sqrt(self.n)
        return float(self.variance * (b - a) ** 2), float(self.variance * (b + a) ** 2)

    @property
    def bounds(self) -> tuple[float, float]:
        r"""The edges, moved out by as much as a noise matrix of this size may exceed them: 99 % stay within.

        The largest value fluctuates by :math:`s^2(\sqrt n+\sqrt m)(1/\sqrt n+1/\sqrt m)^{1/3}`, the smallest by the
        same with minus signs; a square matrix has no lower bound.
        """
        a, b = sorted((np.sqrt(self.m), np.sqrt(self.n)))
        low, high = self.edges
        upper = self.variance * (b + a) * (1 / b + 1 / a) ** (1 / 3)
        lower = self.variance * (b - a) * (1 / a - 1 / b) ** (1 / 3)
        return max(0.0, float(low - TRACY_WIDOM * lower)), float(high + TRACY_WIDOM * upper)

    def density(self, x: npt.ArrayLike) -> FloatArray:
        r"""Density at squared singular values x.

        .. math:: f(x) = \frac{\sqrt{(b - y)(y - a)}}{2 \pi \gamma y\, u}, \quad y = x/u, \quad u = s^2 \max(m, n)

        with :math:`\gamma` the ratio of the sides and :math:`a, b = (1 \mp \sqrt\gamma)^2`.
        """
        if self.variance == 0:  # all of it at 0
            return np.where(np.asarray(x, dtype=np.float64) == 0, np.inf, 0.0)
        y, a, b = self._scaled(x)
        inside = (y > a) & (y < b)
        y = np.where(inside, y, 1.0)
        root = np.sqrt(np.where(inside, (b - y) * (y - a), 0.0))
        return np.asarray(root / (2 * np.pi * self.ratio * y * self.unit))

    def cdf(self, x: npt.ArrayLike) -> FloatArray:
        """Share of squared singular values up to x; the integral of `density` in closed form."""
        if self.variance == 0:
            return (np.asarray(x, dtype=np.float64) >= 0).astype(float)
        y, a, b = self._scaled(x)
        inside = (y > a) & (y < b)
        z = np.where(inside, y, (a + b) / 2)
        g = self.ratio
        r = np.sqrt((b - z) / (z - a))
        total = np.pi * g + np.sqrt((b - z) * (z - a)) - (1 + g) * np.arctan((r**2 - 1) / (2 * r))
        if g < 1:
            total += (1 - g) * np.arctan((a * r**2 - b) / (2 * (1 - g) * r))
        return np.asarray(np.where(inside, total / (2 * np.pi * g), (y >= b).astype(float)))

    def quantile(self, share: float) -> float:
        """The squared singular value with this share below it."""
        if not 0 <= share <= 1:
            raise InputError(f"a share lies between 0 and 1, not at {share}")
        low, high = self.edges
        if share in (0.0, 1.0) or self.variance == 0:
            return high if share == 1.0 else low
        found: float = brentq(lambda x: float(self.cdf(x)) - share, low, high, xtol=1e-12 * high)
        return found

    @cached_property
    def expected(self) -> FloatArray:
        """Singular values of noise of this size, by rank: the quantiles of the law, largest first."""
        p = min(self.m, self.n)
        if self.variance == 0:
            return np.zeros(p)
        shares = 1 - (np.arange(p) + 0.5) / p
        low, high = (np.full(p, edge) for edge in self.edges)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(middle) < shares
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        found: FloatArray = np.sqrt(high)
        return found

    def distance(self, values: npt.ArrayLike) -> float:
        """Largest difference of the distribution of squared singular values from the law (Kolmogorov)."""
        squares = np.sort(_squares(values))
        if self.variance == 0:
            return float((squares > 0).mean())
        steps = np.arange(len(squares) + 1) / len(squares)
        law = self.cdf(squares)
        return float(max(np.abs(law - steps[1:]).max(), np.abs(law - steps[:-1]).max()))

    def outside(self, values: npt.ArrayLike) -> tuple[int, int]:
        """How many singular values lie below and above the `bounds`."""
        squares = _squares(values)
        low, high = self.bounds
        return int((squares < low).sum()), int((squares > high).sum())

    def _scaled(self, x: npt.ArrayLike) -> tuple[FloatArray, float, float]:
        root = np.sqrt(self.ratio)
        return np.asarray(x, dtype=np.float64) / self.unit, float((1 - root) ** 2), float((1 + root) ** 2)


def fit_marchenko_pastur(values: npt.ArrayLike, shape: tuple[int, int]) -> MarchenkoPastur:
    """The law whose median is that of the squared singular values, all min(m, n) of them.

    A few large outliers hardly move it. Those the first fit finds are removed and the law, of as many fewer rows and
    columns, is fitted again, as long as they are at most a tenth of the values: a matrix with more is not noise with a
    few spikes, and the first fit stands.
    """
    squares = np.sort(_squares(values))
    m, n = shape
    p = min(m, n)
    if len(squares) != p:
        raise InputError(f"a {m} x {n} matrix has {p} singular values, {len(squares)} were given")
    first = MarchenkoPastur(m, n, _median_variance(squares, m, n))
    law, taken = first, 0
    for _ in range(p):
        found = law.outside(np.sqrt(squares))[1]
        if found <= taken:
            return law
        if found > FEW * p:
            return first
        taken = found
        law = MarchenkoPastur(m, n, _median_variance(squares[: p - taken], m - taken, n - taken))
    return law


def _median_variance(squares: FloatArray, m: int, n: int) -> float:
    return float(np.median(squares)) / MarchenkoPastur(m, n, 1.0).quantile(0.5)


def describe_spectrum(values: npt.ArrayLike, shape: tuple[int, int]) -> dict[str, Any]:
    """The numbers of one spectrum.

    variance is the mean square of the entries; energy the sum of squares over that of Xavier's initialization (variance
    2/(m + n)); evenness the participation ratio over that of noise: 1 for noise, lower when fewer directions carry the
    matrix; rank90 the number of values that hold 90 % of the energy. largest_over_law compares the largest value with
    the edge for the matrix's own variance; above_own and below_own count the values above and below the bounds for that
    variance, above and below those for the fitted one; distance is that from the fitted law.
    """
    s = np.asarray(values, dtype=np.float64)
    m, n = shape
    variance = float((s**2).sum() / (m * n))
    own, fitted = MarchenkoPastur(m, n, variance), fit_marchenko_pastur(s, shape)
    below_own, above_own = own.outside(s)
    below, above = fitted.outside(s)
    return {
        "rows": m,
        "columns": n,
        "variance": variance,
        "energy": variance * (m + n) / 2,
        "largest": float(s.max()),
        "stable_rank": stable_rank(s),
        "participation": participation_ratio(s),
        "evenness": participation_ratio(s) / random_participation(m, n),
        "rank90": energy_rank(s),
        "largest_over_law": float(s.max() / np.sqrt(own.edges[1])) if variance > 0 else 0.0,
        "above_own": above_own,
        "below_own": below_own,
        "fit_variance": fitted.variance,
        "above": above,
        "below": below,
        "distance": fitted.distance(s),
    }
