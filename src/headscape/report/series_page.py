"""The page of a series of checkpoints: a result that belongs to no single run."""

from __future__ import annotations

from pathlib import Path

from headscape.report.gather import gather
from headscape.report.page import Page
from headscape.studies.series.result import SeriesResult

__all__ = ["write_series_page"]


def write_series_page(result: SeriesResult, name: str, out: Path) -> Path:
    """Write a series as a page, whole or not at all, and return where it is."""
    n_layers = result.heads["layer"].nunique()
    facts = [
        ("Checkpoints", f"{len(result.steps)} checkpoints, from step {result.steps[0]} to {result.steps[-1]}"),
        ("Heads", f"{len(result.heads)} heads in {n_layers} layers"),
        ("Inputs", f"{result.scores.shape[2]}, the same for every checkpoint"),
    ]
    return Page(name, facts, gather([result]), {"settings": dict(result.settings)}).write(out)
