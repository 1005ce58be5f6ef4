"""The figures of a run as files, and its tables as CSV, with an index that says what each file is."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from headscape.captures import Capture
from headscape.errors import InputError
from headscape.report.drawing import draw, style
from headscape.report.gather import Missing, Scene, Section, gather_run, reason_of
from headscape.report.orders import orders_of
from headscape.report.text import is_number, slug
from headscape.results import FigureSpec, Result
from headscape.runs import Run
from headscape.storage import replacing

__all__ = ["Format", "write_figures"]

Format = Literal["png", "svg", "pdf"]
INDEX = "figures.csv"
COLUMNS = ["file", "study", "figure", "paper", "title", "how to read it", "what it does not prove"]
UNDATED: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def write_figures(run: Run, results: Sequence[Result | Missing], folder: Path, format: Format = "png") -> list[Path]:
    """Write every figure and table of the results, and figure 1 of the paper from the capture; return the files.

    Files are named by the paper's number where there is one, then study and figure: figure-3-organize-head-map.png.
    figures.csv lists them with title, caption and number, and what could not be drawn with the reason.
    """
    if format not in get_args(Format):
        raise InputError(f"cannot write figures as {format!r}; choose {', '.join(get_args(Format))}")
    folder = Path(folder)
    scene, capture, _ = gather_run(run, results)
    written: list[Path] = []
    index = [COLUMNS]
    for section in scene.sections:
        figures = list(section.figures)
        if capture is not None and not any(spec.paper == "figure 1" for spec in figures):
            figures += _figure_1(capture, section, scene)
        for spec in figures:
            path = folder / f"{_name(section, spec)}.{'csv' if spec.kind == 'table' else format}"
            line = [path.name, section.study, spec.id, spec.paper or "", spec.title, spec.read, spec.caveat]
            index.append(line)
            # a figure that cannot be drawn is a line of the index; the others are still written
            try:
                made = None if spec.kind == "table" else draw(spec, section, scene.heads)
            except Exception as error:
                line[0] = f"not drawn: {reason_of(error)}"
                continue
            if made is None:
                _write_csv(path, [spec.data["columns"], *spec.data["rows"]])
            else:
                with style(), replacing(path) as partial:
                    made.savefig(partial, format=format, metadata=UNDATED[format])
            written.append(path)
    index += [[f"missing: {why}", name, "", "", "", "", ""] for name, why in scene.missing]
    _write_csv(folder / INDEX, index)
    return [*written, folder / INDEX]


def _name(section: Section, spec: FigureSpec) -> str:
    parts = [spec.paper or "", section.study, spec.id]
    return "-".join(slug(part.lower()).strip("-_") for part in parts if part)


def _write_csv(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file).writerows([_safe(cell) for cell in row] for row in rows)


def _safe(cell: Any) -> Any:
    """A number as it is, a missing one as nothing, and text so that a spreadsheet will not take it for a formula.

    >>> [_safe(cell) for cell in (-0.5, "-0.5", "-", "=1+1", "-cmd", "plain")]
    [-0.5, '-0.5', '', "'=1+1", "'-cmd", 'plain']
    """
    if is_number(cell) or not isinstance(cell, str):
        return cell
    return "" if cell in ("-", "–") else f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _figure_1(capture: Capture, section: Section, scene: Scene) -> list[FigureSpec]:
    """Attention of two heads before and after organizing: those with the lowest and the highest score of the grid."""
    with_orders = [spec for spec in section.of_kind("head_map") if spec.data.get("query_orders") is not None]
    if not with_orders or section.rows is None or section.frame is None or "probs" not in capture.kept:
        return []
    heads = scene.heads_of(section)
    grid = section.of_kind("head_grid")
    score = section.frame.get(grid[0].data.get("score")) if grid else None
    ends = [0, len(heads) - 1] if score is None else [int(np.argmin(score)), int(np.argmax(score))]
    orders = orders_of(scene)
    panels = []
    for i in dict.fromkeys(ends):
        head = heads[i]
        by_query, by_key = (orders.of(key, 0, head.block) for key in ("query_orders", "key_orders"))
        if by_query is None or by_key is None:
            return []
        X = capture.tensor(0, head.block)
        values = np.where(X.present, X.values[:, :, X.heads.index(head)], np.nan)
        reading = np.arange(len(X.query_tokens)), np.arange(len(X.key_tokens))
        for name, (rows, columns) in (("reading order", reading), ("organized", (by_query, by_key))):
            tokens = {
                "query_tokens": [X.query_tokens[j] for j in rows],
                "key_tokens": [X.key_tokens[j] for j in columns],
            }
            title = f"layer {head.layer}, head {head.head}: {name}"
            panels.append({"name": title, "values": values[np.ix_(rows, columns)], **tokens})
    words: dict[str, Any] = {
        "read": "Left as the model computes it, right with queries and keys in the order of their trees; batch 0.",
        "caveat": "Organizing makes any matrix look smoother; only the decay against the null shows structure.",
    }
    title, data = "Attention before and after organizing", {"panels": panels}
    return [FigureSpec(id="organized-maps", title=title, kind="maps", data=data, paper="figure 1", **words)]
