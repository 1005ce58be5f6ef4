"""Draw results: one HTML page per run, and the paper's figures as files. The only room that draws; it computes nothing.

A study is drawn from its `figures()`, `findings()` and `to_frame()` alone; nothing here knows any study. The way of a
page: `gather` reads the results, `headmaps` encodes the attention maps, `pictures` turns figures into data for the
scripts in assets/, and `page` writes them between `findings` and `sections`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from headscape._lazy import callable_package
from headscape.report.gather import Missing, gather_run
from headscape.report.headmaps import BUDGET, HeadMaps, draw_maps
from headscape.report.orders import orders_of
from headscape.results import Result
from headscape.runs import Run

__all__ = ["write_figures", "write_report"]


def write_report(
    run: Run, results: Sequence[Result | Missing], out: Path | None = None, *, map_budget: int = BUDGET
) -> Path:
    """Write the page of a run (by default RUN/report.html), whole or not at all, and return where it is.

    Parameters
    ----------
    results
        The results of the studies, in the order of their sections, as `headscape.studies.load_results` returns them. A
        study that could not be loaded is a pair of its name and the reason (text or exception), which the page states.
    map_budget
        Characters that all attention maps together may take; to stay within it, fewer batches and coarser maps are kept.
    """
    from headscape.report import summary
    from headscape.report.page import Page

    scene, capture, problem = gather_run(run, results)
    inputs = run.meta.get("inputs", {})
    if capture is not None:
        maps = draw_maps(capture, scene.heads, orders_of(scene), inputs.get("grid"), map_budget)
    elif summary.captures(run):
        maps = HeadMaps(problems=[f"attention maps are not shown: {problem}"])
    else:  # there was nothing to organize, so neither maps nor studies that were never begun are missing
        maps = HeadMaps()
        scene.missing = [(name, why) for name, why in scene.missing if (run.path / name).is_dir()]
    facts, quote = summary.facts(run, scene, capture), summary.excerpt(capture, inputs)
    page = Page(summary.title(run), facts, scene, run.shown, maps, quote)
    return page.write(Path(out) if out is not None else run.path / "report.html")


def write_figures(
    run: Run, results: Sequence[Result | Missing], folder: Path, format: Literal["png", "svg", "pdf"] = "png"
) -> list[Path]:
    """Write every figure of the results as a file of publication size, and every table as CSV; see `report.files`."""
    from headscape.report.files import write_figures as write

    return write(run, results, folder, format)


callable_package(__name__, "headscape.report.showing")
