"""The pictures of table 1, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscape.collapse.bounds import bound_curves
from headscape.collapse.residual import roundoff
from headscape.results import Captions, FigureSpec
from headscape.studies.table1.result import PRINTED, Table1Result
from headscape.studies.work.series import curve

__all__ = ["figures"]
captions = Captions(__name__)


def figures(r: Table1Result) -> list[FigureSpec]:
    """The table, the four variants by depth, and the bounds, for every setting; and Theorem D.3 by depth."""
    found = [draw(r, k) for draw in (_table, _variants, _bounds) for k in range(len(r.names))]
    return [*found, _theorem(r)]


def _table(r: Table1Result, k: int) -> FigureSpec:
    name = r.names[k]
    return captions.table("table1", r.shown(name), id="table1" if k == 0 else f"table1-{k}", name=name, **r.settings)


def _variants(r: Table1Result, k: int) -> FigureSpec:
    x = np.arange(1, r.depth + 1)
    series = []
    for i, variant in enumerate(r.variants):
        values = 10 ** r.decades(r.names[k], variant)
        ends: dict[str, Any] = {"low": values.min(axis=0), "high": values.max(axis=0), "range": True}
        several = ends if len(values) > 1 else {}
        series.append(curve(variant, x, values.mean(axis=0), "dash" if i % 2 else None, **several))
    for name, printed in PRINTED.items():
        shown = np.array(printed[: r.depth])
        series.append(curve(f"printed, {name}", x[: len(shown)], shown, "dot"))
    return captions.lines("cells", series, k=k, value=r.names[k], value_2=roundoff())


def _bounds(r: Table1Result, k: int) -> FigureSpec:
    here = r.bounds[(r.bounds["setting"] == r.names[k]) & (r.bounds["measured"] > r.bounds["floor"])]
    dashes = {"4 D": "dashdot", "2 (e^D - 1)": "dash", "printed": "dot"}
    series = [
        curve(f"{name}, {variant.removeprefix('no skip, ')}", c.index.to_numpy(), c.to_numpy(), dashes.get(name))
        for variant in r.variants[:2]
        for name, c in bound_curves(here[here["cell"] == variant], "depth").items()
    ]
    return captions.lines("bounds", series, k=k, value=r.names[k])


def _theorem(r: Table1Result) -> FigureSpec:
    return captions.table("theorem", r.shown_theorem, name=r.names[-1], seeds=r.settings["seeds"])
