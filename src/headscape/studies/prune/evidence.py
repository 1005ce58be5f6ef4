"""What the organize study of a run adds to the evidence: entropies with their controls, distances, and the tree."""

from __future__ import annotations

import numpy as np
import pandas as pd

from headscape.captures import Capture
from headscape.pruning.evidence import Evidence
from headscape.studies.organize.result import OrganizeResult
from headscape.studies.work.folder import kept_studies
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import head_entropies

__all__ = ["add_organized", "control_entropies"]


def add_organized(evidence: Evidence, captured: Capture) -> str | None:
    """Add the newest organize study of the same block on probabilities; returns its key, None where there is none."""
    if captured.run is None:
        return None
    for kept in reversed(kept_studies(captured.run, OrganizeResult.study)):
        settings = kept.facts.get("settings", {})
        if kept.finished and (settings.get("block"), settings.get("kind")) == (evidence.heads[0].block, "probs"):
            organized = OrganizeResult.load(kept.path)
            controls = control_entropies(captured, organized, evidence.seed)
            evidence.frame = pd.concat([organized.to_frame(), controls], axis=1)
            evidence.distances, evidence.tree = organized.distances, organized.tree
            return kept.path.name
    return None


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
