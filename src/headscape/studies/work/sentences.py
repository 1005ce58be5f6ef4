"""How a finding that tests a claim is made: it opens with what its verdict means."""

from __future__ import annotations

from headscape.papers import claim
from headscape.results import Finding
from headscape.verdicts import Judgement, cannot_tell

__all__ = ["ENOUGH", "FEWEST", "of_enough", "on_claim"]

ENOUGH, FEWEST = 8, 3
"""Inputs that a verdict needs unless fewer were requested, and those without which nothing is decided."""


def of_enough(n: int, requested: int, judgement: Judgement) -> Judgement:
    """The judgement, unless there are too few inputs for any: fewer than requested, or two, whose interval rests on one difference."""
    needed = min(ENOUGH, max(FEWEST, requested))
    few = f"too few inputs: {n}, at least {needed} are needed unless fewer are requested"
    return judgement if n >= needed else cannot_tell(few, judgement.statistic)


def on_claim(id: str, judgement: Judgement, rest: str, figure: str | None = None, **names: str) -> Finding:
    """The finding on a claim: its opening, by the verdict, then `rest`; `names` are those that the opening mentions.

    >>> on_claim("organize.learnt", Judgement("holds", "rule"), ": by much.").text
    'Training made this structure: by much.'
    """
    rest = rest.strip()
    space = "" if rest.startswith((":", ".", ",", ";")) else " "
    return Finding(claim(id).opening(judgement, **names) + space + rest, figure, judgement, id)
