"""The pictures of the prune study, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from headscape.results import FigureSpec, table_figure
from headscape.studies.prune.judging import Curve
from headscape.studies.prune.result import CONTROLS

if TYPE_CHECKING:
    from headscape.studies.prune.result import PruneResult

__all__ = ["figures"]

SHOWN = 6
"""Criteria in one picture, beside random choice, the paper's and gradients."""
ALWAYS = ("gradient", "l1_top", "l1_all", "random")
BANDS = ("gradient", "random")


def figures(r: PruneResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found = []
    if r.curve("proposal", proposal=True) is not None:
        found.append(_abilities(r))
        found += [_proposal(r)] if len(r.evidence) else []
    if len(r.classes):
        title, read = "Accuracy by class", "Share of the judging images of each class that are classified correctly."
        found.append(table_figure(r.classes, id="classes", title=title, read=read, alt="Accuracy by class."))
    if r.on():
        found += [_curves(r, compensation) for compensation in dict.fromkeys((r.compensation, "none"))]
        found += [_costs(r), _compensation(r)]
    found.append(_grid(r))
    if r.correlations:
        found.append(_correlations(r))
    if r.tree is not None and r.proposal:
        found.append(_clusters(r))
    return [*found, _choice(r)]


def _percent(values: Any) -> list[float]:
    return [100 * float(v) for v in values]


def _line(r: PruneResult, c: Curve, name: str, dash: bool, band: bool) -> dict[str, Any]:
    costs = [c.cost(i) for i in range(len(c.n))]
    series: dict[str, Any] = {
        "name": name,
        "x": _percent(n / len(r.heads) for n in c.n),
        "y": _percent(x.value for x in costs),
    }
    if band:
        ends = [c.band(i) if len(c.costs) > 1 else (x.low, x.high) for i, x in enumerate(costs)]
        series |= {"low": _percent(low for low, _ in ends), "high": _percent(high for _, high in ends)}
    return series | ({"dash": "dash"} if dash else {})


def _curves(r: PruneResult, compensation: str) -> FigureSpec:
    known = [c for c in r.on() if c.compensation == compensation]
    best = sorted((c for c in known if c.criterion not in CONTROLS), key=lambda c: c.area.value)[:SHOWN]
    names = [c.criterion for c in best]
    names += [n for n in ALWAYS if n not in names]
    if compensation == "none":
        names += ["l1_all_random", "l1_all_natural"]
    by_name = {c.criterion: c for c in known}
    series = [_line(r, by_name[n], n, n in CONTROLS, n in BANDS or n == r.criterion) for n in names if n in by_name]
    return FigureSpec(
        id="curves" if compensation == r.compensation else "curves-none",
        title=f"What removing heads costs, compensation {compensation}",
        kind="lines",
        data={"series": series},
        read=f"Across: share of the {len(r.heads)} heads removed, in the order of each criterion. Up: {r.measure}, on "
        f"{r.settings['judged_on']} inputs used neither to rank nor to choose. Lower is better. Bands: 95 % intervals over "
        "inputs for the chosen criterion and gradients, the range of the draws for random.",
        caveat="Heads are removed by rank, not searched for; a criterion may be good at one share and poor at another.",
        alt=f"Curves of {len(series)} criteria; the lowest is {names[0]}.",
        x_label="heads removed (%)",
        y_label=f"{r.measure} (%)",
    )


def _abilities(r: PruneResult) -> FigureSpec:
    return table_figure(
        r.costs,
        id="abilities",
        title="What each ability costs",
        read=f"Losses in nats on inputs used neither to rank nor to choose, without {len(r.proposal)} heads. Chance: the same "
        f"completions after the context of another item. Cost: of {r.main}, the {r.measure}; of the others, the share of the "
        "advantage over chance that is lost; with its 95 % interval.",
        caveat="An ability that is not listed was not measured.",
        alt="Cost of the proposal by ability.",
    )


def _proposal(r: PruneResult) -> FigureSpec:
    return table_figure(
        r.evidence,
        id="proposal",
        title="The proposal beside as many heads by other criteria",
        read=f"Every row removes {len(r.proposal)} heads with compensation {r.compensation}. Cost is the {r.measure}, with its "
        "95 % interval over inputs; differences are paired by input.",
        caveat="The proposal was found by a search on other inputs; the others are plain rankings.",
        alt="Costs of the proposal and of as many heads by other criteria.",
    )


def _costs(r: PruneResult) -> FigureSpec:
    return table_figure(
        r.table,
        id="costs",
        title="All costs",
        read=f"{r.measure[0].upper()}{r.measure[1:]} with its 95 % interval over inputs; the last column is the mean along the curve.",
        alt="Costs by criterion and compensation.",
    )


def _compensation(r: PruneResult) -> FigureSpec:
    names = list(dict.fromkeys((r.criterion, "gradient")))
    series = [
        _line(r, c, f"{c.criterion}, {c.compensation}", c.criterion != r.criterion, c.compensation == r.compensation)
        for c in r.on()
        if c.criterion in names
    ]
    return FigureSpec(
        id="compensation",
        title="What compensation recovers",
        kind="lines",
        data={"series": series},
        read="none: a removed head outputs zero. mean: its mean output stays. scale: the layer's kept heads are rescaled by one "
        "factor. linear: its best linear prediction from the layer's kept heads (Optimal Brain Surgeon for heads). All are "
        "fitted on the ranking inputs and folded into the output projection.",
        alt=f"Curves of {', '.join(names)} under each compensation.",
        x_label="heads removed (%)",
        y_label=f"{r.measure} (%)",
    )


def _grid(r: PruneResult) -> FigureSpec:
    score = "leave_one_out" if "leave_one_out" in r.heads else r.criterion
    return FigureSpec(
        id="importance",
        title="Importance by layer and head",
        kind="head_grid",
        data={"score": score},
        read="One cell per head; choose any criterion. Heads with low scores are removed first; 'removed' marks the proposal.",
        caveat="Scores of different criteria are not in the same unit.",
        alt=f"Grid of {score}.",
        value_label=score,
    )


def _correlations(r: PruneResult) -> FigureSpec:
    order = sorted(r.correlations.items(), key=lambda item: -item[1].value)
    return FigureSpec(
        id="correlations",
        title="Which criterion is closest to leave-one-out?",
        kind="bars",
        data={
            "names": [name for name, _ in order],
            **{
                part: [getattr(x, end) for _, x in order]
                for part, end in (("values", "value"), ("low", "low"), ("high", "high"))
            },
        },
        read="Spearman correlation over heads with the rise of the loss when a head is removed alone; 95 % intervals over "
        f"sequences (n = {order[0][1].n}).",
        caveat="Removing one head says little about removing many: heads can replace each other.",
        alt=f"The highest is {order[0][0]}.",
        y_label="Spearman correlation",
    )


def _clusters(r: PruneResult) -> FigureSpec:
    """Of the level of the head tree with some ten clusters: how many heads are removed."""
    assert r.tree is not None
    counts = [len(np.unique(r.tree.level(i))) for i in range(r.tree.n_levels)]
    level = min(range(len(counts)), key=lambda i: abs(counts[i] - 10))
    labels = r.tree.level(level)
    removed, layers = r.heads["removed"].to_numpy() == "yes", r.heads["layer"].to_numpy()
    inside = [labels == label for label in dict.fromkeys(labels[r.tree.order].tolist())]
    names = [f"{int(own.sum())} heads, layers {layers[own].min()} to {layers[own].max()}" for own in inside]
    if len(set(names)) < len(names):
        names = [f"{i + 1}: {name}" for i, name in enumerate(names)]
    return FigureSpec(
        id="folders",
        title="Which clusters of the head tree are removed",
        kind="bars",
        data={"names": names, "values": [100 * float(removed[own].mean()) for own in inside]},
        read=f"Clusters (folders, in the paper) of level {level} of the consensus tree, in leaf order: share of their heads "
        f"that the proposal removes ({removed.mean():.0%} over all).",
        caveat="A cluster holds heads that attend alike, which need not do the same.",
        alt="Share of heads removed by cluster.",
        y_label="heads removed (%)",
    )


def _choice(r: PruneResult) -> FigureSpec:
    frame: pd.DataFrame = r.choice.head(20)
    costs = ["-" if cost != cost else f"{cost:+.2%}" for cost in frame["cost"]]
    return table_figure(
        frame.assign(cost=costs),
        id="choice",
        title="How the criterion was chosen",
        read=f"On {r.settings['chosen_on']} inputs that are not used to judge, with a fifth of the heads removed: mean cost over "
        "abilities. All pairs on the first few inputs, the better half on twice as many, and so on. The first row was taken.",
        alt="Criteria and compensations by mean cost.",
    )
