"""What changed between two prompts, head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.studies.work.result import StudyResult

__all__ = ["ChangeResult", "Side"]


@dataclass(frozen=True, eq=False)
class Side:
    """The map of one head on one prompt, NaN where a query cannot attend, with its tokens."""

    values: npt.NDArray[np.float32]
    query_tokens: list[str]
    key_tokens: list[str]


@dataclass(frozen=True, eq=False)
class ChangeResult(StudyResult):
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
