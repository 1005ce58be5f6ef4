"""What became of every claim: one row each, with the number behind the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from headscape.intervals import Interval
from headscape.papers import claims
from headscape.results import FigureSpec, Finding, Result, table_figure

__all__ = ["VERDICTS", "ClaimsResult"]

VERDICTS = ("holds", "does not hold", "cannot tell", "not applicable")


@dataclass(frozen=True, eq=False)
class ClaimsResult(Result):
    """The claims of the papers, put to the test on one model.

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

    def papers(self) -> dict[str, pd.DataFrame]:
        """The rows of each paper, by its citation, in the order of the list of claims."""
        sources = {id: one.source for id, one in claims().items()}
        return {
            str(sources[rows["claim"].iloc[0]]): rows.reset_index(drop=True)
            for _, rows in self.claims.groupby("paper", sort=False)
        }

    def shown(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows as people read them: intervals as text."""
        values = [
            "-" if row.value != row.value else str(Interval(row.value, row.low, row.high, int(row.n)))
            for row in rows.itertuples()
        ]
        columns = rows[["statement", "place", "measured", "control", "verdict", "why"]]
        return columns.assign(value=values)[["statement", "place", "measured", "value", "control", "verdict", "why"]]

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The verdicts, paper by paper."""
        found = []
        for paper, rows in self.papers().items():
            short = self.shown(rows)[["statement", "value", "verdict"]]
            found.append((paper, short.assign(claim=rows["claim"])[["claim", "statement", "value", "verdict"]]))
        return found

    def findings(self) -> list[Finding]:
        """How many claims of each paper hold. The claims themselves are findings of the studies that test them."""
        found = []
        for paper, rows in self.papers().items():
            counts = [(verdict, int((rows["verdict"] == verdict).sum())) for verdict in VERDICTS]
            said = ", ".join(f"{n} {_WORDS[verdict]}" for verdict, n in counts if n)
            found.append(Finding(f"Of the {len(rows)} claims of {paper}: {said}.", self._id(rows)))
        return found

    def figures(self) -> list[FigureSpec]:
        """One table per paper."""
        read = (
            "One row per claim: what was measured with its 95 % interval and the number of inputs n, the control it must "
            "beat, and the verdict with the rule or reason behind it."
        )
        caveat = "A verdict is about this model on these inputs, not about the paper's own networks."
        if self.settings["quick"]:
            caveat += " This was a quick look: few short inputs, and a sample of heads for softmax."
        return [
            table_figure(self.shown(rows), id=self._id(rows), title=paper, read=read, caveat=caveat)
            for paper, rows in self.papers().items()
        ]

    def _id(self, rows: pd.DataFrame) -> str:
        return f"claims-{rows['paper'].iloc[0]}"


_WORDS = {
    "holds": "hold",
    "does not hold": "do not hold",
    "cannot tell": "cannot be told",
    "not applicable": "are not about this model",
}
