"""Distances between metric spaces: Gromov-Wasserstein from several starts, its lower bound, and a map of many spaces.

A space is a distance matrix (n, n) whose points all have weight 1 / n. Optimal transport is POT's throughout; our own are the
lower bound, the choice of starts, and the rounding of a rough coupling onto its marginals, which POT lacks.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = ["Match", "classical_map", "geometry_bound", "in_order", "match_geometries", "refine"]

FloatArray = npt.NDArray[np.float64]

COOLING = (0.3, 0.2, 0.1, 0.07, 0.05, 0.03, 0.02)
"""Entropic regularizations of the annealed start, in order, in units of the squared median distance. On the bundled
models it ends at or below the best of 100 random starts in five pairs of six."""
COOLING_STEPS, SCALINGS = 40, 60
"""Steps at each regularization, and Sinkhorn iterations in each; half as many leave distances up to 2 % larger."""


class Match(NamedTuple):
    """Two spaces laid on each other: the distance reached and the coupling (n, m) that reaches it."""

    distance: float
    coupling: FloatArray


def _pot() -> Any:
    """POT, imported only when two spaces are matched: its import takes a second or two."""
    try:
        return import_module("ot")
    except ModuleNotFoundError:
        raise InputError("comparing networks needs POT, which is not installed: pip install POT") from None


def _weights(n: int) -> FloatArray:
    return np.full(n, 1.0 / n)


def geometry_bound(A: FloatArray, B: FloatArray) -> Match:
    r"""Third lower bound of Memoli (2011) on the Gromov-Wasserstein distance, exact for uniform weights.

    .. math:: TLB^2 = \min_T \sum_{ij} T_{ij} W_2^2(A_{i\cdot}, B_{j\cdot})

    Rows are compared as distributions of distances, whatever their order. It never exceeds the true distance, which a
    local search can only approach from above.

    >>> line = np.abs(np.subtract.outer([0.0, 1, 3], [0.0, 1, 3]))
    >>> geometry_bound(line, line[::-1, ::-1]).distance
    0.0
    """
    n, m = len(A), len(B)
    ends = np.unique(np.concatenate([np.arange(1, n + 1) * m, np.arange(1, m + 1) * n]))  # of steps, in 1 / (n m)
    weight = np.diff(ends, prepend=0) / (n * m)
    a = np.sort(A, axis=1)[:, (ends - 1) // m]  # quantile functions on the common steps
    b = np.sort(B, axis=1)[:, (ends - 1) // n]
    cost = ((a**2) @ weight)[:, None] + (b**2) @ weight - 2 * (a * weight) @ b.T
    cost = np.maximum(cost, 0.0)  # rounding
    coupling = np.asarray(_pot().emd(_weights(n), _weights(m), cost), dtype=np.float64)
    return Match(float(np.sqrt((coupling * cost).sum())), coupling)


def in_order(n: int, m: int) -> FloatArray:
    """The coupling that keeps the order: the first point with the first, the last with the last; the identity if n = m.

    >>> in_order(2, 4) * 4
    array([[1., 1., 0., 0.],
           [0., 0., 1., 1.]])
    """
    return np.asarray(_pot().emd_1d(np.arange(n, dtype=np.float64), np.arange(m, dtype=np.float64)))


def refine(A: FloatArray, B: FloatArray, start: FloatArray) -> Match:
    r"""Gromov-Wasserstein distance of two distance matrices (n, n) and (m, m), by descent from a coupling.

    .. math:: GW^2 = \min_T \sum_{ijkl} (A_{ik} - B_{jl})^2 T_{ij} T_{kl}

    over couplings T (n, m) with uniform marginals, by POT's conditional gradient. The result is an upper bound: the
    problem is not convex.
    """
    p, q = _weights(len(A)), _weights(len(B))
    coupling = _pot().gromov.gromov_wasserstein(A, B, p, q, "square_loss", symmetric=True, G0=start)
    # POT's own value is a difference of large sums, which near 0 is rounding: the sum is evaluated as it is written
    T = np.asarray(coupling, dtype=np.float64)
    squares = (T.sum(axis=1) @ (A**2) @ T.sum(axis=1)) + (T.sum(axis=0) @ (B**2) @ T.sum(axis=0))
    loss = squares - 2 * float(((A @ T @ B) * T).sum())
    return Match(float(np.sqrt(max(loss, 0.0))) if loss > 1e-12 * squares else 0.0, T)


def match_geometries(A: FloatArray, B: FloatArray) -> Match:
    """Gromov-Wasserstein distance: the lowest that `refine` reaches from four starts.

    The starts: all points coupled alike, the coupling of `geometry_bound`, points in their order (by depth, if they are
    heads sorted by layer), and the entropic problem cooled down step by step.

    Raises
    ------
    InputError
        If a matrix is not square.

    >>> line = np.abs(np.subtract.outer([0.0, 1, 3, 9], [0.0, 1, 3, 9]))
    >>> match_geometries(line, line[::-1, ::-1]).distance
    0.0
    """
    for D in (A, B):
        if D.ndim != 2 or D.shape[0] != D.shape[1]:
            raise InputError(f"a distance matrix is square, this one has shape {D.shape}")
    n, m = len(A), len(B)
    even = np.outer(_weights(n), _weights(m))
    starts = [even, geometry_bound(A, B).coupling, in_order(n, m), _annealed(A, B)]
    return min((refine(A, B, start) for start in starts), key=lambda found: found.distance)


def _annealed(A: FloatArray, B: FloatArray) -> FloatArray:
    """Coupling of the entropic problem, cooled down: fewer poor minima than any single start.

    Each step is POT's Sinkhorn coupling for the gradient at the last one (Peyre, Cuturi, Solomon, 2016). A rough one
    will do, since only a start is needed. POT's own `entropic_gromov_wasserstein` takes these steps too, but leaves
    costs as they are, and exp(-cost / epsilon) underflows at the lower regularizations.
    """
    p, q = _weights(len(A)), _weights(len(B))
    fixed = ((A**2) @ p)[:, None] + (B**2) @ q
    coupling = np.outer(p, q)
    for epsilon in COOLING:
        for _ in range(COOLING_STEPS):
            cost = 2 * (fixed - 2 * A @ coupling @ B)
            cost -= cost.min(axis=1, keepdims=True)  # shifts of rows and columns change no coupling: now each row
            cost -= cost.min(axis=0)  # and each column has a zero, so that no sum of the kernel underflows
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that it did not converge: it need not
                found = _pot().sinkhorn(q, p, cost.T, epsilon, numItermax=SCALINGS, stopThr=0.0, warn=False)
            found = _onto_marginals(np.asarray(found).T, p, q)
            moved = np.abs(found - coupling).sum()
            coupling = found
            if moved < 1e-4:
                break
    return coupling


def _onto_marginals(T: FloatArray, p: FloatArray, q: FloatArray) -> FloatArray:
    """The coupling near T that has exactly these marginals (Altschuler, Weed, Rigollet, 2017, algorithm 2)."""
    tiny = np.finfo(float).tiny
    T = T * np.minimum(1.0, p / np.maximum(T.sum(axis=1), tiny))[:, None]
    T = T * np.minimum(1.0, q / np.maximum(T.sum(axis=0), tiny))
    rows, columns = p - T.sum(axis=1), q - T.sum(axis=0)
    left = rows.sum()
    return T + np.outer(rows, columns) / left if left > 0 else T


def classical_map(D: FloatArray) -> tuple[FloatArray, float]:
    """Classical scaling: points in the plane (n, 2) whose distances are near D, and the share of D the plane shows.

    The leading eigenvectors of -J D^2 J / 2, J the centring matrix; the share is that of their eigenvalues among the
    positive ones. The sign of each coordinate is such that its largest entry is positive.

    >>> points, share = classical_map(np.array([[0.0, 3, 4], [3, 0, 5], [4, 5, 0]]))
    >>> float(np.linalg.norm(points[1] - points[2]).round(9)), round(share, 9)
    (5.0, 1.0)
    """
    n = len(D)
    J = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * J @ D**2 @ J)
    values, vectors = np.maximum(values[::-1], 0), vectors[:, ::-1]
    points = np.zeros((n, 2))
    k = min(2, n)
    points[:, :k] = vectors[:, :k] * np.sqrt(values[:k])
    points *= np.where(points[np.abs(points).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    return points, float(values[:2].sum() / values.sum()) if values.sum() > 0 else 1.0
