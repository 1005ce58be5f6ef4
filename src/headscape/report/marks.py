"""What both the page and the figure files read from a figure's data: groups, error bars, colour limits, ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.report.palette import LIGHT
from headscape.results import FigureSpec

__all__ = [
    "N_COLOURS",
    "counted",
    "dash_of",
    "decades",
    "error_bars",
    "grouped",
    "limits",
    "number_of_inputs",
    "numbers",
    "printed",
    "shapes",
    "side_of",
    "ticks",
    "whole",
]

N_COLOURS = len(LIGHT)
MOST_BINS = 40
FEW_VIOLINS = 6
"""Violins up to which mode, median and mean are printed as well."""
FEW_STEPS = 12
"""Whole numbers up to which an axis names each of them."""
KEYS = {"x": ("x",), "y": ("y", "low", "high")}
DASHES = ("solid", "dash", "dot", "dashdot")
FloatArray = npt.NDArray[np.float64]


def numbers(value: Any, spec: FigureSpec, key: str, ndim: int = 1) -> FloatArray:
    """An entry of a figure's data as an array; `InputError` where it does not have the axes its kind needs."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != ndim:
        raise InputError(f"'{key}' of figure {spec.id!r} has shape {array.shape}, {spec.kind} need {ndim} axes")
    return array


def grouped(spec: FigureSpec, n: int) -> list[tuple[str, npt.NDArray[np.intp]]]:
    """The groups of n points or bars, each with its members; one group without a name where none are given."""
    group = spec.data.get("group")
    of_item = np.array([str(g) for g in group]) if group is not None else np.full(n, "")
    return [(name, np.flatnonzero(of_item == name)) for name in dict.fromkeys(of_item.tolist())]


def whole(spec: FigureSpec) -> bool:
    """Whether lines go over whole numbers (layers, ranks): between them an axis has nothing to say."""
    x = _along(spec, "x")
    return not spec.log_x and len(x) > 0 and bool(np.array_equal(x, np.round(x)))


def counted(spec: FigureSpec) -> bool:
    """Whether they are so few that an axis names each of them."""
    return whole(spec) and bool(np.ptp(_along(spec, "x")) <= FEW_STEPS)


def decades(spec: FigureSpec, axis: str) -> float:
    """How many decades lines or points span along an axis."""
    known = _along(spec, axis)
    known = known[np.isfinite(known) & (known > 0)]
    return float(np.log10(known.max() / known.min())) if len(known) else 0.0


def _along(spec: FigureSpec, axis: str) -> FloatArray:
    """All numbers that lines or points have along an axis."""
    parts = [line[key] for line in spec.data.get("series", ()) for key in KEYS[axis] if line.get(key) is not None]
    parts += [spec.data[axis]] if axis in spec.data else []
    return np.concatenate([[], *(numbers(part, spec, axis) for part in parts)])


def error_bars(spec: FigureSpec, values: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """How far each interval reaches below and above its value, 0 where it is not known; None without intervals."""
    low, high = spec.data.get("low"), spec.data.get("high")
    if low is None or high is None:
        return None
    below, above = values - numbers(low, spec, "low"), numbers(high, spec, "high") - values
    return np.maximum(np.nan_to_num(below), 0), np.maximum(np.nan_to_num(above), 0)


def number_of_inputs(spec: FigureSpec) -> str:
    """How many inputs stand behind the intervals of a figure, " (n = 8 to 10)" if it differs; nothing without intervals."""
    found: set[int] = set()
    for part in (spec.data, *spec.data.get("series", ())):
        if part.get("low") is not None and part.get("n") is not None:
            shown = np.isfinite(numbers(part["low"], spec, "low"))
            found |= {int(n) for n in np.broadcast_to(part["n"], shown.shape)[shown] if n}
    ends = dict.fromkeys((min(found), max(found))) if found else ()
    return f" (n = {' to '.join(map(str, ends))})" if ends else ""


def limits(values: npt.NDArray[Any], centre: float | None) -> tuple[float, float] | None:
    """Ends of a diverging scale, equally far from its centre; None for a scale without one."""
    finite = values[np.isfinite(values)]
    if centre is None or not finite.size:
        return None
    reach = float(np.abs(finite - centre).max()) or 1.0
    return centre - reach, centre + reach


def dash_of(line: Mapping[str, Any], i: int) -> str:
    """The dash of line i, by plotly's name: its own, or one that changes when the colours repeat."""
    own = line.get("dash")
    return str(own) if own in DASHES else "dash" if own else DASHES[i // N_COLOURS % len(DASHES)]


class Shape(NamedTuple):
    """The histogram of a group as half an outline, bottom to top: widths (0 to 1) at heights, and three statistics."""

    at: int
    side: str
    group: Mapping[str, Any]
    width: FloatArray
    height: FloatArray
    statistics: dict[str, float]


def shapes(spec: FigureSpec) -> list[Shape]:
    """The groups of a figure of violins as histograms with common bins, which smooth nothing away.

    Each is as wide as its own mode; a group without a finite value has no outline.
    """
    groups = spec.data["groups"]
    names = list(dict.fromkeys(str(group["name"]) for group in groups))
    finite = [x[np.isfinite(x)] for x in (numbers(group["values"], spec, "values") for group in groups)]
    every = np.concatenate(finite) if finite else np.zeros(0)
    n_bins = int(np.clip(2 * np.sqrt(max(map(len, finite), default=0)), 5, MOST_BINS))
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + (abs(low) or 1.0) * 1e-3, n_bins + 1)
    found = []
    for group, values in zip(groups, finite, strict=True):
        counts = np.histogram(values, edges)[0]
        width = np.repeat(counts / max(int(counts.max()), 1), 2)
        statistics = {}
        if len(values):
            middle = edges[:-1] + np.diff(edges) / 2
            mode = float(middle[int(counts.argmax())])
            statistics = {"mode": mode, "median": float(np.median(values)), "mean": float(values.mean())}
        height = np.repeat(edges, 2)[1:-1]
        found.append(Shape(names.index(str(group["name"])), side_of(group), group, width, height, statistics))
    return found


def printed(drawn: Sequence[Shape], i: int, fewest: int = 3) -> list[str]:
    """Mode, median and mean of a violin, in as many digits as tell apart what the figure does."""
    every = np.concatenate([[], *(shape.height for shape in drawn if shape.statistics)])
    reach = float(np.ptp(every)) if len(every) else 0.0
    digits = fewest
    if reach > 0:
        digits = max(fewest, math.floor(math.log10(float(np.abs(every).max()))) - math.floor(math.log10(reach)) + 2)
    return [f"{name} {value:.{digits}g}" for name, value in drawn[i].statistics.items()]


def side_of(group: Mapping[str, Any]) -> str:
    """Which half of a violin a group is: negative, positive or both."""
    return {"left": "negative", "right": "positive"}.get(str(group.get("side")), "both")


def ticks(n: int, most: int) -> list[int]:
    """At most `most` evenly spaced positions out of n; more labels would run into each other."""
    return list(range(0, n, math.ceil(n / most) or 1))
