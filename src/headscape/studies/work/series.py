"""Lines of a figure: values with their intervals, and reference lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.intervals import Interval

__all__ = ["level", "line"]


def line(name: str, x: npt.ArrayLike, ends: Sequence[Interval], dash: str | None = None) -> dict[str, Any]:
    """A line of a figure of kind "lines", with its intervals where all of them are known."""
    found: dict[str, Any] = {"name": name, "x": np.asarray(x), "y": np.array([end.value for end in ends])}
    if ends and all(end.known for end in ends):
        found |= {"low": np.array([end.low for end in ends]), "high": np.array([end.high for end in ends])}
    return found | ({"dash": dash} if dash else {})


def level(name: str, x: npt.ArrayLike, y: float) -> dict[str, Any]:
    """A dotted reference line at a height."""
    return {"name": name, "x": np.asarray(x), "y": np.full(np.shape(x), y), "dash": "dot"}
