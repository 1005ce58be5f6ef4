"""The pictures of a comparison, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from headscape.geometry.gromov import DEPTHS, RANKS, classical_map
from headscape.results import FigureSpec
from headscape.studies.compare.result import ALL, BATCHES, DIFFERENT, INPUT, MEASURES, NAMES
from headscape.studies.compare.runs import UNIT_FREE

if TYPE_CHECKING:
    from headscape.studies.compare.result import CompareResult

__all__ = ["figures"]

SHORT = {
    "geometry": "geometry",
    "geometry_batch": "1 batch",
    "l1_rel": "l1",
    "shannon": "Shannon",
    "decay": "decay",
    "depth": "depth",
}
TINY = 1e-12  # distances of 0 have a ratio too
LABEL = 16  # characters of a name that fit beside a picture
MANY = 20  # bars that are still readable; of more pairs the nearest are shown


def figures(r: CompareResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    several = len(r.networks) > 1
    found = [_table(r)] if several else []
    if len(r.runs) > 2 and r.together_of:
        found += [_map(r), _matrix(r)]
    found.append(_intervals(r))
    if several:
        found.append(_times(r, heads=False))
        if np.isfinite(r.other_heads).any():
            found.append(_times(r, heads=True))
    found += [_entropies(r, k) for k in range(len(UNIT_FREE))]
    return [*found, _decay(r), _depth(r), _runs(r)]


def _labels(r: CompareResult) -> dict[tuple[str, str], str]:
    """Short names of the pairs, numbered as in the table of distances."""
    half = LABEL // 2 - 2  # beside the number and the stroke
    return {(d.a, d.b): f"{k}: {d.a[:half]}/{d.b[:half]}" for k, d in enumerate(r.by(ALL), start=1)}


def _table(r: CompareResult) -> FigureSpec:
    rows = []
    for k, pair in enumerate(r.by(ALL), start=1):
        cells = [f"{k}: {pair.a} / {pair.b}"]
        for measure in (ALL, *MEASURES):
            d = next(d for d in r.by(measure) if (d.a, d.b) == (pair.a, pair.b))
            known = d.apart.value == d.apart.value
            cells.append(f"{d.apart} {'>' if d.separated else 'not >'} {d.same.high:.3g}" if known else "-")
        rows.append(cells)
    return FigureSpec(
        id="distances",
        title="Distances between networks",
        kind="table",
        data={"columns": ["networks", *(NAMES[measure] for measure in (ALL, *MEASURES))], "rows": rows},
        read="Mean and 95 % interval over random halves of the batches; behind it the upper end of the same network beside "
        "itself. A pair is separated when its whole interval lies above (>).",
        caveat="Separated means that the networks differ, not that they do different things.",
        alt="Table of distances between networks by measure, each with its yardstick.",
    )


def _map(r: CompareResult) -> FigureSpec:
    points, share = classical_map(r.between_runs())
    return FigureSpec(
        id="map",
        title="Networks by distance",
        kind="scatter",
        data={
            "x": points[:, 0],
            "y": points[:, 1],
            "names": r.runs["run"].tolist(),
            "group": r.runs["network"].tolist(),
        },
        read="Each point is a run, near ones are alike by all measures together; runs of one network share colour and sign.",
        caveat=f"Classical scaling to a plane, which shows {share:.0%} of the squared distances; the rest is bent away.",
        alt=f"Map of {len(r.runs)} runs of {len(r.networks)} networks.",
        x_label="first coordinate, in yardsticks",
        y_label="second coordinate, in yardsticks",
    )


def _matrix(r: CompareResult) -> FigureSpec:
    D = r.between_runs()
    apart = squareform(D - np.diag(np.diag(D)), checks=False)
    order = leaves_list(linkage(apart, "average", optimal_ordering=True))
    names = [f"{k}: {r.runs['run'].iloc[i][:LABEL]}" for k, i in enumerate(order, start=1)]
    return FigureSpec(
        id="matrix",
        title="Distance of every run to every other",
        kind="heatmap",
        data={"values": D[np.ix_(order, order)], "rows": names, "columns": [str(k + 1) for k in range(len(order))]},
        read="All measures together, in the order of an average-linkage tree; dark squares on the diagonal are networks. "
        "The diagonal itself is a run beside itself on other batches.",
        caveat="Means; the intervals are in the picture of intervals.",
        alt="Matrix of distances between runs, in units of the yardstick.",
        x_label="run, numbered as the rows",
        value_label="distance in yardsticks",
    )


def _intervals(r: CompareResult) -> FigureSpec:
    bars: list[tuple[str, str, Any]] = []
    for network in r.networks:
        bars += [
            (network, what, found) for what, found in r.yardsticks(network, ALL).items() if what in (BATCHES, INPUT)
        ]
    pairs = sorted(r.by(ALL), key=lambda d: d.apart.value)
    bars += [(_labels(r)[d.a, d.b], DIFFERENT, d.apart) for d in pairs[:MANY]]
    shown = f" The nearest {MANY} of {len(pairs)} pairs are shown." if len(pairs) > MANY else ""
    return FigureSpec(
        id="intervals",
        title="Other networks beside other input",
        kind="bars",
        data={
            "names": [name for name, _, _ in bars],
            "values": [found.value for _, _, found in bars],
            "low": [found.low for _, _, found in bars],
            "high": [found.high for _, _, found in bars],
            "group": [what for _, what, _ in bars],
        },
        read="All measures together, with 95 % intervals; 1 is by every measure as far as any network gets from itself. "
        f"Pairs are numbered as in the table of distances.{shown}",
        caveat="A network beside itself has the same heads, which makes it nearer than any other set of heads.",
        alt="Bars of distances of networks to themselves and to each other.",
        y_label="distance in yardsticks",
        log_y=True,
    )


def _times(r: CompareResult, heads: bool) -> FigureSpec:
    columns = {}
    for measure in MEASURES:
        ratios = [d.apart.low / max((d.heads if heads else d.same).high, TINY) for d in r.by(measure)]
        if np.isfinite(ratios).any():
            columns[SHORT[measure]] = np.log10(np.maximum(ratios, TINY))
    whose = "two random halves of the heads of one network" if heads else "the same network on other input"
    return FigureSpec(
        id="times-heads" if heads else "times",
        title=f"Networks beside {'other heads of one network' if heads else 'one network on other input'}",
        kind="heatmap",
        data={
            "values": np.array(list(columns.values())).T,
            "rows": list(_labels(r).values()),
            "columns": list(columns),
            "centre": 0.0,
        },
        read=f"log10 of the lower end of a distance over the upper end for {whose}: above 0 a pair is separated. Rows are "
        "numbered as in the table of distances.",
        caveat="A large ratio may come from a small yardstick; the table has both numbers.",
        alt="Heat map of separation by pair of networks and measure.",
        value_label="log10(distance / yardstick)",
    )


def _entropies(r: CompareResult, k: int) -> FigureSpec:
    name = UNIT_FREE[k]
    groups = [{"name": run, "values": values[k]} for run, values in zip(r.runs["run"], r.entropies, strict=True)]
    formula = {"l1_rel": "l1 / l2 over its maximum", "shannon": "entropy over its maximum"}
    return FigureSpec(
        id=f"entropies-{name}",
        title=f"Heads by {NAMES[name]}",
        kind="violins",
        data={"groups": groups},
        read="One shape a run: how its heads spread, mean over batches. High means that a head's coefficients are spread "
        "out, low that few of them hold it.",
        caveat="Free of units, not of length: only runs of equally many tokens can be laid side by side.",
        alt=f"Distribution of {NAMES[name]} over the heads of every run.",
        y_label=formula[name],
    )


def _curves(r: CompareResult, x: Any, values: Any) -> list[dict[str, Any]]:
    """One line a network: the mean over its runs, with the lowest and highest batch of all of them."""
    series = []
    for network in r.networks:
        here = values[(r.runs["network"] == network).to_numpy()]
        mean, low, high = here[:, 0].mean(axis=0), here[:, 1].min(axis=0), here[:, 2].max(axis=0)
        series.append({"name": network, "x": x, "y": mean, "low": low, "high": high})
    return series


def _decay(r: CompareResult) -> FigureSpec:
    return FigureSpec(
        id="decay",
        title="Tri-Haar decay",
        kind="lines",
        data={"series": _curves(r, RANKS, r.curves)},
        read="Share of the energy beside the constant that the coefficients of largest support hold; band: lowest and "
        "highest batch. A high start means that the coarsest contrast holds most of a network.",
        caveat="The number of coefficients grows with the heads, so that the same rank is coarser in a larger network.",
        alt="Cumulated energy of the tri-Haar coefficients by falling support, for every network.",
        x_label="coefficients, by falling support",
        y_label="share of energy",
        log_x=True,
    )


def _depth(r: CompareResult) -> FigureSpec:
    return FigureSpec(
        id="depth",
        title="Depth profile",
        kind="lines",
        data={"series": _curves(r, DEPTHS, r.profiles)},
        read="Mean distance of two heads by how far apart their layers are; 1 is first to last. A rising line means that "
        "heads of neighbouring layers are alike. Band: lowest and highest batch.",
        caveat="The last points rest on few layers.",
        alt="Mean head distance by relative layer distance, for every network.",
        x_label="layer distance, relative",
        y_label="head distance over its median",
    )


def _runs(r: CompareResult) -> FigureSpec:
    columns = ["run", "network", "block", "mask", "inputs", "n_query", "n_layers", "n_heads", "n_batches"]
    names = ["run", "network", "block", "mask", "inputs", "tokens", "layers", "heads", "batches"]
    return FigureSpec(
        id="runs",
        title="What was compared",
        kind="table",
        data={"columns": names, "rows": r.runs[columns].to_numpy(dtype=object).tolist()},
        read="Runs with the same weights are one network.",
    )
