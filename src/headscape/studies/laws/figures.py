"""The curves of chapters 5 and 6, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscape.intervals import Interval
from headscape.results import Captions, FigureSpec
from headscape.studies.laws.result import LawsResult, mean_of_draws
from headscape.studies.work.series import bars, level, line

__all__ = ["figures"]
captions = Captions(__name__)


def figures(r: LawsResult) -> list[FigureSpec]:
    """The table, then chapter by chapter."""
    table, traces = captions.table("laws", r.summary()[0][1]), captions.figure("traces", bars(r.traces))
    return [table, _slerp(r), _entropy(r), _ratio(r), _angles(r), _bound(r), traces]


def _slerp(r: LawsResult) -> FigureSpec:
    series: list[dict[str, Any]] = []
    for k, radius in enumerate(r.radii):
        part = {name: r.arrays[f"slerp/{k}/{name}"] for name in ("t", "measured", "spread", "predicted")}
        height = part["predicted"][0]
        own = {
            "low": (part["measured"] - part["spread"]) / height,
            "high": (part["measured"] + part["spread"]) / height,
            "range": True,
        }
        series.append({"name": f"drawn, l = {radius:g}", "x": part["t"], "y": part["measured"] / height, **own})
    series.append({"name": "1 - cos((1-t) pi/2)", "x": part["t"], "y": part["predicted"] / height, "dash": "dash"})
    series.append({"name": "straight line", "x": part["t"], "y": 1 - part["t"], "dash": "dot"})
    return captions.lines("slerp", series, draws=r.settings["draws"])


def _entropy(r: LawsResult) -> FigureSpec:
    x = r.arrays["radii"]
    drawn = [mean_of_draws(row) for row in r.arrays["entropies"]]
    law = {"name": "log n - l^2 / 2n, at least 0", "x": x, "y": r.entropy_predicted, "dash": "dash"}
    return captions.lines("entropy", [line("drawn", x, drawn), law, level("log n", x, float(np.log(r.n)))])


def _ratio(r: LawsResult) -> FigureSpec:
    named: dict[str, Interval] = {}
    for k, radius in enumerate(r.radii):
        named[f"drawn, l = {radius:g}"] = mean_of_draws(r.arrays[f"ratio/{k}"])
        for name, power in (("exp(l^2/n)", 2), ("exp(l/n), printed", 1)):
            value = float(np.exp(radius**power / r.n))
            named[f"{name}, l = {radius:g}"] = Interval(value, value, value)
    return captions.figure("ratio", bars(named))


def _angles(r: LawsResult) -> FigureSpec:
    x = r.arrays["angle/cosines"]
    names = {"squares": "n Var(x^T C y), by cos(x, y)", "products": "n Cov(x^T C y, x^T C y'), by cos(y, y')"}
    series = [line(name, x, [mean_of_draws(row) for row in r.arrays[f"angle/{key}"]]) for key, name in names.items()]
    printed = {"name": "variance, as printed", "x": x, "y": x**2 + (r.n - 1) / r.n, "dash": "dot"}  # eq. 6.47
    laws = [level("1", x, 1.0), {"name": "cosine", "x": x, "y": x, "dash": "dash"}, printed]
    return captions.lines("angles", [*series, *laws])


def _bound(r: LawsResult) -> FigureSpec:
    x = np.geomspace(1e-3, 10, 101)
    names = ("over ||Wq|| ||Wk|| |x| |y|", "over that times |cos|, as printed")
    series = [
        {"name": n, "x": x, "y": (row[:, None] > x).mean(axis=0)}
        for n, row in zip(names, r.arrays["bound"], strict=True)
    ]
    edge = {"name": "bound", "x": np.ones(2), "y": np.array([0.0, 1.0]), "dash": "dot"}
    return captions.lines("bound", [*series, edge])
