"""The pictures of the organize study, as plain data."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.intervals import mean_interval
from headscape.results import FigureSpec, table_figure
from headscape.studies.organize.result import DECAY_RANKS, ENTROPIES
from headscape.wavelets.haar import inverse_haar_transform

if TYPE_CHECKING:
    from headscape.studies.organize.result import OrganizeResult

__all__ = ["figures"]

_LEFT_OUT = "Coefficients that are constant over keys are left out: rows sum to 1, which makes them 0."
N_FUNCTIONS = 500  # basis functions drawn; finer ones differ in single heads


def figures(r: OrganizeResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_map(r), _matrix(r), _tree(r), _grid(), _organized(r), _entropies(r), _decay(r), _basis(r)]
    found += [_network_decay(r), _energy_figure(r)]
    return [*found, *_tables(r)]


def _tables(r: OrganizeResult) -> list[FigureSpec]:
    table2 = table_figure(
        r.table2(),
        id="table2",
        title="Entropy of the network by batch",
        read="One row per batch; columns ending in _null are of the shuffled rows.",
        paper="table 2",
    )
    if r.n_batches < 2:
        return [table2]
    table1 = table_figure(
        r.table1(),
        id="table1",
        title="Lowest- and highest-ranked heads, batch after batch",
        read="Counts are batches out of all; effect is the distance to the null in units of its spread over batches.",
        paper="table 1",
    )
    return [table1, table2]


def _map(r: OrganizeResult) -> FigureSpec:
    return FigureSpec(
        id="head-map",
        title="Map of the heads",
        kind="head_map",
        data={
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
        read="Each point is a head; close points attend alike in all batches. Colour by layer, role or any score.",
        caveat="Large distances are distorted, and close points attend alike; they need not do the same.",
        alt=f"Diffusion map of {len(r.heads)} heads in up to three coordinates.",
        x_label="first diffusion coordinate",
        y_label="second diffusion coordinate",
        paper="figure 3",
    )


def _matrix(r: OrganizeResult) -> FigureSpec:
    return FigureSpec(
        id="head-matrix",
        title="Affinity of the heads",
        kind="head_matrix",
        data={"values": r.affinity, "order": r.tree.order},
        read="Rows and columns are heads in the order of the tree; bright squares on the diagonal are clusters.",
        caveat="The order is chosen to show clusters; a square counts only if the tree's clusters are stable over batches.",
        alt="Symmetric matrix of affinities between heads, ordered by the head tree.",
        value_label="affinity exp(-D / median)",
        paper="figure 3",
    )


def _tree(r: OrganizeResult) -> FigureSpec:
    names = {f"{f.level}:{f.folder}": f"{f.role} {f.count}/{f.size} (p={f.p:.1g})" for f in r.folder_roles}
    return FigureSpec(
        id="head-tree",
        title="Tree of the heads",
        kind="head_tree",
        data={"labels": r.tree.labels, "order": r.tree.order, "names": names},
        read="Each level splits the heads into finer clusters (folders, in the paper); a cluster is named by a role over-represented in it.",
        caveat="A name says that a role is over-represented, not that every head of the cluster has it.",
        alt=f"Partition tree of {r.tree.n_leaves} heads in {r.tree.n_levels} levels.",
        paper="figure 3",
    )


def _grid() -> FigureSpec:
    return FigureSpec(
        id="head-grid",
        title="Layer by head",
        kind="head_grid",
        data={"score": "l1_all"},
        read="One cell per head; choose any score.",
        caveat="A low score does not show that a head can be removed; only ablation does.",
        alt="Grid of layers and heads coloured by a score.",
        x_label="head",
        y_label="layer",
    )


def _organized(r: OrganizeResult) -> FigureSpec:
    panels = []
    for head, found in r.maps.items():
        orders = {axis: found[f"{axis}_order"] for axis in ("query", "key")}
        reading = {axis: np.arange(len(order)) for axis, order in orders.items()}
        for name, chosen in (("reading order", reading), ("organized", orders)):
            names = {
                f"{a}_tokens": [r.tokens[a][int(i)] for i in at] if r.tokens.get(a) else [] for a, at in chosen.items()
            }
            values = found["values"][np.ix_(*chosen.values())]
            panels.append({"name": f"{head}: {name}", "values": values, "high": np.nanmax(values), **names})
    return FigureSpec(
        id="organized-maps",
        title="Attention before and after organizing",
        kind="maps",
        data={"panels": panels},
        read="Left as the model computes it, right with queries and keys in the order of the trees of the head's own 2-D organization; "
        "first batch, both on one scale. Name others by --heads.",
        caveat="Organizing makes any matrix look smoother; only the decay against the null shows structure.",
        alt="Maps of two heads in the order of the tokens and organized.",
        paper="figure 1",
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
        id="entropies",
        title="Entropy of the heads, batch by batch",
        kind="lines",
        data={"series": series},
        read="Heads sorted by mean l1_top; curves that coincide mean that the ranking belongs to the heads, not to the input.",
        caveat="Large support means low frequency: a high l1_top does not mean sharp transitions.",
        alt="l1 entropy of every head for up to three batches and the shuffled null.",
        x_label="head, by mean l1_top",
        y_label=f"l1 over the {r.settings['n_basis']} largest supports",
        paper="figure 5",
    )


def _by_rank(curve: Any) -> dict[str, Any]:
    """Root mean squares of coefficients in a quarter of an octave of their ranks, on which decay can be seen."""
    ends = np.unique(np.rint(np.geomspace(1, len(curve) + 1, 1 + int(4 * np.log2(len(curve) + 1)))).astype(int))
    square = np.asarray(curve, dtype=float) ** 2
    y = np.sqrt([square[a - 1 : b - 1].mean() for a, b in pairwise(ends)])
    return {"x": np.sqrt(ends[:-1] * (ends[1:] - 1.0)), "y": np.where(y > 0, y, np.nan)}


def _decay(r: OrganizeResult) -> FigureSpec:
    mean = r.heads["l1_rel"].to_numpy()
    ends = [int(np.argmin(mean)), int(np.argmax(mean))]
    labels = ("lowest l1_rel", "highest l1_rel")
    series = [
        {"name": f"{r.name(i)}, {label}"} | _by_rank(r.decay_by_support[:, i])
        for i, label in zip(ends, labels, strict=True)
    ]
    return FigureSpec(
        id="decay",
        title="Coefficients of two heads by support",
        kind="lines",
        data={"series": series},
        read="Root mean square of the Haar coefficients on the query and key trees, coarsest first, in quarters of an octave; a fast decay means "
        f"a smooth head. {_LEFT_OUT}",
        caveat="First batch only; the two heads are extremes, not typical ones.",
        alt="Size of the coefficients of the two heads with the lowest and highest relative l1.",
        x_label="coefficient, by decreasing support",
        y_label="root mean square coefficient",
        log_x=True,
        log_y=True,
        paper="figure 4",
    )


def _basis(r: OrganizeResult) -> FigureSpec:
    n = r.tree.n_leaves
    vectors = inverse_haar_transform(np.eye(min(n, N_FUNCTIONS), n), [None, r.tree])  # row i is basis function i
    among = f"; the {N_FUNCTIONS} coarsest of {n:,}" if n > N_FUNCTIONS else ""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return FigureSpec(
        id="basis",
        title="Haar functions on the tree of heads",
        kind="heatmap",
        data={"values": (vectors / largest)[:, r.tree.order], "centre": 0.0},
        read=f"Each row is a function on the heads in tree order: one value on a cluster, another on its siblings{among}.",
        caveat="The functions show the tree, not the data; each is scaled to a maximum of 1.",
        alt="Haar basis of the head tree, coarse functions first.",
        x_label="head, in tree order",
        y_label="basis function, coarse to fine",
        value_label="value relative to the largest",
        paper="figure 4",
    )


def _network_decay(r: OrganizeResult) -> FigureSpec:
    series = [{"name": f"batch {i}"} | _by_rank(r.network_decay[i]) for i in range(min(5, r.n_batches))]
    null = np.sqrt((r.null_network_decay.astype(float) ** 2).mean(axis=0))
    series.append({"name": "rows shuffled (rms)", "dash": "dash"} | _by_rank(null))
    return FigureSpec(
        id="network-decay",
        title="Coefficients of the network by support",
        kind="lines",
        data={"series": series},
        read="Root mean square of the Haar coefficients of the whole query x key x head tensor, largest support first, in quarters of an "
        f"octave. {_LEFT_OUT}",
        caveat="Heights depend on units: probabilities and scores cannot be compared here.",
        alt="Absolute tri-Haar coefficients by decreasing support for up to five batches.",
        x_label="coefficient, by decreasing support",
        y_label="root mean square coefficient",
        log_x=True,
        log_y=True,
        paper="figure 6",
    )


def _energy_figure(r: OrganizeResult) -> FigureSpec:
    parts = {
        "organized": r.energy[:, 0],
        "natural order": r.energy[:, 1],
        "rows shuffled, organized": r.null_energy[:, 0],
    }
    if r.control_energy is not None and r.control_null_energy is not None:
        parts["random weights, organized"] = r.control_energy[:, 0]
        parts["random weights, shuffled"] = r.control_null_energy[:, 0]
    intervals = [mean_interval(values) for values in parts.values()]
    return FigureSpec(
        id="energy",
        title="What organizing gains over its null",
        kind="bars",
        data={
            "names": list(parts),
            "values": [i.value for i in intervals],
            "low": [i.low for i in intervals],
            "high": [i.high for i in intervals],
        },
        read="Energy in the largest 1 % of the Haar coefficients of the tensor, with 95 % intervals over batches.",
        caveat="Even a softmax of noise gains from being organized: only the distance to the shuffled bar counts.",
        alt="Bars of the energy share for the organized tensor and its controls.",
        y_label="share of energy in the top 1 %",
    )
