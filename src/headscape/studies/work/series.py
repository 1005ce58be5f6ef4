"""Lines of a figure: values with their intervals, and reference lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.intervals import Interval

__all__ = ["bars", "level", "line"]


def line(name: str, x: npt.ArrayLike, ends: Sequence[Interval], dash: str | None = None) -> dict[str, Any]:
    """A line of a figure of kind "lines", with its intervals where all of them are known and short enough to show."""
    found: dict[str, Any] = {"name": name, "x": np.asarray(x), "y": np.array([end.value for end in ends])}
    if ends and all(end.readable for end in ends):
        found |= _ends(ends)
    return found | ({"dash": dash} if dash else {})


def bars(named: Mapping[str, Interval]) -> dict[str, Any]:
    """The data of a figure of kind "bars", with intervals; what is known exactly has none."""
    ends = [end if end.n else Interval(end.value) for end in named.values()]
    return {"names": list(named), "values": [end.value for end in ends], **_ends(ends)}


def _ends(ends: Sequence[Interval]) -> dict[str, Any]:
    """Both ends of intervals, where they are short enough to show, and the number of inputs behind them."""
    shown = [end if end.readable else Interval(end.value, n=end.n) for end in ends]
    return {name: np.array([getattr(end, name) for end in shown]) for name in ("low", "high", "n")}


def level(name: str, x: npt.ArrayLike, y: float) -> dict[str, Any]:
    """A dotted reference line at a height."""
    return {"name": name, "x": np.asarray(x), "y": np.full(np.shape(x), y), "dash": "dot"}
