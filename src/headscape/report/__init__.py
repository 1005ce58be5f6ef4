"""Draw results: one HTML page a run, and the paper's figures as files. The only room that draws; it computes nothing.

A study is drawn from its `figures()`, `findings()` and `to_frame()` alone; nothing here knows any study.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from headscape.captures import Capture, open_capture
from headscape.errors import HeadscapeError
from headscape.report.gather import LINKED, Missing, Scene, gather, reason_of
from headscape.report.headmaps import BUDGET, HeadMaps, Orders, draw_maps
from headscape.results import Result
from headscape.runs import Run
from headscape.storage import replacing

__all__ = ["write_figures", "write_report"]


def write_report(
    run: Run, results: Sequence[Result | Missing], out: Path | None = None, *, map_budget: int = BUDGET
) -> Path:
    """Write the page of a run and return where it is.

    Parameters
    ----------
    run
        The run directory; its capture gives the attention maps, where they were kept.
    results
        What the studies found, in the order of their sections. A study that could not be loaded is a pair of its name
        and the reason (text or exception); the page says that it is missing, and why.
    out
        The file, by default report.html in the run directory. It appears whole or not at all.
    map_budget
        Characters all attention maps together may take; fewer batches and coarser maps are kept to stay within it.
    """
    from headscape.report import page, summary

    try:
        capture: Capture | None = open_capture(run)
        problem = ""
    except HeadscapeError as error:
        capture, problem = None, f"attention maps are not shown: {reason_of(error)}"
    if capture is None and not summary.captures(run):  # there is nothing to organise, and no map to miss
        problem = ""
        results = [r for r in results if not isinstance(r, tuple) or (run.path / r[0]).is_dir()]
    heads = [] if capture is None else [head for block in capture.blocks for head in capture.heads(block)]
    scene = gather(results, heads)
    pictures = draw_sections(scene)
    maps = (
        HeadMaps(problems=[problem] if problem else []) if capture is None else _maps(run, capture, scene, map_budget)
    )
    target = Path(out) if out is not None else run.path / "report.html"
    with replacing(target) as partial, partial.open("w", encoding="utf-8") as file:
        for part in page.page(
            summary.title(run),
            summary.facts(run, scene, capture),
            summary.excerpt(capture, run.meta.get("inputs", {})),
            scene,
            pictures,
            maps,
            run.meta,
        ):
            file.write(part)
    return target


def draw_sections(scene: Scene) -> dict[str, Any]:
    """What the page draws, by anchor: every figure of every section, or why one cannot be drawn."""
    from headscape.report.page import anchor
    from headscape.report.pictures import picture

    drawn: dict[str, Any] = {}
    for section in scene.sections:
        for spec in section.figures:
            # one bad figure is a line in its place; the others are still drawn
            try:
                drawn[anchor(section, spec.id)] = {"type": "table"} if spec.kind == "table" else picture(spec, section)
            except Exception as error:
                drawn[anchor(section, spec.id)] = {"type": "missing", "why": reason_of(error)}
                section.problems.append(f"the picture '{spec.title}' could not be drawn: {reason_of(error)}")
    return drawn


def _maps(run: Run, capture: Capture, scene: Scene, budget: int) -> HeadMaps:
    orders = Orders()
    for section in scene.sections:
        for spec in section.of_kind(*LINKED):
            if spec.data.get("query_orders") is not None and not orders.query and section.rows is not None:
                orders = Orders.of_figure(spec.data, sorted({scene.heads[row].block for row in section.rows}))
    return draw_maps(capture, scene.heads, orders, run.meta.get("inputs", {}).get("grid"), budget)


def write_figures(
    run: Run, results: Sequence[Result | Missing], folder: Path, format: Literal["png", "svg", "pdf"] = "png"
) -> list[Path]:
    """Write every figure of the results as a file of publication size, and every table as CSV; see `report.files`."""
    from headscape.report.files import write_figures as write

    return write(run, results, folder, format)
