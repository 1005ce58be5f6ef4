"""Gaussians of tokens: of several consecutive ones, of two at a distance, and of the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.statistics.gaussian import Gaussian, Subspace, fit_gaussian, mutual_information, principal_subspace

__all__ = [
    "DistanceInformation",
    "PairInformation",
    "TokenMixture",
    "Window",
    "information_by_distance",
    "next_token_mixture",
    "pair_information",
    "window_gaussian",
]

Array = npt.NDArray[Any]


class Window(NamedTuple):
    """The joint Gaussian of consecutive tokens, token by token, each in the coordinates of one subspace."""

    gaussian: Gaussian
    subspace: Subspace

    def block(self, i: int, j: int) -> Array:
        """Covariance S_ij of the i-th with the j-th token of the window."""
        k = self.subspace.dim
        return self.gaussian.covariance[i * k : (i + 1) * k, j * k : (j + 1) * k]


def window_gaussian(
    sequences: Sequence[npt.ArrayLike], width: int, n_components: int = 32, shrinkage: float | None = None
) -> Window:
    """The joint Gaussian of `width` consecutive tokens, from all windows of all sequences (n_token, dim).

    Each token is first projected on the principal components of all tokens: the joint covariance of n tokens of
    dimension d is (n d, n d), and no text is long enough to fit that. `subspace.kept` is the share of variance kept.
    """
    tokens = [np.asarray(s, dtype=float) for s in sequences]
    if width < 1 or not any(len(s) >= width for s in tokens):
        raise InputError(f"no sequence has {width} tokens; the longest has {max(map(len, tokens), default=0)}")
    subspace = principal_subspace(np.concatenate(tokens), n_components)
    rows = [
        np.lib.stride_tricks.sliding_window_view(subspace.project(s), width, axis=0)
        .swapaxes(1, 2)
        .reshape(-1, width * subspace.dim)
        for s in tokens
        if len(s) >= width
    ]
    return Window(fit_gaussian(np.concatenate(rows), shrinkage), subspace)


@dataclass(frozen=True, eq=False)
class DistanceInformation:
    """Mutual information of two tokens by their distance: arrays (n_distance,), in nats.

    `null` is that of as many pairs with shuffled partners, which is not 0 for a finite sample. `error` is the standard
    error of information minus null by the jackknife over sequences, NaN for a single one.
    """

    distances: npt.NDArray[np.int64]
    information: Array
    null: Array
    error: Array
    shrinkage: Array
    subspace: Subspace

    @property
    def excess(self) -> Array:
        """Information beyond that of shuffled pairs."""
        return self.information - self.null


def information_by_distance(
    sequences: Sequence[npt.ArrayLike],
    distances: Sequence[int],
    n_components: int = 32,
    random_state: int = 0,
    n_shuffles: int = 5,
) -> DistanceInformation:
    """I(x_i; x_{i+r}) of Gaussians fitted to all pairs of tokens at distance r, in a principal subspace."""
    tokens = [np.asarray(s, dtype=float) for s in sequences]
    longest = max(map(len, tokens), default=0)
    if not distances or min(distances) < 1 or max(distances) >= longest - 1:
        raise InputError(f"distances {list(distances)} must lie between 1 and {longest - 2}: a sequence of {longest}")
    subspace = principal_subspace(np.concatenate(tokens), n_components)
    projected = [subspace.project(s) for s in tokens]
    rows = []
    for r in distances:
        pairs = [(s[:-r], s[r:]) for s in projected if len(s) > r]

        def measure(pairs: list[tuple[Array, Array]], n_shuffles: int) -> PairInformation:
            x, y = (np.concatenate(side) for side in zip(*pairs, strict=True))
            return pair_information(x, y, random_state, n_shuffles)

        whole = measure(pairs, n_shuffles)
        left_out = [measure(pairs[:i] + pairs[i + 1 :], 1) for i in range(len(pairs))] if len(pairs) > 1 else []
        error = _jackknife([part.information - part.null for part in left_out])
        rows.append((whole.information, whole.null, error, whole.shrinkage))
    found = np.array(rows).T
    return DistanceInformation(np.asarray(distances, dtype=np.int64), found[0], found[1], found[2], found[3], subspace)


class PairInformation(NamedTuple):
    """Mutual information of pairs, and after shuffling the partners, both in nats; and the shrinkage."""

    information: float
    null: float
    shrinkage: float


def pair_information(x: npt.ArrayLike, y: npt.ArrayLike, random_state: int = 0, n_shuffles: int = 5) -> PairInformation:
    """I(x; y) of the Gaussian fitted to pairs x (n, k) and y (n, m), beside its mean over shuffled partners.

    In a finite sample shuffled pairs show some information too, about k m / 2n: only what exceeds it counts.
    """
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    fitted = fit_gaussian(np.hstack([x, y]))
    rng = np.random.default_rng(random_state)
    # the same shrinkage: it is a part of the estimate whose error the null shows
    shuffled = [
        mutual_information(fit_gaussian(np.hstack([x, y[rng.permutation(len(y))]]), fitted.shrinkage), x.shape[1])
        for _ in range(n_shuffles)
    ]
    null = float(np.mean(shuffled)) if shuffled else 0.0
    return PairInformation(mutual_information(fitted, x.shape[1]), null, fitted.shrinkage)


def _jackknife(values: Sequence[float]) -> float:
    """Standard error of an estimate, from its values with one part left out at a time."""
    n = len(values)
    return float(np.sqrt((n - 1) * np.var(values))) if n > 1 else float("nan")


@dataclass(frozen=True, eq=False)
class TokenMixture:
    """The next token as a distribution of embeddings: `mean` (dim,) and a root of the covariance, `factor` (dim, k)."""

    mean: Array
    factor: Array

    @property
    def covariance(self) -> Array:
        """sum_i lambda_i v_i v_i^T - mu mu^T, (dim, dim)."""
        return self.factor @ self.factor.T

    @property
    def spectrum(self) -> Array:
        """Its k largest eigenvalues, descending, from the k x k Gram matrix; the rank is at most k - 1."""
        values: Array = np.linalg.eigvalsh(self.factor.T @ self.factor)[::-1]
        return np.maximum(values, 0.0)


def next_token_mixture(vectors: npt.ArrayLike, weights: npt.ArrayLike) -> TokenMixture:
    """Mean and covariance of the next token's embedding: v_i (k, dim) with probabilities lambda_i (k,).

    Weights are scaled to sum to 1. The covariance is sum lambda_i v_i v_i^T - mu mu^T; the thesis weights by
    lambda_i^2 and does not centre.

    >>> next_token_mixture([[0, 0], [2, 0]], [0.5, 0.5]).covariance
    array([[1., 0.],
           [0., 0.]])
    """
    v, p = np.asarray(vectors, dtype=float), np.asarray(weights, dtype=float)
    if v.ndim != 2 or p.shape != (len(v),):
        raise InputError(f"{p.shape} weights do not fit vectors of shape {v.shape}")
    if not (p >= 0).all() or not p.sum() > 0:
        raise InputError("weights of next tokens are probabilities: at least 0, and not all 0")
    p = p / p.sum()
    mean = p @ v
    return TokenMixture(mean, ((v - mean) * np.sqrt(p)[:, None]).T)
