"""Averages over pairs of folders, and what they make of a smooth function of a matrix: the paraproduct.

The decomposition of A(g) is eq. 12 of the paper with the boundary terms it leaves out, on any two partition trees and
with absent entries left out of every mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from headscape.checks import check_finite, integer
from headscape.errors import InputError
from headscape.tree import PartitionTree

__all__ = ["FUNCTIONS", "Averages", "Paraproduct", "Smooth", "Terms", "matrix_on_trees", "paraproduct"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Pointwise = Callable[[FloatArray], FloatArray]


class Derivable(Protocol):
    """What numpy's polynomials are: callable, with derivatives."""

    def __call__(self, x: Any, /) -> Any: ...
    def deriv(self, m: int = ..., /) -> Any: ...


class Smooth(NamedTuple):
    """A function A with its first two derivatives; each takes an array and acts entry by entry."""

    value: Pointwise
    first: Pointwise
    second: Pointwise


Function = str | Smooth | tuple[Pointwise, Pointwise, Pointwise] | Derivable


def _corollary(mean: float) -> Smooth:
    slope = float(np.exp(mean))
    return Smooth(np.exp, lambda x: np.full_like(x, slope), lambda x: np.full_like(x, slope))


FUNCTIONS: dict[str, Callable[[float], Smooth]] = {
    "exp": lambda _: Smooth(np.exp, np.exp, np.exp),
    "identity": lambda _: Smooth(lambda x: x, np.ones_like, np.zeros_like),
    # A' = A'' = 1 of Corollary 1, which takes e^0 = 1 for granted: applied to g - c and multiplied by e^c, with c the
    # mean of g. Boundary terms are kept as they are.
    "corollary": _corollary,
}
"""What `paraproduct` knows by name: a maker of `Smooth`, given the mean of the matrix."""


def matrix_on_trees(
    M: npt.ArrayLike, row_tree: PartitionTree, col_tree: PartitionTree, mask: npt.ArrayLike | None = None
) -> tuple[FloatArray, BoolArray]:
    """Return a matrix as float64, 0 where absent, and which of its entries are present.

    Raises an `InputError` if `M` is not a real matrix, a tree or the mask does not fit it, no entry is present, or a
    present entry is not finite.
    """
    values = np.asarray(M)
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise InputError(f"a real matrix is needed, this array has shape {values.shape} and dtype {values.dtype}")
    for name, tree, n in zip(("row", "column"), (row_tree, col_tree), values.shape, strict=True):
        if not isinstance(tree, PartitionTree):
            raise InputError(f"the {name} tree must be a PartitionTree, not {type(tree).__name__}")
        if tree.n_leaves != n:
            raise InputError(f"the {name} tree covers {tree.n_leaves} leaves, the matrix of shape {values.shape} {n}")
    present = np.ones(values.shape, dtype=bool) if mask is None else np.asarray(mask)
    if present.shape != values.shape or present.dtype != bool:
        found = f"the mask has shape {present.shape} and dtype {present.dtype}"
        raise InputError(f"{found}; it must be boolean (True: present) and of shape {values.shape}")
    if not present.any():
        raise InputError(f"no entry of the matrix of shape {values.shape} is present")
    filled = np.where(present, values, 0).astype(np.float64)
    check_finite(filled, ("row", "column"))
    return filled, present


class _Levels:
    """The first levels of a tree, laid side by side: level l takes ``start[l]:start[l + 1]`` of one long axis."""

    def __init__(self, tree: PartitionTree, scales: int | None, name: str) -> None:
        if scales is not None:
            integer(f"the number of scales on the {name} axis", scales, 0, tree.n_levels - 1)
        self.n_scales = tree.n_levels - 1 if scales is None else scales
        self.labels = tree.labels[: self.n_scales + 1]
        along = tree.labels[:, tree.order]
        counts = along[:, -1] + 1
        self.begin = [np.flatnonzero(np.diff(row, prepend=-1)) for row in along]  # first position of every folder
        self.parent = [along[level - 1, self.begin[level]] for level in range(1, self.n_scales + 1)]
        self.start = np.concatenate([[0], np.cumsum(counts[: self.n_scales + 1])])
        # for the folders of levels 1, 2, .. in a row: where each is, and where its parent is, on the long axis
        self.child = np.arange(counts[0], self.start[-1])
        self.above = np.concatenate([np.zeros(0, np.intp), *(s + p for s, p in zip(self.start, self.parent))])  # noqa: B905

    def gather(self, X: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """Sums of the rows of X, (n_leaves, ..) in leaf order, over the folders of each level, each from the next."""
        sums = [X]
        for coarse, fine in zip(self.begin[-2::-1], self.begin[:0:-1], strict=True):
            sums.append(np.add.reduceat(sums[-1], np.searchsorted(fine, coarse), axis=0))
        return sums[::-1][: self.n_scales + 1]


class Terms:
    """The terms of a decomposition, by pair of scales; (j, k) is the step from levels (j, k) to (j + 1, k + 1).

    Attributes
    ----------
    first, second
        (n_row_scales, n_col_scales); root of the sum of squares over present entries of A'(P^j P'^k g) times the mixed
        difference of g, and of A''(P^j P'^k g) times the product of its differences along rows and along columns.
    exact, residual
        The same for the mixed difference of A(g) itself, and for what `first` and `second` leave of it.
    """

    def __init__(self, averages: Averages, smooth: Smooth) -> None:
        self._averages, self._smooth = averages, smooth

    @cached_property
    def _norms(self) -> tuple[FloatArray, ...]:
        return self._averages.norms(self._smooth)

    @property
    def first(self) -> FloatArray:
        """Norms of the terms with A'."""
        return self._norms[0]

    @property
    def second(self) -> FloatArray:
        """Norms of the terms with A''."""
        return self._norms[1]

    @property
    def exact(self) -> FloatArray:
        """Norms of the mixed differences of A(g)."""
        return self._norms[2]

    @property
    def residual(self) -> FloatArray:
        """Norms of what the terms leave of them."""
        return self._norms[3]

    def total(self, part: str) -> FloatArray:
        """The sum over all scales of one of `PARTS`, of the matrix's shape."""
        return self._averages.totals((self._smooth, part))[0]

    def at(self, j: int, k: int) -> dict[str, FloatArray]:
        """The term matrices of scale (j, k): first, second and exact, each of the matrix's shape, NaN where absent."""
        rows, columns = self._averages.n_scales
        if not (0 <= j < rows and 0 <= k < columns):
            raise InputError(f"there is no scale ({j}, {k}); there are {rows} x {columns}, counted from 0")
        u = {(a, b): self._averages.at(j + a, k + b) for a in (0, 1) for b in (0, 1)}
        first, second, exact = _mixed(self._smooth, u[0, 0], u[1, 0], u[0, 1], u[1, 1])
        return {"first": first, "second": second, "exact": exact}

    def __repr__(self) -> str:
        return f"Terms({' x '.join(map(str, self._averages.n_scales))} scales: first, second, exact, residual)"


def _approximate(A: Smooth, u00: FloatArray, u10: FloatArray, u01: FloatArray, u11: FloatArray) -> FloatArray:
    """The two terms of eq. 12 together."""
    first = A.first(u00)
    second = first if A.second is A.first else A.second(u00)  # exp is its own derivative
    return first * (u11 - u01 - u10 + u00) + second * (u10 - u00) * (u01 - u00)


def _second_order(A: Smooth, u00: FloatArray, u10: FloatArray, u01: FloatArray, u11: FloatArray) -> FloatArray:
    """And those of second order that eq. 12 leaves out: A''(u) [m (d_x + d_y) + m^2 / 2], m the mixed difference."""
    m = u11 - u01 - u10 + u00
    return _approximate(A, u00, u10, u01, u11) + A.second(u00) * m * (u10 + u01 - 2 * u00 + m / 2)


def _exact(A: Smooth, u00: FloatArray, u10: FloatArray, u01: FloatArray, u11: FloatArray) -> FloatArray:
    """The mixed difference that they stand for; 1 is the finer level, rows first."""
    return A.value(u11) - A.value(u01) - A.value(u10) + A.value(u00)


PARTS = {"approximate": _approximate, "second order": _second_order, "exact": _exact}
"""What can be added up over scales."""


def _mixed(A: Smooth, u00: FloatArray, u10: FloatArray, u01: FloatArray, u11: FloatArray) -> tuple[FloatArray, ...]:
    """The two terms of eq. 12, one by one, and the mixed difference they stand for."""
    first = A.first(u00) * (u11 - u01 - u10 + u00)
    second = A.second(u00) * (u10 - u00) * (u01 - u00)
    return first, second, _exact(A, u00, u10, u01, u11)


@dataclass(frozen=True, eq=False)
class Paraproduct:
    """A(g) decomposed; all matrices have g's shape and are NaN where an entry is absent."""

    approximation: FloatArray  # boundary terms and all terms `first` and `second`
    residual: FloatArray  # A(g) minus the approximation
    boundary: FloatArray  # A(P^N P'^0 g) + A(P^0 P'^N' g) - A(P^0 P'^0 g): what row and column means alone give
    terms: Terms

    @cached_property
    def second_order(self) -> FloatArray:
        """The approximation with all terms of second order, A''(u) [m (d_x + d_y) + m^2 / 2] too."""
        return self.boundary + self.terms.total("second order")

    @cached_property
    def exact(self) -> FloatArray:
        """Boundary terms and exact mixed differences: A(P^N P'^N' g), A(g) when all scales are used."""
        return self.boundary + self.terms.total("exact")


class Averages:
    """Joint means of a matrix over all pairs of folders, P^j P'^k g of eq. 11, on two trees.

    A mean is taken over all present entries of the pair at once, never over rows and then columns. A pair without
    present entries has mean NaN; only absent entries ever meet it. Parameters as in `paraproduct`.

    >>> tree = PartitionTree.dyadic(2)
    >>> means = Averages([[1.0, 0.0], [2.0, 6.0]], tree, tree, mask=np.tri(2, dtype=bool))
    >>> means.at(0, 0)                  # of 1, 2 and 6; the entry above the diagonal is absent
    array([[ 3., nan], [ 3., 3.]])
    >>> means.at(0, 1)
    array([[1.5, nan], [1.5, 6. ]])
    """

    def __init__(
        self,
        M: npt.ArrayLike,
        row_tree: PartitionTree,
        col_tree: PartitionTree,
        mask: npt.ArrayLike | None = None,
        scales: tuple[int, int] | None = None,
    ) -> None:
        self.values, self.present = matrix_on_trees(M, row_tree, col_tree, mask)
        if scales is not None and (not isinstance(scales, (tuple, list)) or len(scales) != 2):
            raise InputError(f"scales are two numbers, of rows and columns, not {scales!r}")
        n_rows, n_columns = (None, None) if scales is None else scales
        self._rows, self._columns = _Levels(row_tree, n_rows, "row"), _Levels(col_tree, n_columns, "column")
        ordered = np.ix_(row_tree.order, col_tree.order)
        self.counts = self._pairs(self.present[ordered].astype(np.float64))
        sums = self._pairs(self.values[ordered])
        # one array per row level: (its folders, folders of all column levels side by side)
        self.means = [np.where(n > 0, s / np.maximum(n, 1), np.nan) for s, n in zip(sums, self.counts, strict=True)]

    def _pairs(self, X: FloatArray) -> list[FloatArray]:
        by_column = np.concatenate(self._columns.gather(np.ascontiguousarray(X.T)), axis=0)
        return self._rows.gather(np.ascontiguousarray(by_column.T))

    @property
    def n_scales(self) -> tuple[int, int]:
        """Steps from level to level: (N, N')."""
        return self._rows.n_scales, self._columns.n_scales

    @property
    def mean(self) -> float:
        """P^0 P'^0 g, the mean of all present entries."""
        return float(self.means[0][0, 0])

    def at(self, j: int, k: int) -> FloatArray:
        """P^j P'^k g as a matrix, NaN where an entry is absent."""
        rows, columns = self.n_scales
        if not (0 <= j <= rows and 0 <= k <= columns):
            raise InputError(f"there is no pair of levels ({j}, {k}); there are 0 to {rows} and 0 to {columns}")
        found = self.means[j][np.ix_(self._rows.labels[j], self._columns.start[k] + self._columns.labels[k])]
        return np.where(self.present, found, np.nan)

    def base_points(self) -> tuple[FloatArray, FloatArray]:
        """All averages at which derivatives are taken, P^j P'^k g with j < N and k < N', and how many entries meet each."""
        stop = self._columns.start[-2]
        values = np.concatenate([m[:, :stop].ravel() for m in self.means[:-1]] or [np.zeros(0)])
        counts = np.concatenate([n[:, :stop].ravel() for n in self.counts[:-1]] or [np.zeros(0)])
        return values[counts > 0], counts[counts > 0]

    def paraproduct(self, function: Function = "exp") -> Paraproduct:
        """Decompose A(g); see `paraproduct`."""
        return self.paraproducts(function)[0]

    def paraproducts(self, *functions: Function) -> list[Paraproduct]:
        """Decompose A(g) for several functions A, in one walk over the scales."""
        smooth = [_smooth(function, self.mean) for function in functions]
        totals = self.totals(*((A, "approximate") for A in smooth))
        return [self._decomposed(A, total) for A, total in zip(smooth, totals, strict=True)]

    def _decomposed(self, A: Smooth, total: FloatArray) -> Paraproduct:
        rows, columns = self._rows, self._columns
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is looked for below, and named
            target = np.where(self.present, A.value(self.values), np.nan)
            top, left = A.value(self.means[0][0]), A.value(self.means[-1][:, 0])
            corner, top = top[0], top[columns.start[-2] :]
            boundary = left[rows.labels[-1]][:, None] + top[columns.labels[-1]] - corner
            approximation = np.where(self.present, boundary + total, np.nan)
        _check_range(target, approximation, self.present)
        boundary = np.where(self.present, boundary, np.nan)
        return Paraproduct(approximation, target - approximation, boundary, Terms(self, A))

    def _steps(self) -> Iterator[tuple[FloatArray, ...]]:
        """For each row scale the averages on both sides of a step, on all column scales side by side: u00, u10, u01, u11."""
        columns = self._columns
        for j, parent in enumerate(self._rows.parent):
            below, here = self.means[j + 1], self.means[j][parent]
            yield tuple(means[:, place] for place in (columns.above, columns.child) for means in (here, below))

    def totals(self, *asked: tuple[Smooth, str]) -> list[FloatArray]:
        """Sums over all scales of `PARTS` of functions, each as a matrix."""
        rows, columns = self._rows, self._columns
        totals = [np.zeros((1, columns.start[-1] - columns.start[-2])) for _ in asked]
        with np.errstate(over="ignore", invalid="ignore"):
            for parent, u in zip(rows.parent, self._steps(), strict=True):
                for i, (A, part) in enumerate(asked):
                    totals[i] = totals[i][parent] + self._along_columns(PARTS[part](A, *u))
        return [total[rows.labels[-1]][:, columns.labels[-1]] for total in totals]

    def norms(self, A: Smooth) -> tuple[FloatArray, ...]:
        """Norms of the terms first, second and exact, and of what the first two leave, by pair of scales."""
        norms = np.zeros((4, *self.n_scales))
        with np.errstate(over="ignore", invalid="ignore"):
            for j, u in enumerate(self._steps()):
                first, second, exact = _mixed(A, *u)
                count = self.counts[j + 1][:, self._columns.child]
                for norm, term in zip(norms, (first, second, exact, exact - (first + second)), strict=True):
                    norm[j] = self._by_scale(term, count)
        return tuple(np.sqrt(norms))

    def _along_columns(self, terms: FloatArray) -> FloatArray:
        """Add up terms on the folders of levels 1, 2, .., side by side on the last axis, down to the last level."""
        columns, shift = self._columns, self._columns.start[1]
        total = np.zeros((*terms.shape[:-1], 1))
        for k in range(columns.n_scales):
            here = slice(columns.start[k + 1] - shift, columns.start[k + 2] - shift)
            total = total[..., columns.parent[k]] + terms[..., here]
        return total

    def _by_scale(self, term: FloatArray, count: FloatArray) -> FloatArray:
        """Sum of squares over present entries for each column scale."""
        energy: FloatArray = (np.where(count > 0, term, 0.0) ** 2 * count).sum(axis=0)
        if len(energy):
            energy = np.add.reduceat(energy, self._columns.start[1:-1] - self._columns.start[1])
        return energy


def _smooth(function: Function, mean: float) -> Smooth:
    if isinstance(function, str):
        if function not in FUNCTIONS:
            known = ", ".join(sorted(FUNCTIONS))
            raise InputError(f"unknown function {function!r}; there are {known}, or give three callables A, A', A''")
        return FUNCTIONS[function](mean)
    if callable(function) and callable(getattr(function, "deriv", None)):  # a polynomial of numpy's
        return Smooth(function, function.deriv(1), function.deriv(2))
    if not isinstance(function, tuple) or len(function) != 3 or not all(callable(part) for part in function):
        raise InputError("your own function is a tuple of three callables: A, A' and A''")
    return Smooth(*function)


def _check_range(target: FloatArray, approximation: FloatArray, present: BoolArray) -> None:
    bad = np.argwhere(present & ~(np.isfinite(target) & np.isfinite(approximation)))
    if len(bad):
        row, column = bad[0]
        way_out = "subtract the logsumexp of its row from each score first, so that exp gives probabilities"
        raise InputError(f"the function or a derivative is not finite at row {row}, column {column}; {way_out}")


def paraproduct(
    M: npt.ArrayLike,
    row_tree: PartitionTree,
    col_tree: PartitionTree,
    function: Function = "exp",
    mask: npt.ArrayLike | None = None,
    scales: tuple[int, int] | None = None,
) -> Paraproduct:
    """Decompose A(g) over pairs of scales of two trees, with its mixed differences replaced by derivatives of A.

    With u = P^j P'^k g the joint mean of g over folder pairs (eq. 11),

    A(g) = A(P^0 P'^0 g) + sum_j [A(P^{j+1} P'^0 g) - A(P^j P'^0 g)] + sum_k [A(P^0 P'^{k+1} g) - A(P^0 P'^k g)]
           + sum_jk [mixed difference of A(u)]

    exactly, down to single leaves. The paraproduct (eq. 12, boundary terms restored) puts A'(u) [mixed difference of u]
    + A''(u) [difference of u along rows] [difference along columns] in place of each mixed difference of A(u).

    Parameters
    ----------
    M
        g, of shape (n_row, n_col). For an attention head the log-attention: scores minus the logsumexp of their row.
    row_tree, col_tree
        Trees that cover the rows and the columns; dyadic ones give the paper's operator.
    function
        "exp", "identity", "corollary" (exp with both derivatives held at exp of the mean: Corollary 1); three callables
        A, A' and A''; or anything that is callable and has ``deriv``, as polynomials of numpy have.
    mask
        Booleans of M's shape, True where an entry is present. Absent entries enter no mean and come back as NaN.
    scales
        (N, N'): stop at these levels; the residual then contains the finer ones. None uses all.

    Raises
    ------
    InputError
        If trees or mask do not fit, a present entry is not finite, or the function overflows.

    >>> tree = hs.PartitionTree.dyadic(4)
    >>> g = np.log(np.outer([1.0, 2.0, 3.0, 4.0], [0.1, 0.2, 0.3, 0.4]))
    >>> p = hs.paraproduct(g, tree, tree, "identity")
    >>> bool(abs(p.residual).max() < 1e-12)
    True
    >>> p = hs.paraproduct(g, tree, tree)  # of a sum of row and column terms only A'' [..] [..] is left
    >>> bool(p.terms.first.max() < 1e-12), p.terms.second.shape
    (True, (2, 2))
    """
    return Averages(M, row_tree, col_tree, mask, scales).paraproduct(function)
