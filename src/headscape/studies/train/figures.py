"""The pictures of the training comparison, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headscape.collapse.similarity import points_of, shown_layers
from headscape.hopfield.networks import ARMS
from headscape.intervals import mean_interval
from headscape.results import FigureSpec, table_figure

if TYPE_CHECKING:
    from headscape.studies.train.result import TrainResult

__all__ = ["TITLE", "figures", "shown_table"]

TITLE = "Kinds of attention, trained alike"


def figures(r: TrainResult) -> list[FigureSpec]:
    """Table, differences, loss curves, learning rates, similarity of tokens."""
    found = [_table(r)]
    if "standard" in r.arms and len(r.arms) > 1:
        found.append(_differences(r))
    found += [_curves(r), _rates(r), _similarity(r)]
    return [*found, _violins(r)] if {"standard", "both"} <= set(r.arms) else found


def shown_table(r: TrainResult) -> pd.DataFrame:
    """One row per arm, numbers with their intervals."""
    rows = []
    for row in r.to_frame().to_dict("records"):
        change = f"{row['change']:+.3g}{_span(row, 'change', 3)}" if "change" in row else ""
        rows.append(
            {
                "arm": ARMS[row["arm"]].title,
                "learning rate": f"{row['rate']:g}",
                "seeds": str(row["seeds"]),
                r.unit: f"{row['score']:.4g}{_span(row, 'score', 4)}",
                "change": "" if row["arm"] == "standard" else change,
                "similarity": f"{row['similarity']:.2f}",
                "aligned pairs": f"{row['aligned']:.1%}",
            }
        )
    return pd.DataFrame(rows)


def _span(row: Mapping[Any, Any], name: str, digits: int) -> str:
    """The interval of a column, in brackets; nothing where one seed has none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "" if np.isnan(low) else f" [{low:.{digits}g}, {high:.{digits}g}]"


def _better(r: TrainResult) -> str:
    return "higher is better" if r.images else "lower is better"


def _table(r: TrainResult) -> FigureSpec:
    return table_figure(
        shown_table(r),
        id="arms",
        title=TITLE,
        read=f"One row per arm, a kind of attention under comparison. Mean over seeds with a 95 % interval (Student) on the "
        f"test part; {_better(r)}. The change is from standard attention, paired by seed. Similarity: mean cosine of {r.pairs} "
        "after the last layer, and the share at 0.99 or more.",
        caveat="Small networks and few steps: what holds here need not hold at the paper's sizes.",
        alt="Table of test scores by arm.",
    )


def _differences(r: TrainResult) -> FigureSpec:
    changes = {ARMS[arm].title: r.difference(arm) for arm in r.arms if arm != "standard"}
    ends = {name: [getattr(c, name) for c in changes.values()] for name in ("low", "high")}
    return FigureSpec(
        id="scores",
        title="Change from standard attention",
        kind="bars",
        data={"names": list(changes), "values": [c.value for c in changes.values()], **ends},
        read=f"Test score minus that of standard attention with the same seed, mean and 95 % interval; {_better(r)}.",
        caveat="An interval that contains 0 shows no difference; it does not show that there is none.",
        alt="Bars of the change in test score for each arm.",
        y_label=f"change, {r.unit}",
    )


def _lines(series: list[dict[str, Any]], **rest: Any) -> FigureSpec:
    return FigureSpec(kind="lines", data={"series": series}, **rest)


def _curves(r: TrainResult) -> FigureSpec:
    series = []
    for arm in r.arms:
        rows = r.curves[(r.curves["arm"] == arm) & (r.curves["rate"] == r.rate(arm))]
        found = rows.groupby("step")["valid"].agg(["mean", "min", "max"])
        y, low, high = (found[name].to_numpy() for name in ("mean", "min", "max"))
        series.append({"name": ARMS[arm].title, "x": found.index.to_numpy(), "y": y, "low": low, "high": high})
    return _lines(
        series,
        id="curves",
        title="Validation loss while training",
        read="Mean over seeds, and the range between them, at each arm's own learning rate.",
        caveat="The validation part chose the learning rates and when to keep weights; the table is on the test part.",
        alt="Lines of validation loss over steps, one per arm.",
        x_label="step",
        y_label=f"loss, nats per {'image' if r.images else 'token'}",
    )


def _rates(r: TrainResult) -> FigureSpec:
    """What chose the rates: the first seed at every rate and, with finalists, the mean over all seeds at theirs."""
    series: list[dict[str, Any]] = []
    seeds, several = r.settings["seeds"], r.settings["finalists"] > 1 and len(r.settings["seeds"]) > 1
    for arm in r.arms:
        losses = r.trials[r.trials["arm"] == arm].pivot(index="rate", columns="seed", values="valid_loss").sort_index()
        first, whole = losses[seeds[0]], losses.dropna().mean(axis=1)
        name, x = ARMS[arm].title, first.index.to_numpy()
        if several:
            series.append({"name": f"{name}, all seeds", "x": whole.index.to_numpy(), "y": whole.to_numpy()})
            name += ", first seed"
        series.append({"name": name, "x": x, "y": first.to_numpy(), "dash": "dot" if several else None})
    first_only = "Validation loss of the first seed at each rate tried; each arm takes its lowest."
    finals = f"the best {r.settings['finalists']} rates of each arm were run with all {len(seeds)} seeds"
    return _lines(
        series,
        id="rates",
        title="How the learning rates were chosen",
        read=f"Validation loss at each rate tried. By the first seed (dotted) {finals}; each arm takes the lowest mean (solid)."
        if several
        else first_only,
        caveat="Arms whose curves are flat could as well have taken the neighbour."
        if several
        else "One seed chooses: arms whose curves are flat could as well have taken the neighbour.",
        alt="Lines of validation loss over learning rate, by arm.",
        x_label="peak learning rate",
        y_label="validation loss, nats",
        log_x=True,
    )


def _similarity(r: TrainResult) -> FigureSpec:
    series = []
    for arm in r.arms:
        by_layer = r.similarity[r.similarity["arm"] == arm].groupby("layer")["mean"]
        spans = {layer: mean_interval(values) for layer, values in by_layer}
        line = {"name": ARMS[arm].title, "x": np.array(list(spans)), "y": [s.value for s in spans.values()]}
        known = all(s.known for s in spans.values())
        ends = {end: [getattr(s, end) for s in spans.values()] for end in ("low", "high")}
        series.append(line | (ends if known else {}))
    return _lines(
        series,
        id="similarity",
        title="Similarity of tokens by layer",
        read=f"Mean cosine of {r.pairs} of a sequence after each layer (0: before the first), mean over seeds with its "
        "interval. Near 1 all tokens point the same way.",
        caveat="A common offset of all tokens makes cosines high without any loss of rank.",
        alt="Lines of mean token similarity over layers, one per arm.",
        x_label="layer",
        y_label="mean cosine",
    )


def _violins(r: TrainResult) -> FigureSpec:
    groups = []
    for layer in shown_layers(int(r.similarity["layer"].max()) + 1):
        for arm, side in (("standard", "left"), ("both", "right")):
            here = ((r.similarity["arm"] == arm) & (r.similarity["layer"] == layer)).to_numpy()
            groups.append({"name": f"layer {layer}", "values": points_of(r.counts[here].sum(axis=0)), "side": side})
    return FigureSpec(
        id="violins",
        title="Pairs of tokens: standard (left), Hopfield (right)",
        kind="violins",
        data={"groups": groups},
        read=f"Cosines of all {r.pairs}, all seeds together. The paper shows a group at 1 with standard attention that is gone "
        "with Modern Hopfield Attention.",
        caveat="Tokens of the same kind at different places may be alike for good reasons.",
        alt="Split violins of token similarity by layer.",
        y_label="cosine",
        paper="figures 4 to 12",
    )
