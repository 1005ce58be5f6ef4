"""Diffusion coordinates: eigenvectors of the Markov chain that an affinity defines."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from headscape.checks import LARGEST, finite, integer, within
from headscape.errors import InputError

__all__ = ["Spectrum", "diffusion_map", "extend_diffusion_map", "markov_spectrum", "one_blas_thread"]

STEEPEST = 10.0
"""Largest |markov_alpha|: powers of the density beyond it leave the range of float64."""

FloatArray = npt.NDArray[np.float64]

_DENSE_UP_TO = 2000
"""Rows up to which all eigenpairs are computed; Lanczos finds the leading ones above."""
_ALL_UP_TO = 64
"""The same if only one is needed: at 256 rows Lanczos takes a tenth of the time."""
_ZERO = 1e-10
"""Eigenvalues below this are rounding."""


class Spectrum(NamedTuple):
    """Leading eigenpairs of a Markov chain after the constant one."""

    values: FloatArray  # (k,); |values| descending, all at least 1e-10
    vectors: FloatArray  # (n, k); psi_k = v_k / v_1, so each has mean 0 and mean square 1 under `stationary`
    stationary: FloatArray  # (n,); the chain's stationary distribution


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> ThreadpoolController:
    """Context in which BLAS and LAPACK use one thread, so that results do not depend on how many there are."""
    return _controller().limit(limits=1, user_api="blas")


def markov_spectrum(affinity: Any, n_components: int, markov_alpha: float = 1.0) -> Spectrum:
    r"""Eigenpairs of the Markov chain of an affinity, the constant one left out.

    .. math::
        K_{ij} \leftarrow K_{ij} / (d_i^\alpha d_j^\alpha), \quad d = K 1; \qquad
        S = D^{-1/2} K D^{-1/2}, \quad D = \mathrm{diag}(K 1), \quad v_1 = \sqrt{d / \sum d}

    and v_k, k >= 2, are the eigenvectors of S - v_1 v_1^T. Because v_1 is known in closed form and not computed, the
    coordinates psi_k = v_k / v_1 are right even when the affinity falls into blocks or has a far outlier.

    Parameters
    ----------
    affinity
        (n, n), symmetric, no negative entry, no row of zeros; not checked here. A scipy sparse array stays sparse.
    n_components
        At most this many; fewer are returned where eigenvalues vanish.
    markov_alpha
        0 as printed in the paper, 1 (density normalized out) as in its code.
    """
    if _is_sparse(affinity):
        if affinity.shape[0] > _DENSE_UP_TO:
            return _sparse_spectrum(affinity, n_components, markov_alpha)
        affinity = affinity.toarray()
    S = np.array(affinity, dtype=np.float64)
    n = len(S)
    with one_blas_thread():
        degree = S.sum(axis=1) ** -markov_alpha
        S *= degree[:, None]
        S *= degree
        degree = S.sum(axis=1)
        stationary = degree / degree.sum()
        v_1 = np.sqrt(stationary)
        S /= np.sqrt(degree)[:, None]
        S /= np.sqrt(degree)
        S -= v_1[:, None] * v_1
        k = min(n_components, n - 1)
        if k < 1 or np.linalg.norm(S) < _ZERO:
            return Spectrum(np.zeros(0), np.zeros((n, 0)), stationary)
        values, vectors = _leading_pairs(S, k)
    return _leading(values, vectors, stationary, k)


def _leading(values: FloatArray, vectors: FloatArray, stationary: FloatArray, k: int) -> Spectrum:
    """The k largest, as coordinates, with their signs fixed by rule."""
    leading = np.argsort(-np.abs(values), kind="stable")[:k]
    leading = leading[np.abs(values[leading]) >= _ZERO]
    psi = vectors[:, leading] / np.sqrt(stationary)[:, None]
    return Spectrum(values[leading], psi * _signs(psi, stationary), stationary)


def _sparse_spectrum(affinity: Any, n_components: int, markov_alpha: float) -> Spectrum:
    """`markov_spectrum` without a dense (n, n) matrix: S - v_1 v_1^T is applied, never formed."""
    K = scipy.sparse.csr_array(affinity, dtype=np.float64)
    n = K.shape[0]
    with one_blas_thread():
        once = scipy.sparse.diags_array(np.asarray(K.sum(axis=1)).ravel() ** -markov_alpha)
        K = once @ K @ once
        degree = np.asarray(K.sum(axis=1)).ravel()
        stationary = degree / degree.sum()
        v_1 = np.sqrt(stationary)
        root = scipy.sparse.diags_array(1 / np.sqrt(degree))
        S = scipy.sparse.csr_array(root @ K @ root)
        left = float((S.data**2).sum()) - 2 * float(v_1 @ (S @ v_1)) + 1.0  # squared norm of S - v_1 v_1^T
        if left < 1e-12:
            return Spectrum(np.zeros(0), np.zeros((n, 0)), stationary)

        def apply(x: FloatArray) -> FloatArray:
            product: FloatArray = S @ x - v_1 * (v_1 @ x)
            return product

        operator = scipy.sparse.linalg.LinearOperator((n, n), matvec=apply, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(n)
        k = min(n_components, n - 1)
        values, vectors = scipy.sparse.linalg.eigsh(operator, k=k, which="LM", v0=start)
    return _leading(values, vectors, stationary, k)


def _leading_pairs(S: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    """At least the k eigenpairs of largest |eigenvalue|; overwrites `S`."""
    if len(S) > (_DENSE_UP_TO if k > 1 else _ALL_UP_TO):
        start = np.random.default_rng(0).standard_normal(len(S))
        try:
            values, vectors = scipy.sparse.linalg.eigsh(S, k=k, which="LM", v0=start)
            return values, vectors
        except scipy.sparse.linalg.ArpackError:  # crowded eigenvalues: all of them, then
            pass
    values, vectors = scipy.linalg.eigh(S, overwrite_a=True, check_finite=False, driver="evd")
    return values, vectors


def diffusion_map(affinity: Any, n_components: int = 3, t: float = 1.0, markov_alpha: float = 1.0) -> FloatArray:
    """Diffusion map: lambda_k^t psi_k, the leading coordinates after the constant.

    Distances between rows approximate how far apart two random walks of t steps end up.

    Parameters
    ----------
    affinity
        (n, n), symmetric, no negative entry, no row of zeros; an array, or a scipy sparse one for many points.
    n_components
        Columns of the result. Where the chain has fewer nonzero eigenvalues, columns of zeros follow.
    t
        Diffusion time; it must be a whole number if eigenvalues may be negative.
    markov_alpha
        See `markov_spectrum`.

    Raises
    ------
    InputError
        If the affinity is not as above, or a parameter is not a number.

    Returns
    -------
    (n, n_components) float64. Signs are fixed by the third moment, so permuting the points permutes the rows.

    >>> blocks = np.kron(np.eye(2), np.ones((2, 2)))
    >>> hs.diffusion_map(blocks, n_components=1).round(6).T ** 2
    array([[1., 1., 1., 1.]])
    """
    integer("n_components", n_components, 1, 10_000)
    within("markov_alpha", markov_alpha, -STEEPEST, STEEPEST)
    finite("markov_alpha", markov_alpha)
    whole = finite("t", t).is_integer()
    spectrum = markov_spectrum(_check_affinity(affinity), n_components, markov_alpha)
    if not whole and (spectrum.values < 0).any():
        raise InputError(f"t = {t} needs eigenvalues that are not negative, the chain has {spectrum.values.min():.3g}")
    coordinates = np.zeros((len(spectrum.vectors), n_components))
    coordinates[:, : len(spectrum.values)] = spectrum.values**t * spectrum.vectors
    return coordinates


def extend_diffusion_map(
    affinity: Any, to_points: npt.ArrayLike, n_components: int = 3, markov_alpha: float = 1.0
) -> FloatArray:
    r"""Place points on the diffusion map (t = 1) of others: Nystroem's extension.

    .. math:: \lambda_k \psi_k(x) = \sum_j p(x, j)\, \psi_k(j), \qquad p(x, j) \propto k(x, j) / d_j^\alpha

    A point of the map itself is placed where it is.

    Parameters
    ----------
    affinity
        (n, n), as for `diffusion_map`: the points that make the map.
    to_points
        (m, n): affinities of the points to place, to those.

    Returns
    -------
    (m, n_components) float64.

    >>> affinity = np.exp(-np.abs(np.subtract.outer(range(4), range(4))))
    >>> bool(np.allclose(extend_diffusion_map(affinity, affinity), diffusion_map(affinity)))
    True
    """
    integer("n_components", n_components, low=1)
    K, rows = _check_affinity(affinity), np.asarray(to_points, dtype=np.float64)
    spectrum = markov_spectrum(K, n_components, markov_alpha)
    with one_blas_thread():
        steps = rows * np.asarray(K.sum(axis=1)).ravel() ** -markov_alpha
        steps /= steps.sum(axis=1, keepdims=True)
        coordinates = np.zeros((len(rows), n_components))
        coordinates[:, : len(spectrum.values)] = steps @ spectrum.vectors
    return coordinates


def _check_affinity(affinity: Any) -> Any:
    """The affinity as float64, after checking that it is square, finite, not negative, symmetric and without zero rows."""
    sparse = _is_sparse(affinity)
    K: Any = scipy.sparse.csr_array(affinity, dtype=np.float64) if sparse else np.asarray(affinity, dtype=np.float64)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or K.shape[0] == 0:
        raise InputError(f"an affinity is a square matrix, this array has shape {K.shape}")
    entries = K.data if sparse else K.ravel()
    bad = np.flatnonzero(~np.isfinite(entries) | (entries < 0) | (entries > LARGEST))
    if bad.size:
        rows, columns = K.tocoo().coords if sparse else np.indices(K.shape).reshape(2, -1)
        place = (int(rows[bad[0]]), int(columns[bad[0]]))
        raise InputError(
            f"an affinity is finite, not negative and at most {LARGEST:g}, entry {place} is {entries[bad[0]]}"
        )
    gap = abs(K - K.T).max()
    if gap > 1e-8 * K.max():
        raise InputError(f"an affinity is symmetric, this one differs from its transpose by {gap:.3g}")
    lonely = np.flatnonzero(np.asarray(K.sum(axis=1)).ravel() == 0)
    if lonely.size:
        raise InputError(f"row {lonely[0]} of the affinity is all zeros; put 1 on its diagonal")
    return K


def _is_sparse(affinity: object) -> bool:
    return bool(scipy.sparse.issparse(affinity))


def _signs(psi: FloatArray, weight: FloatArray) -> FloatArray:
    """Signs that make third moments positive; where that is 0 the longer tail decides, then the first point is low.

    The first two rules do not depend on the order of the points, so they commute with permutations.
    """
    third = weight @ psi**3
    tails = psi.max(axis=0) + psi.min(axis=0)
    rule = np.where(np.abs(third) > 1e-6, third, np.where(np.abs(tails) > 1e-6, tails, -psi[0]))
    return np.where(rule < 0, -1.0, 1.0)
