"""Statistics of softmax: log-normal moments, ratios, entropy by radius, interpolation on a sphere, combinations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, xlogy

from headscape.errors import InputError

__all__ = [
    "Combination",
    "MeanVariance",
    "RadiusEntropy",
    "Slerp",
    "combination",
    "entropy_by_radius",
    "entropy_of_sphere",
    "lognormal_moments",
    "on_sphere",
    "ratio_moments",
    "slerp",
    "slerp_experiment",
    "softmax_entropy",
    "sphere_ratio",
]

Array = npt.NDArray[Any]


class MeanVariance(NamedTuple):
    """Mean and variance."""

    mean: float
    variance: float


def lognormal_moments(mean: float, variance: float) -> MeanVariance:
    """Mean and variance of exp X for X normal: e^{mu + s^2/2} (the thesis: e^{(mu + s^2)/2}) and (e^{s^2} - 1) e^{2 mu + s^2}.

    >>> lognormal_moments(0.0, 0.0)
    MeanVariance(mean=1.0, variance=0.0)
    """
    if variance < 0:
        raise InputError(f"a variance is not negative: {variance}")
    mean_of_exp = np.exp(mean + variance / 2)
    return MeanVariance(float(mean_of_exp), float(np.expm1(variance) * mean_of_exp**2))


def ratio_moments(
    mean_i: float, mean_j: float, variance_i: float, variance_j: float, covariance: float = 0.0
) -> MeanVariance:
    """Mean and variance of p_i / p_j = exp(x_i - x_j), two probabilities of a softmax over normal scores.

    The difference is normal with variance s_i^2 + s_j^2 - 2 s_ij; the sum in the denominator of softmax cancels.
    """
    return lognormal_moments(mean_i - mean_j, variance_i + variance_j - 2 * covariance)


def sphere_ratio(n: int, radius: float) -> MeanVariance:
    """Mean and variance of p_i / p_j for scores uniform on a sphere of radius l in n dimensions: mean exp(l^2/n).

    Each coordinate has variance l^2/n (printed: l/n) and is nearly normal when n is large.

    >>> round(sphere_ratio(50, 3.0).mean, 3)
    1.197
    """
    return ratio_moments(0.0, 0.0, radius**2 / n, radius**2 / n)


def on_sphere(n: int, count: int, radius: float, random_state: int = 0) -> Array:
    """Draw `count` vectors uniformly from the sphere of a radius in n dimensions, (count, n)."""
    if n < 2:
        raise InputError(f"a sphere needs at least two dimensions, not {n}")
    x = np.random.default_rng(random_state).standard_normal((count, n))
    return np.asarray(radius * x / np.linalg.norm(x, axis=1, keepdims=True))


def softmax_entropy(scores: npt.ArrayLike) -> Array:
    """Entropy of softmax along the last axis, in nats.

    >>> round(float(softmax_entropy([0.0, 0.0])), 4)
    0.6931
    """
    p = np.exp(log_softmax(np.asarray(scores, dtype=float), axis=-1))
    return np.asarray(-xlogy(p, p).sum(axis=-1))


def entropy_of_sphere(n: int, radius: npt.ArrayLike) -> Array:
    """Mean entropy of softmax of a random vector of length l: log n - l^2/(2n), and 0 from l^2 = 2 n log n on.

    That is the random energy model (Derrida, 1981): beyond that length a few entries take all the weight.

    >>> entropy_of_sphere(100, [0.0, 100.0]).round(3)
    array([4.605, 0.   ])
    """
    return np.asarray(np.maximum(np.log(n) - np.asarray(radius, dtype=float) ** 2 / (2 * n), 0.0))


@dataclass(frozen=True, eq=False)
class RadiusEntropy:
    """Mean entropy of softmax by radius, (n_radius,): measured, its standard error, and what `entropy_of_sphere` says."""

    n: int
    radii: Array
    measured: Array
    error: Array
    predicted: Array


def entropy_by_radius(n: int, radii: Sequence[float], draws: int = 1000, random_state: int = 0) -> RadiusEntropy:
    """Entropy of softmax of random vectors of given lengths: uniform as l -> 0, one-hot as l grows."""
    unit = on_sphere(n, draws, 1.0, random_state)
    found = np.array([softmax_entropy(radius * unit) for radius in radii])
    error = found.std(axis=1, ddof=1) / np.sqrt(draws) if draws > 1 else np.full(len(radii), np.nan)
    return RadiusEntropy(n, np.asarray(radii, dtype=float), found.mean(axis=1), error, entropy_of_sphere(n, radii))


def slerp(v: npt.ArrayLike, w: npt.ArrayLike, t: float) -> Array:
    """Interpolate on the sphere from v (t = 0) to w (t = 1) along the last axis; both of the same length.

    [sin((1-t) a) v + sin(t a) w] / sin a, a the angle between them.

    >>> slerp([1.0, 0.0], [0.0, 1.0], 0.5)
    array([0.70710678, 0.70710678])
    """
    v, w = np.asarray(v, dtype=float), np.asarray(w, dtype=float)
    norms = np.linalg.norm(v, axis=-1), np.linalg.norm(w, axis=-1)
    if not np.allclose(*norms):
        raise InputError("both ends of a path on a sphere must have the same length")
    cosine = (v * w).sum(axis=-1) / (norms[0] * norms[1])
    angle = np.arccos(np.clip(cosine, -1, 1))
    sine = np.sin(angle)
    if (sine < 1e-12).any():
        raise InputError("the two vectors are parallel: there is no single shortest path between them")
    weights = np.sin((1 - t) * angle) / sine, np.sin(t * angle) / sine
    return np.asarray(weights[0][..., None] * v + weights[1][..., None] * w)


@dataclass(frozen=True, eq=False)
class Slerp:
    """KL(softmax(w) || softmax(v(t))) along the path from v to w, mean over orthogonal pairs; arrays (n_step,).

    `predicted` is (l^2/n)(1 - cos((1-t) pi/2)), the thesis' conjecture with its constants; not a theorem, since the
    softmax weights move with t. `relative_error` is the largest distance of a pair's curve from it, over the height of
    the higher of the two, mean over pairs: between 0 and 1. `spread` is the standard deviation of the curves. `errors`
    (2, pairs) are those of the pairs, from the conjecture and from a straight line of the same height.
    """

    n: int
    radius: float
    pairs: int
    t: Array
    measured: Array
    spread: Array
    predicted: Array
    errors: Array

    @property
    def relative_error(self) -> float:
        """Mean error of the conjecture over pairs."""
        return float(self.errors[0].mean())

    @property
    def mean_error(self) -> float:
        """The same of the mean curve, where the errors of single pairs cancel."""
        height = max(self.measured.max(), self.predicted.max())
        return float(np.abs(self.measured - self.predicted).max() / height)


def slerp_experiment(n: int, radius: float, pairs: int = 1000, steps: int = 21, random_state: int = 0) -> Slerp:
    """Interpolate between orthogonal vectors on a sphere and measure the divergence of their softmax (figure 5.1)."""
    if pairs < 2 or steps < 2 or not radius > 0:
        raise InputError(f"it takes two pairs, two steps and a radius above 0, not {pairs}, {steps} and {radius}")
    v, w = on_sphere(n, 2 * pairs, 1.0, random_state).reshape(2, pairs, n)
    w = w - (v * w).sum(axis=1, keepdims=True) * v
    w = w / np.linalg.norm(w, axis=1, keepdims=True)
    t = np.linspace(0, 1, steps)
    target = log_softmax(radius * w, axis=1)
    divergence = np.array(
        [(np.exp(target) * (target - log_softmax(radius * slerp(v, w, s), axis=1))).sum(axis=1) for s in t]
    )
    predicted = radius**2 / n * (1 - np.cos((1 - t) * np.pi / 2))
    height = np.maximum(divergence.max(axis=0), predicted[0])  # a pair of like one-hot vectors has a flat curve
    line = predicted[0] * (1 - t)
    off = np.array([np.abs(divergence - curve[:, None]).max(axis=0) / height for curve in (predicted, line)])
    curves = divergence.mean(axis=1), divergence.std(axis=1, ddof=1)
    return Slerp(n, radius, pairs, t, *curves, predicted, off)


class Combination(NamedTuple):
    """How far exp of a combination is from the sum of exps: largest absolute errors over entries."""

    shifted: float  # sum_i exp(lambda_i v_i) - (n - 1)
    second_order: float  # the same with the cross terms


def combination(vectors: npt.ArrayLike, weights: npt.ArrayLike) -> Combination:
    """Compare exp(sum_i lambda_i v_i), entry by entry, with sum_i exp(lambda_i v_i) - (n - 1).

    The difference is sum_{i<j} lambda_i lambda_j v_i v_j to second order (the thesis prints + (n - 1)). Vectors are
    (n, dim), weights (n,).
    """
    v, weight = np.asarray(vectors, dtype=float), np.asarray(weights, dtype=float)
    if v.ndim != 2 or weight.shape != (len(v),):
        raise InputError(f"{weight.shape} weights do not fit vectors of shape {v.shape}")
    parts = weight[:, None] * v
    exact = np.exp(parts.sum(axis=0))
    shifted = np.exp(parts).sum(axis=0) - (len(v) - 1)
    cross = (parts.sum(axis=0) ** 2 - (parts**2).sum(axis=0)) / 2
    return Combination(float(np.abs(exact - shifted).max()), float(np.abs(exact - shifted - cross).max()))
