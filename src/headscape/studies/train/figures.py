"""The pictures of the training comparison, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from headscape.collapse.similarity import points_of, shown_layers, summary_of
from headscape.hopfield.networks import LEARNED_START, base_arm
from headscape.intervals import mean_interval, student_interval
from headscape.results import Captions, FigureSpec
from headscape.studies.train.result import TrainResult
from headscape.studies.work.series import bars, curve, line

__all__ = ["TITLE", "figures", "paper_tables", "shown_table"]

captions = Captions(__name__)

TITLE = "Kinds of attention, trained alike"


def figures(r: TrainResult) -> list[FigureSpec]:
    """Table, differences, loss curves, learning rates; tokens and attention by layer."""
    value = "higher is better" if r.images else "lower is better"
    found = [captions.table("arms", shown_table(r), value=value, pairs=r.pairs, title=TITLE)]
    if "standard" in r.arms and len(r.arms) > 1:
        changes = {base_arm(arm).title: r.difference(arm) for arm in r.arms if arm != "standard"}
        found.append(captions.figure("scores", bars(changes), value=value, unit=r.unit))
    found += [_curves(r), *([_rates(r)] if len(r.settings["rates"]) > 1 else [])]
    found += [_by_layer(r, name) for name in ("similarity", "residual", "rank")] + [_course(r), _entropy(r)]
    found += [_learned(r)] if r.heads["alpha"].notna().any() else []
    return found + [draw(r, *r.pair) for draw in (_violins, _heads) if r.pair]


def paper_tables(r: TrainResult) -> dict[str, pd.DataFrame]:
    """What the paper draws as figures 4 to 20, in numbers: one row per layer at the end of training, all seeds together.

    "similarity" (figures 4 to 12): of the cosines of pairs of tokens the mode (fullest of 100 bins), median, mean and
    share at .99 or more, for each arm. "entropy" (figures 13 to 20): lowest head, mean, and highest head.
    """
    last, similarity, entropy = r.last, [], []
    for layer in sorted(last["layer"].unique()):
        row = {"after layer": str(layer) if layer else "0 (before the first)"}
        for arm in r.arms:
            found = summary_of(r.counts[((last["arm"] == arm) & (last["layer"] == layer)).to_numpy()].sum(axis=0))
            row[base_arm(arm).title] = f"{found.mode:.2f} / {found.median:.2f} / {found.mean:.2f} / {found.share:.2%}"
        similarity.append(row)
    heads = r.heads[r.heads["step"] == r.heads.groupby(["arm", "seed"])["step"].transform("max")]
    for layer in sorted(heads["layer"].unique()):
        row = {"layer": str(layer + 1)}
        for arm in r.arms:
            each = heads[(heads["arm"] == arm) & (heads["layer"] == layer)]["entropy"]
            row[base_arm(arm).title] = f"{each.min():.2f} / {each.mean():.2f} / {each.max():.2f}"
        entropy.append(row)
    return {"similarity": pd.DataFrame(similarity), "entropy": pd.DataFrame(entropy)}


def shown_table(r: TrainResult) -> pd.DataFrame:
    """One row per arm, numbers with their intervals; then the baselines."""
    rows = []
    for row in r.to_frame().to_dict("records"):
        change = f"{row['change']:+.3g}{_span(row, 'change', 3)} (n = {row['change_n']})" if "change" in row else ""
        rows.append(
            {
                "arm": base_arm(row["arm"]).title,
                "learning rate": f"{row['rate']:g}",
                "seeds": str(row["seeds"]),
                r.unit: f"{row['score']:.4g}{_span(row, 'score', 4)}",
                "change": "" if row["arm"] == "standard" else change,
                "attention uniform": f"{row['uniform']:+.3g}",
                "attention removed": f"{row['removed']:+.3g}",
                "similarity": f"{row['similarity']:.2f}",
                "aligned pairs": f"{row['aligned']:.1%}",
            }
        )
    rows += [{"arm": base_arm(arm).title, r.unit: f"diverged: {why}"} for arm, why in r.failed.items()]
    return pd.DataFrame(rows + [{"arm": name, r.unit: f"{x:.4g}"} for name, x in r.baselines.items()]).fillna("")


def _span(row: Mapping[Any, Any], name: str, digits: int) -> str:
    """The interval of a column, in brackets; nothing where one seed has none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "" if np.isnan(low) else f" [{low:.{digits}g}, {high:.{digits}g}]"


def _curves(r: TrainResult) -> FigureSpec:
    series = []
    for arm in r.arms:
        rows = r.curves[(r.curves["arm"] == arm) & (r.curves["rate"] == r.rate(arm))]
        found = rows.groupby("step")["valid"].agg(["mean", "min", "max"])
        y, low, high = (found[name].to_numpy() for name in ("mean", "min", "max"))
        series.append(curve(base_arm(arm).title, found.index.to_numpy(), y, low=low, high=high, range=True))
    return captions.lines("curves", series, value="image" if r.images else "token")


def _rates(r: TrainResult) -> FigureSpec:
    """What chose the rates: the first seed at every rate and, with finalists, the mean over all seeds at theirs."""
    series: list[dict[str, Any]] = []
    seeds, several = r.settings["seeds"], r.settings["finalists"] > 1 and len(r.settings["seeds"]) > 1
    for arm in r.arms:
        runs = r.trials[r.trials["arm"] == arm]
        if base_arm(arm).stretch != 1:
            continue  # it takes the rate of another arm
        tries = runs[~runs["kept"]] if not runs["kept"].all() else runs[runs["seed"] == seeds[0]]
        first = tries.set_index("rate")["valid_loss"].sort_index()
        losses = runs[runs["kept"]].pivot(index="rate", columns="seed", values="valid_loss")
        whole = losses.dropna().mean(axis=1)
        name, x = base_arm(arm).title, first.index.to_numpy()
        if several:
            series.append(curve(f"{name}, all seeds", whole.index.to_numpy(), whole.to_numpy()))
            name += ", first seed"
        series.append(curve(name, x, first.to_numpy(), "dot" if several else None))
    short = f"runs of {r.settings['search_steps']} steps with the first seed"
    first_only = f"Validation loss at each rate tried, in {short}; each arm takes its lowest."
    finals = f"the best {r.settings['finalists']} rates of each arm were run with all {len(seeds)} seeds"
    flat = "arms with flat curves could equally well have taken a neighbouring rate."
    if not several:
        return captions.lines("rates", series, read=first_only, caveat=f"One seed chooses: {flat}")
    read = f"Validation loss at each rate tried. By {short} (dotted) {finals}; each arm takes the lowest mean (solid)."
    return captions.lines("rates", series, read=read, caveat=flat.capitalize())


BOUNDS = {"similarity": (-1.0, 1.0), "residual": (0.0, 2.0), "rank": (1.0, math.inf)}
"""Between which values a measure by layer lies, so that its intervals end there. A residual in this norm may exceed 1."""


def _by_layer(r: TrainResult, name: str) -> FigureSpec:
    series = []
    for arm in r.arms:
        by_layer = r.last[r.last["arm"] == arm].groupby("layer")[name]
        spans = {layer: student_interval(values).within(*BOUNDS[name]) for layer, values in by_layer}
        series.append(line(base_arm(arm).title, np.array(list(spans)), list(spans.values())))
    return captions.lines(name, series, pairs=r.pairs)


def _course(r: TrainResult) -> FigureSpec:
    """The last layer at every evaluation."""
    series = []
    for arm in r.arms:
        rows = r.layers[(r.layers["arm"] == arm) & (r.layers["layer"] == r.layers["layer"].max())]
        spans = {step: student_interval(x).within(*BOUNDS["rank"]) for step, x in rows.groupby("step")["rank"]}
        series.append(line(base_arm(arm).title, np.array(list(spans)), list(spans.values())))
    return captions.lines("course", series)


def _entropy(r: TrainResult) -> FigureSpec:
    series = []
    for arm in r.arms:
        spans = [student_interval(column).within(0, 1) for _, column in r.entropies(arm).items()]
        series.append(line(base_arm(arm).title, np.arange(len(spans)) + 1, spans))
    return captions.lines("entropy", series)


def _heads(r: TrainResult, left: str, right: str) -> FigureSpec:
    groups = []
    for layer in shown_layers(int(r.heads["layer"].max()) + 1):
        for arm, side in ((left, "left"), (right, "right")):
            last = r.heads[(r.heads["arm"] == arm) & (r.heads["layer"] == layer)]
            values = last[last["step"] == last["step"].max()]["entropy"].to_numpy()
            groups.append({"name": f"layer {layer + 1}", "values": values, "side": side, "label": base_arm(arm).title})
    return captions.figure("heads", {"groups": groups})


def _learned(r: TrainResult) -> FigureSpec:
    rows = r.heads[r.heads["alpha"].notna()]
    series = []
    for _, of_layer in rows.groupby("layer"):
        by_seed = of_layer.groupby(["step", "seed"])["alpha"].mean()
        by_step = {step: mean_interval(values) for step, values in by_seed.groupby("step")}
        series.append(line(f"layer {of_layer['layer'].iloc[0] + 1}", np.array(list(by_step)), list(by_step.values())))
    return captions.lines("learned", series, LEARNED_START=LEARNED_START)


def _violins(r: TrainResult, left: str, right: str) -> FigureSpec:
    groups = []
    last = r.last
    for layer in shown_layers(int(last["layer"].max()) + 1):
        for arm, side in ((left, "left"), (right, "right")):
            here = ((last["arm"] == arm) & (last["layer"] == layer)).to_numpy()
            values = points_of(r.counts[here].sum(axis=0))
            groups.append({"name": f"layer {layer}", "values": values, "side": side, "label": base_arm(arm).title})
    return captions.figure("violins", {"groups": groups}, pairs=r.pairs)
