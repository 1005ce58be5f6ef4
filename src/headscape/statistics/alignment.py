r"""Base alignment: whether the queries and keys of a head read the same directions.

Head h scores a pair of inputs by :math:`x^T C y`, :math:`C = W_{q,h}^T W_{k,g}`, with g the key head it shares. Its
trace, over :math:`\|W_{q,h}\|_F \|W_{k,g}\|_F / \sqrt{d\, d_h}`, has mean 0 and variance 1 when one of the two is
rotated at random. The tails are heavier than normal when few singular values carry the matrices, so p-values come from
random rotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = [
    "BEYOND",
    "LEADING",
    "alignment_z",
    "leading_directions",
    "rotation_test",
    "rotations_of",
    "score_spectrum",
    "shared_directions",
    "symmetric_share",
]

FloatArray = npt.NDArray[np.float64]
CHUNK = 64
"""Rotations held at a time."""
LEADING = 4
"""Singular vectors of a head that count as its leading ones."""
BEYOND = 3.0
"""|z| above which an alignment stands out."""


def _heads(queries: npt.ArrayLike, keys: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Check, and repeat the key heads so that every query head has its own: both (n_head, dim, d)."""
    q, k = np.asarray(queries, dtype=np.float64), np.asarray(keys, dtype=np.float64)
    if q.ndim != 3 or k.ndim != 3 or q.shape[1:] != k.shape[1:]:
        raise InputError(
            f"weights of queries and keys are (head, dim, d) with the same dim and d, not {q.shape} and {k.shape}"
        )
    group, rest = divmod(len(q), len(k))
    if rest or not group:
        raise InputError(f"{len(q)} query heads cannot share {len(k)} key heads evenly")
    return q, k.repeat(group, axis=0)  # head h uses key head h // group


def alignment_z(queries: npt.ArrayLike, keys: npt.ArrayLike) -> FloatArray:
    r"""Base alignment of every query head, (n_head,); 0 where a matrix is all zeros.

    .. math:: z = \sqrt{d\, d_h}\; \mathrm{tr}(W_q^T W_k) / (\|W_q\|_F \|W_k\|_F)

    `queries` are (n_head, dim, d), the rows of W_q by head; `keys` (n_kv_head, dim, d), of which query head h uses
    number h // (n_head / n_kv_head).

    >>> w = np.random.default_rng(0).normal(size=(1, 8, 32))
    >>> bool(np.isclose(alignment_z(w, w), 16))
    True
    """
    q, k = _heads(queries, keys)
    size = np.sqrt((q**2).sum(axis=(1, 2)) * (k**2).sum(axis=(1, 2)) / (q.shape[1] * q.shape[2]))
    return np.asarray(np.divide((q * k).sum(axis=(1, 2)), size, out=np.zeros(len(q)), where=size > 0))


def rotation_test(
    z: FloatArray, s: FloatArray, t: FloatArray, d: int, n_rotations: int = 2000, random_state: int = 0
) -> tuple[FloatArray, FloatArray]:
    r"""P-values of z-scores, at least 1 / (n_rotations + 1), and the share of rotations with |z| above 3: (n_head,).

    The key weights are rotated on both sides, :math:`O W_k R` with O and R uniform among rotations. Only the singular
    values s and t (n_head, dim) of the two matrices then matter:

    .. math:: \mathrm{tr}(W_q^T O W_k R) = \sum_{ij} s_i t_j O'_{ij} R'_{ji}

    with O' uniform among rotations of the head's dimension and R' the corner of a rotation of d dimensions. So the
    same rotations serve all heads of all layers.
    """
    if n_rotations < 1:
        raise InputError(f"p-values need at least one rotation, not {n_rotations}")
    size = np.sqrt((s**2).sum(axis=1) * (t**2).sum(axis=1) / (s.shape[1] * d))
    reached, beyond = np.zeros(len(z)), np.zeros(len(z))
    for traces in rotations_of(s, t, d, n_rotations, random_state):
        null = np.abs(np.divide(traces, size, out=np.zeros_like(traces), where=size > 0))
        reached += (null >= np.abs(z)).sum(axis=0)
        beyond += (null > BEYOND).sum(axis=0)
    return (reached + 1) / (n_rotations + 1), beyond / n_rotations


def rotations_of(s: FloatArray, t: FloatArray, d: int, n: int, random_state: int = 0) -> Iterator[FloatArray]:
    """Traces of n random rotations, in chunks (n_chunk, n_head), from singular values s and t (n_head, dim)."""
    rng = np.random.default_rng(random_state)
    dim = s.shape[1]
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        left = random_corners(size, dim, dim, rng)
        right = random_corners(size, dim, d, rng)
        both = left * right.swapaxes(1, 2)
        yield np.einsum("hi,rih->rh", s, both @ t.T, optimize=False)


def random_corners(n: int, r: int, d: int, rng: np.random.Generator) -> FloatArray:
    r"""The upper left r x r corners of n uniformly random rotations of d dimensions (reflections included): (n, r, r).

    The first r columns of a rotation are a Gaussian matrix G (d, r) made orthonormal, :math:`G L^{-T}` with
    :math:`LL^T = G^T G`. Only the first r rows X are drawn; the others add a Wishart matrix to :math:`G^T G`, drawn by
    Bartlett's decomposition when it has enough rows.
    """
    if not 1 <= r <= d:
        raise InputError(f"no corner of {r} x {r} in {d} dimensions")
    x = rng.standard_normal((n, r, r))
    rest = d - r
    gram = x.swapaxes(1, 2) @ x
    if rest >= r:
        triangle = np.tril(rng.standard_normal((n, r, r)), -1)
        triangle[:, range(r), range(r)] = np.sqrt(rng.chisquare(rest - np.arange(r), size=(n, r)))
        gram += triangle @ triangle.swapaxes(1, 2)
    elif rest:
        y = rng.standard_normal((n, rest, r))
        gram += y.swapaxes(1, 2) @ y
    if not rest:  # a square Gaussian matrix may be too close to singular for its Gram matrix
        basis, upper = np.linalg.qr(x)
        return np.asarray(basis * np.sign(np.diagonal(upper, axis1=1, axis2=2))[:, None, :])
    lower = np.linalg.cholesky(gram)
    return np.asarray(np.linalg.solve(lower, x.swapaxes(1, 2)).swapaxes(1, 2))


def symmetric_share(queries: npt.ArrayLike, keys: npt.ArrayLike) -> FloatArray:
    r"""Share of the energy of :math:`C = W_q^T W_k` in its symmetric part, (n_head,); the rest is antisymmetric.

    .. math:: \|(C + C^T)/2\|_F^2 / \|C\|_F^2 = (1 + \mathrm{tr}(C^2) / \|C\|_F^2) / 2

    computed from matrices of the head's dimension. 1/2 for unrelated matrices, 1 where queries and keys are the same.
    """
    q, k = _heads(queries, keys)
    mixed = k @ q.swapaxes(1, 2)
    square = (mixed * mixed.swapaxes(1, 2)).sum(axis=(1, 2))
    energy = ((q @ q.swapaxes(1, 2)) * (k @ k.swapaxes(1, 2))).sum(axis=(1, 2))
    return np.asarray((1 + np.divide(square, energy, out=np.zeros(len(q)), where=energy > 0)) / 2)


def shared_directions(queries: npt.ArrayLike, keys: npt.ArrayLike) -> FloatArray:
    r"""How far every head's queries and keys read the same leading directions of their input, (n_head,).

    .. math:: \|V_q V_k^T\|_F^2 / r

    with V the r = `LEADING` first right singular vectors of each: 1 for one subspace, r / d for unrelated ones.
    """
    q, k = (leading_directions(w) for w in _heads(queries, keys))
    return np.asarray(((q @ k.swapaxes(1, 2)) ** 2).sum(axis=(1, 2)) / q.shape[1])


def leading_directions(weights: npt.ArrayLike) -> FloatArray:
    """The `LEADING` first right singular vectors of every head's weights (n_head, dim, d), by row: (n_head, r, d)."""
    return np.asarray(np.linalg.svd(np.asarray(weights, dtype=np.float64), full_matrices=False)[2][:, :LEADING])


def score_spectrum(queries: npt.ArrayLike, keys: npt.ArrayLike) -> FloatArray:
    r"""Singular values of every head's :math:`C = W_q^T W_k`, largest first: (n_head, dim).

    C is d x d of rank at most dim; its singular values are those of :math:`R_q R_k^T`, with :math:`W^T = Q R` for both.
    """
    q, k = _heads(queries, keys)
    upper: list[Any] = [np.linalg.qr(w.swapaxes(1, 2), mode="r") for w in (q, k)]
    return np.asarray(np.linalg.svd(upper[0] @ upper[1].swapaxes(1, 2), compute_uv=False))
