"""The pictures of the training comparison, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.results import FigureSpec
from headscape.studies.train.result import t_interval

if TYPE_CHECKING:
    from headscape.studies.train.result import TrainResult

__all__ = ["figures"]

NAMES = {"standard": "standard", "hidden": "hidden state", "skip": "scaled skip", "both": "both (Hopfield)"}
VIOLIN_LAYERS = 6  # drawn side by side; more do not fit


def figures(r: TrainResult) -> list[FigureSpec]:
    """Table, differences, loss curves, learning rates, similarity of tokens."""
    found = [_table(r)]
    if "standard" in r.arms and len(r.arms) > 1:
        found.append(_differences(r))
    found += [_curves(r), _rates(r), _similarity(r)]
    if {"standard", "both"} <= set(r.arms):
        found.append(_violins(r))
    return found


def _better(r: TrainResult) -> str:
    return "higher is better" if r.images else "lower is better"


def _span(row: Mapping[Any, Any], name: str, digits: int) -> str:
    """The interval of a column, in brackets; nothing where one seed has none."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "" if np.isnan(low) else f" [{low:.{digits}g}, {high:.{digits}g}]"


def _table(r: TrainResult) -> FigureSpec:
    frame = r.to_frame()
    rows = []
    for row in frame.to_dict("records"):
        change = f"{row['change']:+.3g}{_span(row, 'change', 3)}" if "change" in row else ""
        rows.append(
            [
                NAMES[row["arm"]],
                f"{row['rate']:g}",
                str(row["seeds"]),
                f"{row['score']:.4g}{_span(row, 'score', 4)}",
                "" if row["arm"] == "standard" else change,
                f"{row['similarity']:.2f}",
                f"{row['aligned']:.1%}",
            ]
        )
    columns = ["arm", "learning rate", "seeds", r.unit, "change", "similarity", "aligned pairs"]
    return FigureSpec(
        id="arms",
        title="Four kinds of attention, trained alike",
        kind="table",
        data={"columns": columns, "rows": rows},
        read=f"Mean over seeds with a 95 % interval (Student), on the test part; {_better(r)}. The change is from standard "
        "attention, paired by seed. Similarity: mean cosine of two tokens after the last layer, and the share above "
        "0.99.",
        caveat="Small networks and few steps: what holds here need not hold at the paper's sizes.",
        alt="Table of test scores by arm.",
    )


def _differences(r: TrainResult) -> FigureSpec:
    arms = [arm for arm in r.arms if arm != "standard"]
    changes = [r.difference(arm) for arm in arms]
    return FigureSpec(
        id="scores",
        title="Change from standard attention",
        kind="bars",
        data={
            "names": [NAMES[arm] for arm in arms],
            "values": [c.value for c in changes],
            "low": [c.low for c in changes],
            "high": [c.high for c in changes],
        },
        read=f"Test score less that of standard attention with the same seed, mean and 95 % interval; {_better(r)}.",
        caveat="An interval that contains 0 shows no difference; it does not show that there is none.",
        alt="Bars of the change in test score for each arm.",
        y_label=f"change, {r.unit}",
    )


def _curves(r: TrainResult) -> FigureSpec:
    chosen = {arm: float(r.trials.loc[(r.trials["arm"] == arm) & r.trials["chosen"], "rate"].iloc[0]) for arm in r.arms}
    series = []
    for arm in r.arms:
        rows = r.curves[(r.curves["arm"] == arm) & (r.curves["rate"] == chosen[arm])]
        by_step = rows.groupby("step")["valid"]
        series.append(
            {
                "name": NAMES[arm],
                "x": by_step.mean().index.to_numpy(),
                "y": by_step.mean().to_numpy(),
                "low": by_step.min().to_numpy(),
                "high": by_step.max().to_numpy(),
            }
        )
    return FigureSpec(
        id="curves",
        title="Validation loss while training",
        kind="lines",
        data={"series": series},
        read="Mean over seeds, and the range between them, at each arm's own learning rate.",
        caveat="The validation part chose the learning rates and when to keep weights; the table is on the test part.",
        alt="Lines of validation loss over steps, one an arm.",
        x_label="step",
        y_label="loss, nats a token" if not r.images else "loss, nats an image",
    )


def _rates(r: TrainResult) -> FigureSpec:
    seed = r.settings["seeds"][0]
    series = []
    for arm in r.arms:
        rows = r.trials[(r.trials["arm"] == arm) & (r.trials["seed"] == seed)].sort_values("rate")
        series.append({"name": NAMES[arm], "x": rows["rate"].to_numpy(), "y": rows["valid_loss"].to_numpy()})
    return FigureSpec(
        id="rates",
        title="How the learning rates were chosen",
        kind="lines",
        data={"series": series},
        read="Validation loss of the first seed at each rate tried; each arm takes its lowest.",
        caveat="One seed chooses: arms whose curves are flat could as well have taken the neighbour.",
        alt="Lines of validation loss over learning rate, one an arm.",
        x_label="peak learning rate",
        y_label="validation loss, nats",
        log_x=True,
    )


def _similarity(r: TrainResult) -> FigureSpec:
    series = []
    for arm in r.arms:
        by_layer = r.similarity[r.similarity["arm"] == arm].groupby("layer")["mean"]
        intervals = [t_interval(values.to_numpy()) for _, values in by_layer]
        line: dict[str, Any] = {
            "name": NAMES[arm],
            "x": by_layer.mean().index.to_numpy(),
            "y": [i.value for i in intervals],
        }
        if not any(np.isnan(i.low) for i in intervals):
            line |= {"low": [i.low for i in intervals], "high": [i.high for i in intervals]}
        series.append(line)
    return FigureSpec(
        id="similarity",
        title="Similarity of tokens by layer",
        kind="lines",
        data={"series": series},
        read="Mean cosine between two tokens of a sequence after each layer (0: before the first), mean over seeds and its "
        "interval. Near 1 all tokens point the same way.",
        caveat="A common offset of all tokens makes cosines high without any loss of rank.",
        alt="Lines of mean token similarity over layers, one an arm.",
        x_label="layer",
        y_label="mean cosine",
    )


def _violins(r: TrainResult) -> FigureSpec:
    last = int(r.similarity["layer"].max())
    layers = np.unique(np.rint(np.linspace(0, last, min(last + 1, VIOLIN_LAYERS))).astype(int))
    groups = []
    for layer in layers:
        for arm, side in (("standard", "left"), ("both", "right")):
            here = ((r.similarity["arm"] == arm) & (r.similarity["layer"] == layer)).to_numpy()
            groups.append({"name": f"layer {layer}", "values": r.quantiles[here].ravel(), "side": side})
    return FigureSpec(
        id="violins",
        title="Pairs of tokens: standard (left), Hopfield (right)",
        kind="violins",
        data={"groups": groups},
        read="Cosines of all pairs of tokens, all seeds together. The paper shows a group at 1 with standard attention that "
        "is gone with Modern Hopfield Attention.",
        caveat="Tokens of the same kind at different places may be alike for good reasons.",
        alt="Split violins of token similarity by layer.",
        y_label="cosine",
        paper="figures 4 to 12",
    )
