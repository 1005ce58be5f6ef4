"""What changed between two prompts: its tables, sentences and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.results import Captions, FigureSpec, Finding, Result
from headscape.tensor import HeadId
from headscape.verdicts import cannot_tell

__all__ = ["ChangeResult", "Side"]
captions = Captions(__name__)

N_TABLE = 20


@dataclass(frozen=True, eq=False)
class Side:
    """The map of one head on one prompt, NaN where a query cannot attend, with its tokens."""

    values: npt.NDArray[np.float32]
    query_tokens: list[str]
    key_tokens: list[str]


@dataclass(frozen=True, eq=False)
class ChangeResult(Result):
    """How the attention of every head changed between two prompts.

    `heads` has one row per head with its `change`, the share of its attention that moved (NaN where no token could be
    aligned). `top` names the heads that changed most, `maps` holds their two maps each.
    """

    study: ClassVar[str] = "change"
    title: ClassVar[str] = "Two prompts side by side"

    heads: pd.DataFrame
    top: Sequence[str]
    maps: Sequence[tuple[Side, Side]]
    texts: Sequence[str]
    settings: Mapping[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """One row per head."""
        return self.heads

    def ranked(self) -> pd.DataFrame:
        """The heads, most changed first."""
        return self.heads.sort_values("change", ascending=False, kind="stable", ignore_index=True)

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The five heads that changed most, as a table."""
        return [("Heads whose attention changed most between the prompts", self.ranked().head(5))]

    def headline(self) -> str:
        """The heads that changed most."""
        known = self.ranked().dropna(subset="change").head(3)
        names = ", ".join(f"{row['layer']}.{row['head']}" for _, row in known.iterrows())
        return f"attention changed most in {names}" if names else "the prompts share no tokens to compare"

    def findings(self) -> list[Finding]:
        """Which heads changed most."""
        known = self.ranked().dropna(subset="change")
        if not len(known):
            text = "We cannot tell whether heads attend differently: the prompts share no tokens that could be aligned."
            return [Finding(text, None, cannot_tell("no aligned tokens; give prompts that differ in a few words"))]
        many = known["block"].nunique() > 1
        names = [f"{_name(row, many)} ({row['change']:.2f})" for _, row in known.head(5).iterrows()]
        text = (
            f"Between the prompts, these heads changed most: {', '.join(names)}. The number is the share of a head's "
            f"attention that moved to other tokens; for the median head it is {known['change'].median():.2f}. Two prompts "
            "show a difference, not what caused it."
        )
        return [Finding(text, "most-changed")]

    def figures(self) -> list[FigureSpec]:
        """Both maps of the heads that changed most, and the table of changes."""
        panels = []
        for head, sides in zip(self.top, self.maps, strict=True):
            place = HeadId.parse(head)
            high = max(float(np.nanmax(side.values)) for side in sides)
            for name, side in zip(("first", "second"), sides, strict=True):
                tokens = {"query_tokens": side.query_tokens, "key_tokens": side.key_tokens}
                panels.append(
                    {"name": f"{place.layer}.{place.head}, {name} prompt", "values": side.values, "high": high} | tokens
                )
        shown = [captions.table("change-table", self.ranked().head(N_TABLE))]
        if not panels:
            return shown
        return [captions.figure("most-changed", {"panels": panels}, n_heads=len(self.top)), *shown]


def _name(row: Any, many: bool) -> str:
    return f"{row['block'] + ' ' if many else ''}{row['layer']}.{row['head']}"
