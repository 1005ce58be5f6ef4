"""Parts of figures: lines and bars with their intervals, reference lines, points that are heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval

__all__ = ["bars", "curve", "heads_as_points", "level", "line"]


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


def curve(name: str, x: npt.ArrayLike, y: npt.ArrayLike, dash: str | None = None, **more: Any) -> dict[str, Any]:
    """A line that has no interval."""
    return {"name": name, "x": x, "y": y, **more} | ({"dash": dash} if dash else {})


def level(name: str, x: npt.ArrayLike, y: float) -> dict[str, Any]:
    """A dotted reference line at a height."""
    return curve(name, np.asarray(x), np.full(np.shape(x), y), "dot")


def heads_as_points(heads: pd.DataFrame, x: str, y: str, group: Sequence[str]) -> dict[str, Any]:
    """The data of a figure of kind "scatter": two columns of a table of heads, with the name and group of every head."""
    places = zip(heads["block"], heads["layer"], heads["head"], strict=True)
    names = [f"{block}.{layer}.{head}" for block, layer, head in places]
    return {"x": heads[x].to_numpy(), "y": heads[y].to_numpy(), "names": names, "group": group}
