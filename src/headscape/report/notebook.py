"""A result as HTML for a notebook: its findings, and the pictures that the report and the figure files show."""

from __future__ import annotations

import base64
import html
import io
from contextlib import suppress

from headscape.report.drawing import draw, style
from headscape.report.findings import rule
from headscape.report.gather import Scene, Section, gather, reason_of
from headscape.report.page import Page
from headscape.report.sections import caption, table
from headscape.report.text import escape
from headscape.results import FigureSpec, Result

__all__ = ["framed", "picture_of", "render"]

DPI = 110
HEIGHT = 620  # pixels of a view


def render(result: Result) -> str:
    """Return findings and still pictures, which show wherever the notebook is read; heads come with a view to explore.

    The view is a frame with scripts over a still picture: where those are not allowed, the still is seen.
    """
    scene = gather([result])
    section = scene.sections[0]
    parts = [f"<h3>{escape(section.title)}</h3>"]
    grid = next(iter(section.of_kind("head_grid", "head_map")), None)
    if grid is not None and section.rows is not None:
        with suppress(Exception):  # what cannot be drawn is said below, in its place
            parts.append(framed(Page(section.title, [], scene, {}).view(), _inner(grid, section, scene)))
    parts += [f"<p><em>{escape(problem)}</em></p>" for problem in section.problems]
    if section.findings:
        items = "".join(f"<li>{escape(finding.text)}{rule(finding)}</li>" for finding in section.findings)
        parts.append(f"<ul>{items}</ul>")
    for spec in section.figures:
        # a picture that fails is said to; the notebook still shows the others
        try:
            inner = _inner(spec, section, scene)
        except Exception as error:
            inner = f"<p><em>{escape(spec.title)} could not be drawn: {escape(reason_of(error))}</em></p>"
        parts.append(f"<figure>{inner}<figcaption>{caption(spec)}</figcaption></figure>")
    return "".join(parts)


def _inner(spec: FigureSpec, section: Section, scene: Scene) -> str:
    if spec.kind == "table":
        return f"<h4>{escape(spec.title)}</h4>" + table(spec.data["columns"], spec.data["rows"], spec.title)
    return picture_of(spec, section, scene)


def picture_of(spec: FigureSpec, section: Section | None = None, scene: Scene | None = None) -> str:
    """A figure as a still picture."""
    file = io.BytesIO()
    figure = draw(spec, section or Section("", ""), scene.heads if scene is not None else ())
    with style():
        figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="{escape(spec.alt or spec.title)}" src="data:image/png;base64,{data}">'


def framed(page: str, still: str) -> str:
    """A view in a frame over a still picture: without frames, or scripts in them, the still picture is seen."""
    frame = f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(page, quote=True)}" title="Attention heads"'
    over = "position:absolute;inset:0;width:100%;height:100%;border:0;color-scheme:light"
    return f'<div style="position:relative;min-height:{HEIGHT}px;max-width:1100px">{still}<{frame[1:]} style="{over}"></iframe></div>'
