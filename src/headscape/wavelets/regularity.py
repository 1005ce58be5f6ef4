"""How regular a matrix is on two trees: mixed Hölder exponents, the constants of eq. 2, mixed differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from headscape.checks import finite, integer, one_of, seed
from headscape.errors import InputError
from headscape.intervals import Interval, of_draws
from headscape.tree import IntArray, PartitionTree
from headscape.wavelets.haar import haar_support, haar_transform
from headscape.wavelets.paraproduct import BoolArray, FloatArray, matrix_on_trees
from headscape.wavelets.powerlaw import PowerLaw

__all__ = ["Bins", "HolderConstants", "HolderFit", "holder_constants", "holder_exponent", "mixed_difference"]

ROUND_OFF = 1e-13
"""Coefficients below this share of the largest entry are rounding, not structure."""
DOMINANT = 0.5
"""Share of the energy the signal must have in a bin for its largest coefficient to be trusted."""
RESTEPS = 15
"""Steps of the fit of a resample: it starts from the solution of the data it was drawn from."""

RESOLVED = (-1.5, 2.5)
"""Slopes that can be exponents. Single spikes have -1, smooth matrices 1, and the residual of Theorem 1 up to 2; a slope
further out is that of coefficients which break off between two scales."""


class Bins(NamedTuple):
    """Normalized coefficients gathered by octaves of the volumes of both folders; one entry per bin."""

    row: FloatArray  # mean log2(|F| / n) of the row folders
    col: FloatArray  # mean log2(|G| / m) of the column folders
    rms: FloatArray
    largest: FloatArray
    n: IntArray  # how many coefficients
    noise: FloatArray  # root mean square that white noise of standard deviation 1 would have here


@dataclass(frozen=True, eq=False)
class HolderFit:
    """How mixed Haar coefficients fall with the volume of their folders; ``float(fit)`` is `exponent`."""

    exponent: float
    """Typical exponent, from the root mean square in each bin; NaN where there is none, for the reason in `why`."""
    interval: Interval
    """Of `exponent`, over resampled rows and columns of coefficients (n: the fewer of them); not known without draws."""
    holder: float
    """Exponent of the largest coefficients, the bound of the definition. It is biased low by .05 to .13, since the
    largest of many is larger than the largest of few, but only it sees isolated cusps. NaN where noise hides them."""
    row: float
    """Separate exponents along rows and along columns, from |F|^row |G|^col."""
    col: float
    row_interval: Interval
    col_interval: Interval
    noise: float
    """Standard deviation of the white noise found beside the signal; 0 where none was found."""
    bins: Bins
    why: str = ""

    def __float__(self) -> float:
        return self.exponent

    def __repr__(self) -> str:
        if self.why:
            return f"HolderFit(nan: {self.why})"
        extra = f"; noise {self.noise:.2g}" if self.noise else ""
        return (
            f"HolderFit({self.exponent:.2f} [{self.interval.low:.2f}, {self.interval.high:.2f}]; "
            f"largest {self.holder:.2f}; rows {self.row:.2f}, columns {self.col:.2f}{extra})"
        )


def holder_exponent(
    M: npt.ArrayLike,
    row_tree: PartitionTree,
    col_tree: PartitionTree,
    mask: npt.ArrayLike | None = None,
    *,
    noise: Literal["auto", "none", "white"] = "auto",
    leave_finest: bool = False,
    n_draws: int = 100,
    random_state: int = 0,
) -> HolderFit:
    r"""Measure the mixed Hölder exponent of a matrix on two trees from its Haar coefficients.

    A mixed alpha-Hölder matrix (eq. 2, with the tree metric) has

    .. math:: |\langle g, \psi_F \psi_G \rangle| \le C \|\psi_F\|_1 \|\psi_G\|_1 (|F| |G| / nm)^\alpha

    for the Haar functions of any two folders F and G. Coefficients over their norms are gathered in bins by octaves of
    `|F| / n` and `|G| / m`, and alpha is the slope of log rms over log volume. White noise has -1/2; a matrix that is
    smooth in the order of dyadic trees about 1. A slope outside -1.5 to 2.5 is no exponent: it comes back as NaN, with
    the reason in `why`.

    Parameters
    ----------
    M, row_tree, col_tree
        A matrix and trees that cover its rows and columns; what absent entries hold does not matter.
    mask
        Booleans, True where present. Only functions psi_F x psi_G whose support is entirely present are then used:
        means over what is left of a block would let a sum u(x) + v(y) leak into the mixed coefficients.
    noise
        "white" fits C^2 volume^(2 alpha) + sigma^2 (share of white noise), "none" the power alone. "auto" takes the
        first where it explains the bins better by the Bayesian information criterion.
    leave_finest
        Leave out folders whose children are single leaves.
    n_draws, random_state
        Resamples behind the intervals, and their seed: rows and columns of coefficients are drawn with replacement,
        independently of each other, so that a row or column stays together. 0 makes none.

    Raises
    ------
    InputError
        If trees or mask do not fit, the trees have too few scales for a slope, or no mixed coefficient is above
        round-off (a constant, or a sum of a row and a column term).

    >>> x = np.linspace(0, 1, 64)
    >>> tree = hs.PartitionTree.dyadic(64)
    >>> round(hs.holder_exponent(np.sin(x[:, None] * x), tree, tree).exponent, 1)
    1.0
    >>> noise = np.random.default_rng(0).normal(size=(64, 64))
    >>> round(hs.holder_exponent(noise, tree, tree).exponent, 1)
    -0.5
    """
    one_of("noise", noise, ("auto", "none", "white"))
    integer("n_draws", n_draws, 0, 1_000_000)
    seed(random_state)
    values, present = matrix_on_trees(M, row_tree, col_tree, mask)
    if min(values.shape) < 2:
        raise InputError(f"a matrix of shape {values.shape} has no mixed differences: two rows and columns are needed")
    binned = _Binned(values, present, (row_tree, col_tree), leave_finest)
    bins = binned.bins()
    _check_bins(bins, values.shape)
    volume = np.column_stack([bins.row, bins.col])
    joint = PowerLaw(volume.sum(axis=1, keepdims=True), bins.n, bins.noise)
    apart = PowerLaw(volume, bins.n, bins.noise)
    y = 2 * np.log2(bins.rms)[None]
    fit = joint.choose(y, noise)
    white = fit.shape[1] == 3
    both = apart.fit(y, fit[:, [0, 1, 1, 2]] if white else None)
    draws = np.empty((0, 3))
    if n_draws:
        drawn = binned.resampled(n_draws, random_state)
        refits = joint.fit(drawn, fit if white else None, RESTEPS), apart.fit(drawn, both if white else None, RESTEPS)
        draws = np.hstack([refits[0][:, 1:2], refits[1][:, 1:3]])
    share = joint.signal_share(fit)[0] if white else np.ones(len(y[0]))
    slopes = np.array([fit[0, 1], *both[0, 1:3], _slope_of_largest(bins, share >= DOMINANT, joint.weight)])
    known = (slopes >= RESOLVED[0]) & (slopes <= RESOLVED[1])
    exponent, row, col, largest = np.where(known, slopes, np.nan).tolist()
    n = min(values.shape) - 1
    interval, by_row, by_col = (
        of_draws(value, found if value == value else (), n)
        for value, found in zip((exponent, row, col), draws.T, strict=True)
    )
    sigma = float(2 ** (fit[0, 2] / 2)) if white else 0.0
    why = f"the coefficients follow no power law: their slope of {slopes[0]:.3g} lies outside {RESOLVED[0]} to {RESOLVED[1]}"
    return HolderFit(exponent, interval, largest, row, col, by_row, by_col, sigma, bins, "" if known[0] else why)


def _coefficients(
    values: FloatArray, present: BoolArray, trees: tuple[PartitionTree, PartitionTree]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """<g, psi_F x psi_G> / (||psi_F||_1 ||psi_G||_1), its variance for white noise, and 1 where it is known else 0."""
    l1 = np.outer(*(haar_support(tree).l1[1:] for tree in trees))
    coefficient = haar_transform(values, trees)[1:, 1:] / l1
    known = np.ones(l1.shape)
    if not present.all():
        rows, columns = (
            sparse.csr_array((haar_transform(np.eye(tree.n_leaves), (tree, None))[1:] != 0).astype(np.float64))
            for tree in trees
        )
        missing = np.asarray(columns @ (rows @ (~present).astype(np.float64)).T).T
        known[missing > 0] = 0
    return known * coefficient, known * l1**-2, known


class _Binned:
    """Squares of coefficients, gathered by octaves of folder volume; also of resampled rows and columns."""

    def __init__(
        self, values: FloatArray, present: BoolArray, trees: tuple[PartitionTree, PartitionTree], leave_finest: bool
    ) -> None:
        coefficient, self._noise, self._known = _coefficients(values, present, trees)
        coefficient[np.abs(coefficient) <= ROUND_OFF * np.abs(values).max()] = 0.0
        self._size = np.abs(coefficient)
        self._square = coefficient**2
        self._members, self._volumes = [], []
        for tree in trees:
            folder = haar_support(tree).folder[1:]
            volume = np.log2(tree.sizes[folder] / tree.n_leaves)
            octaves = np.unique(np.rint(volume))
            member = (np.rint(volume)[:, None] == octaves).astype(np.float64)  # (n - 1, n_octaves)
            if leave_finest:
                member[tree.child_ranges[1][folder] == tree.sizes[folder]] = 0
            count = member.sum(axis=0)
            self._members.append(member)
            self._volumes.append(np.divide(volume @ member, count, out=np.zeros_like(count), where=count > 0))
        self._used = np.nonzero(self._sums(self._square))

    def _sums(self, of: FloatArray) -> FloatArray:
        rows, columns = self._members
        return np.asarray(rows.T @ of @ columns)

    def bins(self) -> Bins:
        """The bins with coefficients above round-off."""
        i, k = self._used
        count = self._sums(self._known)[i, k]
        by_row = np.array([(self._size * member[:, None]).max(axis=0, initial=0) for member in self._members[0].T])
        largest = [(by_row * member).max(axis=1, initial=0) for member in self._members[1].T]
        return Bins(
            self._volumes[0][i],
            self._volumes[1][k],
            np.sqrt(self._sums(self._square)[i, k] / count),
            np.array(largest).reshape(len(largest), -1).T[i, k],
            np.rint(count).astype(np.intp),
            np.sqrt(self._sums(self._noise)[i, k] / count),
        )

    def resampled(self, n_draws: int, random_state: int) -> FloatArray:
        """log2 of the mean square in each bin, (n_draws, n_bins); NaN where a draw leaves nothing."""
        rng = np.random.default_rng(random_state)
        drawn = [rng.multinomial(n, np.full(n, 1 / n), n_draws).astype(np.float64) for n in self._square.shape]
        rows, columns = (d[:, :, None] * member for d, member in zip(drawn, self._members, strict=True))
        stacked = rows.transpose(0, 2, 1).reshape(-1, rows.shape[1])  # (n_draws * n_octaves, n - 1)
        sums, counts = (
            ((stacked @ X).reshape(n_draws, -1, X.shape[1]) @ columns)[:, *self._used]
            for X in (self._square, self._known)
        )
        kept = (sums > 0) & (counts > 0)
        return np.log2(np.where(kept, sums, np.nan) / np.where(kept, counts, 1))


def _check_bins(bins: Bins, shape: tuple[int, ...]) -> None:
    if not len(bins.rms):
        why = "it is constant, the sum of a row and a column term, or too little of it is present"
        raise InputError(f"the matrix of shape {shape} has no mixed coefficient above round-off: {why}")
    if len(np.unique(bins.row + bins.col)) < 3:
        found = f"only {len(bins.rms)} pairs of scales have coefficients in the matrix of shape {shape}"
        raise InputError(f"{found}; a slope needs trees with more levels")


def _slope_of_largest(bins: Bins, used: BoolArray, weight: FloatArray) -> float:
    volume = (bins.row + bins.col)[used]
    if len(np.unique(volume)) < 3:
        return float("nan")
    return float(np.polyfit(volume, np.log2(bins.largest[used]), 1, w=np.sqrt(weight[used]))[0])


class HolderConstants(NamedTuple):
    """The smallest C of eq. 2 on sampled points: for differences along rows, along columns, and mixed ones."""

    row: float
    col: float
    mixed: float


def holder_constants(
    M: npt.ArrayLike,
    row_tree: PartitionTree,
    col_tree: PartitionTree,
    alpha: float,
    mask: npt.ArrayLike | None = None,
    *,
    n_samples: int = 20_000,
    random_state: int = 0,
) -> HolderConstants:
    """Find the constants of eq. 2 for a given exponent on sampled quadruples (x, y, x', y').

    row is the largest |f(x, x') - f(y, x')| / d(x, y)^alpha, col the same along columns, mixed the largest
    |f(y, y') - f(x, y') - f(y, x') + f(x, x')| / (d(x, y) d'(x', y'))^alpha, with the tree metric d(x, y) = |smallest
    folder that holds both| / n. Pairs are drawn level by level, so that near pairs are sampled as often as far ones.
    Only quadruples whose entries are all present count; a constant for which none was found is NaN.

    >>> tree = PartitionTree.dyadic(4)
    >>> holder_constants(np.outer([0, 0, 1, 1], [0, 0, 0, 2]), tree, tree, alpha=1.0)
    HolderConstants(row=2.0, col=4.0, mixed=4.0)
    """
    finite("alpha", alpha)
    integer("n_samples", n_samples, low=1)
    seed(random_state)
    values, present = matrix_on_trees(M, row_tree, col_tree, mask)
    rng = np.random.default_rng(random_state)
    (x, y, near), (s, t, close) = (_sampled_pairs(tree, n_samples, rng) for tree in (row_tree, col_tree))
    row = np.abs(values[x, s] - values[y, s]) / near**alpha, present[x, s] & present[y, s] & (x != y)
    col = np.abs(values[x, s] - values[x, t]) / close**alpha, present[x, s] & present[x, t] & (s != t)
    mixed = np.abs(values[y, t] - values[x, t] - values[y, s] + values[x, s]) / (near * close) ** alpha
    both = row[1] & col[1] & present[y, s] & present[x, t] & present[y, t]
    return HolderConstants(*(float(size[ok].max()) if ok.any() else np.nan for size, ok in (row, col, (mixed, both))))


def _sampled_pairs(
    tree: PartitionTree, n_samples: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray, FloatArray]:
    """Pairs of leaves and their tree distance: x at random, y in x's folder of a random level."""
    x = rng.integers(tree.n_leaves, size=n_samples)
    level = rng.integers(tree.n_levels, size=n_samples)
    along = tree.labels[:, tree.order]
    start = np.array([np.searchsorted(row, np.arange(tree.n_leaves + 1)) for row in along])
    label = tree.labels[level, x]
    first, last = start[level, label], start[level, label + 1]
    y = tree.order[first + (rng.random(n_samples) * (last - first)).astype(np.intp)]
    return x, y, tree.common_size()[x, y] / tree.n_leaves


def mixed_difference(
    M: npt.ArrayLike,
    row_order: npt.ArrayLike | None = None,
    col_order: npt.ArrayLike | None = None,
    mask: npt.ArrayLike | None = None,
) -> float:
    """Mean |mixed second difference| of neighbouring rows and columns, over the standard deviation of the entries.

    A proxy for roughness that needs an order but no tree; for white noise 4 / sqrt(2 pi) = 1.6. Only quadruples whose
    four entries are present count; NaN when there is none, or the entries do not vary.

    >>> mixed_difference(np.add.outer([0.0, 1.0, 5.0], [2.0, 3.0, 4.0]))
    0.0
    """
    values = np.asarray(M)
    present = np.asarray(np.ones(values.shape) if mask is None else mask, dtype=bool)
    if values.ndim != 2 or present.shape != values.shape:
        raise InputError(f"a matrix and a mask of its shape are needed, not {values.shape} and {present.shape}")
    rows = np.arange(len(values)) if row_order is None else np.asarray(row_order)
    columns = np.arange(values.shape[1]) if col_order is None else np.asarray(col_order)
    g = np.where(present, values, 0).astype(np.float64)[np.ix_(rows, columns)]
    here = present[np.ix_(rows, columns)]
    whole = here[1:, 1:] & here[1:, :-1] & here[:-1, 1:] & here[:-1, :-1]
    spread = float(g[here].std()) if here.any() else 0.0
    if not whole.any() or spread <= ROUND_OFF * np.abs(g).max():
        return float("nan")
    return float(np.abs(np.diff(np.diff(g, axis=0), axis=1))[whole].mean() / spread)
