"""The unit of work: one batch organized, and its null, in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.captures import Capture, open_capture
from headscape.compiled import kernel_threads
from headscape.geometry.questionnaire import Questionnaire
from headscape.roles import batch_roles, positional
from headscape.storage import read_arrays, write_arrays
from headscape.studies.organize.result import DECAY_RANKS, ENTROPIES
from headscape.tensor import AttentionTensor, Kind
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import decay_curve, head_entropies, network_entropy, top_energy

__all__ = [
    "Arrays",
    "measure_batch",
    "measure_trees",
    "n_basis_of",
    "read_batch",
    "shuffled_rows",
    "tensor_shape",
    "unit_memory",
]

HELD, BESIDE = 12, 28
"""Bytes per entry: of a batch as it is read, its tensor and its null; and of entropies and curves at their peak."""
LIBRARIES = 64e6
"""Bytes of compiled kernels and scratch arrays, whatever the shape."""
N_HEAD_BASIS, N_NETWORK_BASIS = 400, 100  # the paper's numbers of largest supports
PAPER_COEFFICIENTS, LEAST_BASIS = 256**2, 16
"""Coefficients of a head in the paper, of which l1_top takes 400, and the fewest that it takes."""
Arrays = Mapping[str, npt.NDArray[Any]]


def tensor_shape(captured: Capture, block: str, kind: Kind) -> tuple[int, int, int]:
    """(n_query, n_key, n_head) of the first batch, of which one layer is read."""
    first = captured.batch(0)
    n_query, n_key = first.read(f"{kind}/{block}.{next(iter(first.info['layers'][block]))}").shape[1:]
    return n_query, n_key, len(captured.heads(block))


def unit_memory(shape: tuple[int, int, int], fit: float) -> float:
    """Bytes above the interpreter that a batch takes at its peak, if its fit takes `fit`."""
    entries = math.prod(shape)
    return LIBRARIES + HELD * entries + max(fit, BESIDE * entries)


def n_basis_of(captured: Capture, block: str, kind: Kind) -> int:
    """How many largest supports l1_top takes of heads of this size."""
    n_query, n_key, _ = tensor_shape(captured, block, kind)
    share: float = n_query * n_key / PAPER_COEFFICIENTS
    return max(LEAST_BASIS, round(N_HEAD_BASIS * share))


def measure_batch(
    path: Path,
    source: Capture | Path,
    i: int,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    threads: int,
    seed: int,
) -> None:
    """Organize batch i (of the block and kind of the facts) and its null, and write both."""
    captured = open_capture(source)
    X = captured.tensor(i, facts["block"], facts["kind"])
    n_basis = facts["n_basis"]
    with kernel_threads(threads):
        null = _measure(shuffled_rows(X, seed), settings, n_basis)
        arrays = _measure(X, settings, n_basis)
    arrays |= {f"null_{name}": null[name] for name in ("entropies", "network", "decay", "network_decay", "energy")}
    chance: dict[str, float] = {}
    if X.kind == "probs" and "clusters" not in captured.info:  # clusters of tokens have no places
        found = batch_roles(X)
        arrays |= {f"role/{name}": scores for name, scores in found.scores.items()} | {"positional": positional(X)}
        chance = {name: found.chance.get(name, float("nan")) for name in found.scores}
    write_arrays(path, arrays, {"chance": json.dumps(chance)})


def read_batch(path: Path) -> Arrays:
    """What a unit kept, with its roles and their chance as arrays."""
    arrays, metadata = read_arrays(path)
    chance = json.loads(metadata["chance"])  # by role, in the order of the roles
    return arrays | {"roles": np.array(list(chance)), "chance": np.array(list(chance.values()))}


def _measure(X: AttentionTensor, settings: Mapping[str, Any], n_basis: int) -> dict[str, npt.NDArray[Any]]:
    """Everything the study keeps of one tensor, as named arrays."""
    fit = Questionnaire(**settings).fit(X)
    found = measure_trees(X, fit.trees_, n_basis) | {
        "head_distances": np.asarray(fit.distances_[2], dtype=np.float64),
        "compression": np.array([step.compression for step in fit.history_]),
        "sketch_error": np.array(fit.sketch_error_),
    }
    for name, tree in zip(("query", "key", "head"), fit.trees_, strict=True):
        found[f"labels_{name}"] = tree.labels.astype(np.int32)
        found[f"order_{name}"] = tree.order.astype(np.int32)
    return found


def measure_trees(
    X: AttentionTensor, trees: Sequence[PartitionTree], n_basis: int = N_HEAD_BASIS
) -> dict[str, npt.NDArray[Any]]:
    """What the study keeps of a tensor beside its geometry: entropies, decay curves and energies, given its trees.

    Rows of probabilities sum to 1, so that the coefficients constant over keys are known: curves leave them out.
    """
    entropies = head_entropies(X, trees, n_basis)
    network = network_entropy(X, trees, N_NETWORK_BASIS)
    without = 1 if X.kind == "probs" else None
    by_size = decay_curve(X, trees, by="magnitude", per="head", n=N_HEAD_BASIS, without=without)
    by_support = decay_curve(X, trees, by="support", per="head", n=N_HEAD_BASIS, without=without)
    network_decay = decay_curve(X, trees, by="support", n=N_NETWORK_BASIS, without=without)
    natural = [PartitionTree.dyadic(n) for n in X.shape]
    return {
        "entropies": entropies[list(ENTROPIES)].to_numpy(dtype=np.float64).T.copy(),
        "network": network[list(ENTROPIES)].to_numpy(dtype=np.float64),
        "decay": by_size[[rank for rank in DECAY_RANKS if rank < len(by_size)]].astype(np.float32),
        "decay_by_support": by_support.astype(np.float32),
        "network_decay": network_decay.astype(np.float32),
        "energy": np.array([top_energy(X, tree, constant=False) for tree in (trees, natural)]),
    }


def shuffled_rows(X: AttentionTensor, random_state: int = 0) -> AttentionTensor:
    """The null: the present entries of every (query, head) row in a random order of keys.

    Rows keep their sums and their values; only where the attention goes is lost.
    """
    rng = np.random.default_rng(random_state)
    values = X.values.copy()
    for query, present in enumerate(X.present):
        values[query, present] = rng.permuted(values[query, present], axis=0)
    return replace(X, values=values)
