"""The page: one HTML file that makes no request, under a strict content policy.

plotly sets style attributes, which the policy therefore allows; under the rest of it they can load and run nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from headscape.report import palette
from headscape.report.findings import findings, missing
from headscape.report.first import first_screen, heads_by_role, opening_head, role_css, strongest_first
from headscape.report.gather import Column, Scene
from headscape.report.headmaps import HeadMaps
from headscape.report.packing import pack
from headscape.report.pictures import pictures_of
from headscape.report.sections import section_html
from headscape.report.text import escape, json_for_html, number, slug, visible
from headscape.storage import replacing

__all__ = ["SCRIPTS", "Page", "asset", "source_hash"]

SCRIPTS = (  # in the order in which they use each other
    *("dom", "data", "theme", "tip", "plots", "selection", "colouring", "keys"),
    *("head_map", "head_matrix", "head_grid", "head_tree", "maps", "enlarge", "saving"),
    *("panel_maps", "panel_text", "panel_strip", "panel_image", "panel_numbers", "panel", "first", "tables", "main"),
)
MEANING = 200  # characters of what a score means
PALETTE = {
    **{"light": palette.LIGHT, "dark": palette.DARK, "markers": palette.MARKERS},
    **{"sequential": palette.CIVIDIS, "diverging": palette.PURPLE_ORANGE},
}


@dataclass(frozen=True)
class Page:
    """What a page shows: title, facts under it, sections, provenance (as JSON), maps, and the opening of the input."""

    name: str
    facts: Sequence[tuple[str, str]]
    scene: Scene
    provenance: Mapping[str, Any]
    maps: HeadMaps = field(default_factory=HeadMaps)
    quote: str = ""

    def write(self, target: Path) -> Path:
        """Write the file, whole or not at all, and return where it is."""
        with replacing(target) as partial:
            partial.write_text(self.html(), encoding="utf-8")
        return target

    def html(self) -> str:
        """Return the page: text and the grid of heads first, then data and maps, plotly last: the first screen needs none."""
        plotly = (files("plotly") / "package_data" / "plotly.min.js").read_text("utf-8")
        pictures = pictures_of(self.scene)
        detail = escape(json.dumps(self.provenance, indent=1, ensure_ascii=False), 20_000).replace("↵", "\n")
        return Template(asset("page.html")).substitute(
            self._screen(pictures, plotly),
            own_sheets=_own_sheets(plotly),
            links="".join(f'<a href="#study-{slug(s.study)}">{escape(s.title)}</a>' for s in self.scene.sections),
            facts=" · ".join(f"<span>{escape(text)}</span>" for _, text in self.facts[:2]),
            run="".join(f"<p>{escape(label)}: {escape(text)}</p>" for label, text in self.facts[2:]),
            quote=f'<p class="excerpt">The input begins: <bdi>{escape(self.quote)}</bdi></p>' if self.quote else "",
            findings=findings(self.scene),
            missing=missing(self.scene, self.maps.problems),
            sections="\n".join(section_html(section, pictures, self.scene) for section in self.scene.sections),
            table=self._table(),
            provenance=detail,
            plotly=plotly,
        )

    def view(self) -> str:
        """Return the first screen alone, small enough for a notebook."""
        return Template(asset("view.html")).substitute(self._screen({}, ""))

    def _screen(self, pictures: Mapping[str, Any], plotly: str) -> dict[str, str]:
        """What the first screen needs, with the policy that allows it."""
        style = role_css() + asset("report.css")
        own = "(() => {\n" + "\n".join(asset(f"{script}.js") for script in SCRIPTS) + "\n})();\n"
        maps = (
            f'<script type="application/json" id="{slug(place)}">{json_for_html(images)}</script>'
            for place, images in self.maps.images.items()
        )
        return {
            "scripts": f"{source_hash(plotly)} {source_hash(own)}",
            "styles": f"{source_hash(style)} {source_hash('')}",  # plotly fills empty style elements by rule
            "name": escape(self.name),
            "style": style,
            "first": first_screen(self.scene),
            "data": json_for_html(self._data(pictures)),
            "own": own,
            "maps": "\n".join(maps),
        }

    def _table(self) -> str:
        n = len(self.scene.heads)
        title = "Table of all scores" if n == 1 else f"Table of all {number(n)} heads"
        return f'<details id="heads-table"><summary>{title}</summary></details>' if n else ""

    def _data(self, pictures: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "opening": opening_head(self.scene),
            "strongest": strongest_first(self.scene),
            "roles": [visible(role) for role in heads_by_role(self.scene)],
            "heads": [list(head) for head in self.scene.heads],
            "columns": [_column(column) for column in self.scene.columns],
            "figures": pictures,
            "maps": self.maps.facts or None,
            "notes": [*self.maps.notes, *self.maps.problems],
            "palette": PALETTE,
        }


def _column(column: Column) -> dict[str, Any]:
    given = column.values
    values = pack(given) if column.is_number else [None if word is None else visible(word) for word in given]
    facts = {"name": visible(column.name), "study": visible(column.study), "number": column.is_number}
    return facts | {"values": values, "about": visible(column.about, MEANING) if column.about else ""}


def asset(name: str) -> str:
    """A file of the page, as text."""
    return (files("headscape.report") / "assets" / name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """How a content policy names a script or style sheet."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _own_sheets(plotly: str) -> str:
    """Elements with the ids of plotly's style sheets for geographic maps, which it then leaves out: the policy forbids them."""
    return "".join(f'<meta id="{name}">\n' for name in re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly))
