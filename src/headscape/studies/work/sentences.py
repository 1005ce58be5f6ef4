"""How a finding opens: with what its verdict means."""

from __future__ import annotations

from headscape.verdicts import Judgement

__all__ = ["opening"]


def opening(judgement: Judgement, holds: str, fails: str) -> str:
    """The statement `holds`, or `fails`, or that it cannot be told whether `holds`.

    >>> opening(Judgement("cannot tell", "one input"), "Maps are flat", "Maps are not flat")
    'It cannot be told whether maps are flat'
    """
    asked = f"It cannot be told whether {holds[0].lower()}{holds[1:]}"
    return {"holds": holds, "does not hold": fails, "cannot tell": asked}[judgement.verdict]
