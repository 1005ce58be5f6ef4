"""What attention does to Gaussians of tokens: the propagated joint, and how much tokens mix with depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from headscape.errors import InputError
from headscape.statistics.gaussian import (
    Gaussian,
    entropy,
    fit_gaussian,
    jensen_shannon,
    linear_map,
    mutual_information,
    principal_subspace,
)
from headscape.statistics.left_out import folds, without
from headscape.statistics.spectra import energy_rank

__all__ = [
    "Spread",
    "Weights",
    "attention_step",
    "energy_rank",
    "information_between",
    "position_divergence",
    "position_share",
    "propagate",
    "relative_difference",
    "spread_by_depth",
    "token_entropy",
    "token_spread",
]

Array = npt.NDArray[Any]
COMPONENTS, PARTS, DRAWS, SHUFFLES = 8, 3, 1000, 3
"""Of `position_divergence`: principal components, parts of the text, draws behind a divergence, shuffles of its null."""


def propagate(joint: Gaussian, A: npt.ArrayLike, Wv: npt.ArrayLike) -> Gaussian:
    """The joint Gaussian of tokens after attention with fixed weights: (A kron Wv) applied to that before.

    The joint is of n consecutive tokens of d dimensions; A is (m, n), Wv (d_out, d), the result m tokens of d_out
    dimensions. Real attention depends on the tokens, so this is an approximation: report the measured covariance with it.

    >>> both = Gaussian([0, 2], np.eye(2))  # two tokens of one dimension
    >>> propagate(both, [[0.5, 0.5]], [[1.0]]).mean
    array([1.])
    """
    A, Wv = np.asarray(A, dtype=float), np.asarray(Wv, dtype=float)
    if A.ndim != 2 or Wv.ndim != 2 or A.shape[1] * Wv.shape[1] != joint.dim:
        raise InputError(
            f"weights {A.shape} and a value map {Wv.shape} take {A.shape[-1]} x {Wv.shape[-1]} numbers, the joint has "
            f"{joint.dim}"
        )
    return linear_map(joint, np.kron(A, Wv))


def _token(joint: Gaussian, n_tokens: int, tokens: Sequence[int]) -> Gaussian:
    dim, rest = divmod(joint.dim, n_tokens)
    if rest:
        raise InputError(f"a joint of {joint.dim} dimensions does not hold {n_tokens} tokens")
    if not all(0 <= token < n_tokens for token in tokens):
        raise InputError(f"there are tokens 0 to {n_tokens - 1}, not {list(tokens)}")
    return joint.marginal(np.concatenate([np.arange(token * dim, (token + 1) * dim) for token in tokens]))


def token_entropy(joint: Gaussian, n_tokens: int, token: int) -> float:
    """Entropy of one token of a joint of n tokens, in nats."""
    return entropy(_token(joint, n_tokens, [token]))


def information_between(joint: Gaussian, n_tokens: int, first: int, second: int) -> float:
    """Mutual information of two tokens of a joint of n tokens, in nats."""
    if first == second:
        raise InputError(f"token {first} has no finite mutual information with itself; name two tokens")
    return mutual_information(_token(joint, n_tokens, [first, second]), joint.dim // n_tokens)


def relative_difference(found: npt.ArrayLike, wanted: npt.ArrayLike) -> float:
    """||found - wanted|| / ||wanted||, Frobenius; infinite when only `wanted` is 0."""
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    size, off = float(np.linalg.norm(wanted)), float(np.linalg.norm(found - wanted))
    return off / size if size else (0.0 if not off else float("inf"))


class Weights(NamedTuple):
    """The maps of one layer of pure attention; queries and keys (d_h, d), values (d, d)."""

    query: Array
    key: Array
    value: Array


def attention_step(X: npt.ArrayLike, weights: Weights, *, skip: float = 0.0, causal: bool = False) -> Array:
    """One layer on tokens X (n, d): (1 - skip) softmax(Q K^T / sqrt(d_h)) V + skip X."""
    X = np.asarray(X, dtype=float)
    Q, K, V = (X @ np.asarray(w, dtype=float).T for w in weights)
    scores = Q @ K.T / np.sqrt(Q.shape[1])
    if causal:
        scores = np.where(np.tri(len(X), dtype=bool), scores, -np.inf)
    return np.asarray((1 - skip) * softmax(scores, axis=1) @ V + skip * X)


class Spread(NamedTuple):
    """How different tokens are: `residual` is ||X - mean|| / ||X||, `cosine` the mean cosine over pairs of tokens."""

    residual: float
    cosine: float


def token_spread(X: npt.ArrayLike) -> Spread:
    """How different the tokens X (n, d) are; residual 0 and cosine 1 when all are equal.

    >>> token_spread([[1, 0], [1, 0]]), token_spread([[1, 0], [-1, 0]])
    (Spread(residual=0.0, cosine=1.0), Spread(residual=1.0, cosine=-1.0))
    """
    X = np.asarray(X, dtype=float)
    if X.ndim != 2 or len(X) < 2:
        raise InputError(f"tokens of shape {X.shape}: a spread needs two or more rows")
    residual = relative_difference(np.broadcast_to(X.mean(axis=0), X.shape), X)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    total = (X / np.where(norms > 0, norms, 1)).sum(axis=0)
    n, present = len(X), int((norms > 0).sum())
    return Spread(residual, float((total @ total - present) / (n * (n - 1))))


def spread_by_depth(X: npt.ArrayLike, layers: Sequence[Weights], **options: Any) -> list[Spread]:
    """Spread of the tokens before the first layer and after every layer of pure attention.

    Tokens are rescaled as a whole after every layer, or they would grow or vanish. Hypothesis 7.2.3 of the thesis (all
    tokens converge) holds for random weights and fails for Wq = Wk = Wv = 2I: see the tests.
    """
    X = np.asarray(X, dtype=float)
    size = np.linalg.norm(X)
    found = [token_spread(X)]
    step: Callable[..., Array] = attention_step
    for weights in layers:
        X = step(X, weights, **options)
        X = X * (size / np.linalg.norm(X))
        found.append(token_spread(X))
    return found


def position_divergence(tokens: npt.ArrayLike, seed: int = 0, left_out: bool = False) -> Array:
    """How far the distributions of positions are apart: Jensen-Shannon divergence (nats) of Gaussians, and its null.

    Positions of tokens (n_input, n_position, d) in thirds, each third's tokens as a Gaussian in the 8 leading principal
    components of all; the mean over the three pairs. The null is the same with the tokens assigned to thirds at random.
    Returns (1, 2), or with `left_out` (1 + n_input, 2): of all inputs, then with each left out.
    """
    T = np.asarray(tokens, dtype=float)
    projected = principal_subspace(T.reshape(-1, T.shape[-1]), min(COMPONENTS, T.shape[-1])).project(T)
    return np.array([_divergence(without(projected, fold), seed) for fold in (folds(len(T)) if left_out else (0,))])


def _divergence(projected: Array, seed: int) -> tuple[float, float]:
    flat = projected.reshape(-1, projected.shape[-1])
    third = np.tile(np.arange(projected.shape[1]) * PARTS // projected.shape[1], len(projected))
    rng, found = np.random.default_rng(seed), []
    for labels in (third, *(rng.permutation(third) for _ in range(SHUFFLES))):
        parts = [fit_gaussian(flat[labels == k]) for k in range(PARTS)]
        found.append(np.mean([jensen_shannon(p, q, DRAWS, seed).value for p, q in combinations(parts, 2)]))
    return float(found[0]), float(np.mean(found[1:]))


def position_share(tokens: npt.ArrayLike) -> float:
    """Share of the variance of tokens (n_input, n_position, d) that their position explains, corrected for noise.

    With S_b the variance of the position means and S_w that within a position, (S_b - S_w / (n_input - 1)) /
    (S_b + S_w), at least 0. The positions of a text share one distribution from the start, so convergence of
    distributions says little about the tokens.
    """
    T = np.asarray(tokens, dtype=float)
    if T.ndim != 3 or len(T) < 2:
        raise InputError(
            f"tokens of shape {T.shape}: the share of positions needs (n_input, n_position, d), two inputs"
        )
    means = T.mean(axis=0)
    between = float(((means - means.mean(axis=0)) ** 2).sum() / len(means))
    within = float(((T - means) ** 2).sum() / (len(T) * len(means)))
    whole = between + within
    return max(0.0, (between - within / (len(T) - 1)) / whole) if whole else 0.0
