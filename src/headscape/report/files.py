"""The figures of a run as files, and its tables as CSV, with an index that says what each file is."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from headscape.errors import InputError
from headscape.report.drawing import draw, style
from headscape.report.gather import Missing, Section, gather_run, reason_of
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
    """Write every figure and table of the results; return the files.

    Files are named by the paper's number where there is one, then study and figure: figure-3-organize-head-map.png.
    figures.csv lists them with title, caption and number, and what could not be drawn with the reason.
    """
    if format not in get_args(Format):
        raise InputError(f"cannot write figures as {format!r}; choose {', '.join(get_args(Format))}")
    folder = Path(folder)
    scene = gather_run(run, results)[0]
    written: list[Path] = []
    index = [COLUMNS]
    for section in scene.sections:
        for spec in section.figures:
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
