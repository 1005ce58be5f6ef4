"""The pictures of the prune study, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.results import Captions, FigureSpec
from headscape.studies.prune.judging import Curve
from headscape.studies.prune.result import CONTROLS, PruneResult
from headscape.studies.work.series import bars

__all__ = ["figures"]
captions = Captions(__name__)

SHOWN = 6
"""Criteria in one picture, beside random choice, the paper's and gradients."""
ALWAYS = ("gradient", "l1_top", "l1_all", "random")
BANDS = ("gradient", "random")


def figures(r: PruneResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    found, beside = [], {"n_proposal": len(r.proposal), "measure": r.measure}
    if r.curve("proposal", proposal=True) is not None:
        found.append(captions.table("abilities", r.costs, main=r.main, **beside))
        if len(r.evidence):
            found.append(captions.table("proposal", r.evidence, compensation=r.compensation, **beside))
    if len(r.classes):
        title, read = "Accuracy by class", "Share of the judging images of each class that are classified correctly."
        found.append(captions.table("classes", r.classes, title=title, read=read))
    if r.on():
        found += [_curves(r, compensation) for compensation in dict.fromkeys((r.compensation, "none"))]
        found += [captions.table("costs", r.table, upper=r.measure[0].upper(), value=r.measure[1:]), _compensation(r)]
    score = "leave_one_out" if "leave_one_out" in r.heads else r.criterion
    found.append(captions.figure("importance", {"score": score}, score=score, value_label=score))
    if r.correlations:
        order = dict(sorted(r.correlations.items(), key=lambda item: -item[1].value))
        found.append(captions.figure("correlations", bars(order), value=next(iter(order))))
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
    drawn = len(c.costs) > 1
    if band and (drawn or all(cost.readable for cost in costs)):
        ends = [c.band(i) if drawn else (x.low, x.high) for i, x in enumerate(costs)]
        series |= {"low": _percent(low for low, _ in ends), "high": _percent(high for _, high in ends)}
        series |= {"range": len(c.costs)} if drawn else {"n": np.array([x.n for x in costs])}
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
    return captions.lines(
        "curves",
        series,
        id="curves" if compensation == r.compensation else "curves-none",
        compensation=compensation,
        n_heads=len(r.heads),
        measure=r.measure,
        judged_on=r.settings["judged_on"],
        n_series=len(series),
        lowest=names[0],
    )


def _compensation(r: PruneResult) -> FigureSpec:
    names = list(dict.fromkeys((r.criterion, "gradient")))
    series = [
        _line(r, c, f"{c.criterion}, {c.compensation}", c.criterion != r.criterion, c.compensation == r.compensation)
        for c in r.on()
        if c.criterion in names
    ]
    return captions.lines("compensation", series, join=", ".join(names), measure=r.measure)


def _span(layers: npt.NDArray[np.int64]) -> str:
    low, high = layers.min(), layers.max()
    return f"layer {low}" if low == high else f"layers {low} to {high}"


def _clusters(r: PruneResult) -> FigureSpec:
    """Of the level of the head tree with some ten clusters: how many heads are removed."""
    assert r.tree is not None
    counts = [len(np.unique(r.tree.level(i))) for i in range(r.tree.n_levels)]
    level = min(range(len(counts)), key=lambda i: abs(counts[i] - 10))
    labels = r.tree.level(level)
    removed, layers = r.heads["removed"].to_numpy() == "yes", r.heads["layer"].to_numpy()
    inside = [labels == label for label in dict.fromkeys(labels[r.tree.order].tolist())]
    names = [f"{int(own.sum())} heads, {_span(layers[own])}" for own in inside]
    if len(set(names)) < len(names):
        names = [f"{i + 1}: {name}" for i, name in enumerate(names)]
    shares = [100 * float(removed[own].mean()) for own in inside]
    return captions.figure("folders", {"names": names, "values": shares}, level=level, mean=removed.mean())


def _choice(r: PruneResult) -> FigureSpec:
    frame: pd.DataFrame = r.choice.head(20)
    costs = ["-" if cost != cost else f"{cost:+.2%}" for cost in frame["cost"]]
    return captions.table("choice", frame.assign(cost=costs), chosen_on=r.settings["chosen_on"])
