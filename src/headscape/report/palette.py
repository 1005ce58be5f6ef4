"""Colours that readers with any colour vision can distinguish, for paper and for light and dark screens.

Categories use the colours of Okabe and Ito, the yellow darkened on white and the blue lightened on dark so that each
keeps a contrast of about 3 to its ground; ordered values use cividis, signed values purple to orange.
"""

from __future__ import annotations

__all__ = ["CIVIDIS", "DARK", "LIGHT", "MARKERS", "PAPER_MARKERS", "PURPLE_ORANGE"]

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3f9fd9", "#7a5195", "#6b6b6b")
DARK = ("#4da6e0", "#f0843c", "#2bbf94", "#dd94bd", "#e6c34a", "#8cd0f5", "#b18bd0", "#a8a8a8")

# a second cue for categories besides colour: plotly's names in two and three dimensions, and matplotlib's signs
MARKERS = ("circle", "square", "diamond", "cross", "x", "circle-open", "square-open", "diamond-open")
PAPER_MARKERS = "osDPXv^<"

CIVIDIS = (
    "#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838",
)  # fmt: skip
PURPLE_ORANGE = (
    "#542788", "#8073ac", "#b2abd2", "#d8daeb", "#f7f7f7", "#fee0b6", "#fdb863", "#e08214", "#b35806",
)  # fmt: skip
