"""Gaussians and means of all inputs, and again with each input left out: what jackknife intervals are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.statistics.gaussian import Gaussian, fit_gaussian

__all__ = ["folds", "gaussians_left_out", "means_left_out", "without"]

Array = npt.NDArray[Any]


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


def gaussians_left_out(x: Array) -> list[Gaussian]:
    """Gaussians fitted to x (n_input, n, dim), by fold; all with the shrinkage of the first.

    Those with an input left out are made from sums, at little more cost than the first alone.
    """
    n_input, n, dim = x.shape
    whole = fit_gaussian(x.reshape(-1, dim))
    found = [whole]
    if n_input > 1:
        x = x - whole.mean
        sums, squares, count = x.sum(axis=1), x.swapaxes(1, 2) @ x, (n_input - 1) * n
        for s, S in zip(sums.sum(axis=0) - sums, squares.sum(axis=0) - squares, strict=True):
            covariance = S / count - np.outer(s, s) / count**2
            shrunk = whole.shrinkage * float(np.trace(covariance)) / dim * np.eye(dim)
            covariance = (1 - whole.shrinkage) * covariance + shrunk
            found.append(Gaussian(whole.mean + s / count, covariance, count, whole.shrinkage))
    return found
