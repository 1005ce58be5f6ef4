"""The curves of chapters 5 and 6, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscape.intervals import Interval, exactly
from headscape.results import Captions, FigureSpec
from headscape.studies.laws.result import LawsResult, mean_of_draws
from headscape.studies.work.series import bars, curve, level, line

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
        low, high = ((part["measured"] + sign * part["spread"]) / height for sign in (-1, 1))
        own = {"low": low, "high": high, "range": True}
        series.append(curve(f"drawn, l = {radius:g}", part["t"], part["measured"] / height, **own))
    series.append(curve("1 - cos((1-t) pi/2)", part["t"], part["predicted"] / height, "dash"))
    series.append(curve("straight line", part["t"], 1 - part["t"], "dot"))
    return captions.lines("slerp", series, draws=r.settings["draws"])


def _entropy(r: LawsResult) -> FigureSpec:
    x = r.arrays["radii"]
    drawn = [mean_of_draws(row) for row in r.arrays["entropies"]]
    law = curve("log n - l^2 / 2n, at least 0", x, r.entropy_predicted, "dash")
    return captions.lines("entropy", [line("drawn", x, drawn), law, level("log n", x, float(np.log(r.n)))])


def _ratio(r: LawsResult) -> FigureSpec:
    named: dict[str, Interval] = {}
    for k, radius in enumerate(r.radii):
        named[f"drawn, l = {radius:g}"] = mean_of_draws(r.arrays[f"ratio/{k}"])
        for name, power in (("exp(l^2/n)", 2), ("exp(l/n), printed", 1)):
            value = float(np.exp(radius**power / r.n))
            named[f"{name}, l = {radius:g}"] = exactly(value)
    return captions.figure("ratio", bars(named))


def _angles(r: LawsResult) -> FigureSpec:
    x = r.arrays["angle/cosines"]
    names = {"squares": "n Var(x^T C y), by cos(x, y)", "products": "n Cov(x^T C y, x^T C y'), by cos(y, y')"}
    series = [line(name, x, [mean_of_draws(row) for row in r.arrays[f"angle/{key}"]]) for key, name in names.items()]
    printed = curve("variance, as printed", x, x**2 + (r.n - 1) / r.n, "dot")  # eq. 6.47
    laws = [level("1", x, 1.0), curve("cosine", x, x, "dash"), printed]
    return captions.lines("angles", [*series, *laws])


def _bound(r: LawsResult) -> FigureSpec:
    x = np.geomspace(1e-3, 10, 101)
    names = ("over ||Wq|| ||Wk|| |x| |y|", "over that times |cos|, as printed")
    shares = [(row[:, None] > x).mean(axis=0) for row in r.arrays["bound"]]
    series = [curve(name, x, share) for name, share in zip(names, shares, strict=True)]
    return captions.lines("bound", [*series, curve("bound", np.ones(2), np.array([0.0, 1.0]), "dot")])
