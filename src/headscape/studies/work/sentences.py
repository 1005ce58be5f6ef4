"""How a finding that tests a claim is made: it opens with what its verdict means."""

from __future__ import annotations

from headscape.papers import claim
from headscape.results import Finding
from headscape.verdicts import Judgement

__all__ = ["on_claim"]


def on_claim(id: str, judgement: Judgement, rest: str, figure: str | None = None, **names: str) -> Finding:
    """The finding on a claim: its opening, by the verdict, then `rest`; `names` are those that the opening mentions.

    >>> on_claim("organize.learnt", Judgement("holds", "rule"), ": by much.").text
    'Training made this structure: by much.'
    """
    rest = rest.strip()
    space = "" if rest.startswith((":", ".", ",", ";")) else " "
    return Finding(claim(id).opening(judgement, **names) + space + rest, figure, judgement, id)
