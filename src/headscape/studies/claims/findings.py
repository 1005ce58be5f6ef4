"""What became of the claims of each paper, in sentences."""

from __future__ import annotations

from headscape.results import Finding
from headscape.studies.claims.result import ClaimsResult, counted

__all__ = ["findings"]


def findings(r: ClaimsResult) -> list[Finding]:
    """How many claims of each paper hold. The claims themselves are findings of the studies that test them."""
    return [
        Finding(f"{paper.authors} ({paper.year}): {counted(rows)}.", f"claims-{paper.id}")
        for paper, rows in r.papers().items()
    ]
