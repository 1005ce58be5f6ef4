"""The section of a study as HTML: its figures as cards, those of heads under one menu of colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.papers import drawn_from
from headscape.report.gather import LINKED, Scene, Section
from headscape.report.palette import CIVIDIS
from headscape.report.text import escape, is_number, number, slug
from headscape.results import FigureSpec
from headscape.tensor import HeadId

__all__ = ["caption", "section_html", "table"]

WIDTHS = {"head_map": "wide", "head_matrix": "half", "head_grid": "half", "head_tree": "wide", "frames": "wide"}
MAX_ROWS = 500  # of a table on the page; the run directory has all of them
WIDTH, HEIGHT, MARGIN = 700, 460, 24  # of the still


def section_html(section: Section, pictures: Mapping[str, Any], scene: Scene) -> str:
    """Return a section; `pictures` says what the page draws, by anchor, and what is missing."""
    linked = sorted(section.of_kind(*LINKED), key=lambda figure: LINKED.index(figure.kind))
    rest = [figure for figure in section.figures if figure.kind not in LINKED]
    parts = [f'<section class="study" id="study-{slug(section.study)}"><h2>{escape(section.title)}</h2>']
    parts += [f'<p class="problem" role="note">{escape(problem)}</p>' for problem in section.problems]
    cards = "".join(_card(section, figure, pictures, scene) for figure in linked)
    if section is scene.with_panel:
        parts.append(
            '<div class="toolbar"><label for="colour">Color heads by</label><select id="colour"></select>'
            '<div id="legend" class="legend"></div></div>'
            f'<div class="pictures">{cards}</div>'
        )
    elif linked:
        parts.append(f'<div class="pictures">{cards}</div>')
    parts.append(f'<div class="cards">{"".join(_card(section, figure, pictures, scene) for figure in rest)}</div>')
    if section.rows is None and section.frame is not None and len(section.frame):
        numbers = table(list(section.frame.columns), section.frame.to_numpy(dtype=object).tolist(), section.title)
        parts.append(f"<details><summary>Show the numbers as a table</summary>{numbers}</details>")
    return "".join(parts) + "</section>\n"


def _card(section: Section, spec: FigureSpec, pictures: Mapping[str, Any], scene: Scene) -> str:
    place = section.anchor(spec.id)
    kind, width = "table-card" if spec.kind == "table" else spec.kind, WIDTHS.get(spec.kind, "")
    paper = _paper(section.study.split("#")[0], spec.paper) if spec.paper else ""
    drawn = pictures.get(place, {})
    inner = _inner(section, spec, drawn, scene)
    note = f'<p class="note">{escape(drawn["note"])}</p>' if "note" in drawn else ""
    return (
        f'<figure class="card {kind} {width}" id="{place}"><div class="card-head"><h3>{escape(spec.title)}</h3>'
        f'{paper}<div class="tools"></div></div>{inner}<figcaption>{caption(spec)}{note}</figcaption></figure>'
    )


def _paper(study: str, place: str) -> str:
    """Which figure of which paper this is, with its title as a tip."""
    source = drawn_from(study)
    of = f" of {source.short}" if source else ""
    return f'<span class="paper" title="{escape(str(source or ""))}">{escape(place + of)}</span>'


def _inner(section: Section, spec: FigureSpec, drawn: Mapping[str, Any], scene: Scene) -> str:
    """The table, the box that a script draws into, or why there is neither."""
    if drawn.get("type") == "missing":
        return f'<p class="problem" role="note">This figure is missing: {escape(drawn["why"])}</p>'
    if spec.kind == "table":
        return table(spec.data["columns"], spec.data["rows"], spec.title)
    box, alt = f'data-figure="{section.anchor(spec.id)}"', escape(spec.alt or spec.title).rstrip(".")
    if spec.kind == "maps":
        return f'<div class="plot map-row" {box} role="group" aria-label="{alt}"></div>'
    if spec.kind not in LINKED:
        return f'<div class="plot" {box} role="img" aria-label="{alt}"></div>'
    heads = scene.heads_of(section)
    still = _still(np.asarray(spec.data["coordinates"]), heads) if spec.kind == "head_map" else ""
    label = f'aria-label="{alt}. Arrow keys move the selection."'
    return f'<div class="plot" {box} role="application" tabindex="0" {label}>{still}</div>'


def _still(coordinates: npt.NDArray[np.float64], heads: Sequence[HeadId]) -> str:
    """An SVG of the first two coordinates (n_head, k) of a head map, shown before plotly is loaded or without scripts.

    >>> _still(np.array([[0.0, 0.0], [1.0, 1.0]]), [HeadId("decoder", 0, 0), HeadId("decoder", 1, 0)]).count("<circle")
    2
    """
    flat = np.zeros((len(coordinates), 2))
    flat[:, : coordinates.shape[1]] = np.nan_to_num(coordinates[:, :2])
    low, span = flat.min(axis=0), np.ptp(flat, axis=0)
    share = (flat - low) / np.where(span > 0, span, 1) if len(flat) else flat
    share = np.where(span > 0, share, 0.5)
    x = MARGIN + share[:, 0] * (WIDTH - 2 * MARGIN)
    y = HEIGHT - MARGIN - share[:, 1] * (HEIGHT - 2 * MARGIN)
    last = max((head.layer for head in heads), default=0) or 1
    dots = "".join(
        f'<circle cx="{a:.0f}" cy="{b:.0f}" r="4" fill="{CIVIDIS[round((len(CIVIDIS) - 1) * head.layer / last)]}"/>'
        for a, b, head in zip(x, y, heads, strict=True)
    )
    return f'<svg class="still" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{dots}</svg>'


def table(columns: Sequence[Any], rows: Sequence[Sequence[Any]], name: str) -> str:
    """Return an HTML table of at most 500 rows, numbers on the right, all text escaped."""
    first = rows[0] if rows else columns
    head = "".join(
        f'<th scope="col"{_side(cell)}>{escape(column)}</th>' for column, cell in zip(columns, first, strict=True)
    )
    lines = []
    for row in rows[:MAX_ROWS]:
        cells = (f"<td{_side(cell)}>{escape(number(cell, 4), 300)}</td>" for cell in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = f"<p>The first {MAX_ROWS} of {number(len(rows))} rows.</p>" if len(rows) > MAX_ROWS else ""
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def caption(spec: FigureSpec) -> str:
    """Return how to read a figure and what it does not prove."""
    caveat = f"<p><b>What it does not prove.</b> {escape(spec.caveat)}</p>" if spec.caveat else ""
    return f"<p><b>How to read this.</b> {escape(spec.read)}</p>{caveat}"


def _side(cell: Any) -> str:
    return ' class="number"' if is_number(cell) else ""
