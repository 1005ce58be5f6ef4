"""The page of a comparison: a result that belongs to no single run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headscape.report.gather import gather
from headscape.report.page import Page
from headscape.runs import Run
from headscape.studies.compare.result import CompareResult

__all__ = ["write_compare_page"]


def write_compare_page(result: CompareResult, runs: Sequence[str | Path], out: Path) -> Path:
    """Write a comparison of these runs as a page, whole or not at all, and return where it is."""
    table, groups = result.runs, result.settings["groups"]
    unit = "clusters of tokens" if result.clusters else "tokens"
    facts = [
        ("Networks", ", ".join(result.networks)),
        ("Runs", f"{len(table)} runs of {table['n_query'].iloc[0]} {unit}: {', '.join(table['run'])}"),
        ("Intervals", f"jackknife over {len(groups)} groups per run, each of {len(groups[0])} batches"),
    ]
    provenance = {"settings": dict(result.settings), "runs": {Path(path).name: Run.open(path).shown for path in runs}}
    return Page(" / ".join(result.networks), facts, gather([result]), provenance).write(out)
