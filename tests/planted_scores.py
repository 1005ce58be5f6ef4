"""Scores of attention with a structure that is known, and runs of them."""

import numpy as np

import headscape as hs


def scores_of(n_batch=2, n_layer=2, n_head=2, n=24, size=1.5, seed=0):
    """Smooth scores with hidden groups of queries and keys, and noise: (batch, layer, head, query, key)."""
    rng = np.random.default_rng(seed)
    q, k = rng.normal(size=(2, n_batch, n_layer, n_head, n, 3))
    return size * (q @ k.swapaxes(-1, -2)) / 2 + 0.3 * rng.normal(size=(n_batch, n_layer, n_head, n, n))


def imported(folder, scores, mask="causal", kind="scores"):
    np.save(folder / "scores.npy", scores)
    layout = "batch,layer,head,query,key"
    hs.import_array(folder / "scores.npy", folder / "run", layout=layout, kind=kind, mask=mask, dtype="float32")
    return folder / "run"
