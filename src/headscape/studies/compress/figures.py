"""The pictures of compression, as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscape.intervals import mean_interval
from headscape.results import Captions, FigureSpec
from headscape.studies.compress.result import NAMES, WAYS, CompressResult

__all__ = ["figures"]
captions = Captions(__name__)


def figures(r: CompressResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    error = _lines(r, r.raw)
    exponent = mean_interval(r.exponents)
    if exponent.low > 0:  # else nothing is promised
        alpha = exponent.value
        start = error[WAYS.index("supports")]["y"][0]
        promised = start * (r.shares / r.shares[0]) ** -alpha
        error.append({"name": f"promised, k^-{alpha:.2f}", "x": r.shares, "y": promised, "dash": "dash"})
    found = [captions.lines("map-error", error, n=len(r.raw))]
    if r.change is not None:
        what = {"loss": "change of the loss (nats)", "state": "change of the final state (relative)"}[r.unit]
        lines = _lines(r, np.abs(r.change), bands=False)
        found.append(captions.lines("model-change", lines, y_label=what, n=len(r.raw)))
    return [*found, captions.table("curves", r.to_frame())]


def _lines(r: CompressResult, values: Any, bands: bool = True) -> list[dict[str, Any]]:
    lines = []
    for way in WAYS:
        means = [mean_interval(r.of(values, way, share)) for share in r.shares]
        line = {"name": NAMES[way], "x": r.shares, "y": np.array([m.value for m in means])}
        if bands and all(m.readable for m in means):
            line |= {"low": np.array([max(m.low, 0.0) for m in means]), "high": np.array([m.high for m in means])}
            line["n"] = np.array([m.n for m in means])
        lines.append(line)
    return lines
