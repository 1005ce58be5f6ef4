"""The pictures of the organize study, as plain data."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from headscape.geometry.diffusion import markov_spectrum
from headscape.geometry.distances import THICK, pairs_of
from headscape.intervals import mean_interval
from headscape.results import Captions, FigureSpec
from headscape.studies.organize.result import DECAY_RANKS, ENTROPIES, OrganizeResult
from headscape.studies.work.series import bars, curve, heads_as_points
from headscape.wavelets.haar import inverse_haar_transform

__all__ = ["figures"]
captions = Captions(__name__)

_LEFT_OUT = "Coefficients that are constant over keys are left out: rows sum to 1, which makes them 0."
N_EIGENVALUES = 20
N_FUNCTIONS = 500  # basis functions drawn; finer ones differ in single heads


def figures(r: OrganizeResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = [_map(r), captions.figure("head-matrix", {"values": r.affinity, "order": r.tree.order}), _tree(r)]
    found += [captions.figure("head-grid", {"score": "l1_all"}), _organized(r), _entropies(r), _decay(r), _basis(r)]
    found += [*_circuits(r), _network_decay(r), _energy_figure(r), *_landscape(r)]
    found += [captions.table("table1", r.table1())] if r.n_batches > 1 else []
    return [*found, captions.table("table2", r.table2())]


def _map(r: OrganizeResult) -> FigureSpec:
    return captions.figure(
        "head-map",
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
        n_heads=len(r.heads),
    )


def _circuits(r: OrganizeResult) -> list[FigureSpec]:
    """What determines the scores of a head, and what it copies, where the model was available."""
    axes = {"score-parts": ("score_distance", "score_pair"), "copying": ("induction", "copying")}
    found = []
    for entry, (x, y) in axes.items():
        if {x, y, "role"} <= set(r.heads):
            known = r.heads.dropna(subset=[x, y])
            names = [f"{layer}.{head}" for layer, head in zip(known["layer"], known["head"], strict=True)]
            found.append(
                captions.figure(entry, heads_as_points(known, x, y, known["role"].tolist()) | {"names": names})
            )
    return found


def _tree(r: OrganizeResult) -> FigureSpec:
    names = {f"{f.level}:{f.folder}": f"{f.role} {f.count}/{f.size} (p={f.p:.1g})" for f in r.folder_roles}
    return captions.figure(
        "head-tree",
        {"labels": r.tree.labels, "order": r.tree.order, "names": names},
        n_leaves=r.tree.n_leaves,
        n_levels=r.tree.n_levels,
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
    return captions.figure("organized-maps", {"panels": panels})


def _entropies(r: OrganizeResult) -> FigureSpec:
    k = ENTROPIES.index("l1_top")
    x = np.arange(len(r.heads))
    order = np.argsort(r.entropies[:, k].mean(axis=0), kind="stable")
    shown = min(3, r.n_batches)
    series = [curve(f"batch {i}", x, r.entropies[i, k][order]) for i in range(shown)]
    series.append(curve("rows shuffled (mean)", x, r.null_entropies[:, k].mean(axis=0)[order], "dash"))
    return captions.lines("entropies", series, n_basis=r.settings["n_basis"])


def _by_rank(name: str, coefficients: Any, dash: str | None = None) -> dict[str, Any]:
    """A line of root mean squares of coefficients in a quarter of an octave of their ranks, on which decay can be seen."""
    square = np.asarray(coefficients, dtype=float) ** 2
    n = len(square) + 1
    ends = np.unique(np.rint(np.geomspace(1, n, 1 + int(4 * np.log2(n)))).astype(int))
    y = np.sqrt([square[a - 1 : b - 1].mean() for a, b in pairwise(ends)])
    return curve(name, np.sqrt(ends[:-1] * (ends[1:] - 1.0)), np.where(y > 0, y, np.nan), dash)


def _decay(r: OrganizeResult) -> FigureSpec:
    mean = r.heads["l1_rel"].to_numpy()
    ends = {"lowest l1_rel": int(np.argmin(mean)), "highest l1_rel": int(np.argmax(mean))}
    series = [_by_rank(f"{r.name(i)}, {label}", r.decay_by_support[:, i]) for label, i in ends.items()]
    return captions.lines("decay", series, _LEFT_OUT=_LEFT_OUT)


def _basis(r: OrganizeResult) -> FigureSpec:
    n = r.tree.n_leaves
    vectors = inverse_haar_transform(np.eye(min(n, N_FUNCTIONS), n), [None, r.tree])  # row i is basis function i
    among = f"; the {N_FUNCTIONS} coarsest of {n:,}" if n > N_FUNCTIONS else ""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return captions.figure("basis", {"values": (vectors / largest)[:, r.tree.order], "centre": 0.0}, among=among)


def _network_decay(r: OrganizeResult) -> FigureSpec:
    series = [_by_rank(f"batch {i}", r.network_decay[i]) for i in range(min(5, r.n_batches))]
    null = np.sqrt((r.null_network_decay.astype(float) ** 2).mean(axis=0))
    series.append(_by_rank("rows shuffled (rms)", null, "dash"))
    return captions.lines("network-decay", series, _LEFT_OUT=_LEFT_OUT)


def _energy_figure(r: OrganizeResult) -> FigureSpec:
    parts = {
        "organized": r.energy[:, 0],
        "natural order": r.energy[:, 1],
        "rows shuffled, organized": r.null_energy[:, 0],
    }
    if r.control_energy is not None and r.control_null_energy is not None:
        parts["random weights, organized"] = r.control_energy[:, 0]
        parts["random weights, shuffled"] = r.control_null_energy[:, 0]
    return captions.figure("energy", bars({name: mean_interval(values).within(0, 1) for name, values in parts.items()}))


def _landscape(r: OrganizeResult) -> list[FigureSpec]:
    """What the map shows as a whole: its coordinates, depth, clusters; and how the fits went."""
    found = []
    if len(r.heads) > 2:
        values = np.abs(markov_spectrum(r.affinity, min(N_EIGENVALUES, len(r.heads) - 1)).values)
        spectrum = curve("eigenvalue", np.arange(1, len(values) + 1), values)
        found.append(captions.lines("spectrum", [spectrum], n=len(values)))
    if r.depth is not None:
        layers = r.heads["layer"].to_numpy()
        apart, distance = pairs_of(np.abs(layers[:, None] - layers)), pairs_of(r.distances)
        steps = np.unique(apart)
        by_step = curve("pairs of heads", steps, [distance[apart == step].mean() for step in steps])
        same = curve("all pairs", steps[[0, -1]], [distance.mean()] * 2, "dash")
        found.append(captions.lines("depth", [by_step, same]))
    if r.dip is not None:
        turn = np.linspace(0, np.pi, len(r.heads), endpoint=False)
        ring = pairs_of(np.hypot(np.sin(turn[:, None] - turn), THICK))
        own = pairs_of(r.distances)
        groups = {name: x / np.median(x) for name, x in (("heads", own), ("a ring", ring))}
        found.append(captions.violins("distances", groups))
    if r.convergence is not None and r.convergence.shape[1] > 1:
        steps = np.arange(1, r.convergence.shape[1] + 1)
        lines = [curve(f"batch {i}", steps, row) for i, row in enumerate(r.convergence)]
        found.append(captions.lines("convergence", lines))
    return found
