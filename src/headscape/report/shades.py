"""Scores as colours: from low to high or, where there are both signs, through white at 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headscape.report.palette import CIVIDIS, PURPLE_ORANGE
from headscape.report.text import number

__all__ = ["Shades"]

CLIPPED = 50
"""Values from which the outer 2 % share the last colour; a few extreme heads would use up all the others."""


@dataclass(frozen=True)
class Shades:
    """The colours of some values: ends of the scale, and whether it has two colours that meet at 0.

    >>> shades = Shades.of(np.array([0.0, 0.5, 1.0]))
    >>> shades.colour(0.0), shades.colour(1.0), shades.said
    ('#00224e', '#fee838', 'from 0 (dark) to 1 (bright)')
    """

    low: float
    high: float
    signed: bool = False

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> Shades:
        """The scale of these values; NaN is left out."""
        known = values[np.isfinite(values)]
        if not known.size:
            return cls(0.0, 0.0)
        tail = 0.02 if known.size >= CLIPPED else 0.0
        low, high = (float(np.quantile(known, q)) for q in (tail, 1 - tail))
        if low < 0 < high:
            reach = max(-low, high)
            return cls(-reach, reach, signed=True)
        return cls(low, high)

    def colour(self, value: float) -> str | None:
        """The colour of a value; None of NaN."""
        if not np.isfinite(value):
            return None
        share = 0.0 if self.high == self.low else min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))
        colours = PURPLE_ORANGE if self.signed else CIVIDIS
        parts = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours])
        at = share * (len(colours) - 1)
        return "#" + "".join(f"{round(float(np.interp(at, range(len(colours)), part))):02x}" for part in parts.T)

    @property
    def said(self) -> str:
        """The scale in words."""
        if self.low == self.high:
            return f"{number(self.low)} in all heads"
        ends = ("purple", "orange") if self.signed else ("dark", "bright")
        return f"from {number(self.low)} ({ends[0]}) to {number(self.high)} ({ends[1]})"
