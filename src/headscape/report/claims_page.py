"""The page of the claims: one row each, with its number, control and verdict; figures are on the report of the run."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from headscape.report.findings import VERDICTS
from headscape.report.page import asset, source_hash
from headscape.report.text import escape, slug
from headscape.storage import replacing
from headscape.studies.claims.result import ClaimsResult

__all__ = ["write_claims_page"]

COLUMNS = ("Claim", "What was measured", "Value", "Control", "Verdict")
SIGNS = {str(verdict): signs for verdict, signs in VERDICTS.items()} | {"not applicable": ("apart", "–")}


def write_claims_page(result: ClaimsResult, out: Path, figures: str = "report.html") -> Path:
    """Write the claims as a page and return where it is; `figures` is the page beside it that rows link to."""
    style = asset("report.css") + asset("claims.css")
    dark = style.split(':root[data-theme="dark"]')[1].split("}")[0]  # the page has no script that could switch to it
    style += f"@media (prefers-color-scheme: dark) {{ :root {dark}}} }}"
    page = Template(asset("claims.html")).substitute(
        styles=source_hash(style),
        style=style,
        name=escape(result.source),
        counts="".join(f"<li>{escape(finding.text)}</li>" for finding in result.findings()),
        quick=_QUICK if result.settings["quick"] else "",
        papers="".join(_paper(result, str(paper), rows, figures) for paper, rows in result.papers().items()),
    )
    with replacing(out) as partial:
        partial.write_text(page, encoding="utf-8")
    return out


_QUICK = (
    '<p class="note">A quick look: few short inputs, and a sample of heads for the claims about softmax. Without '
    "<code>--quick</code> more is measured.</p>"
)


def _paper(result: ClaimsResult, paper: str, rows: pd.DataFrame, figures: str) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    values = result.shown(rows)["value"]
    lines = "".join(_row(row, value, figures) for (_, row), value in zip(rows.iterrows(), values, strict=True))
    return f"<h2>{escape(paper)}</h2><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _row(row: pd.Series[Any], value: str, figures: str) -> str:
    kind, sign = SIGNS[row["verdict"]]
    link = ""
    if row["figure"]:
        place = f"{figures}#fig-{slug(row['study'])}-{slug(row['figure'])}"
        link = f' <a class="go" href="{escape(place)}">Figure</a>'
    finding = (
        f"<details><summary>The finding</summary>{escape(row['finding'], 3000)}</details>" if row["finding"] else ""
    )
    return (
        f'<tr class="{kind}" id="{slug(row["claim"])}">'
        f"<td>{escape(row['statement'])}<small><code>{escape(row['claim'])}</code>, {escape(row['place'])}</small></td>"
        f"<td>{escape(row['measured'])}<small>{escape(row['rule'])}</small></td>"
        f"<td>{escape(value)}</td><td>{escape(row['control'])}</td>"
        f'<td><b class="verdict {kind}"><span aria-hidden="true">{sign}</span> {row["verdict"].capitalize()}</b>{link}'
        f"<small>{escape(row['why'], 1000)}</small>{finding}</td></tr>"
    )
