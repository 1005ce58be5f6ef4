"""The verdict on every claim: one row each, with the number behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from headscape.intervals import Interval
from headscape.papers import Source, claim
from headscape.studies.work.result import StudyResult

__all__ = ["VERDICTS", "ClaimsResult", "counted"]

VERDICTS = ("holds", "does not hold", "cannot tell", "not applicable")


@dataclass(frozen=True, eq=False)
class ClaimsResult(StudyResult):
    """The claims of the papers, tested on one model.

    `claims` has one row per claim: id, study, paper (its key), citation, statement, what was measured, value with low,
    high and n (missing where no single number decides), control, rule, verdict (one of `VERDICTS`), why, the finding in
    a sentence, and the figure that shows it, an id of the study's figures.
    """

    study: ClassVar[str] = "claims"
    title: ClassVar[str] = "Do the claims of the papers hold?"

    source: str
    claims: pd.DataFrame
    settings: Mapping[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """One row per claim."""
        return self.claims

    def tables(self) -> dict[str, pd.DataFrame]:
        """One row per claim."""
        return {"claims": self.claims}

    def papers(self) -> dict[Source, pd.DataFrame]:
        """The rows of each paper, in the order of the list of claims; the paper with most of them first."""
        every = [rows.reset_index(drop=True) for _, rows in self.claims.groupby("paper", sort=False)]
        every.sort(key=len, reverse=True)
        return {claim(str(rows["claim"].iloc[0])).source: rows for rows in every}

    def shown(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows as people read them: intervals as text."""
        numbers = rows[["value", "low", "high"]].to_numpy(dtype=float)
        values = [
            "-" if own[0] != own[0] else str(Interval(own[0], own[1], own[2], int(n)))
            for own, n in zip(numbers.tolist(), rows["n"], strict=True)
        ]
        columns = rows[["statement", "place", "measured", "control", "verdict", "why"]]
        return columns.assign(value=values)[["statement", "place", "measured", "value", "control", "verdict", "why"]]

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The verdicts, paper by paper."""
        found = []
        for paper, rows in self.papers().items():
            short = self.shown(rows)[["statement", "value", "verdict"]]
            found.append((str(paper), short.assign(claim=rows["claim"])[["claim", "statement", "value", "verdict"]]))
        return found

    def headline(self) -> str:
        """How many claims hold, of all papers together."""
        return counted(self.claims)


_WORDS = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "cannot tell": ("cannot be decided", "cannot be decided"),
    "not applicable": ("is not about this model", "are not about this model"),
}


def counted(rows: pd.DataFrame) -> str:
    """How many claims have each verdict."""
    counts = [(verdict, int((rows["verdict"] == verdict).sum())) for verdict in VERDICTS]
    if len(rows) == 1:
        return f"the one claim {_WORDS[next(verdict for verdict, n in counts if n)][0]}"
    return f"of {len(rows)} claims " + ", ".join(f"{n} {_WORDS[verdict][n > 1]}" for verdict, n in counts if n)
