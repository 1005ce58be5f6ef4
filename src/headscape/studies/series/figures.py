"""The pictures of a series, as plain data."""

from __future__ import annotations

import numpy as np

from headscape.intervals import mean_interval
from headscape.results import Captions, FigureSpec
from headscape.roles import BLOCK_ROLES, MIXED, ROLES
from headscape.studies.series.result import SeriesResult
from headscape.studies.work.series import curve, line

__all__ = ["figures"]
captions = Captions(__name__)

LINES = 8  # heads drawn one by one


def figures(r: SeriesResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    held = [role for role in r.role_names if role == "induction" or role in set(r.births()["role"])]
    births = captions.table("births", r.births())
    return [_slider(r), _counts(r), *(_scores(r, role) for role in held if role in ROLES), _change(r), births]


def _names(r: SeriesResult) -> list[str]:
    return [f"{layer}.{head}" for layer, head in zip(r.heads["layer"], r.heads["head"], strict=True)]


def _kinds(r: SeriesResult) -> list[str]:
    """Roles in the order of their colours: first those present at the end, which have the same colours in the grid of heads."""
    known = {role: i for i, role in enumerate((*ROLES, *BLOCK_ROLES))}
    held = {role for names in r.named for role in names}
    return sorted(held, key=lambda role: (role == MIXED, role not in r.named[-1], known.get(role, len(known))))


def _slider(r: SeriesResult) -> FigureSpec:
    grid = {"name": "layer by head", "x": r.heads["head"].to_numpy(), "y": r.heads["layer"].to_numpy(), "grid": True}
    place = {"name": "map of the heads", "x": r.coordinates[:, :, 0], "y": r.coordinates[:, :, 1]}
    data = {"frames": [f"step {step}" for step in r.steps], "panels": [grid, place], "names": _names(r)}
    data |= {"group": [list(names) for names in r.named], "kinds": _kinds(r)}
    return captions.figure("heads-over-training", data, n_heads=len(r.heads), n_steps=len(r.steps))


def _counts(r: SeriesResult) -> FigureSpec:
    table = r.steps_table()
    held = [role for role in r.role_names if table[role].any()]
    return captions.lines("roles", [curve(role, r.steps, table[role].to_numpy()) for role in held])


def _scores(r: SeriesResult, role: str) -> FigureSpec:
    k = list(r.role_names).index(role)
    mean = r.scores[:, k].mean(axis=1)
    best = np.argsort(-mean[-1], kind="stable")[:LINES]
    spans = {h: [mean_interval(one[:, h]).within(0, 1) for one in r.scores[:, k]] for h in best}
    series = [line(_names(r)[h], r.steps, spans[h]) for h in best]
    if np.isfinite(r.chance[k]):
        series.append(curve("attention at random", r.steps, np.full(len(r.steps), r.chance[k]), "dash"))
    return captions.lines("scores", series, role=role, value=r.scores.shape[2], value_2=ROLES[role], n_best=len(best))


def _change(r: SeriesResult) -> FigureSpec:
    parts = (("change since the step before", r.steps[1:], r.change), ("between two inputs", r.steps, r.noise))
    series = [line(name, x, [mean_interval(row) for row in values]) for name, x, values in parts]
    return captions.lines("change", series)
