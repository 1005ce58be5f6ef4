"""The figures of a run as files, and its tables as CSV, with an index that says which is which."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from matplotlib.figure import Figure

from headscape.captures import Capture, open_capture
from headscape.errors import HeadscapeError, InputError
from headscape.report.drawing import draw, style
from headscape.report.gather import Missing, Scene, Section, gather, reason_of
from headscape.report.headmaps import Orders
from headscape.results import FigureSpec, Result
from headscape.runs import Run
from headscape.storage import replacing

__all__ = ["Format", "write_figures"]

Format = Literal["png", "svg", "pdf"]
INDEX = "figures.csv"


def write_figures(run: Run, results: Sequence[Result | Missing], folder: Path, format: Format = "png") -> list[Path]:
    """Write every figure and table of the results, and figure 1 of the paper from the capture; return the files.

    Files are named by the paper's number where there is one, then study and figure: figure-3-organize-head-map.png.
    figures.csv lists them with title, caption and number, and what could not be drawn with the reason.

    Raises
    ------
    InputError
        On an unknown format.
    """
    if format not in get_args(Format):
        raise InputError(f"cannot write figures as {format!r}; choose {', '.join(get_args(Format))}")
    folder = Path(folder)
    try:
        capture: Capture | None = open_capture(run)
    except HeadscapeError:
        capture = None
    scene = gather(results, [] if capture is None else [h for b in capture.blocks for h in capture.heads(b)])
    written: list[Path] = []
    index: list[list[str]] = [["file", "study", "figure", "paper", "title", "how to read it", "what it does not prove"]]
    for section in scene.sections:
        figures = list(section.figures)
        if capture is not None and not any(spec.paper == "figure 1" for spec in figures):
            figures += _figure_1(capture, section, scene)
        for spec in figures:
            path = folder / f"{_name(section, spec)}.{'csv' if spec.kind == 'table' else format}"
            line = [path.name, section.study, spec.id, spec.paper or "", spec.title, spec.read, spec.caveat]
            index.append(line)
            # one figure that cannot be drawn is a line of the index, the others are still written
            try:
                made = _rows(spec) if spec.kind == "table" else draw(spec, section, scene.heads)
            except Exception as error:
                line[0] = f"not drawn: {reason_of(error)}"
                continue
            _save(made, path, format)
            written.append(path)
    index += [[f"missing: {why}", name, "", "", "", "", ""] for name, why in scene.missing]
    _write_csv(folder / INDEX, index)
    return [*written, folder / INDEX]


def _rows(spec: FigureSpec) -> list[list[Any]]:
    return [list(spec.data["columns"]), *(list(row) for row in spec.data["rows"])]


def _save(made: Figure | list[list[Any]], path: Path, format: str) -> None:
    if isinstance(made, list):
        _write_csv(path, made)
        return
    undated: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with style(), replacing(path) as partial:
        made.savefig(partial, format=format, metadata=undated[format])


def _name(section: Section, spec: FigureSpec) -> str:
    parts = [spec.paper or "", section.study, spec.id]
    return "-".join(
        "".join(c if c.isascii() and c.isalnum() else "-" for c in part.lower()).strip("-") for part in parts if part
    )


def _write_csv(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file).writerows([_safe(cell) for cell in row] for row in rows)


def _safe(cell: Any) -> Any:
    """A cell that a spreadsheet will not take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def _figure_1(capture: Capture, section: Section, scene: Scene) -> list[FigureSpec]:
    """Attention of two heads, as it is and organised: those with the lowest and the highest score of the grid."""
    with_orders = [spec for spec in section.of_kind("head_map") if spec.data.get("query_orders") is not None]
    if not with_orders or section.rows is None or section.frame is None or "probs" not in capture.kept:
        return []
    heads = [scene.heads[row] for row in section.rows]
    grid = section.of_kind("head_grid")
    score = section.frame.get(grid[0].data.get("score")) if grid else None
    ends = [0, len(heads) - 1] if score is None else [int(np.argmin(score)), int(np.argmax(score))]
    orders = Orders.of_figure(with_orders[0].data, sorted({head.block for head in heads}))
    panels = []
    for i in dict.fromkeys(ends):
        head = heads[i]
        if (0, head.block) not in orders.query or (0, head.block) not in orders.key:
            return []
        X = capture.tensor(0, head.block)
        values = np.where(X.present, X.values[:, :, X.heads.index(head)], np.nan)
        rows, columns = orders.query[0, head.block], orders.key[0, head.block]
        name = f"layer {head.layer}, head {head.head}"
        panels.append(_panel(f"{name}: reading order", values, X.query_tokens, X.key_tokens))
        tokens = [X.query_tokens[j] for j in rows], [X.key_tokens[j] for j in columns]
        panels.append(_panel(f"{name}: organised", values[np.ix_(rows, columns)], *tokens))
    return [
        FigureSpec(
            id="organised-maps",
            title="Attention before and after organisation",
            kind="maps",
            data={"panels": panels},
            read="Left as the model gives it, right with queries and keys in the order of their trees; batch 0.",
            caveat="Organisation makes any matrix look smoother; the decay against the null says how much is structure.",
            paper="figure 1",
        )
    ]


def _panel(name: str, values: Any, query_tokens: list[str], key_tokens: list[str]) -> dict[str, Any]:
    return {"name": name, "values": values, "query_tokens": query_tokens, "key_tokens": key_tokens}
