"""How far a matrix of tokens is from rank one: the residual, its norms, and the effective rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from headscape.errors import InputError
from headscape.tensor import check_finite

__all__ = [
    "as_tokens",
    "effective_rank",
    "norm_1",
    "norm_1inf",
    "norm_inf",
    "relative_residual",
    "residual",
    "roundoff",
]

Array = npt.NDArray[np.float64]
ROUNDOFF = 32
"""Residuals of networks that have collapsed end at 4 to 18 times the precision of their arithmetic."""


def roundoff(eps: float = float(np.finfo(np.float64).eps)) -> float:
    """The relative residual below which a network shows only round-off, by the precision of its number type."""
    return ROUNDOFF * eps


def as_tokens(X: npt.ArrayLike) -> Array:
    """Tokens (..., n_token, width) as float64, checked to be finite and not empty."""
    found: npt.NDArray[Any] = np.asarray(X)
    if found.ndim < 2 or 0 in found.shape:
        raise InputError(f"tokens must be an array (..., n_token, width) with something in it, not shape {found.shape}")
    found = found.astype(np.float64, copy=False)
    check_finite(found, [*(f"axis {i}" for i in range(found.ndim - 2)), "token", "feature"])
    return found


def residual(X: npt.ArrayLike) -> Array:
    """Res(X) = X - 1 x^T with x the mean of the rows, the nearest matrix with equal rows (eqs. 8 to 10).

    Parameters
    ----------
    X
        Tokens (..., n_token, width); computed in float64, since a residual in float32 stops near 2e-7.

    >>> residual([[1.0, 0.0], [3.0, 0.0]])
    array([[-1.,  0.],
           [ 1.,  0.]])
    """
    tokens = as_tokens(X)
    centred: Array = tokens - tokens.mean(axis=-2, keepdims=True)
    return centred


def norm_1(A: npt.ArrayLike) -> Any:
    """||A||_1 = max_j sum_i |A_ij|, the largest column sum (eq. 2), over the last two axes."""
    return np.abs(A).sum(axis=-2).max(axis=-1)


def norm_inf(A: npt.ArrayLike) -> Any:
    """||A||_inf = max_i sum_j |A_ij|, the largest row sum (eq. 3), over the last two axes."""
    return np.abs(A).sum(axis=-1).max(axis=-1)


def norm_1inf(A: npt.ArrayLike) -> Any:
    """||A||_{1,inf} = sqrt(||A||_1 ||A||_inf) (eq. 7), over the last two axes.

    Sub-multiplicative, but not a norm: it has no triangle inequality.

    >>> row, column = np.array([[1.0] * 9] + [[0.0] * 9] * 8), np.array([[1.0] + [0.0] * 8] * 9)
    >>> float(norm_1inf(row)), float(norm_1inf(column)), float(norm_1inf(row + column))
    (3.0, 3.0, 10.0)
    """
    return np.sqrt(norm_1(A) * norm_inf(A))


def relative_residual(X: npt.ArrayLike) -> Any:
    """||Res(X)||_{1,inf} / ||X||_{1,inf} (eq. 44): 0 when all tokens are equal; shape (...).

    A matrix of zeros has equal tokens: 0.

    >>> float(relative_residual(np.ones((5, 3))))
    0.0
    """
    tokens = as_tokens(X)
    whole = norm_1inf(tokens)
    return np.divide(norm_1inf(residual(tokens)), whole, out=np.zeros_like(whole), where=whole > 0)


def effective_rank(X: npt.ArrayLike) -> Any:
    """Exponential of the entropy of the singular values s / sum(s): 1 for equal rows, at most full rank; shape (...).

    A matrix of zeros has rank 0.

    >>> float(effective_rank(np.eye(4)).round(12)), float(effective_rank(np.ones((5, 3))).round(6))
    (4.0, 1.0)
    """
    s = np.linalg.svd(as_tokens(X), compute_uv=False)
    total = s.sum(axis=-1, keepdims=True)
    p = np.divide(s, total, out=np.zeros_like(s), where=total > 0)
    return np.where(total[..., 0] > 0, np.exp(entr(p).sum(axis=-1)), 0.0)
