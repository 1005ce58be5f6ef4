"""Coarsen an attention map to what a picture can show: means over blocks of tokens, or over clusters of their tree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CELLS", "MOST", "Cells", "block_means", "cells_of", "coarse_matrix"]

MOST = 1000
"""Rows or columns from which a matrix on the page is coarsened."""
CELLS = 500
"""Cells per side it is coarsened to."""


class Cells(NamedTuple):
    """The cells of a picture's axis: cell i holds the tokens ``order[bounds[i]:bounds[i + 1]]``."""

    order: npt.NDArray[np.intp]
    bounds: npt.NDArray[np.intp]

    @property
    def coarse(self) -> bool:
        """True when a cell holds more than one token."""
        return len(self.bounds) - 1 < len(self.order)


def cells_of(
    n: int, most: int, order: npt.NDArray[np.intp] | None = None, labels: npt.NDArray[np.intp] | None = None
) -> Cells:
    """Divide n tokens into at most `most` cells.

    Parameters
    ----------
    order
        The order along which tokens are joined; by default their own.
    labels
        (n_level, n) cluster of every token, coarse to fine. The finest level with at most `most` clusters gives the
        cells, unless it has fewer than a quarter of that; then, and without labels, all cells are equally long.

    >>> cells_of(5, 2).bounds
    array([0, 3, 5])
    """
    order = np.arange(n) if order is None else np.asarray(order, dtype=np.intp)
    if n <= most:
        return Cells(order, np.arange(n + 1))
    if labels is not None:
        along = np.asarray(labels)[:, order]
        cuts = np.ones(along.shape, dtype=bool)
        cuts[:, 1:] = along[:, 1:] != along[:, :-1]
        counts = cuts.sum(axis=1)
        fitting = np.flatnonzero(counts <= most)
        if len(fitting) and counts[fitting[-1]] >= most / 4:
            return Cells(order, np.append(np.flatnonzero(cuts[fitting[-1]]), n))
    return Cells(order, np.append(np.arange(0, n, -(-n // most)), n))


def block_means(
    maps: npt.NDArray[np.float32], present: npt.NDArray[np.bool_], query: Cells, key: Cells
) -> npt.NDArray[np.float32]:
    """Average maps (n_head, n_query, n_key) over the present entries of each cell; a cell without any becomes 0."""
    if not all(np.array_equal(axis.order, np.arange(len(axis.order))) for axis in (query, key)):
        rows, columns = query.order[:, None], key.order[None, :]
        maps, present = maps[:, rows, columns], present[rows, columns]
    inside = present.astype(np.float32)
    count = np.add.reduceat(np.add.reduceat(inside, query.bounds[:-1], axis=0), key.bounds[:-1], axis=1)
    total = maps * inside
    total = np.add.reduceat(np.add.reduceat(total, query.bounds[:-1], axis=1), key.bounds[:-1], axis=2)
    return (total / np.maximum(count, 1)).astype(np.float32)


def coarse_matrix(values: npt.NDArray[np.float32], rows: Cells, columns: Cells) -> npt.NDArray[np.float32]:
    """Average a matrix over the known entries of each cell; a cell without any is NaN.

    >>> coarse_matrix(np.array([[1, np.nan], [2, np.nan]], np.float32), cells_of(2, 1), cells_of(2, 2))
    array([[1.5, nan]], dtype=float32)
    """
    known = np.isfinite(values)
    means = block_means(np.nan_to_num(values)[None], known, rows, columns)[0]
    every = np.ones(known.shape, dtype=bool)
    there = block_means(known[None].astype(np.float32), every, rows, columns)[0] > 0
    return np.where(there, means, np.float32(np.nan))
