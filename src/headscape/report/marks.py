"""What the page and the figure files read alike from a figure's data: groups, error bars, colour limits, ticks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.report.palette import LIGHT
from headscape.results import FigureSpec

__all__ = ["N_COLOURS", "dash_of", "error_bars", "grouped", "limits", "numbers", "outline", "side_of", "ticks"]

N_COLOURS = len(LIGHT)
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


def error_bars(spec: FigureSpec, values: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """How far each interval reaches below and above its value, 0 where it is not known; None without intervals."""
    low, high = spec.data.get("low"), spec.data.get("high")
    if low is None or high is None:
        return None
    below, above = values - numbers(low, spec, "low"), numbers(high, spec, "high") - values
    return np.maximum(np.nan_to_num(below), 0), np.maximum(np.nan_to_num(above), 0)


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


def side_of(group: Mapping[str, Any]) -> str:
    """Which half of a violin a group is: negative, positive or both."""
    return {"left": "negative", "right": "positive"}.get(str(group.get("side")), "both")


def outline(group: Mapping[str, Any], at: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The left and the right edge of a violin at a place, and their heights: a histogram, stepwise, widest 0.45."""
    density = np.asarray(group["density"], dtype=float)
    width = np.repeat(0.45 * density / max(float(density.max(initial=0.0)), 1e-300), 2)
    y = np.repeat(np.asarray(group["edges"], dtype=float), 2)[1:-1]
    side = side_of(group)
    left, right = at - width * (side != "positive"), at + width * (side != "negative")
    return left, right, y


def ticks(n: int, most: int) -> list[int]:
    """At most `most` evenly spaced positions out of n; more labels would run into each other."""
    return list(range(0, n, math.ceil(n / most) or 1))
