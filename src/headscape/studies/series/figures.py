"""The pictures of a series, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headscape.intervals import mean_interval
from headscape.results import FigureSpec, table_figure
from headscape.roles import ROLES

if TYPE_CHECKING:
    from headscape.studies.series.result import SeriesResult

__all__ = ["figures"]

LINES = 8  # heads drawn one by one


def figures(r: SeriesResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    held = [role for role in r.role_names if role == "induction" or role in set(r.births()["role"])]
    return [_slider(r), _counts(r), *(_scores(r, role) for role in held if role in ROLES), _change(r), _births(r)]


def _names(r: SeriesResult) -> list[str]:
    return [f"{layer}.{head}" for layer, head in zip(r.heads["layer"], r.heads["head"], strict=True)]


def _slider(r: SeriesResult) -> FigureSpec:
    grid = {"name": "layer by head", "x": r.heads["head"].to_numpy(), "y": r.heads["layer"].to_numpy(), "grid": True}
    place = {"name": "map of the heads", "x": r.coordinates[:, :, 0], "y": r.coordinates[:, :, 1]}
    return FigureSpec(
        id="heads-over-training",
        title="The heads, step by step",
        kind="frames",
        data={
            "frames": [f"step {step}" for step in r.steps],
            "panels": [grid, place],
            "names": _names(r),
            "group": [list(names) for names in r.named],
        },
        read="Move the slider. Left: each head by layer and number. Right: the same heads on one diffusion map for all checkpoints; close points "
        "attend alike. Colours are roles.",
        caveat="The map shows two of many dimensions; a role is a threshold on a score.",
        alt=f"{len(r.heads)} heads at {len(r.steps)} checkpoints, by place in the network and on a shared map, coloured by role.",
    )


def _counts(r: SeriesResult) -> FigureSpec:
    table = r.steps_table()
    series = [{"name": role, "x": r.steps, "y": table[role].to_numpy()} for role in r.role_names if table[role].any()]
    return FigureSpec(
        id="roles",
        title="How many heads hold each role",
        kind="lines",
        data={"series": series},
        read="A head may hold several roles, each in more than half of the batches.",
        caveat="Roles need inputs that can show them: induction needs tokens that come again.",
        alt="Numbers of heads by role over training steps.",
        x_label="step",
        y_label="heads",
    )


def _scores(r: SeriesResult, role: str) -> FigureSpec:
    k = list(r.role_names).index(role)
    mean = r.scores[:, k].mean(axis=1)
    best = np.argsort(-mean[-1], kind="stable")[:LINES]
    series = []
    for h in best:
        intervals = [mean_interval(batches[:, h]) for batches in r.scores[:, k]]
        line = {"name": _names(r)[h], "x": r.steps, "y": mean[:, h]}
        known = all(each.known for each in intervals)
        series.append(
            line | ({"low": [i.low for i in intervals], "high": [i.high for i in intervals]} if known else {})
        )
    if np.isfinite(r.chance[k]):
        series.append(
            {"name": "attention at random", "x": r.steps, "y": np.full(len(r.steps), r.chance[k]), "dash": "dash"}
        )
    return FigureSpec(
        id=f"scores-{role}",
        title=f"Role '{role}': the heads that end highest",
        kind="lines",
        data={"series": series},
        read=f"Share of attention, mean over the batches with its 95 % interval (n = {r.scores.shape[2]}); the role {ROLES[role]}.",
        caveat="Shown are the heads with the highest scores at the end.",
        alt=f"Scores of {len(best)} heads for the role {role} over training steps.",
        x_label="step",
        y_label="share of attention",
    )


def _change(r: SeriesResult) -> FigureSpec:
    series = []
    parts = (("change since the step before", r.steps[1:], r.change), ("between two inputs", r.steps, r.noise))
    for name, x, values in parts:
        intervals = [mean_interval(row) for row in values]
        line = {"name": name, "x": x, "y": values.mean(axis=1)}
        known = all(each.known for each in intervals)
        series.append(
            line | ({"low": [i.low for i in intervals], "high": [i.high for i in intervals]} if known else {})
        )
    return FigureSpec(
        id="change",
        title="How far the heads move",
        kind="lines",
        data={"series": series},
        read="Mean difference of all role scores over heads, with 95 % intervals over batches, from one checkpoint to the next and within one "
        "checkpoint from one input to another.",
        caveat="The distance between checkpoints depends on how many steps lie between them.",
        alt="Change of role scores over training beside the difference between inputs.",
        x_label="step",
        y_label="mean difference of scores",
    )


def _births(r: SeriesResult) -> FigureSpec:
    return table_figure(
        r.births(),
        id="births",
        title="Roles at the end, and since when",
        read="One row per head and role it holds at the end: it came to hold it between the steps 'after' and 'by', and kept it.",
        alt="Table of heads by role with the steps at which the role began.",
    )
