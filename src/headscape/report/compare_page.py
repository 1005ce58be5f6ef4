"""The page of a comparison: a result that belongs to no single run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headscape.report import draw_sections
from headscape.report.gather import gather
from headscape.report.headmaps import HeadMaps
from headscape.report.page import page
from headscape.runs import Run
from headscape.storage import replacing

if TYPE_CHECKING:
    from headscape.studies.compare.result import CompareResult

__all__ = ["write_compare_page"]


def write_compare_page(result: CompareResult, runs: Sequence[str | Path], out: Path) -> Path:
    """Write a comparison of these runs as a page of its own and return where it is; it appears whole or not at all."""
    table, groups = result.runs, result.settings["groups"]
    facts = [
        ("Networks", ", ".join(result.networks)),
        ("Runs", f"{len(table)} of {table['n_query'].iloc[0]} tokens: {', '.join(table['run'])}"),
        ("Intervals", f"jackknife over {len(groups)} groups per run, each of {len(groups[0])} batches"),
    ]
    provenance = {"settings": dict(result.settings), "runs": {str(path): Run.open(path).meta for path in runs}}
    scene = gather([result])
    pictures = draw_sections(scene)
    with replacing(out) as partial, partial.open("w", encoding="utf-8") as file:
        for part in page(" / ".join(result.networks), facts, "", scene, pictures, HeadMaps(), provenance):
            file.write(part)
    return out
