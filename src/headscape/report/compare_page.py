"""The page of a comparison: a result that belongs to no single run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headscape.report.gather import gather
from headscape.report.page import Page
from headscape.results import Result

__all__ = ["write_page"]


def write_page(
    result: Result, title: str, facts: Sequence[tuple[str, str]], provenance: Mapping[str, Any], out: Path
) -> Path:
    """Write one result as a page of its own, whole or not at all, and return where it is.

    `facts` are the lines under the title, pairs of a label and a sentence; `provenance` is shown at the end as JSON.
    """
    return Page(title, facts, gather([result]), provenance).write(out)
