"""The page: one HTML file that loads nothing, under a strict content policy."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from headscape.report.gather import LINKED, Scene, Section
from headscape.report.headmaps import HeadMaps
from headscape.report.packing import pack
from headscape.report.palette import CIVIDIS, DARK, LIGHT, MARKERS, PURPLE_ORANGE
from headscape.report.preview import preview
from headscape.report.text import escape, json_for_html, number, visible
from headscape.results import FigureSpec, Finding
from headscape.tensor import HeadId

__all__ = ["SCRIPTS", "anchor", "page", "table"]

SCRIPTS = ("core.js", "plots.js", "linked.js", "views.js", "tree.js", "maps.js", "panel.js", "main.js")
MAX_ROWS = 500  # of a table on the page; the whole of it is in the run directory
CUT = 44  # characters of a cell that are shown, as the style sheet has it
HALF = 72  # characters of a row that fit into half the page
_VERDICT = {True: ("holds", "✓ holds"), False: ("fails", "✗ does not hold"), None: ("plain", "")}
# order on the page: the map first, it is the picture to start from
_LAYOUT = {"head_map": "wide", "head_matrix": "half", "head_grid": "half", "head_tree": "wide"}


def _asset(name: str) -> str:
    return (files("headscape.report") / "assets" / name).read_text(encoding="utf-8")


def _plotly() -> str:
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """Allow these scripts and styles only, and pictures from within the page.

    plotly sets style attributes, and makes empty style elements that it fills by rule; under the rest of the policy an
    attribute can load and run nothing.
    """
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src-elem {' '.join(map(_hash, [*styles, '']))}",
            "style-src-attr 'unsafe-inline'",
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _own_sheets(plotly: str) -> str:
    """Elements with the ids of the style sheets plotly brings for geographic maps: it leaves out what is there already.

    The policy would refuse them, with an error in the console.
    """
    return "".join(f'<meta id="{name}">\n' for name in re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly))


def _slug(text: str) -> str:
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in text) or "-"


def anchor(section: Section, figure: str) -> str:
    """Return the id of a figure on the page."""
    return f"fig-{_slug(section.study)}-{_slug(figure)}"


def page(
    name: str,
    facts: Sequence[tuple[str, str]],
    quote: str,
    scene: Scene,
    pictures: dict[str, Any],
    maps: HeadMaps,
    provenance: dict[str, Any],
) -> Iterable[str]:
    """Yield the page in parts: shell, data and scripts, and last the maps, so that the first picture need not wait.

    Parameters
    ----------
    name, facts, quote
        The title, the lines under it and the opening of the input.
    pictures
        What `pictures.picture` made, by anchor; {"type": "missing", "why": ..} where it could not.
    provenance
        The run's own facts, shown at the end.
    """
    style, plotly = _asset("report.css"), _plotly()
    own = "(() => {\n" + "\n".join(_asset(script) for script in SCRIPTS) + "\n})();\n"
    data = {
        "heads": [list(head) for head in scene.heads],
        "columns": [
            {
                "name": visible(column.name),
                "study": visible(column.study),
                "number": column.is_number,
                "values": pack(column.values)
                if column.is_number
                else [None if v is None else visible(v) for v in column.values],
            }
            for column in scene.columns
        ],
        "figures": pictures,
        "maps": maps.facts or None,
        "notes": [*maps.notes, *maps.problems],
        "palette": {
            "light": LIGHT,
            "dark": DARK,
            "sequential": CIVIDIS,
            "diverging": PURPLE_ORANGE,
            "markers": [plotly_name for plotly_name, _ in MARKERS],
        },
    }
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy([plotly, own], [style])}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"{_own_sheets(plotly)}"
        f"<title>{escape(name)} · headscape</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )
    yield from _body(name, facts, quote, scene, pictures, maps, provenance)
    yield f'<script type="application/json" id="data">{json_for_html(data)}</script>\n'
    yield f"<script>{plotly}</script>\n<script>{own}</script>\n"
    for place, images in maps.images.items():
        yield f'<script type="application/json" id="{_slug(place)}">{json_for_html(images)}</script>\n'
    yield "</body>\n</html>\n"


def _body(
    name: str,
    facts: Sequence[tuple[str, str]],
    quote: str,
    scene: Scene,
    pictures: dict[str, Any],
    maps: HeadMaps,
    provenance: dict[str, Any],
) -> Iterable[str]:
    links = "".join(f'<a href="#study-{_slug(s.study)}">{escape(s.title)}</a>' for s in scene.sections)
    yield (
        '<a class="skip" href="#findings">Skip to the findings</a>\n'
        '<header class="top"><a class="brand" href="#summary">headscape</a>'
        f'<nav aria-label="Sections"><a href="#findings">Findings</a>{links}</nav>'
        '<button id="theme" type="button" aria-label="Switch between light and dark">◐</button></header>\n<main>\n'
    )
    rows = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in facts)
    excerpt = f'<blockquote class="excerpt"><bdi>{escape(quote)}</bdi></blockquote>' if quote else ""
    yield (
        f'<section id="summary" class="summary"><h1><bdi>{escape(name)}</bdi></h1>'
        f'<dl class="facts">{rows}</dl>{excerpt}</section>\n'
        f'<section id="findings"><h2>What was found</h2>{_findings(scene)}{_missing(scene, maps)}</section>\n'
    )
    if scene.with_panel is None and scene.heads:
        yield f'<section class="study" id="heads"><h2>The heads</h2><div class="landscape">{_panel()}</div></section>\n'
    for section in scene.sections:
        yield _study(section, pictures, scene)
    if scene.heads:
        whose = "the head" if len(scene.heads) == 1 else f"all {number(len(scene.heads))} heads"
        yield (
            '<section id="all-heads"><details id="heads-table">'
            f"<summary>All numbers of {whose}, as a table</summary></details></section>\n"
        )
    detail = escape(json.dumps(provenance, indent=1, ensure_ascii=False), 20_000).replace("↵", "\n")
    yield (
        "</main>\n<footer><details><summary>Where this comes from</summary>"
        f"<pre>{detail}</pre></details><p>Made by headscape. This page loads nothing and sends nothing.</p></footer>\n"
        '<a id="float" href="#panel" hidden></a><div id="tip" class="tip" role="tooltip" hidden></div>'
        '<div id="live" class="unseen" aria-live="polite"></div>\n'
        '<dialog id="large" aria-label="Attention map, enlarged"></dialog>\n'
        '<noscript><p class="problem">The pictures need JavaScript; findings and tables are above.</p></noscript>\n'
    )


def _findings(scene: Scene) -> str:
    parts = []
    for section in scene.sections:
        if not section.findings:
            continue
        known = {figure.id for figure in section.figures}
        items = "".join(_finding(section, finding, known) for finding in section.findings)
        heading = f"<h3>{escape(section.title)}</h3>" if len(scene.sections) > 1 else ""
        parts.append(f'{heading}<ul class="findings">{items}</ul>')
    return "".join(parts) or '<p class="quiet">No study has run yet; try <code>headscape organize RUN</code>.</p>'


def _finding(section: Section, finding: Finding, known: set[str]) -> str:
    kind, words = _VERDICT[finding.holds]
    text = escape(finding.text)
    verdict = f' <span class="verdict">{words}</span>' if words else ""
    if finding.figure in known:
        text = f'<a href="#{anchor(section, str(finding.figure))}">{text} <span class="go">see the picture</span></a>'
    return f'<li class="{kind}">{text}{verdict}</li>'


def _missing(scene: Scene, maps: HeadMaps) -> str:
    lines = [f"The section <b>{escape(name)}</b> is missing: {escape(why)}" for name, why in scene.missing]
    lines += [
        f"The section <b>{escape(s.title)}</b> is not whole: {escape(problem)}"
        for s in scene.sections
        for problem in s.problems
    ]
    lines += [escape(problem[:1].upper() + problem[1:]) for problem in maps.problems]
    items = "".join(f"<li>{line.rstrip('.')}.</li>" for line in lines)
    return f'<ul class="problem" role="note">{items}</ul>' if lines else ""


def _study(section: Section, pictures: dict[str, Any], scene: Scene) -> str:
    linked = sorted(section.of_kind(*LINKED), key=lambda figure: list(_LAYOUT).index(figure.kind))
    rest = [figure for figure in section.figures if figure.kind not in LINKED]
    parts = [f'<section class="study" id="study-{_slug(section.study)}"><h2>{escape(section.title)}</h2>']
    parts += [f'<p class="problem" role="note">{escape(problem)}</p>' for problem in section.problems]
    heads = [scene.heads[row] for row in section.rows or []]
    cards = "".join(_card(section, figure, pictures, heads) for figure in linked)
    if section is scene.with_panel:
        parts.append(
            '<div class="toolbar"><label for="colour">Colour heads by</label><select id="colour"></select>'
            '<div id="legend" class="legend"></div></div>'
            f'<div class="landscape"><div class="pictures">{cards}</div>{_panel()}</div>'
        )
    elif linked:
        parts.append(f'<div class="pictures">{cards}</div>')
    parts.append(f'<div class="cards">{"".join(_card(section, figure, pictures) for figure in rest)}</div>')
    if section.rows is None and section.frame is not None and len(section.frame):
        parts.append(
            f"<details><summary>The numbers, as a table</summary>{_frame(section.frame, section.title)}</details>"
        )
    return "".join(parts) + "</section>\n"


def _panel() -> str:
    return '<aside id="panel" class="panel" aria-label="The selected head" tabindex="-1"></aside>'


def _card(section: Section, spec: FigureSpec, pictures: dict[str, Any], heads: Sequence[HeadId] = ()) -> str:
    place = anchor(section, spec.id)
    drawn = pictures.get(place, {})
    paper = f'<span class="paper">{escape(spec.paper)} of the paper</span>' if spec.paper else ""
    alt = escape(spec.alt or spec.title)
    if drawn.get("type") == "missing":
        inner = f'<p class="problem" role="note">This picture is missing: {escape(drawn["why"])}</p>'
    elif spec.kind == "table":
        inner = table(spec.data["columns"], spec.data["rows"], spec.title)
    elif spec.kind in LINKED:
        still = preview(np.asarray(spec.data["coordinates"]), heads) if spec.kind == "head_map" else ""
        inner = (
            f'<div class="plot" data-figure="{place}" role="application" tabindex="0" '
            f'aria-label="{alt}. Arrow keys move the selected head.">{still}</div>'
        )
    elif spec.kind == "maps":
        inner = f'<div class="plot map-row" data-figure="{place}" role="group" aria-label="{alt}"></div>'
    else:
        inner = f'<div class="plot" data-figure="{place}" role="img" aria-label="{alt}"></div>'
    caveat = f"<p><b>What it does not prove.</b> {escape(spec.caveat)}</p>" if spec.caveat else ""
    width = _LAYOUT.get(spec.kind, "")
    if spec.kind == "table" and _characters(spec.data["columns"], spec.data["rows"]) > HALF:
        width = "wide"
    kind = "table-card" if spec.kind == "table" else spec.kind
    return (
        f'<figure class="card {kind} {width}" id="{place}"><div class="card-head"><h3>{escape(spec.title)}</h3>'
        f'{paper}<div class="tools"></div></div>{inner}'
        f"<figcaption><p><b>How to read this.</b> {escape(spec.read)}</p>{caveat}</figcaption></figure>"
    )


def _characters(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> int:
    """How many characters a row of a table takes at most; long cells are cut on the page."""
    widest = [max(len(_cell(cell)) for cell in column) for column in zip(columns, *rows, strict=True)]
    return sum(min(size, CUT) + 3 for size in widest)


def table(columns: Sequence[Any], rows: Sequence[Sequence[Any]], name: str) -> str:
    """Return an HTML table of at most 500 rows, all text escaped."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = []
    for row in rows[:MAX_ROWS]:
        cells = "".join(f"<td{_right(cell)}>{escape(_cell(cell), 300)}</td>" for cell in row)
        lines.append(f"<tr>{cells}</tr>")
    more = f"<p>The first {MAX_ROWS} of {number(len(rows))} rows.</p>" if len(rows) > MAX_ROWS else ""
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def _cell(value: Any) -> str:
    return number(value.item() if hasattr(value, "item") else value, 4)


def _right(value: Any) -> str:
    plain = value.item() if hasattr(value, "item") else value
    return ' class="number"' if isinstance(plain, (int, float)) and not isinstance(plain, bool) else ""


def _frame(frame: pd.DataFrame, name: str) -> str:
    return table(list(frame.columns), frame.to_numpy(dtype=object).tolist(), name)
