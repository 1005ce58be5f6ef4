"""What the organize study found: tables, figures and sentences, and how they are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError, safe_open

from headscape.errors import HeadscapeError
from headscape.geometry.diffusion import diffusion_map
from headscape.results import FigureSpec, Finding, Interval, Result, bootstrap
from headscape.storage import ArrayWriter, replacing, write_json
from headscape.studies.roles import MIXED, FolderRole, name_folders
from headscape.studies.stability import Stability, stability
from headscape.tree import PartitionTree

__all__ = ["DECAY_RANKS", "ENTROPIES", "OrganizeResult"]

ENTROPIES = ("l1_top", "l1_all", "dc", "l1_rel", "shannon")
DECAY_RANKS = np.unique(np.geomspace(1, 400, 40).astype(int)) - 1  # of the largest coefficients, kept for the report
STABLE = ("l1_top", "l1_all", "l1_rel", "shannon")
EVEN_ORDER = "natural order"
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class OrganizeResult(Result):
    """The heads of a network, organised.

    `heads` has one row a head: entropies averaged over batches (`*_null`: of the shuffled null), role scores, role.
    tree, distances and affinity are the consensus over batches. entropies and null_entropies are (n_batch, 5, n_head)
    in the order of `ENTROPIES`; network likewise (n_batch, 5). energy holds, for every batch, the share of the energy
    in the largest 1 % of the tri-Haar coefficients: organised, and in the natural order. The constant term, which the
    rows' sums fix, is left out.
    """

    study: ClassVar[str] = "organize"
    title: ClassVar[str] = "The landscape of heads"

    block: str
    kind: str
    heads: pd.DataFrame
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
    settings: Mapping[str, Any]

    # --- tables ------------------------------------------------------------------------------------------------------

    @property
    def n_batches(self) -> int:
        """How many batches were organised."""
        return len(self.entropies)

    def to_frame(self) -> pd.DataFrame:
        """One row a head."""
        return self.heads

    @cached_property
    def stability(self) -> dict[str, Stability]:
        """Stability over batches by measure."""
        seed = int(self.settings["seed"])
        return {name: stability(self.entropies[:, ENTROPIES.index(name)], name, seed) for name in STABLE}

    @cached_property
    def null_stability(self) -> dict[str, Stability]:
        """The same for the shuffled null: how stable heads are without knowing where they look."""
        seed = int(self.settings["seed"])
        return {name: stability(self.null_entropies[:, ENTROPIES.index(name)], name, seed) for name in STABLE}

    @cached_property
    def folder_roles(self) -> list[FolderRole]:
        """Folders of the head tree with a role over-represented in them."""
        return name_folders(self.tree, self.heads["role"].tolist()) if "role" in self.heads else []

    def name(self, i: int) -> str:
        """Layer and head of row i, as (3, 7)."""
        return f"({self.heads['layer'].iloc[i]}, {self.heads['head'].iloc[i]})"

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
        for end, counts, sign in (("top", found.top, -1), ("bottom", found.bottom, 1)):
            order = np.lexsort((sign * own.mean(axis=0), -counts))[:n]
            for place, i in enumerate(order, start=1):
                spread = difference[:, i].std(ddof=1) if self.n_batches > 1 else np.nan
                rows.append(
                    {
                        "end": end,
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
        return frame

    # --- sentences ---------------------------------------------------------------------------------------------------

    @cached_property
    def effect(self) -> Interval:
        """How many times the null's share of energy in the top 1 % the organised tensor reaches."""
        return bootstrap(self.energy[:, 0] / self.null_energy[:, 0])

    def findings(self) -> list[Finding]:
        """Stability, effect against the null and the natural order, controls, roles."""
        found = [*self._stability_findings(), self._energy_finding()]
        if self.control_energy is not None and self.control_null_energy is not None:
            random = bootstrap(self.control_energy[:, 0] / self.control_null_energy[:, 0])
            found.append(
                Finding(
                    f"With random weights on the same inputs, organisation concentrates energy {random} times as much "
                    f"as its null; the trained network {self.effect} times.",
                    "energy",
                    self.effect.low > random.high if np.isfinite(self.effect.low) else None,
                )
            )
        if "role" in self.heads:
            counts = self.heads["role"].value_counts()
            named = ", ".join(f"{n} {role}" for role, n in counts.items() if role != MIXED)
            found.append(
                Finding(
                    f"Of {len(self.heads)} heads, {int(counts.get(MIXED, 0))} follow no single known pattern"
                    + (f"; the others: {named}." if named else ".")
                    + (self._blocks() if self.settings.get("pool") else ""),
                    "head-map",
                )
            )
            if self.folder_roles:
                best = min(self.folder_roles, key=lambda folder: folder.p)
                found.append(
                    Finding(
                        f"The head tree gathers heads of a kind: {len(self.folder_roles)} folders have a role "
                        f"over-represented; the clearest, of {best.size} heads, holds {best.count} of the "
                        f"{int(counts[best.role])} '{best.role}' heads (hypergeometric p = {best.p:.1g}, uncorrected).",
                        "head-tree",
                    )
                )
        return found

    def _blocks(self) -> str:
        return f" The run is pooled to {self.settings['pool']} blocks of tokens: patterns are about blocks."

    def _stability_findings(self) -> list[Finding]:
        if self.n_batches < 2:
            return [Finding("One batch was organised, so nothing can be said of stability.", None)]
        sentences = []
        for measure in ("l1_top", "l1_all"):
            own, null = self.stability[measure], self.null_stability[measure]
            sentences.append(
                Finding(
                    f"By {measure}, {own.always_bottom} of the {own.n_extreme} lowest heads are the same in all "
                    f"{own.n_batches} batches (chance: {own.always_by_chance:.2g}); overlap of two batches "
                    f"{own.jaccard_bottom} (chance: {own.chance:.2g}; rows shuffled: {null.jaccard_bottom.value:.2g}), "
                    f"Kendall's W = {own.w:.2f}.",
                    "entropies",
                    bool(own.jaccard_bottom.low > own.chance),
                )
            )
        return sentences

    def _energy_finding(self) -> Finding:
        organised, natural, null = (
            float(x.mean()) for x in (self.energy[:, 0], self.energy[:, 1], self.null_energy[:, 0])
        )
        beats = self.effect.low > 1 if np.isfinite(self.effect.low) else None
        verdict = "beats" if beats or (beats is None and self.effect.value > 1) else "does not beat"
        return Finding(
            f"Organisation {verdict} its null: beside the constant, the largest 1 % of the coefficients hold "
            f"{organised:.3f} of the energy, {null:.3f} when every row is shuffled and organised again "
            f"({self.effect} times), {natural:.3f} in the {EVEN_ORDER}.",
            "energy",
            beats,
        )

    @cached_property
    def coordinates(self) -> Array:
        """Diffusion coordinates of the heads (n_head, 3 or fewer), from the consensus affinity."""
        if len(self.heads) < 3:
            return np.zeros((len(self.heads), 1))
        return np.asarray(diffusion_map(self.affinity, n_components=min(3, len(self.heads) - 1)))

    def figures(self) -> list[FigureSpec]:
        """The head map, matrix, tree and grid; entropies, decay and energy; tables 1 and 2."""
        from headscape.studies.organize_figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    _ARRAYS: ClassVar[tuple[str, ...]] = (
        *("distances", "affinity", "entropies", "null_entropies", "network", "null_network", "energy", "null_energy"),
        *("control_energy", "control_null_energy", "control_entropies", "decay", "null_decay", "decay_by_support"),
        *("network_decay", "null_network_decay", "compression"),
    )

    def save(self, folder: Path) -> None:
        """Write result.safetensors, result.json and heads.csv."""
        arrays = {name: getattr(self, name) for name in self._ARRAYS if getattr(self, name) is not None}
        arrays |= {"tree_labels": self.tree.labels, "tree_order": self.tree.order}
        for kind, trees in (("query", self.query_trees), ("key", self.key_trees)):
            for i, tree in enumerate(trees):
                arrays |= {f"{kind}_labels/{i:04d}": tree.labels, f"{kind}_order/{i:04d}": tree.order}
        with replacing(folder / "heads.csv") as partial:
            self.heads.to_csv(partial, index=False, float_format="%.9g")
        with ArrayWriter(folder / "result.safetensors", len(arrays)) as writer:
            for name in sorted(arrays):
                writer.add(name, np.asarray(arrays[name]))
        write_json(
            folder / "result.json",
            {"study": self.study, "block": self.block, "kind": self.kind, "settings": dict(self.settings)},
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text())
            heads = pd.read_csv(folder / "heads.csv", dtype={"block": str}, keep_default_na=True)
            with safe_open(folder / "result.safetensors", framework="np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (OSError, ValueError, SafetensorError) as error:
            raise HeadscapeError(f"the organize study in {folder} cannot be read ({error}); run it again") from None
        trees: dict[str, list[PartitionTree]] = {"query": [], "key": []}
        for name in sorted(arrays):
            kind, _, number = name.partition("_labels/")
            if number:
                order = arrays[f"{kind}_order/{number}"]
                trees[kind].append(PartitionTree.from_labels(arrays[name], order=order))
        return cls(
            block=facts["block"],
            kind=facts["kind"],
            heads=heads,
            tree=PartitionTree.from_labels(arrays["tree_labels"], order=arrays["tree_order"]),
            query_trees=trees["query"],
            key_trees=trees["key"],
            settings=facts["settings"],
            **{name: cast("Array", arrays.get(name)) for name in cls._ARRAYS},
        )
