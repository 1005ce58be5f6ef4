"""A result as HTML for a notebook: its findings, and the pictures that the report and the figure files show."""

from __future__ import annotations

import base64
import io

from headscape.report.drawing import draw, style
from headscape.report.findings import rule
from headscape.report.gather import Scene, Section, gather, reason_of
from headscape.report.sections import caption, table
from headscape.report.text import escape
from headscape.results import FigureSpec, Result

__all__ = ["render"]

DPI = 110


def render(result: Result) -> str:
    """Return still pictures and text, without scripts, so that it shows wherever the notebook is read."""
    scene = gather([result])
    section = scene.sections[0]
    parts = [f"<h3>{escape(section.title)}</h3>"]
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
    file = io.BytesIO()
    figure = draw(spec, section, scene.heads)
    with style():
        figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img alt="{escape(spec.alt or spec.title)}" src="data:image/png;base64,{data}">'
