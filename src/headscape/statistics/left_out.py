"""Gaussians and means of all inputs, and again with each input left out: the basis of jackknife intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.statistics.gaussian import SAMPLES_PER_DIMENSION, fit_gaussian

__all__ = [
    "Fits",
    "cumulants_left_out",
    "folds",
    "gaussians_left_out",
    "joined",
    "means_left_out",
    "pairs_left_out",
    "without",
]

Array = npt.NDArray[Any]
ROUNDING = 64 * float(np.finfo(float).eps)
"""As a share of the mean square: a variance below it counts as that of equal numbers."""


def folds(n_input: int) -> range:
    """0 for all inputs, then 1 + i for all but input i; of one input only the first.

    >>> list(folds(3)), list(folds(1))
    ([0, 1, 2, 3], [0])
    """
    return range(1 + (n_input if n_input > 1 else 0))


def without(x: Array, fold: int) -> Array:
    """The inputs of x (n_input, ...) in a fold; an input beyond those of x leaves all of them.

    >>> without(np.array([5, 6, 7]), 2).tolist()
    [5, 7]
    """
    return np.delete(x, fold - 1, axis=0) if 0 < fold <= len(x) else x


def means_left_out(x: Array, n_input: int) -> list[Any]:
    """Means over the inputs of x (n, ...), which are the first of n_input, by fold."""
    return [without(x, fold).mean(axis=0) for fold in folds(n_input)]


class Fits(NamedTuple):
    """Gaussians by fold: means (n_fold, dim), covariances (n_fold, dim, dim), and the shrinkage of all of them."""

    mean: Array
    covariance: Array
    shrinkage: float


def gaussians_left_out(x: Array) -> Fits:
    """Gaussians fitted to x (n_input, n, dim), by fold; all with the shrinkage of the first.

    Those with an input left out are made from sums, at little more cost than the first alone.
    """
    shrinkage = _shrinkage(x)
    middle = x.mean(axis=(0, 1))
    x = x - middle
    mean, S = _from_sums(x.sum(axis=1), x.swapaxes(1, 2) @ x, x.shape[1])
    return Fits(middle + mean, _shrunk(S, shrinkage), shrinkage)


def pairs_left_out(x: Array, y: Array, offsets: Sequence[int]) -> list[Fits]:
    """Of each offset r, `gaussians_left_out` of the rows of x (n_input, n, dim) joined to those of y that lie r before.

    The squares of x and y are summed once: what an offset leaves out at the ends is taken off.
    """
    dim = x.shape[-1]
    counts = [x.shape[1] - abs(r) for r in offsets]
    if x.shape[0] * min(counts) < SAMPLES_PER_DIMENSION * 2 * dim:  # shrunk, by what only the samples tell
        return [gaussians_left_out(joined(x, y, r)) for r in offsets]
    middle = np.concatenate([x.mean(axis=(0, 1)), y.mean(axis=(0, 1))])
    x, y = x - middle[:dim], y - middle[dim:]
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("some of the samples' entries are NaN or infinite; remove them first")
    squares = [z.swapaxes(1, 2) @ z for z in (x, y)]
    found = []
    for r, n in zip(offsets, counts, strict=True):
        own, other = (x[:, r:], y[:, :n]) if r >= 0 else (x[:, :n], y[:, -r:])
        ends = (x[:, :r], y[:, n:]) if r >= 0 else (x[:, n:], y[:, :-r])
        S = np.empty((len(x), 2 * dim, 2 * dim))
        for part, square, end in zip((slice(dim), slice(dim, None)), squares, ends, strict=True):
            S[:, part, part] = square - end.swapaxes(1, 2) @ end
        S[:, :dim, dim:] = own.swapaxes(1, 2) @ other
        S[:, dim:, :dim] = S[:, :dim, dim:].swapaxes(1, 2)
        mean, covariance = _from_sums(np.concatenate([own.sum(axis=1), other.sum(axis=1)], axis=1), S, n)
        found.append(Fits(middle + mean, covariance, 0.0))
    return found


def joined(x: Array, y: Array, r: int) -> Array:
    """Each row of x (n_input, n, dim) joined to the row of y that lies r before it."""
    n = x.shape[1]
    first, second = (x[:, r:], y[:, : n - r]) if r >= 0 else (x[:, :r], y[:, -r:])
    return np.concatenate([first, second], axis=-1)


def _shrinkage(x: Array) -> float:
    """That of `fit_gaussian` for all rows of x (n_input, n, dim)."""
    if x.shape[0] * x.shape[1] < SAMPLES_PER_DIMENSION * x.shape[2]:
        return fit_gaussian(x.reshape(-1, x.shape[2])).shrinkage
    if not np.isfinite(x).all():
        raise InputError("some of the samples' entries are NaN or infinite; remove them first")
    return 0.0


def _from_sums(sums: Array, squares: Array, n: int) -> tuple[Array, Array]:
    """Means and covariances by fold, from the sums (n_input, dim) and squares (n_input, dim, dim) of n rows each."""
    n_input = len(sums)
    s, S, count = sums.sum(axis=0)[None], squares.sum(axis=0)[None], np.array([n_input * n])
    if n_input > 1:
        s, S = np.concatenate([s, s - sums]), np.concatenate([S, S - squares])
        count = np.r_[count, np.full(n_input, (n_input - 1) * n)]
    mean = s / count[:, None]
    return mean, S / count[:, None, None] - mean[:, :, None] * mean[:, None]


def _shrunk(S: Array, shrinkage: float) -> Array:
    """Covariances (n, dim, dim) moved towards the multiple of the identity of the same trace."""
    if not shrinkage:
        return S
    dim = S.shape[-1]
    even = np.trace(S, axis1=1, axis2=2)[:, None, None] / dim * np.eye(dim)
    return np.asarray((1 - shrinkage) * S + shrinkage * even)


def cumulants_left_out(x: Array) -> Array:
    """The first four cumulants of the numbers x (n_input, n), by fold: (4, n_fold)."""
    x = x.astype(float)
    first = x.flat[0]  # about it a constant has sums of exactly 0
    x = x - first
    square = x * x
    sums = np.stack([x.sum(axis=1), square.sum(axis=1), (square * x).sum(axis=1), (square * square).sum(axis=1)])
    n_input, n = x.shape
    whole = sums.sum(axis=1, keepdims=True)
    count = np.array([n_input * n])
    if n_input > 1:
        whole = np.concatenate([whole, whole - sums], axis=1)
        count = np.r_[count, np.full(n_input, (n_input - 1) * n)]
    m1, m2, m3, m4 = whole / count
    k2 = m2 - m1**2
    k2[k2 <= ROUNDING * m2] = 0.0
    k3 = m3 - 3 * m1 * m2 + 2 * m1**3
    k4 = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4 - 3 * k2**2
    return np.stack([first + m1, k2, k3, k4])
