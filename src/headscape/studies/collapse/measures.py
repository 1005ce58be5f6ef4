"""What the collapse study measures of the hidden states and attention rows of one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.collapse.residual import effective_rank, relative_residual
from headscape.collapse.similarity import histogram, layer_histograms
from headscape.tensor import AttentionTensor, MaskKind

__all__ = ["measures", "present_of"]

Array = npt.NDArray[Any]


def measures(
    states: npt.ArrayLike | None, labels: npt.ArrayLike | None, entropies: Mapping[int, Array]
) -> dict[str, Array]:
    """Measures of hidden states (n_layer + 1, n_token, width) and, by layer, of entropies of rows (n_head, n_query).

    residual, rank (n_layer + 1,); similarity and, if there is a label per token, different: histograms
    (n_layer + 1, n_bin) over pairs of tokens and over pairs with different labels; entropy (n_head,): the mean over
    rows, heads layer by layer; entropies (n_layer, n_bin): histograms over heads and rows. What is unknown is left out.
    """
    found: dict[str, Array] = {}
    if states is not None:
        X = np.asarray(states, dtype=np.float64)
        found["residual"] = np.asarray(relative_residual(X))
        found["rank"] = np.asarray(effective_rank(X))
        found["similarity"] = layer_histograms(X).astype(np.int32)
        if labels is not None and len(np.asarray(labels)) == X.shape[1]:
            found["different"] = layer_histograms(X, labels).astype(np.int32)
    if entropies:
        rows = [entropies[layer] for layer in sorted(entropies)]
        known = [r[:, ~np.isnan(r).all(axis=0)] for r in rows]
        found["entropy"] = np.concatenate([r.mean(axis=1) if r.shape[1] else np.full(len(r), np.nan) for r in known])
        found["entropies"] = np.stack([histogram(r.ravel()) for r in known])
    return found


def present_of(mask: MaskKind, shape: tuple[int, ...]) -> Array:
    """Which entries of a map (n_query, n_key) exist."""
    return AttentionTensor(np.zeros((*shape, 1), dtype=np.float32), mask=mask).present
