"""All batches in one result: consensus, tables, and the landscape as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.captures import Capture
from headscape.geometry.consensus import consensus_of
from headscape.geometry.distances import dip, mantel, mantel_permuted, pairs_of, ring_dips
from headscape.geometry.matrix import organize_matrix
from headscape.geometry.questionnaire import Questionnaire
from headscape.studies.organize.heads import head_table
from headscape.studies.organize.result import OrganizeResult
from headscape.studies.organize.units import Arrays
from headscape.tensor import AttentionTensor, HeadId
from headscape.tree import PartitionTree

__all__ = ["summarize"]

FEWEST_HEADS = 8
"""Fewest heads for which statistics of all distances are computed."""
PERMUTATIONS, RINGS = 300, 60


def summarize(
    captured: Capture,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    batches: Sequence[Arrays],
    controls: Sequence[Arrays],
    probes: Arrays,
) -> OrganizeResult:
    """The result of all batches; `probes` are the columns that the model itself gave."""
    agreed = consensus_of([found["head_distances"] for found in batches], Questionnaire(**settings))
    heads = captured.heads(facts["block"])
    frame, roles = head_table(heads, facts["kind"], batches, probes)

    def stack(name: str, of: Sequence[Arrays] = batches) -> npt.NDArray[Any]:
        shortest = min(len(found[name]) for found in of)  # curves of shorter inputs end earlier
        return np.array([found[name][:shortest] for found in of])

    def tree(found: Arrays, axis: str) -> PartitionTree:
        return PartitionTree.from_labels(found[f"labels_{axis}"], order=found[f"order_{axis}"])

    ends = [heads[int(at(frame["l1_all"]))] for at in (np.argmin, np.argmax)]
    shown = [HeadId.parse(head) for head in facts["heads"]] or list(dict.fromkeys(ends))
    tokens = captured.batch(0).tokens(facts["block"])
    return OrganizeResult(
        block=facts["block"],
        kind=facts["kind"],
        heads=frame,
        roles=roles,
        tree=agreed.tree,
        distances=agreed.distances,
        affinity=agreed.affinity,
        **{name: stack(name) for name in ("entropies", "null_entropies", "network", "null_network")},
        **{name: stack(name) for name in ("energy", "null_energy", "network_decay", "null_network_decay")},
        control_energy=stack("energy", controls) if controls else None,
        control_null_energy=stack("null_energy", controls) if controls else None,
        control_entropies=stack("entropies", controls) if controls else None,
        decay=stack("decay").mean(axis=0),
        null_decay=stack("null_decay").mean(axis=0),
        decay_by_support=batches[0]["decay_by_support"],
        compression=np.array([found["compression"][-1] for found in batches]),
        query_trees=[tree(found, "query") for found in batches],
        key_trees=[tree(found, "key") for found in batches],
        maps=_drawn(captured.tensor(0, facts["block"], facts["kind"]), shown, settings),
        tokens=dict(zip(("query", "key"), tokens, strict=True)),
        settings=dict(facts),
        **_landscape(heads, agreed.distances, batches, facts["seed"]),
    )


def _landscape(
    heads: Sequence[HeadId], agreed: npt.NDArray[Any], batches: Sequence[Arrays], seed: int
) -> dict[str, npt.NDArray[Any]]:
    """Statistics of all distances between heads, and how the fits converged."""
    steps = [found["compression"] for found in batches]
    most = max(map(len, steps))
    found = {"convergence": np.array([np.pad(s, (0, most - len(s)), constant_values=np.nan) for s in steps])}
    if len(heads) < FEWEST_HEADS:
        return found
    layers = np.array([head.layer for head in heads])
    apart = np.abs(layers[:, None] - layers)
    if apart.any():
        found["depth"] = np.array([mantel(one["head_distances"], apart) for one in batches])
        found["depth_permuted"] = mantel_permuted(agreed, apart, PERMUTATIONS, seed)
    found["dip"] = np.array([dip(pairs_of(one["head_distances"])) for one in batches])
    return found | {"dip_ring": ring_dips(len(heads), RINGS, seed)}


def _drawn(
    X: AttentionTensor, shown: Sequence[HeadId], settings: Mapping[str, Any]
) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Heads of the first batch, with the orders of their own 2-D organization (figure 1).

    An absent entry is given the mean of its row, so that it does not influence which keys a query prefers.
    """
    found = {}
    for head in shown:
        values = np.where(X.present, X.values[:, :, X.heads.index(head)], np.nan)
        filled = np.where(X.present, values, np.nanmean(values, axis=1, keepdims=True))
        own = organize_matrix(filled, Questionnaire(**settings))
        orders = {"query_order": own.row_order.astype(np.int32), "key_order": own.col_order.astype(np.int32)}
        found[str(head)] = {"values": values.astype(np.float32), **orders}
    return found
