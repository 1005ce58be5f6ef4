"""Tables as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headscape.report.text import escape, is_number, number

__all__ = ["table"]

MAX_ROWS = 500  # of a table on the page; the run directory has all of them


def table(columns: Sequence[Any], rows: Sequence[Sequence[Any]], name: str) -> str:
    """Return an HTML table of at most 500 rows, numbers on the right, all text escaped."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = []
    for row in rows[:MAX_ROWS]:
        right = (' class="number"' if is_number(cell) else "" for cell in row)
        cells = (f"<td{side}>{escape(number(cell, 4), 300)}</td>" for cell, side in zip(row, right, strict=True))
        lines.append(f"<tr>{''.join(cells)}</tr>")
    more = f"<p>The first {MAX_ROWS} of {number(len(rows))} rows.</p>" if len(rows) > MAX_ROWS else ""
    return (
        f'<div class="table" tabindex="0" role="region" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{more}"
    )
