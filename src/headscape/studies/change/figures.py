"""The pictures of what changed between two prompts, as plain data."""

from __future__ import annotations

import numpy as np

from headscape.results import Captions, FigureSpec
from headscape.studies.change.result import ChangeResult
from headscape.tensor import HeadId

__all__ = ["figures"]
captions = Captions(__name__)

N_TABLE = 20


def figures(r: ChangeResult) -> list[FigureSpec]:
    """Both maps of the heads that changed most, and the table of changes."""
    panels = []
    for head, sides in zip(r.top, r.maps, strict=True):
        place = HeadId.parse(head)
        high = max(float(np.nanmax(side.values)) for side in sides)
        for name, side in zip(("first", "second"), sides, strict=True):
            tokens = {"query_tokens": side.query_tokens, "key_tokens": side.key_tokens}
            panels.append(
                {"name": f"{place.layer}.{place.head}, {name} prompt", "values": side.values, "high": high} | tokens
            )
    shown = [captions.table("change-table", r.ranked().head(N_TABLE))]
    if not panels:
        return shown
    return [captions.figure("most-changed", {"panels": panels}, n_heads=len(r.top)), *shown]
