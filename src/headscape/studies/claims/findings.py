"""What became of the claims of each paper, in sentences."""

from __future__ import annotations

from headscape.results import Finding
from headscape.studies.claims.result import ClaimsResult, counted

__all__ = ["findings"]


def findings(r: ClaimsResult) -> list[Finding]:
    """How many claims of each paper hold. The claims themselves are findings of the studies that test them."""
    found = []
    for paper, rows in r.papers().items():
        said = counted(rows)
        of = f"of {len(rows)} claims {said}" if len(rows) > 1 else f"its one claim {said.removeprefix('1 ')}"
        found.append(Finding(f"{paper.authors} ({paper.year}): {of}.", f"claims-{paper.id}"))
    return found
