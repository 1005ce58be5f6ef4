"""What the organize study of a run adds to the evidence: entropies with their controls, distances, and the tree."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headscape.attention.induction import repeated_sequence_scores
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.pruning.evidence import Evidence
from headscape.roles import BEYOND, ENOUGH, MIXED
from headscape.studies.organize.result import OrganizeResult
from headscape.studies.work.folder import kept_studies
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import head_entropies

__all__ = ["add_organized", "control_entropies", "roles_of"]


def add_organized(evidence: Evidence, captured: Capture, controls: bool = True) -> str | None:
    """Add the newest organize study of the same block on probabilities; returns its key, None where there is none.

    `controls` adds entropies on permuted leaves and on dyadic trees.
    """
    if captured.run is None:
        return None
    for kept in reversed(kept_studies(captured.run, OrganizeResult.study)):
        settings = kept.facts.get("settings", {})
        if kept.finished and (settings.get("block"), settings.get("kind")) == (evidence.heads[0].block, "probs"):
            organized = kept.result(captured.run, OrganizeResult)
            more = [control_entropies(captured, organized, evidence.seed)] if controls else []
            evidence.frame = pd.concat([organized.to_frame(), *more], axis=1)
            evidence.distances, evidence.tree = organized.distances, organized.tree
            return kept.path.name
    return None


def roles_of(evidence: Evidence) -> list[str] | None:
    """The role of every head: from the organize study, or induction and duplicate heads of a decoder alone."""
    if evidence.frame is not None and "role" in evidence.frame:
        return [str(role) for role in evidence.frame["role"]]
    try:
        found = repeated_sequence_scores(evidence.network, seed=evidence.seed)
    except InputError:
        return None
    names = [name for name in found if name != "chance"]
    rows = [{name: found[name][head] for name in names} for head in evidence.heads]
    chance = [found["chance"][head] for head in evidence.heads]
    best = [max(row, key=lambda name: row[name]) for row in rows]
    held = [row[name] >= max(ENOUGH, c + BEYOND) for row, name, c in zip(rows, best, chance, strict=True)]
    return [name if yes else MIXED for name, yes in zip(best, held, strict=True)]


def control_entropies(captured: Capture, organized: OrganizeResult, seed: int = 0) -> pd.DataFrame:
    """Mean over batches of l1_all on the organized trees with permuted leaves, and on dyadic trees: one row per head."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[pd.Series[float]]] = {"l1_all_random": [], "l1_all_natural": []}
    for i, trees in enumerate(zip(organized.query_trees, organized.key_trees, strict=True)):
        X = captured.tensor(i, organized.block)
        random = [tree.permute(rng.permutation(tree.n_leaves)) for tree in trees]
        natural = [PartitionTree.dyadic(tree.n_leaves) for tree in trees]
        for name, chosen in (("l1_all_random", random), ("l1_all_natural", natural)):
            found[name].append(head_entropies(X.values, chosen)["l1_all"])
    return pd.DataFrame({name: np.mean(several, axis=0) for name, several in found.items()})
