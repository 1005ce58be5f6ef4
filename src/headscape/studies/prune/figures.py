"""The pictures of the prune study, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.results import FigureSpec
from headscape.studies.prune.result import CONTROLS, Curve

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
        found.append(_proposal(r))
    if any(not c.proposal for c in r.curves):
        found += [_curves(r, compensation) for compensation in dict.fromkeys((r.compensation, "none"))]
        found += [_table(r), _compensation(r)]
    found.append(_grid(r))
    if r.correlations:
        found.append(_correlations(r))
    if r.tree is not None and r.proposal:
        found.append(_folders(r))
    return [*found, _choice(r)]


def _percent(values: Any) -> list[float]:
    return [100 * float(v) for v in values]


def _line(r: PruneResult, c: Curve, name: str, dash: bool, band: bool) -> dict[str, Any]:
    n = range(len(c.n))
    intervals = [c.cost(i) for i in n]
    low = [c.band(i)[0] for i in n] if len(c.costs) > 1 else [x.low for x in intervals]
    high = [c.band(i)[1] for i in n] if len(c.costs) > 1 else [x.high for x in intervals]
    series: dict[str, Any] = {
        "name": name,
        "x": _percent(np.array(c.n) / len(r.heads)),
        "y": _percent(x.value for x in intervals),
    }
    if band:
        series |= {"low": _percent(low), "high": _percent(high)}
    return series | ({"dash": "dash"} if dash else {})


def _curves(r: PruneResult, compensation: str) -> FigureSpec:
    known = [c for c in r.curves if c.compensation == compensation and not c.proposal]
    best = sorted((c for c in known if c.criterion not in CONTROLS), key=lambda c: c.area.value)[:SHOWN]
    names = [c.criterion for c in best]
    names += [n for n in ALWAYS if n not in names]
    if compensation == "none":
        names += ["l1_all_random", "l1_all_natural"]
    by_name = {c.criterion: c for c in known}
    series = [_line(r, by_name[n], n, n in CONTROLS, n in BANDS or n == r.criterion) for n in names if n in by_name]
    chosen = compensation == r.compensation
    return FigureSpec(
        id="curves" if chosen else "curves-none",
        title=f"What removing heads costs, compensation {compensation}",
        kind="lines",
        data={"series": series},
        read=f"Across: share of the {len(r.heads)} heads removed, in the order of each criterion. Up: {r.unit}, on "
        f"{r.settings['judged_on']} inputs that neither ranked nor chose. Lower is better. Bands: 95 % intervals over "
        "inputs for the chosen criterion and gradients, the range of the draws for random.",
        caveat="Heads are removed by rank, not searched for; a criterion may be good at one share and poor at another.",
        alt=f"Curves of {len(series)} criteria; the lowest is {names[0]}.",
        x_label="heads removed (%)",
        y_label=f"{r.unit} (%)",
    )


def _proposal(r: PruneResult) -> FigureSpec:
    frame = r.evidence
    return FigureSpec(
        id="proposal",
        title="The proposal beside as many heads by other criteria",
        kind="table",
        data={"columns": [str(c) for c in frame.columns], "rows": frame.astype(str).to_numpy().tolist()},
        read=f"Every row removes {len(r.proposal)} heads with compensation {r.compensation}. Cost is the {r.unit}, with its "
        "95 % interval over inputs; differences are paired by input.",
        caveat="The proposal was found by a search on other inputs; the rivals are plain rankings.",
        alt="Costs of the proposal and of its rivals.",
    )


def _table(r: PruneResult) -> FigureSpec:
    frame = r.table
    return FigureSpec(
        id="costs",
        title="All costs",
        kind="table",
        data={"columns": [str(c) for c in frame.columns], "rows": frame.astype(str).to_numpy().tolist()},
        read=f"{r.unit[0].upper()}{r.unit[1:]} with its 95 % interval over inputs; the last column is the mean along the "
        "curve.",
        alt="Costs by criterion and compensation.",
    )


def _compensation(r: PruneResult) -> FigureSpec:
    names = list(dict.fromkeys((r.criterion, "gradient")))
    series = [
        _line(r, c, f"{c.criterion}, {c.compensation}", c.criterion != r.criterion, c.compensation == r.compensation)
        for c in r.curves
        if c.criterion in names and not c.proposal
    ]
    return FigureSpec(
        id="compensation",
        title="What compensation gives back",
        kind="lines",
        data={"series": series},
        read="none: a removed head puts out zero. mean: its mean output stays. scale: the layer's kept heads are rescaled "
        "by one factor. linear: its best linear prediction from the layer's kept heads. All are fitted on the ranking "
        "inputs and fold into the output projection.",
        alt=f"Curves of {', '.join(names)} under each compensation.",
        x_label="heads removed (%)",
        y_label=f"{r.unit} (%)",
    )


def _grid(r: PruneResult) -> FigureSpec:
    score = "leave_one_out" if "leave_one_out" in r.heads else r.criterion
    return FigureSpec(
        id="importance",
        title="Importance by layer and head",
        kind="head_grid",
        data={"score": score},
        read="One square a head; choose any criterion. Low scores go first; 'goes' marks the proposal.",
        caveat="Scores of different criteria are not in the same unit.",
        alt=f"Grid of {score}.",
        value_label=score,
    )


def _correlations(r: PruneResult) -> FigureSpec:
    order = sorted(r.correlations.items(), key=lambda item: -item[1].value)
    return FigureSpec(
        id="correlations",
        title="Which criterion is nearest to leave-one-out?",
        kind="bars",
        data={
            "names": [name for name, _ in order],
            "values": [x.value for _, x in order],
            "low": [x.low for _, x in order],
            "high": [x.high for _, x in order],
        },
        read="Spearman correlation over heads with the rise of the loss when a head goes alone; intervals over sequences.",
        caveat="Removing one head says little about removing many: heads stand in for each other.",
        alt=f"The highest is {order[0][0]}.",
        y_label="Spearman correlation",
    )


def _folders(r: PruneResult) -> FigureSpec:
    """Of the level of the head tree with some ten folders: how many heads went."""
    assert r.tree is not None
    counts = [len(np.unique(r.tree.level(i))) for i in range(r.tree.n_levels)]
    level = min(range(len(counts)), key=lambda i: abs(counts[i] - 10))
    labels = r.tree.level(level)
    goes = r.heads["goes"].to_numpy() == "yes"
    layers = r.heads["layer"].to_numpy()
    names, values = [], []
    for label in dict.fromkeys(labels[r.tree.order].tolist()):
        inside = labels == label
        low, high = layers[inside].min(), layers[inside].max()
        names.append(f"{int(inside.sum())} heads, layers {low} to {high}")
        values.append(100 * float(goes[inside].mean()))
    if len(set(names)) < len(names):
        names = [f"{i + 1}: {name}" for i, name in enumerate(names)]
    return FigureSpec(
        id="folders",
        title="Which folders of the head tree went",
        kind="bars",
        data={"names": names, "values": values},
        read=f"Folders of level {level} of the consensus tree, in leaf order: share of their heads that the proposal "
        f"removes ({goes.mean():.0%} over all).",
        caveat="A folder gathers heads that look alike, not heads that do alike.",
        alt="Share of heads removed by folder.",
        y_label="heads removed (%)",
    )


def _choice(r: PruneResult) -> FigureSpec:
    frame = r.choice.head(20)
    rows = [[str(a), str(b), f"{c:+.4f}", str(d)] for a, b, c, d in frame.to_numpy(dtype=object).tolist()]
    return FigureSpec(
        id="choice",
        title="How the criterion was chosen",
        kind="table",
        data={"columns": ["criterion", "compensation", "rise of the loss", "with"], "rows": rows},
        read=f"On {r.settings['chosen_on']} inputs that do not judge: all pairs with a fifth of the heads gone, the best "
        "four at every share. The first row was taken.",
        alt="Criteria and compensations by mean rise of the loss.",
    )
