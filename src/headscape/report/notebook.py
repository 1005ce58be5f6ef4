"""A result as HTML for a notebook: its findings, and the pictures the report and the figure files show."""

from __future__ import annotations

import base64
import io

from headscape.report.drawing import draw, style
from headscape.report.gather import gather, reason_of
from headscape.report.page import table
from headscape.report.text import escape
from headscape.results import Result

__all__ = ["render"]

DPI = 110


def render(result: Result) -> str:
    """Return still pictures and text, without a script: it shows wherever the notebook is read."""
    scene = gather([result])
    section = scene.sections[0]
    signs = {True: "✓ ", False: "✗ ", None: ""}
    parts = [f"<h3>{escape(section.title)}</h3>"]
    parts += [f"<p><em>{escape(problem)}</em></p>" for problem in section.problems]
    if section.findings:
        items = "".join(f"<li>{signs[finding.holds]}{escape(finding.text)}</li>" for finding in section.findings)
        parts.append(f"<ul>{items}</ul>")
    for spec in section.figures:
        # a picture that fails is said to; the notebook still shows the others
        try:
            if spec.kind == "table":
                inner = f"<h4>{escape(spec.title)}</h4>" + table(spec.data["columns"], spec.data["rows"], spec.title)
            else:
                file = io.BytesIO()
                figure = draw(spec, section, scene.heads)
                with style():
                    figure.savefig(file, format="png", dpi=DPI, metadata={"Software": None})
                data = base64.b64encode(file.getvalue()).decode("ascii")
                inner = f'<img alt="{escape(spec.alt or spec.title)}" src="data:image/png;base64,{data}">'
        except Exception as error:
            inner = f"<p><em>{escape(spec.title)} could not be drawn: {escape(reason_of(error))}</em></p>"
        caveat = f" <b>What it does not prove.</b> {escape(spec.caveat)}" if spec.caveat else ""
        parts.append(f"<figure>{inner}<figcaption>{escape(spec.read)}{caveat}</figcaption></figure>")
    return "".join(parts)
