"""What the collapse study measures of the hidden states and attention rows of one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.captures import Capture, open_capture
from headscape.collapse.residual import effective_rank, relative_residual, roundoff
from headscape.collapse.similarity import attention_entropy, histogram, layer_histograms
from headscape.storage import write_arrays
from headscape.tensor import AttentionTensor, MaskKind

__all__ = ["measure_stored", "measures", "present_of"]

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


def measure_stored(path: Path, shown: Capture | Path, i: int, block: str) -> None:
    """Measure what a capture kept of input i, and write it."""
    captured = open_capture(shown)
    batch = captured.batch(i)
    mask = batch.info["blocks"][block]["mask"]
    entropies = {}
    for layer in batch.info["layers"][block] if "probs" in captured.kept else ():
        maps = batch.read(f"probs/{block}.{layer}").astype(np.float64)
        maps /= maps.sum(axis=-1, keepdims=True)  # of float16 rows
        entropies[int(layer)] = attention_entropy(maps, present_of(mask, maps.shape[1:]))
    name = f"hidden/{block.removesuffix('.cross')}"
    states = batch.read(name) if name in batch.names else None
    found = measures(states, captured.input_ids(i), entropies)
    if states is not None:  # computed in float32, then rounded once
        found["floor"] = np.array(max(roundoff(float(np.finfo(np.float32).eps)), np.finfo(states.dtype).eps))
    write_arrays(path, found)
