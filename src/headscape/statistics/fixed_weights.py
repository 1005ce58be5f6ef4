"""What heads would output with fixed weights, the mean map of other inputs, beside what they do (Wertich 2024, ch. 7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.statistics.left_out import folds, without
from headscape.statistics.mixture import relative_difference

__all__ = ["Sums", "moments_off", "with_fixed_weights"]

Array = npt.NDArray[Any]
QUERIES = 64
"""Queries of a causal map whose outputs are one product of matrices."""


def with_fixed_weights(probs: Array, values: Array, first: int | None = None) -> Iterator[Array]:
    """By fold, outputs (n_input, n_query, dim) had each input been given the mean map of the others in the fold.

    Of probs (n_input, n_query, n_key) and values (n_input, n_key, dim). Every map is applied to every input once; where
    maps are causal, `first` is the position of the first query, and keys that no query of a block sees are left out.
    """
    n_input, n_query, n_key = probs.shape
    side_by_side = np.concatenate(values, axis=1)
    each = np.empty((n_input, n_query, n_input, values.shape[-1]))  # maps, queries, inputs
    for start in range(0, n_query, QUERIES):
        rows = probs[:, start : start + QUERIES]
        seen = n_key if first is None else first + start + rows.shape[1]
        product = rows[..., :seen].reshape(-1, seen) @ side_by_side[:seen]
        each[:, start : start + QUERIES] = product.reshape(*rows.shape[:2], n_input, -1)
    each = np.ascontiguousarray(each.swapaxes(1, 2))
    others = each.sum(axis=0) - each[np.arange(n_input), np.arange(n_input)]
    for fold in folds(n_input):
        left = others - each[fold - 1] if fold else others
        yield without(left, fold) / max(n_input - 1 - (fold > 0), 1)


class Sums(NamedTuple):
    """What covariances of tokens (n_input, n, dim) need: the tokens, and the sum of squares (n_input, dim, dim) of each."""

    tokens: Array
    squares: Array

    @classmethod
    def of(cls, tokens: Array) -> Sums:
        """Of the tokens."""
        return cls(tokens, tokens.swapaxes(1, 2) @ tokens)

    def mean(self, kept: Array) -> Array:
        """Mean (n, dim) over some of the inputs."""
        return np.asarray(self.tokens[kept].mean(axis=0))

    def covariance(self, kept: Array) -> Array:
        """Covariance (dim, dim) of some of the inputs, about the mean of each position where there are several, rescaled to compensate."""
        n_input, n = len(kept), self.tokens.shape[1]
        whole = self.squares[kept].sum(axis=0)
        if n_input < 2:
            return np.asarray(whole / n)
        mean = self.mean(kept)
        return np.asarray((whole - n_input * (mean.T @ mean)) / ((n_input - 1) * n))


def moments_off(measured: Sums, kept: Array, propagated: Sums) -> dict[str, float]:
    """How far the propagated moments are from those measured of the inputs `kept`."""
    every = np.arange(len(kept))
    S, S_p = measured.covariance(kept), propagated.covariance(every)
    trace = float(np.trace(S))
    found = {
        "mean_off": relative_difference(propagated.mean(every), measured.mean(kept)),
        "covariance_off": relative_difference(S_p, S),
        "trace_ratio": float(np.trace(S_p)) / trace if trace else float("nan"),
    }
    if len(kept) > 3:  # each half has a mean of its own
        halves = [measured.covariance(kept[start::2]) for start in (0, 1)]
        found["covariance_halves"] = relative_difference(*halves)
    return found
