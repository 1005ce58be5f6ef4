"""A result as HTML for a notebook: its findings, and the pictures that the report and the figure files show."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from headscape.errors import InputError
from headscape.report.drawing import draw, style
from headscape.report.findings import rule
from headscape.report.first import heads_by_role, role_column
from headscape.report.gather import Scene, Section, gather, reason_of
from headscape.report.page import Page
from headscape.report.sections import caption, table
from headscape.report.text import escape
from headscape.results import FigureSpec, Result

__all__ = ["Shown", "framed", "picture_of", "render"]

DPI = 110
HEIGHT = 620  # pixels of a view


class Shown(str):
    """HTML that a notebook shows; anywhere else it is the text of a page."""

    def _repr_html_(self) -> str:
        return str(self)


def render(result: Result, only: Sequence[str] = ()) -> Shown:
    """Return findings and still pictures, which show wherever the notebook is read; heads come with a view to explore.

    The view is a frame with scripts over a still picture: where those are not allowed, the still is seen. `only` names
    figures by their ids, and the view by "heads".
    """
    scene = gather([result])
    section = scene.sections[0]
    if only:
        parts = {spec.id: partial(_figure, spec, section, scene) for spec in section.figures}
        parts["heads"] = partial(_view, section, scene)
        if not set(only) <= set(parts):
            raise InputError(f"no figure {sorted(set(only) - set(parts))[0]!r}; there are {', '.join(parts)}")
        return Shown("".join(parts[name]() for name in only))
    whole = [f"<h3>{escape(section.title)}</h3>"]
    with suppress(Exception):  # what cannot be drawn is said below, in its place
        whole.append(_view(section, scene))
    whole += [f"<p><em>{escape(problem)}</em></p>" for problem in section.problems]
    if section.findings:
        items = "".join(f"<li>{escape(finding.text)}{rule(finding)}</li>" for finding in section.findings)
        whole.append(f"<ul>{items}</ul>")
    return Shown("".join([*whole, *(_figure(spec, section, scene) for spec in section.figures)]))


def _view(section: Section, scene: Scene) -> str:
    """The heads to explore; nothing where a result is not about heads."""
    grid = next(iter([*section.of_kind("head_grid"), *section.of_kind("head_map")]), None)
    if grid is None or section.rows is None:
        return ""
    role = role_column(scene)
    if role is not None and heads_by_role(scene):  # the still shows what the view does
        read = "One cell per head, colored by what the head does most."
        data = {"score": role.name}
        grid = FigureSpec(
            id="heads", title="Heads by role", kind="head_grid", data=data, read=read, alt="Heads by role"
        )
    return framed(Page(section.title, [], scene, {}).view(), _inner(grid, section, scene))


def _figure(spec: FigureSpec, section: Section, scene: Scene) -> str:
    """A figure with its caption; one that fails is said to, and the notebook still shows the others."""
    try:
        inner = _inner(spec, section, scene)
    except Exception as error:
        inner = f"<p><em>{escape(spec.title)} could not be drawn: {escape(reason_of(error))}</em></p>"
    return f"<figure>{inner}<figcaption>{caption(spec)}</figcaption></figure>"


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
