"""What the organize study found: its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.geometry.diffusion import diffusion_map
from headscape.intervals import Interval, geometric_interval
from headscape.results import few
from headscape.roles import BLOCK_ROLES, ROLES, role_name
from headscape.studies.organize.clusters import FolderRole, name_folders
from headscape.studies.organize.stability import Stability, stability
from headscape.studies.work.result import StudyResult
from headscape.tree import PartitionTree

__all__ = ["DECAY_RANKS", "ENTROPIES", "MEANINGS", "OrganizeResult"]

ENTROPIES = ("l1_top", "l1_all", "dc", "l1_rel", "shannon")
MEANINGS = {
    "l1_top": "size of a head's coarsest Haar coefficients",
    "l1_all": "size of all Haar coefficients of a head",
    "l1_rel": "spread of a head's energy over its Haar coefficients",
    "shannon": "Shannon entropy of a head's Haar energies",
}
COLUMNS = {
    **MEANINGS,
    **{f"{name}_null": f"{meaning}, with every row shuffled" for name, meaning in MEANINGS.items()},
    **{role: f"role, from 0 to 1: {what}" for role, what in (ROLES | BLOCK_ROLES).items()},
    "positional": "share of the variance of its attention that the distance of query and key explains",
    "copying": "whether it raises the logit of the token it attends to: 1 copies, -1 suppresses, 0 neither",
    "score_distance": "share of the variance of a row's scores that the distance of query and key explains",
    "score_key": "share of the variance of a row's scores that the key alone explains, whatever the query",
    "score_pair": "share of the variance of a row's scores that only the pair of tokens explains",
    "sink_features": "share of the first token's score that the five largest features of its key make",
}
"""What the columns of the table of heads mean."""
DECAY_RANKS = np.unique(np.geomspace(1, 400, 40).astype(int)) - 1  # of the largest coefficients, kept for the report
Array = npt.NDArray[Any]


def _ratio(energy: Array, null: Array) -> Array:
    """NaN where there is no energy beside the mean, as in an input of one token."""
    return np.divide(energy, null, out=np.full_like(energy, np.nan), where=null > 0)


@dataclass(frozen=True, eq=False)
class OrganizeResult(StudyResult):
    """The heads of a network, organized.

    `heads` has one row per head: entropies averaged over batches (`*_null`: of the shuffled null), role scores, role.
    `roles` has one row per head and role, as `headscape.roles.role_table` makes it: score, chance, share of batches.
    tree, distances and affinity are the consensus over batches. entropies and null_entropies are (n_batch, 5, n_head)
    in the order of `ENTROPIES`; network likewise (n_batch, 5). energy holds, for every batch, the share of the energy
    in the largest 1 % of the tri-Haar coefficients: organized, and in the natural order. The mean (DC) coefficient,
    which the rows' sums fix, is left out. Batch i of the control_* arrays was given to draw i mod settings["draws"] of
    random weights. convergence (n_batch, n_iteration) is the l1 norm of the coefficients over that of permuted leaves,
    NaN where a fit ended earlier. depth (n_batch,) is the Mantel correlation of the distances of heads with those of
    their layers, depth_permuted (n_draw,) that of permuted heads; dip (n_batch,) is Hartigan's of the distances, and
    dip_ring (n_draw,) that of a ring. maps holds heads of the first batch with the orders of their own 2-D organization.
    """

    study: ClassVar[str] = "organize"
    title: ClassVar[str] = "The landscape of heads"

    block: str
    kind: str
    heads: pd.DataFrame
    roles: pd.DataFrame
    tree: PartitionTree
    distances: Array
    affinity: Array
    entropies: Array
    null_entropies: Array
    network: Array
    null_network: Array
    energy: Array
    null_energy: Array
    control_energy: Array | None
    control_null_energy: Array | None
    control_entropies: Array | None
    decay: Array
    null_decay: Array
    decay_by_support: Array
    network_decay: Array
    null_network_decay: Array
    compression: Array
    query_trees: Sequence[PartitionTree]
    key_trees: Sequence[PartitionTree]
    maps: Mapping[str, Mapping[str, Array]]
    tokens: Mapping[str, Sequence[str]]
    settings: Mapping[str, Any]
    convergence: Array | None = None
    depth: Array | None = None
    depth_permuted: Array | None = None
    dip: Array | None = None
    dip_ring: Array | None = None

    @property
    def n_batches(self) -> int:
        """How many batches were organized."""
        return len(self.entropies)

    def meanings(self) -> Mapping[str, str]:
        """What the scores of a head mean."""
        return COLUMNS

    def tables(self) -> dict[str, pd.DataFrame]:
        """The heads, and the paper's table 1."""
        return {"table1": self.table1(), "heads": self.heads}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The paper's table 1, where there is more than one batch."""
        title = f"Lowest- and highest-ranked heads by l1_top: {MEANINGS['l1_top']} (the paper's table 1)"
        return [(title, self.table1())] if self.n_batches > 1 else []

    @cached_property
    def stability(self) -> dict[str, Stability]:
        """Stability over batches by measure."""
        return self._stability(self.entropies)

    @cached_property
    def null_stability(self) -> dict[str, Stability]:
        """The same for the shuffled null: how stable heads are if only the sharpness of their rows is known."""
        return self._stability(self.null_entropies)

    def _stability(self, entropies: Array) -> dict[str, Stability]:
        return {name: stability(entropies[:, ENTROPIES.index(name)], name) for name in MEANINGS}

    @cached_property
    def folder_roles(self) -> list[FolderRole]:
        """Clusters of the head tree with a role over-represented in them."""
        return name_folders(self.tree, self.heads["role"].tolist()) if "role" in self.heads else []

    def name(self, i: int) -> str:
        """Layer and head of row i, as (3, 7)."""
        return f"({self.heads['layer'].iloc[i]}, {self.heads['head'].iloc[i]})"

    @cached_property
    def by_role(self) -> dict[str, list[str]]:
        """The heads of each role by name ("18.6"), strongest first; roles in the order of `ROLES`."""
        found: dict[str, list[str]] = {}
        if "role" not in self.heads:
            return found
        for role in (*ROLES, *BLOCK_ROLES):
            own = self.heads[self.heads["role"] == role_name(role)]
            if len(own):
                own = own.sort_values(role, ascending=False, kind="stable")
                found[role_name(role)] = [f"{row.layer}.{row.head}" for row in own.itertuples()]
        return found

    def headline(self) -> str:
        """The heads of each role, the strongest by name."""
        if not self.by_role:
            return f"{len(self.heads)} heads, none with a known pattern"
        named = ", ".join(f"{len(heads)} {role} ({few(heads)})" for role, heads in self.by_role.items())
        return f"heads by role, as layer.head: {named}"

    def table1(self, measure: str = "l1_top", n: int = 3) -> pd.DataFrame:
        """The paper's Table 1: the heads most often in the highest and lowest tenth, and in how many batches.

        Beside the counts: the mean of the measure, and its effect against the null, (mean - null) / sd over batches of
        the difference.
        """
        found = self.stability[measure]
        k = ENTROPIES.index(measure)
        own, null = self.entropies[:, k], self.null_entropies[:, k]
        difference = own - null
        rows = []
        for end, counts, sign in (("highest", found.top, -1), ("lowest", found.bottom, 1)):
            order = np.lexsort((sign * own.mean(axis=0), -counts))[:n]
            for place, i in enumerate(order, start=1):
                spread = difference[:, i].std(ddof=1) if self.n_batches > 1 else np.nan
                rows.append(
                    {
                        "ranked": end,
                        "place": place,
                        "(layer, head)": self.name(int(i)),
                        "count": f"{counts[i]}/{self.n_batches}",
                        measure: own[:, i].mean(),
                        "null": null[:, i].mean(),
                        "effect": difference[:, i].mean() / spread if spread > 0 else np.nan,
                    }
                )
        return pd.DataFrame(rows)

    def table2(self) -> pd.DataFrame:
        """The paper's Table 2: the network's l1 over the 100 largest supports, batch by batch, beside its null."""
        frame = pd.DataFrame(self.network, columns=list(ENTROPIES))
        for k, name in enumerate(ENTROPIES):
            frame[f"{name}_null"] = self.null_network[:, k]
        frame.insert(0, "batch", np.arange(self.n_batches))
        return frame.drop(columns=["dc", "dc_null"]) if self.kind == "probs" else frame

    @cached_property
    def gain(self) -> Array:
        """Per batch, the share of energy in the top 1 % of the organized tensor's coefficients over the null's."""
        return _ratio(self.energy[:, 0], self.null_energy[:, 0])

    @cached_property
    def control_gain(self) -> Array | None:
        """The same for every draw of random weights, geometric mean over its batches; None without that control."""
        if self.control_energy is None or self.control_null_energy is None:
            return None
        gain, draws = _ratio(self.control_energy[:, 0], self.control_null_energy[:, 0]), int(self.settings["draws"])
        return np.array([geometric_interval(gain[d::draws]).value for d in range(min(draws, len(gain)))])

    @cached_property
    def effect(self) -> Interval:
        """Geometric mean of the gain over batches."""
        return geometric_interval(self.gain)

    @cached_property
    def coordinates(self) -> Array:
        """Diffusion coordinates of the heads (n_head, 3 or fewer), from the consensus affinity."""
        if len(self.heads) < 3:
            return np.zeros((len(self.heads), 1))
        return np.asarray(diffusion_map(self.affinity, n_components=min(3, len(self.heads) - 1)))
