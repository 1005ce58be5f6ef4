"""Gaussians: fitted to few samples, compared by entropies and divergences, mapped, and projected to a subspace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, eigh, solve_triangular

from headscape.errors import InputError

__all__ = [
    "SAMPLES_PER_DIMENSION",
    "Estimate",
    "Gaussian",
    "Subspace",
    "cross_entropy",
    "entropy",
    "fit_gaussian",
    "jensen_shannon",
    "kl_divergence",
    "linear_map",
    "log_determinant",
    "log_determinants",
    "mutual_information",
    "principal_subspace",
]

Array = npt.NDArray[Any]
EPS = float(np.finfo(float).eps)
SAMPLES_PER_DIMENSION = 10
"""With fewer samples per dimension a covariance is shrunk: its small eigenvalues would be far too small, or 0."""
ASYMMETRY = 1e-6
"""Largest |S - S^T|, over the largest entry, that counts as rounding."""


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    error: float


@dataclass(frozen=True, eq=False)
class Gaussian:
    """N(mean, covariance).

    `n_samples` is how many samples it was fitted to (0: not fitted); `shrinkage` in [0, 1] is the weight of the
    multiple of the identity in the covariance. Raises an `InputError` for a covariance that is not finite or not
    symmetric.
    """

    mean: Array
    covariance: Array
    n_samples: int = 0
    shrinkage: float = 0.0

    def __post_init__(self) -> None:
        mean, covariance = np.asarray(self.mean, dtype=float), _checked(self.covariance)
        if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise InputError(f"a mean of shape {mean.shape} does not fit a covariance of shape {covariance.shape}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    def __repr__(self) -> str:
        fitted = f", {self.n_samples} samples" if self.n_samples else ""
        return f"Gaussian({self.dim} dimensions{fitted}, shrinkage {self.shrinkage:.3g})"

    @property
    def dim(self) -> int:
        """Number of dimensions."""
        return len(self.mean)

    def marginal(self, dimensions: Any) -> Gaussian:
        """The marginal of some dimensions: a slice, or indices."""
        chosen = np.arange(self.dim)[dimensions]
        return Gaussian(self.mean[chosen], self.covariance[np.ix_(chosen, chosen)], self.n_samples, self.shrinkage)

    def sample(self, n: int, random_state: int = 0) -> Array:
        """Draw n points, (n, dim); the covariance may be singular."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = _signed(vectors) * np.sqrt(np.maximum(values, 0))  # or rounding would turn the draws over
        drawn = np.random.default_rng(random_state).standard_normal((n, self.dim))
        return np.asarray(self.mean + drawn @ root.T)

    def log_density(self, x: npt.ArrayLike) -> Array:
        """Log-density at points (n, dim)."""
        factor = _cholesky(self.covariance)
        z = solve_triangular(factor, (np.asarray(x, dtype=float) - self.mean).T, lower=True)
        return np.asarray(-0.5 * ((z**2).sum(axis=0) + self.dim * np.log(2 * np.pi) + _log_det(factor)))


def _checked(covariance: npt.ArrayLike) -> Array:
    """A covariance as an array; an `InputError` where entries are not finite or it is not symmetric."""
    S = np.asarray(covariance, dtype=float)
    if not np.isfinite(S).all():
        raise InputError(f"{int((~np.isfinite(S)).sum())} entries of the covariance are NaN or infinite")
    if S.ndim == 2 and S.shape[0] == S.shape[1]:
        off = float(np.abs(S - S.T).max(initial=0))
        if off > ASYMMETRY * float(np.abs(S).max(initial=0)):
            raise InputError(
                f"a covariance is symmetric; entries of this one differ from their mirror by up to {off:.2g}"
            )
    return S


def fit_gaussian(samples: npt.ArrayLike, shrinkage: float | None = None) -> Gaussian:
    """Fit mean and covariance to samples (n, dim).

    The covariance is (1 - s) S + s tr(S)/dim I, with S the mean outer product of the centred samples. By default s is
    0 where there are `SAMPLES_PER_DIMENSION` samples per dimension, and Ledoit and Wolf's (2004) choice where there
    are fewer; the result says which.

    Raises an `InputError` for fewer than two samples, NaN, a shrinkage outside [0, 1], or two samples without a given
    shrinkage: they show no noise, so none can be estimated.

    >>> fit_gaussian(np.random.default_rng(0).normal(size=(500, 3)))
    Gaussian(3 dimensions, 500 samples, shrinkage 0)
    >>> fit_gaussian(np.random.default_rng(0).normal(size=(5, 30))).shrinkage > 0.5
    True
    """
    X = np.asarray(samples, dtype=float)
    if X.ndim != 2 or len(X) < 2:
        raise InputError(f"samples of shape {X.shape}: a Gaussian is fitted to two or more rows, (n, dim)")
    if not np.isfinite(X).all():
        raise InputError(
            f"{int((~np.isfinite(X)).sum())} of the samples' entries are NaN or infinite; remove them first"
        )
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise InputError(f"shrinkage lies between 0 and 1, not {shrinkage}")
    n, dim = X.shape
    centred = X - X.mean(axis=0)
    covariance = centred.T @ centred / n
    if shrinkage is None:
        shrinkage = 0.0 if n >= SAMPLES_PER_DIMENSION * dim else _ledoit_wolf(centred)
    if shrinkage:
        covariance *= 1 - shrinkage
        covariance.flat[:: dim + 1] += shrinkage * (centred**2).sum() / (n * dim)
    return Gaussian(X.mean(axis=0), covariance, n, shrinkage)


def _ledoit_wolf(centred: Array) -> float:
    from sklearn.covariance import ledoit_wolf_shrinkage  # slow to import, and needed here alone

    if len(centred) == 2 and centred.shape[1] > 1 and centred.any():  # both have the same outer product: S itself
        raise InputError(
            "two samples show no noise to estimate a shrinkage from; give one (shrinkage=), or more samples"
        )
    return float(np.clip(ledoit_wolf_shrinkage(centred, assume_centered=True), 0.0, 1.0))


def _cholesky(covariance: npt.ArrayLike) -> Array:
    """Lower factor; an `InputError` with the rank where there is none.

    Decided on the correlations, so that units do not matter: diag(1e-12, 1e6) is not singular.
    """
    S = _checked(covariance)
    dim = len(S)
    scale = np.sqrt(np.maximum(np.diag(S), 0.0))
    scale[scale == 0] = 1.0
    correlation = S / np.outer(scale, scale)
    try:
        factor = np.linalg.cholesky(correlation)
        if float((np.diag(factor) ** 2).min(initial=np.inf)) > dim * EPS:
            return np.asarray(scale[:, None] * factor)
    except np.linalg.LinAlgError:
        pass
    values = np.linalg.eigvalsh(correlation)
    rank = int((values > dim * EPS * max(float(values.max()), 0.0)).sum())
    raise InputError(
        f"the covariance is singular: rank {rank} in {dim} dimensions, so it has no density and no entropy; fit it "
        f"with shrinkage, or in a subspace of at most {rank} dimensions (principal_subspace)"
    )


def _log_det(factor: Array) -> float:
    return float(2 * np.log(np.diag(factor)).sum())


def log_determinants(covariances: Array) -> Array:
    """`log_determinant` of each of several covariances (n, dim, dim)."""
    scale = np.sqrt(np.maximum(np.diagonal(covariances, axis1=1, axis2=2), 0.0))
    scale[scale == 0] = 1.0
    try:
        factors = np.linalg.cholesky(covariances / (scale[:, :, None] * scale[:, None]))
        pivots = np.diagonal(factors, axis1=1, axis2=2)
        if float((pivots**2).min(initial=np.inf)) > pivots.shape[1] * EPS:
            return np.asarray(2 * (np.log(pivots) + np.log(scale)).sum(axis=1))
    except np.linalg.LinAlgError:
        pass
    return np.array([log_determinant(S) for S in covariances])  # raises where one is singular


def log_determinant(covariance: npt.ArrayLike) -> float:
    """Logarithm of the determinant of a covariance; an `InputError` that names the rank where it is not positive definite."""
    return _log_det(_cholesky(covariance))


def entropy(p: Gaussian) -> float:
    """Differential entropy in nats, H = 1/2 log((2 pi e)^d |S|).

    >>> round(entropy(Gaussian([0], [[1]])), 4)
    1.4189
    """
    return float(0.5 * (p.dim * (1 + math.log(2 * math.pi)) + log_determinant(p.covariance)))


def cross_entropy(p: Gaussian, q: Gaussian) -> float:
    """-E_p log q = 1/2 [d log 2 pi + log|S_q| + tr(S_q^-1 S_p) + D^T S_q^-1 D], D the difference of the means.

    The thesis prints (2 pi e)^d, which would make the divergence of p from itself d/2.
    """
    if p.dim != q.dim:
        raise InputError(f"Gaussians of {p.dim} and {q.dim} dimensions cannot be compared")
    factor = _cholesky(q.covariance)
    trace = np.trace(cho_solve((factor, True), p.covariance))
    distance = (solve_triangular(factor, p.mean - q.mean, lower=True) ** 2).sum()
    return float(0.5 * (p.dim * np.log(2 * np.pi) + _log_det(factor) + trace + distance))


def kl_divergence(p: Gaussian, q: Gaussian) -> float:
    """KL(p || q) = H(p, q) - H(p), in nats."""
    return cross_entropy(p, q) - entropy(p)


def jensen_shannon(p: Gaussian, q: Gaussian, n: int = 20_000, random_state: int = 0) -> Estimate:
    """Jensen-Shannon divergence in nats, between 0 and log 2, by Monte Carlo: the mixture has no closed entropy.

    1/2 E_p log(p/m) + 1/2 E_q log(q/m) with m = (p + q)/2, n draws of each.
    """
    if p.dim != q.dim:
        raise InputError(f"Gaussians of {p.dim} and {q.dim} dimensions cannot be compared")
    if n < 2:
        raise InputError(f"a Monte Carlo estimate needs at least two draws, not {n}")
    halves = []
    for i, (own, other) in enumerate(((p, q), (q, p))):
        x = own.sample(n, random_state + i)
        halves.append(np.log(2) - np.logaddexp(0, other.log_density(x) - own.log_density(x)))
    value = 0.5 * sum(float(half.mean()) for half in halves)
    error = 0.5 * np.sqrt(sum(float(half.var(ddof=1)) / n for half in halves))
    return Estimate(value, float(error))


def mutual_information(joint: Gaussian, n_first: int) -> float:
    """I(X; Y) = 1/2 log(|S_X| |S_Y| / |S|) in nats, X the first `n_first` dimensions of the joint, Y the rest.

    >>> joint = Gaussian([0, 0], [[1, 0.6], [0.6, 1]])
    >>> round(mutual_information(joint, 1), 4)  # -1/2 log(1 - 0.6^2)
    0.2231
    """
    if not 0 < n_first < joint.dim:
        raise InputError(f"a joint of {joint.dim} dimensions is split between 1 and {joint.dim - 1}, not at {n_first}")
    S = joint.covariance
    parts = log_determinant(S[:n_first, :n_first]) + log_determinant(S[n_first:, n_first:])
    return 0.5 * (parts - log_determinant(S))


def linear_map(p: Gaussian, L: npt.ArrayLike, offset: npt.ArrayLike = 0.0) -> Gaussian:
    """The Gaussian of L x + offset: mean L mu + offset, covariance L S L^T.

    For an invertible L, H grows by log|det L| and divergences stay the same; a map that loses rank lowers them and
    the mutual information, although it is linear.
    """
    matrix = np.asarray(L, dtype=float)
    if matrix.ndim != 2 or matrix.shape[1] != p.dim:
        raise InputError(f"a map of shape {matrix.shape} does not take vectors of {p.dim} dimensions")
    return Gaussian(
        matrix @ p.mean + np.asarray(offset, dtype=float), matrix @ p.covariance @ matrix.T, p.n_samples, p.shrinkage
    )


def _signed(vectors: Array) -> Array:
    """Eigenvectors (columns) with the sign that makes the largest entry positive."""
    return np.asarray(vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]))


@dataclass(frozen=True, eq=False)
class Subspace:
    """The principal components of some samples: rows of `basis` (n_component, dim), and the share of variance `kept`."""

    mean: Array
    basis: Array
    kept: float

    @property
    def dim(self) -> int:
        """Number of directions."""
        return len(self.basis)

    def project(self, samples: npt.ArrayLike) -> Array:
        """Coordinates of samples (..., dim) in the subspace, (..., n_component)."""
        return np.asarray((np.asarray(samples, dtype=float) - self.mean) @ self.basis.T)


def principal_subspace(samples: npt.ArrayLike, n_components: int = 32) -> Subspace:
    """The leading principal components of samples (n, dim), at most as many as they span; an `InputError` if all are equal."""
    X = np.asarray(samples, dtype=float)
    if X.ndim != 2 or len(X) < 2 or n_components < 1:
        raise InputError(f"samples of shape {X.shape} have no {n_components} principal components")
    mean = X.mean(axis=0)
    centred = X - mean
    dim = X.shape[1]
    covariance = centred.T @ centred / len(X)
    leading = (max(dim - n_components, 0), dim - 1)  # all of them would take three times as long
    values, vectors = (a[..., ::-1] for a in eigh(covariance, subset_by_index=leading))
    rank = int((values > dim * EPS * max(float(values[0]), 0.0)).sum())
    if not rank:
        raise InputError(f"the {len(X)} samples are all equal: they span no subspace")
    k = min(n_components, rank, len(X) - 1)
    basis = _signed(vectors[:, :k]).T
    return Subspace(mean, basis, min(1.0, float(values[:k].sum() / np.trace(covariance))))
