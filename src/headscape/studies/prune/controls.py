"""Controls of the entropies as criteria: the same measure on trees that know nothing, and on the natural order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headscape.captures import Capture
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import head_entropies

if TYPE_CHECKING:
    from headscape.studies.organize.result import OrganizeResult

__all__ = ["control_entropies"]


def control_entropies(captured: Capture, organised: OrganizeResult, seed: int = 0) -> pd.DataFrame:
    """Mean over batches of l1_all on the organised trees with permuted leaves, and on dyadic trees: one row a head.

    Without columns where the study kept no trees.
    """
    if len(organised.query_trees) != len(captured):  # a study of an older version kept no trees
        return pd.DataFrame(index=organised.to_frame().index)
    rng = np.random.default_rng(seed)
    found: dict[str, list[pd.Series[float]]] = {"l1_all_random": [], "l1_all_natural": []}
    for i, trees in enumerate(zip(organised.query_trees, organised.key_trees, strict=True)):
        X = captured.tensor(i, organised.block)
        random = [tree.permute(rng.permutation(tree.n_leaves)) for tree in trees]
        natural = [PartitionTree.dyadic(tree.n_leaves) for tree in trees]
        for name, chosen in (("l1_all_random", random), ("l1_all_natural", natural)):
            found[name].append(head_entropies(X.values, chosen)["l1_all"])
    return pd.DataFrame({name: np.mean(several, axis=0) for name, several in found.items()})
