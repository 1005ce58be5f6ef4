"""The pictures of a comparison, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from headscape.geometry.gromov import classical_map
from headscape.intervals import Interval
from headscape.results import FigureSpec, table_figure
from headscape.studies.compare.result import ALL, DIFFERENT, HEADS, MEASURES, NAMES
from headscape.studies.compare.runs import DEPTHS, RANKS, UNIT_FREE

if TYPE_CHECKING:
    from headscape.studies.compare.result import CompareResult

__all__ = ["figures"]

SHORT = dict(zip(MEASURES, ("geometry", "1 batch", "l1", "Shannon", "decay", "depth"), strict=True))
TINY = 1e-12  # distances of 0 have a ratio too
LABEL = 16  # characters of a name that fit beside a picture
MANY = 20  # bars that are still readable; of more pairs the closest are shown


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
        row = {"networks": f"{k}: {pair.a} / {pair.b}"}
        for measure in (ALL, *MEASURES):
            d = next(d for d in r.by(measure) if (d.a, d.b) == (pair.a, pair.b))
            row[NAMES[measure]] = (
                f"{d.apart} {'>' if d.separated else 'not >'} {d.same.high:.3g}" if d.apart.known else "-"
            )
        rows.append(row)
    return table_figure(
        pd.DataFrame(rows),
        id="distances",
        title="Distances between networks",
        read="Mean and 95 % interval (n groups of batches), then the upper end of the interval of one network beside itself. "
        "A pair is separated when its whole interval lies above that (>).",
        caveat="Separated means that the networks differ, not that they do different things.",
        alt="Table of distances between networks by measure, each beside the distance of one network to itself.",
    )


def _map(r: CompareResult) -> FigureSpec:
    points, share = classical_map(r.between_runs())
    names, networks = r.runs["run"].tolist(), r.runs["network"].tolist()
    return FigureSpec(
        id="map",
        title="Map of the networks",
        kind="scatter",
        data={"x": points[:, 0], "y": points[:, 1], "names": names, "group": networks},
        read="Each point is a run; close points are alike by all measures together. Runs of one network share colour and symbol.",
        caveat=f"Classical scaling to a plane, which shows {share:.0%} of the squared distances; the rest is not drawn.",
        alt=f"Map of {len(r.runs)} runs of {len(r.networks)} networks.",
        x_label="first coordinate, in self-distances",
        y_label="second coordinate, in self-distances",
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
        caveat="Means only; the figure of intervals has the intervals.",
        alt="Matrix of distances between runs, in self-distances.",
        x_label="run, numbered as the rows",
        value_label="distance in self-distances",
    )


def _intervals(r: CompareResult) -> FigureSpec:
    bars: list[tuple[str, str, Interval]] = [
        (network, what, found)
        for network in r.networks
        for what, found in r.yardsticks(network, ALL).items()
        if what != HEADS
    ]
    pairs = sorted(r.by(ALL), key=lambda d: d.apart.value)
    bars += [(_labels(r)[d.a, d.b], DIFFERENT, d.apart) for d in pairs[:MANY]]
    shown = f" The closest {MANY} of {len(pairs)} pairs are shown." if len(pairs) > MANY else ""
    data: dict[str, Any] = {"names": [name for name, _, _ in bars], "group": [what for _, what, _ in bars]}
    data |= {"values": [one.value for _, _, one in bars], "high": [one.high for _, _, one in bars]}
    data["low"] = [max(one.low, 0.0) for _, _, one in bars]  # no distance is negative
    return FigureSpec(
        id="intervals",
        title="Other networks beside other input",
        kind="bars",
        data=data,
        read="All measures together, with 95 % intervals over groups of batches; 1 is by every measure the mean self-distance "
        f"of the network that varies most. Pairs are numbered as in the table of distances.{shown}",
        caveat="A network beside itself has the same heads, which makes it closer than any other set of heads.",
        alt="Bars of distances of networks to themselves and to each other.",
        y_label="distance in self-distances",
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
        caveat="A large ratio may come from a small denominator; the table has both numbers.",
        alt="Heat map of separation by pair of networks and measure.",
        value_label="log10(distance / self-distance)",
    )


def _entropies(r: CompareResult, k: int) -> FigureSpec:
    name = UNIT_FREE[k]
    groups = [{"name": run, "values": values[k]} for run, values in zip(r.runs["run"], r.entropies, strict=True)]
    return FigureSpec(
        id=f"entropies-{name}",
        title=f"Heads by {NAMES[name]}",
        kind="violins",
        data={"groups": groups},
        read="One shape per run: the distribution of its heads, averaged over batches. High means that the coefficients of a "
        "head are spread out, low that a few of them hold it.",
        caveat="It does not depend on units, but on length: only runs of equally many tokens can be compared.",
        alt=f"Distribution of {NAMES[name]} over the heads of every run.",
        y_label={"l1_rel": "l1 / l2 over its maximum", "shannon": "entropy over its maximum"}[name],
    )


def _curves(r: CompareResult, x: Any, values: Any) -> list[dict[str, Any]]:
    """One line per network: the mean over its runs, with the lowest and highest batch of all of them."""
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
        read="Share of the energy, without the mean (DC) coefficient, in the coefficients of largest support; band: lowest and "
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
    shown = r.runs[columns].set_axis(names, axis=1)
    return table_figure(shown, id="runs", title="What was compared", read="Runs with the same weights are one network.")
