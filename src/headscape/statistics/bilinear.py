"""Attention scores as a bilinear form x^T C y of Gaussians: mean, variance, skewness, kurtosis, and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = [
    "Moments",
    "by_cumulants",
    "centred_kurtosis",
    "form_cumulants",
    "form_moments",
    "independent_cumulants",
    "measured_moments",
    "pooled",
    "pooled_moments",
    "quadratic_moments",
    "random_form_covariance",
    "score_bound",
    "self_moments",
    "trace_variance",
]

Array = npt.NDArray[Any]


class Moments(NamedTuple):
    """Mean, variance, skewness and excess kurtosis; the last two are 0 for a normal variable, NaN for a constant."""

    mean: float
    variance: float
    skewness: float
    kurtosis: float


def by_cumulants(cumulants: npt.ArrayLike) -> Array:
    """Moments (4, ...) of variables with the cumulants (4, ...)."""
    k1, k2, k3, k4 = np.asarray(cumulants, dtype=float)
    known = np.where(k2 > 0, k2, np.nan)
    return np.stack([k1, np.maximum(k2, 0.0), k3 / known**1.5, k4 / known**2])


def _from_cumulants(*cumulants: float) -> Moments:
    return Moments(*by_cumulants(cumulants).tolist())


def quadratic_moments(Q: npt.ArrayLike, mean: npt.ArrayLike, covariance: npt.ArrayLike) -> Moments:
    """Moments of z^T Q z for z ~ N(mean, S) and a symmetric Q, from its cumulants.

    k_r = 2^(r-1) (r-1)! [tr((QS)^r) + r mu^T Q (SQ)^(r-1) mu]: k2 = 2 tr((QS)^2) + 4 mu^T QSQ mu,
    k4 = 48 [tr((QS)^4) + 4 mu^T Q(SQ)^3 mu].

    >>> chi_squared = quadratic_moments([[1.0]], [0.0], [[1.0]])
    >>> [round(float(moment), 3) for moment in chi_squared]
    [1.0, 2.0, 2.828, 12.0]
    """
    Q, mu, S = (np.asarray(a, dtype=float) for a in (Q, mean, covariance))
    if Q.shape != S.shape or Q.shape != (len(mu), len(mu)):
        raise InputError(f"a form {Q.shape}, a mean {mu.shape} and a covariance {S.shape} do not fit together")
    if not np.allclose(Q, Q.T):
        raise InputError("the matrix of a quadratic form must be symmetric; take (Q + Q^T)/2")
    return _from_cumulants(*_quadratic(Q @ S, Q @ mu, S, mu))


def _quadratic(QS: Array, a: Array, S: Array, mu: Array) -> Array:
    """Cumulants of z^T Q z from the products of Q with S and with mu, which may be stacks."""
    square = QS @ QS
    b = _of(S, a)  # mu^T Q (SQ)^r mu = a^T (SQ)^(r-1) S a
    c = _of(QS, a)
    k1 = np.trace(QS, axis1=-2, axis2=-1) + _dot(mu, a)
    k2 = 2 * np.trace(square, axis1=-2, axis2=-1) + 4 * _dot(a, b)
    k3 = 8 * (_trace(square, QS) + 3 * _dot(c, b))
    k4 = 48 * (_trace(square, square) + 4 * _dot(_of(QS, c), b))
    return np.stack([k1, k2, k3, k4])


def _of(matrix: Array, vector: Array) -> Array:
    return np.asarray((matrix @ vector[..., None])[..., 0])


def _dot(x: Array, y: Array) -> Array:
    return np.asarray((x * y).sum(axis=-1))


def _trace(A: Array, B: Array) -> Array:
    """tr(A B)."""
    return np.asarray((A * B.swapaxes(-1, -2)).sum(axis=(-2, -1)))


def form_moments(
    C: npt.ArrayLike,
    mean_x: npt.ArrayLike,
    mean_y: npt.ArrayLike,
    cov_x: npt.ArrayLike,
    cov_y: npt.ArrayLike,
    cov_yx: npt.ArrayLike | None = None,
) -> Moments:
    """Moments of x^T C y for jointly Gaussian x (m,) and y (n,); C is (m, n), cov_yx (n, m), independent without it.

    Mean mu_x^T C mu_y + tr(C S_YX) (the thesis prints S_XY). Variance tr(C S_Y C^T S_X) + tr(C S_YX C S_YX) +
    mu_y^T C^T S_X C mu_y + mu_x^T C S_Y C^T mu_x + 2 mu_x^T C S_YX C mu_y. All four follow from the quadratic form
    [[0, C], [C^T, 0]]/2 on the joint vector; independent x and y need less work.
    """
    C, mu_x, mu_y, S_x, S_y = (np.asarray(a, dtype=float) for a in (C, mean_x, mean_y, cov_x, cov_y))
    m, n = C.shape
    if (mu_x.shape, mu_y.shape, S_x.shape, S_y.shape) != ((m,), (n,), (m, m), (n, n)):
        shapes = f"{mu_x.shape}, {mu_y.shape}, {S_x.shape} and {S_y.shape}"
        raise InputError(f"C of shape {C.shape} needs means of {m} and {n} entries and their covariances, got {shapes}")
    if cov_yx is None:
        return _from_cumulants(*independent_cumulants(C, mu_x, mu_y, S_x, S_y))
    S_yx = np.asarray(cov_yx, dtype=float)
    if S_yx.shape != (n, m):
        raise InputError(f"the covariance of y with x has shape {S_yx.shape}, it must be ({n}, {m})")
    S = np.block([[S_x, S_yx.T], [S_yx, S_y]])
    return _from_cumulants(*form_cumulants(C, np.concatenate([mu_x, mu_y]), S))


def form_cumulants(C: Array, mean: Array, covariance: Array) -> Array:
    """Cumulants (4, ...) of x^T C y for joint Gaussians of (x, y): means (..., m + n), covariances (..., m + n, m + n)."""
    m, half = len(C), C / 2
    QS = np.empty_like(covariance)  # by its blocks, which takes half the work
    QS[..., :m, :] = half @ covariance[..., m:, :]
    QS[..., m:, :] = half.T @ covariance[..., :m, :]
    a = np.concatenate([mean[..., m:] @ half.T, mean[..., :m] @ half], axis=-1)
    return _quadratic(QS, a, covariance, mean)


def independent_cumulants(C: Array, mu_x: Array, mu_y: Array, S_x: Array, S_y: Array) -> Array:
    """The same without cross-covariance, with matrices half the size; means and covariances may be stacks."""
    M = (C @ S_y) @ (C.T @ S_x)
    u, v = mu_y @ C.T, mu_x @ C  # the form is linear in x with slope u, in y with slope v, and bilinear
    su, sv = _of(S_x, u), _of(S_y, v)
    k1 = _dot(mu_x, u)
    k2 = np.trace(M, axis1=-2, axis2=-1) + _dot(u, su) + _dot(v, sv)
    k3 = 6 * _dot(su @ C, sv)
    k4 = 6 * _trace(M, M) + 12 * (_dot(su @ C, _of(S_y, su @ C)) + _dot(sv @ C.T, _of(S_x, sv @ C.T)))
    return np.stack([k1, k2, k3, k4])


def self_moments(C: npt.ArrayLike, mean: npt.ArrayLike, covariance: npt.ArrayLike) -> Moments:
    """Moments of x^T C x, a token with itself, M = (C + C^T)/2: mean tr(C S) + mu^T C mu, variance 2 tr(MSMS) + 4 mu^T MSM mu."""
    C = np.asarray(C, dtype=float)
    return quadratic_moments((C + C.T) / 2, mean, covariance)


def centred_kurtosis(C: npt.ArrayLike, cov_x: npt.ArrayLike, cov_y: npt.ArrayLike) -> float:
    """Excess kurtosis of x^T C y for independent centred x and y: 6 tr(M^2) / (tr M)^2, M = C S_Y C^T S_X.

    Between 6/rank and 6: a form spread over many directions is nearly normal, one of low rank is not. NaN for C = 0.

    >>> round(centred_kurtosis(np.eye(4), np.eye(4), np.eye(4)), 3), round(centred_kurtosis([[1.]], [[1.]], [[1.]]), 3)
    (1.5, 6.0)
    """
    C, S_x, S_y = (np.asarray(a, dtype=float) for a in (C, cov_x, cov_y))
    M = (C @ S_y) @ (C.T @ S_x)
    trace = float(np.trace(M))
    return 6 * float(_trace(M, M)) / trace**2 if trace else float("nan")


def measured_moments(scores: npt.ArrayLike) -> Moments:
    """Moments of measured scores, all of them pooled.

    >>> measured_moments([-1.0, 1.0])
    Moments(mean=0.0, variance=1.0, skewness=0.0, kurtosis=-2.0)
    """
    x = np.asarray(scores, dtype=float).ravel()
    if not len(x):
        raise InputError("no scores to take moments of")
    shifted = x - x[0]  # of a constant exactly 0, which its rounded mean would not be
    centred = shifted - shifted.mean()
    square = centred**2
    variance = square.mean()
    k4 = (square**2).mean() - 3 * variance**2
    return _from_cumulants(x[0] + shifted.mean(), variance, (square * centred).mean(), k4)


def pooled_moments(parts: Sequence[Moments], weights: npt.ArrayLike) -> Moments:
    """Moments of scores from several groups (such as token distances) with given weights, from those of each group.

    With d_g the distance of a group's mean from the overall mean: variance sum w (v_g + d_g^2), and so on.
    """
    w = np.asarray(weights, dtype=float)
    if len(parts) != len(w) or not w.sum() > 0 or (w < 0).any():
        raise InputError(f"{len(parts)} groups need as many weights, at least 0 and not all 0; got {w.tolist()}")
    return Moments(*pooled(np.transpose(parts), w).tolist())


def pooled(parts: Array, weights: Array) -> Array:
    """The same of moments (4, n_group, ...): (4, ...)."""
    w = weights / weights.sum()
    means, variances, skews, kurts = parts
    third = np.nan_to_num(skews) * variances**1.5
    fourth = (np.nan_to_num(kurts) + 3) * variances**2
    shifted = means - means[0]
    d = shifted - w @ shifted
    variance = w @ (variances + d**2)
    k3 = w @ (third + 3 * variances * d + d**3)
    m4 = w @ (fourth + 4 * third * d + 6 * variances * d**2 + d**4)
    return by_cumulants([means[0] + w @ shifted, variance, k3, m4 - 3 * variance**2])


def trace_variance(singular_a: npt.ArrayLike, singular_b: npt.ArrayLike, shape: tuple[int, int]) -> float:
    """Variance of tr(A^T B) when the bases of A and B, both (m, n), are random: (sum s_a^2)(sum s_b^2)/(m n).

    Only the two energies matter, not the order of the spectra (the thesis pairs them). For entries of variance s^2 it
    is m n s^4 on average.
    """
    a, b = np.asarray(singular_a, dtype=float), np.asarray(singular_b, dtype=float)
    return float((a**2).sum() * (b**2).sum() / (shape[0] * shape[1]))


def random_form_covariance(
    x: npt.ArrayLike, y: npt.ArrayLike, other_x: npt.ArrayLike, other_y: npt.ArrayLike, variance: float
) -> float:
    """Cov(x^T C y, x'^T C y') over matrices C with independent centred entries of a variance: s^2 <x, x'> <y, y'>.

    With s^2 = 1/n the variance of a score is |x|^2 |y|^2 / n at every angle between x and y: angles show in the
    covariances, |x|^2 <y, y'> / n, and not in the variances (as the thesis says).
    """
    x, y, other_x, other_y = (np.asarray(a, dtype=float) for a in (x, y, other_x, other_y))
    return float(variance * (x @ other_x) * (y @ other_y))


def score_bound(Wq: npt.ArrayLike, Wk: npt.ArrayLike, x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Largest |<Wq x, Wk y>| for vectors as long as x and y: ||Wq^T Wk||_2 |x| |y|; times |cos|, as in the thesis, it is no bound."""
    form = np.asarray(Wq, dtype=float).T @ np.asarray(Wk, dtype=float)
    return float(np.linalg.norm(form, 2) * np.linalg.norm(np.asarray(x)) * np.linalg.norm(np.asarray(y)))
