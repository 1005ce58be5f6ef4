"""Pairwise L1 distances between the rows of a matrix: the hot spot of the questionnaire."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.compiled import compiled, n_threads, run_tasks

__all__ = ["COLUMNS", "ROWS", "add_cross_l1", "add_pairwise_l1", "pairwise_l1", "symmetric"]

Floats = npt.NDArray[Any]  # float32 or float64

ROWS = 4
"""Rows come in blocks of 4 x 4, so the matrix is padded to a multiple of this many."""
COLUMNS = 2048
"""Columns summed in the rows' own precision: enough that adding up vector lanes at the end costs little."""
_TILE = 32
"""Rows of a task; the slices of two such tiles, 512 KB, stay in the second-level cache."""


@compiled
def _block(rows: Floats, i: int, j: int, lo: int, hi: int, one: Any) -> tuple[Any, ...]:
    """L1 distances over columns lo..hi of rows i..i+3 to rows j..j+3: sixteen sums in registers, eight loads per column.

    `one` is 1, which the compiler cannot know: so |a - b| is added by a fused multiply-add, and the units that subtract
    do not have to add as well. The result is the same to the last bit, a quarter faster.
    """
    a0, a1, a2, a3 = rows[i, lo:hi], rows[i + 1, lo:hi], rows[i + 2, lo:hi], rows[i + 3, lo:hi]
    b0, b1, b2, b3 = rows[j, lo:hi], rows[j + 1, lo:hi], rows[j + 2, lo:hi], rows[j + 3, lo:hi]
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = rows.dtype.type(0)
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = rows.dtype.type(0)
    for k in range(hi - lo):
        x0, x1, x2, x3 = a0[k], a1[k], a2[k], a3[k]
        y0, y1, y2, y3 = b0[k], b1[k], b2[k], b3[k]
        s00 += one * abs(x0 - y0)
        s01 += one * abs(x0 - y1)
        s02 += one * abs(x0 - y2)
        s03 += one * abs(x0 - y3)
        s10 += one * abs(x1 - y0)
        s11 += one * abs(x1 - y1)
        s12 += one * abs(x1 - y2)
        s13 += one * abs(x1 - y3)
        s20 += one * abs(x2 - y0)
        s21 += one * abs(x2 - y1)
        s22 += one * abs(x2 - y2)
        s23 += one * abs(x2 - y3)
        s30 += one * abs(x3 - y0)
        s31 += one * abs(x3 - y1)
        s32 += one * abs(x3 - y2)
        s33 += one * abs(x3 - y3)
    return s00, s01, s02, s03, s10, s11, s12, s13, s20, s21, s22, s23, s30, s31, s32, s33


@compiled
def _tile(rows: Floats, total: npt.NDArray[np.float64], i0: int, i1: int, j0: int, j1: int, one: Any) -> None:
    """Add the distances of rows i0..i1 to rows j0..j1 to `total`, slice by slice; on the diagonal the upper blocks."""
    n_columns = rows.shape[1]
    for lo in range(0, n_columns, COLUMNS):
        hi = min(lo + COLUMNS, n_columns)
        for i in range(i0, i1, ROWS):
            for j in range(max(i, j0), j1, ROWS):
                sums = _block(rows, i, j, lo, hi, one)
                for u in range(ROWS):
                    for v in range(ROWS):
                        total[i + u, j + v] += sums[ROWS * u + v]


def add_pairwise_l1(rows: Floats, total: npt.NDArray[np.float64], threads: int) -> None:
    """Add sum_k |rows[i, k] - rows[j, k]| to ``total[i, j]`` for all i <= j; the part below the diagonal is undefined.

    Parameters
    ----------
    rows
        (n, n_columns), float32 or float64, C-contiguous, n a multiple of `ROWS`. Slices of 2,048 columns are summed in
        this precision, the slices in float64.
    total
        (n, n).
    threads
        Changes nothing but the time.
    """
    n = len(rows)
    tile = _TILE if n > 3 * _TILE else _TILE // 2  # enough tasks for the threads there may be
    starts = range(0, n, tile)
    pairs = sorted(((i, j) for i in starts for j in starts if i <= j), key=lambda pair: pair[0] == pair[1])
    one = rows.dtype.type(1)
    run_tasks(_tile, [(rows, total, i, min(i + tile, n), j, min(j + tile, n), one) for i, j in pairs], threads)


def add_cross_l1(rows: Floats, split: int, total: npt.NDArray[np.float64], threads: int) -> None:
    """Add the L1 distances between the rows before `split` and those from there on to ``total``, (split, n - split).

    As `add_pairwise_l1`, whose sums it repeats bit by bit; `split` is a multiple of `ROWS` too.
    """
    n = len(rows)
    sums = np.zeros((split, n))
    sums[:, split:] = total  # carried on, not added at the end: the order of additions stays
    one = rows.dtype.type(1)
    pairs = [(i, j) for i in range(0, split, _TILE) for j in range(split, n, _TILE)]
    tasks = [(rows, sums, i, min(i + _TILE, split), j, min(j + _TILE, n), one) for i, j in pairs]
    run_tasks(_tile, tasks, threads)
    total[:] = sums[:, split:]


def pairwise_l1(rows: npt.ArrayLike, threads: int | None = None) -> npt.NDArray[np.float64]:
    """L1 distances between rows: D[i, j] = sum_k |rows[i, k] - rows[j, k]|.

    Parameters
    ----------
    rows
        (n, n_columns); computed in float64 if it is float64, else in float32 with float64 across slices.
    threads
        How many; by default numba's setting. Any number gives the same bytes.

    Returns
    -------
    (n, n) float64, symmetric, zero on the diagonal.

    >>> pairwise_l1([[0.0, 1.0], [2.0, 1.0], [0.0, 4.0]])
    array([[0., 2., 3.],
           [2., 0., 5.],
           [3., 5., 0.]])
    """
    values = np.asarray(rows)
    n, n_columns = values.shape
    padded = np.zeros((n + -n % ROWS, n_columns), dtype=np.float64 if values.dtype.itemsize > 4 else np.float32)
    padded[:n] = values
    total = np.zeros((len(padded), len(padded)))
    add_pairwise_l1(padded, total, n_threads(threads))
    return symmetric(total[:n, :n])


def symmetric(upper: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mirror the part above the diagonal; the diagonal becomes 0."""
    above = np.triu(upper, 1)
    return above + above.T
