"""Findings as HTML: the sentence, then its verdict as a sign and in words, with the rule behind it."""

from __future__ import annotations

from headscape.report.gather import Scene, Section
from headscape.report.text import escape
from headscape.results import Finding
from headscape.verdicts import Verdict

__all__ = ["findings", "missing", "rule"]

# the class on the page, and a sign that does not depend on colour
VERDICTS: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "✓"),
    "does not hold": ("fails", "✗"),
    "cannot tell": ("unsure", "?"),
}


def findings(scene: Scene) -> str:
    """Return the findings of all sections as lists."""
    parts = []
    for section in scene.sections:
        if section.findings:
            heading = f"<h3>{escape(section.title)}</h3>" if len(scene.sections) > 1 else ""
            items = "".join(_item(section, finding) for finding in section.findings)
            parts.append(f'{heading}<ul class="findings">{items}</ul>')
    return "".join(parts) or '<p class="quiet">No study has run yet; try <code>headscape organize RUN</code>.</p>'


def _item(section: Section, finding: Finding) -> str:
    titles = {figure.id: figure.title for figure in section.figures}
    link = ""
    if finding.figure in titles:
        place, title = section.anchor(finding.figure), escape(titles[finding.figure])
        link = f' <a class="go" href="#{place}">Figure: {title}</a>'
    kind = "plain" if finding.verdict is None else VERDICTS[finding.verdict][0]
    return f'<li class="{kind}"><p>{escape(finding.text)}{link}</p>{rule(finding)}</li>'


def rule(finding: Finding) -> str:
    """Return the verdict of a finding with the rule behind it; empty where the finding only describes."""
    if finding.judgement is None:
        return ""
    kind, sign = VERDICTS[finding.judgement.verdict]
    words = f'<span aria-hidden="true">{sign}</span> {finding.judgement.verdict.capitalize()}'
    source = f" Claim: {escape(finding.citation)}." if finding.citation else ""
    why = escape(finding.judgement.why)
    return f'<p class="rule"><small><b class="verdict {kind}">{words}:</b> {why}.{source}</small></p>'


def missing(scene: Scene, problems: list[str]) -> str:
    """Return what the page lacks, and why."""
    lines = [f"Section <b>{escape(name)}</b> is missing: {escape(why)}" for name, why in scene.missing]
    for section in scene.sections:
        lines += [f"Section <b>{escape(section.title)}</b> is incomplete: {escape(why)}" for why in section.problems]
    lines += [escape(problem[:1].upper() + problem[1:]) for problem in problems]
    items = "".join(f"<li>{line.rstrip('.')}.</li>" for line in lines)
    return f'<ul class="problem" role="note">{items}</ul>' if lines else ""
