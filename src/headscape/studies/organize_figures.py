"""The pictures of the organize study, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from headscape.results import FigureSpec, bootstrap
from headscape.studies.organize_result import DECAY_RANKS, ENTROPIES, EVEN_ORDER
from headscape.wavelets.haar import inverse_haar_transform

if TYPE_CHECKING:
    from headscape.studies.organize_result import OrganizeResult

__all__ = ["figures"]


def figures(r: OrganizeResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_map(r), _matrix(r), _tree(r), _grid(), _entropies(r), _decay(r), _basis(r)]
    found += [_network_decay(r), _energy_figure(r)]
    if r.n_batches > 1:
        found.append(_table("table1", "Heads at the ends, batch after batch", r.table1(), "table 1"))
    found.append(_table("table2", "Entropy of the network by batch", r.table2(), "table 2"))
    return found


def _map(r: OrganizeResult) -> FigureSpec:
    return FigureSpec(
        "head-map",
        "Map of the heads",
        "head_map",
        {
            "coordinates": r.coordinates,
            "query_orders": [tree.order for tree in r.query_trees],
            "key_orders": [tree.order for tree in r.key_trees],
            "query_trees": [tree.labels for tree in r.query_trees],
            "key_trees": [tree.labels for tree in r.key_trees],
            "decay": {
                "heads": r.decay.T,
                "null": r.null_decay.T,
                "x": [int(rank) + 1 for rank in DECAY_RANKS[: len(r.decay)]],
            },
            "by_batch": {name: r.entropies[:, k] for k, name in enumerate(ENTROPIES)},
        },
        "Each point is a head; near points attend alike over all batches. Colour by layer, role or any score.",
        "Far distances are bent by the map, and nearness is likeness of attention, not of effect.",
        f"Diffusion map of {len(r.heads)} heads in up to three coordinates.",
        x_label="first diffusion coordinate",
        y_label="second diffusion coordinate",
        paper="figure 3",
    )


def _matrix(r: OrganizeResult) -> FigureSpec:
    return FigureSpec(
        "head-matrix",
        "Affinity of the heads",
        "head_matrix",
        {"values": r.affinity, "order": r.tree.order},
        "Rows and columns are heads in the order of the tree; bright squares on the diagonal are groups.",
        "The order is made to show groups; a square counts only if the tree's folders are stable over batches.",
        "Symmetric matrix of affinities between heads, ordered by the head tree.",
        value_label="affinity exp(-D / median)",
        paper="figure 3",
    )


def _tree(r: OrganizeResult) -> FigureSpec:
    names = {f"{f.level}:{f.folder}": f"{f.role} {f.count}/{f.size} (p={f.p:.1g})" for f in r.folder_roles}
    return FigureSpec(
        "head-tree",
        "Tree of the heads",
        "head_tree",
        {"labels": r.tree.labels, "order": r.tree.order, "names": names},
        "Each level splits the heads into finer folders; a folder is named by the role it has too much of.",
        "A name says that a role is over-represented, not that every head of the folder has it.",
        f"Partition tree of {r.tree.n_leaves} heads in {r.tree.n_levels} levels.",
        paper="figure 3",
    )


def _grid() -> FigureSpec:
    return FigureSpec(
        "head-grid",
        "Layer by head",
        "head_grid",
        {"score": "l1_all"},
        "One cell a head; choose any score.",
        "A low score is no proof that a head can go: removing it is.",
        "Grid of layers and heads coloured by a score.",
        x_label="head",
        y_label="layer",
    )


def _entropies(r: OrganizeResult) -> FigureSpec:
    k = ENTROPIES.index("l1_top")
    x = np.arange(len(r.heads))
    order = np.argsort(r.entropies[:, k].mean(axis=0), kind="stable")
    shown = min(3, r.n_batches)
    series = [{"name": f"batch {i}", "x": x, "y": r.entropies[i, k][order]} for i in range(shown)]
    null = r.null_entropies[:, k].mean(axis=0)[order]
    series.append({"name": "rows shuffled (mean)", "x": x, "y": null, "dash": "dash"})
    return FigureSpec(
        "entropies",
        "Entropy of the heads, batch by batch",
        "lines",
        {"series": series},
        "Heads from low to high mean l1; curves that lie on each other mean that the ranking is the head's own.",
        "Large support means low frequency: a high l1_top is not a sign of sharp transitions.",
        "l1 entropy of every head for up to three batches and the shuffled null.",
        x_label="head, by mean l1_top",
        y_label="l1 over the 400 largest supports",
        paper="figure 5",
    )


def _decay(r: OrganizeResult) -> FigureSpec:
    mean = r.heads["l1_rel"].to_numpy()
    ends = [int(np.argmin(mean)), int(np.argmax(mean))]
    ranks = np.arange(1, len(r.decay_by_support) + 1)
    labels = ("lowest l1_rel", "highest l1_rel")
    series = [
        {"name": f"{r.name(i)}, {label}", "x": ranks, "y": r.decay_by_support[:, i]}
        for i, label in zip(ends, labels, strict=True)
    ]
    return FigureSpec(
        "decay",
        "Coefficients of two heads by support",
        "lines",
        {"series": series},
        "Absolute bi-Haar coefficients, the coarsest first; a quick fall means a smooth head.",
        "Batch 0 only; the heads are the two extremes, not typical ones.",
        "Absolute coefficients of the two heads with the lowest and highest relative l1.",
        x_label="coefficient, by falling support",
        y_label="|coefficient|",
        log_y=True,
        paper="figure 4",
    )


def _basis(r: OrganizeResult) -> FigureSpec:
    vectors = inverse_haar_transform(np.eye(r.tree.n_leaves), [None, r.tree])  # row i is basis function i
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return FigureSpec(
        "basis",
        "Haar functions on the tree of heads",
        "heatmap",
        {"values": (vectors / largest)[:, r.tree.order], "centre": 0.0},
        "Each row is a function on the heads in tree order: one value on a folder, another on its siblings.",
        "The functions show the tree, not the data; each is scaled to a largest value of 1 to be seen.",
        "Haar basis of the head tree, coarse functions first.",
        x_label="head, in tree order",
        y_label="basis function, coarse to fine",
        value_label="value over its largest",
        paper="figure 4",
    )


def _network_decay(r: OrganizeResult) -> FigureSpec:
    ranks = np.arange(1, r.network_decay.shape[1] + 1)
    series = [{"name": f"batch {i}", "x": ranks, "y": r.network_decay[i]} for i in range(min(5, r.n_batches))]
    null = r.null_network_decay.mean(axis=0)
    series.append({"name": "rows shuffled (mean)", "x": ranks, "y": null, "dash": "dash"})
    return FigureSpec(
        "network-decay",
        "Coefficients of the network by support",
        "lines",
        {"series": series},
        "Absolute tri-Haar coefficients of the whole tensor, largest support first.",
        "Heights depend on the units: probabilities and scores cannot be compared here.",
        "Absolute tri-Haar coefficients by falling support for up to five batches.",
        x_label="coefficient, by falling support",
        y_label="|coefficient|",
        log_y=True,
        paper="figure 6",
    )


def _energy_figure(r: OrganizeResult) -> FigureSpec:
    parts = {
        "organised": r.energy[:, 0],
        EVEN_ORDER: r.energy[:, 1],
        "rows shuffled, organised": r.null_energy[:, 0],
    }
    if r.control_energy is not None and r.control_null_energy is not None:
        parts["random weights, organised"] = r.control_energy[:, 0]
        parts["random weights, shuffled"] = r.control_null_energy[:, 0]
    intervals = [bootstrap(values) for values in parts.values()]
    return FigureSpec(
        "energy",
        "What organisation gains over its null",
        "bars",
        {
            "names": list(parts),
            "values": [i.value for i in intervals],
            "low": [i.low for i in intervals],
            "high": [i.high for i in intervals],
        },
        "Energy in the largest 1 % of the tri-Haar coefficients, with 95 % intervals over batches.",
        "Even softmax of noise gains by being organised: only the distance to the shuffled bar counts.",
        "Bars of the energy share for the organised tensor and its controls.",
        y_label="share of energy in the top 1 %",
    )


def _table(id_: str, title: str, frame: pd.DataFrame, paper: str) -> FigureSpec:
    rows = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in frame.to_numpy(dtype=object)]
    return FigureSpec(
        id_,
        title,
        "table",
        {"columns": list(frame.columns), "rows": rows},
        "Counts are batches out of all; effect is the distance to the null in its spread over batches."
        if paper == "table 1"
        else "One row a batch; columns ending in _null are of the shuffled rows.",
        paper=paper,
    )
