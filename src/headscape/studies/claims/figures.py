"""One table of claims per paper, as plain data."""

from __future__ import annotations

from headscape.results import Captions, FigureSpec
from headscape.studies.claims.result import ClaimsResult

__all__ = ["figures"]
captions = Captions(__name__)


def figures(r: ClaimsResult) -> list[FigureSpec]:
    """One table per paper."""
    quick = " This was a quick look: few short inputs, a sample of heads for softmax." if r.settings["quick"] else ""
    return [
        captions.table("claims", r.shown(rows), title=str(paper), key=paper.id, n=len(rows), quick=quick)
        for paper, rows in r.papers().items()
    ]
