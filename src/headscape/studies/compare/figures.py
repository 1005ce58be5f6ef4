"""The pictures of a comparison, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from headscape.geometry.gromov import classical_map
from headscape.intervals import Interval
from headscape.results import Captions, FigureSpec
from headscape.studies.compare.result import ALL, DIFFERENT, HEADS, MEASURES, NAMES, CompareResult
from headscape.studies.compare.runs import DEPTHS, RANKS, UNIT_FREE
from headscape.studies.work.series import curve

__all__ = ["figures"]
captions = Captions(__name__)

SHORT = dict(zip(MEASURES, ("geometry", "1 batch", "l1", "Shannon", "decay", "depth"), strict=True))
TINY = 1e-12  # distances of 0 have a ratio too
SHORT_NAME = 7  # characters of a network's name in that of a pair
SHOWN_BATCHES = 5  # as in table 2 of the paper
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
    found += [_whole(r)] if r.whole else []
    found.append(captions.lines("decay", _curves(r, RANKS, r.curves)))
    return [*found, captions.lines("depth", _curves(r, DEPTHS, r.profiles)), _runs(r)]


def _labels(r: CompareResult) -> dict[tuple[str, str], str]:
    """Short names of the pairs, numbered as in the table of distances: what stands before the first hyphen, if that differs."""
    short = {name: name.partition("-")[0] for name in r.networks}
    if len(set(short.values())) < len(short):
        short = {name: name for name in short}
    short = {name: s if len(s) <= SHORT_NAME else s[: SHORT_NAME - 1] + "…" for name, s in short.items()}
    return {(d.a, d.b): f"{k}: {short[d.a]}/{short[d.b]}" for k, d in enumerate(r.by(ALL), start=1)}


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
    return captions.table("distances", pd.DataFrame(rows))


def _map(r: CompareResult) -> FigureSpec:
    points, share = classical_map(r.between_runs())
    runs = {"names": r.runs["run"].tolist(), "group": r.runs["network"].tolist()}
    counts = {"n_runs": len(r.runs), "n_networks": len(r.networks)}
    return captions.figure("map", {"x": points[:, 0], "y": points[:, 1], **runs}, share=share, **counts)


def _matrix(r: CompareResult) -> FigureSpec:
    D = r.between_runs()
    apart = squareform(D - np.diag(np.diag(D)), checks=False)
    order = leaves_list(linkage(apart, "average", optimal_ordering=True))
    names = [f"{k}: {r.runs['run'].iloc[i]}" for k, i in enumerate(order, start=1)]
    return captions.figure(
        "matrix", {"values": D[np.ix_(order, order)], "rows": names, "columns": [str(k + 1) for k in range(len(order))]}
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
    data["n"] = [one.n for _, _, one in bars]
    return captions.figure("intervals", data, shown=shown)


def _times(r: CompareResult, heads: bool) -> FigureSpec:
    columns = {}
    for measure in MEASURES:
        ratios = [d.apart.low / max((d.heads if heads else d.same).high, TINY) for d in r.by(measure)]
        if np.isfinite(ratios).any():
            columns[SHORT[measure]] = np.log10(np.maximum(ratios, TINY))
    data: dict[str, Any] = {"rows": list(_labels(r).values()), "columns": list(columns), "centre": 0.0}
    return captions.figure(
        "times",
        data | {"values": np.array(list(columns.values())).T},
        id="times-heads" if heads else "times",
        what="other heads of one network" if heads else "one network on other input",
        whose="two random halves of the heads of one network" if heads else "the same network on other input",
    )


def _entropies(r: CompareResult, k: int) -> FigureSpec:
    name = UNIT_FREE[k]
    label = {"l1_rel": "l1 / l2 over its maximum", "shannon": "entropy over its maximum"}[name]
    groups = {run: values[k] for run, values in zip(r.runs["run"], r.entropies, strict=True)}
    return captions.violins("entropies", groups, name=name, value=NAMES[name], y_label=label)


def _whole(r: CompareResult) -> FigureSpec:
    """Table 2 of the paper, with what is free of units beside it."""
    columns = {}
    for name, found in zip(r.runs["run"], r.whole, strict=True):
        for what, values in zip(("l1 of 100", "relative l1", "Shannon"), found, strict=True):
            columns[f"{name}: {what}"] = values[:SHOWN_BATCHES]
    return captions.table("whole", pd.DataFrame(columns).rename_axis("batch").reset_index())


def _curves(r: CompareResult, x: Any, values: Any) -> list[dict[str, Any]]:
    """One line per network: the mean over its runs, with the lowest and highest batch of all of them."""
    series = []
    for network in r.networks:
        here = values[(r.runs["network"] == network).to_numpy()]
        mean, low, high = here[:, 0].mean(axis=0), here[:, 1].min(axis=0), here[:, 2].max(axis=0)
        series.append(curve(network, x, mean, low=low, high=high, range=True))
    return series


def _runs(r: CompareResult) -> FigureSpec:
    named = {"n_query": "clusters" if r.clusters else "tokens", "n_layers": "layers", "n_heads": "heads"}
    named |= {"n_batches": "batches"}
    return captions.table("runs", r.runs[["run", "network", "block", "mask", "inputs", *named]].rename(columns=named))
