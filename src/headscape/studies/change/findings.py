"""What changed between two prompts, in a sentence."""

from __future__ import annotations

from typing import Any

from headscape.results import Finding
from headscape.studies.change.result import ChangeResult
from headscape.verdicts import cannot_tell

__all__ = ["findings"]


def findings(r: ChangeResult) -> list[Finding]:
    """Which heads changed most."""
    known = r.ranked().dropna(subset="change")
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


def _name(row: Any, many: bool) -> str:
    return f"{row['block'] + ' ' if many else ''}{row['layer']}.{row['head']}"
