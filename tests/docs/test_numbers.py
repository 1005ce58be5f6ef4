"""Numbers of the documents come from the files in docs/results; what is typed by hand is a definition or a setting."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
DOCS = CLONE / "docs"
PAGES = [CLONE / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("theory/*.md"))]

ANYWHERE = {"95 %", "0.1", "0.2", "3.11"}
"""The level of all intervals, and versions."""
GIVEN = {
    "README": {"20 %"},
}
"""Definitions, settings, tolerances of tests and what papers print, by page."""

MARKED = re.compile(r"<!-- (?:made|from|cost|tables): .*?<!-- end (?:of tables )?-->", re.DOTALL)
ASIDE = re.compile(r"^```.*?^```|^## References.*?(?=^## |\Z)|\$\$?[^$]+\$\$?|`[^`\n]+`|\]\([^)]+\)|^#.*?$|^\d+\. ", re.DOTALL | re.MULTILINE)
UNIT = r"(?: ?%| (?:s|ms|seconds?|minutes?|hours?|[KMG]B|nats|bits|points|times)\b)"
MEASURED = re.compile(rf"(?<![\w.])(?<![A-Za-z]-)(?:[\d,]*\.\d+(?:e-?\d+)?{UNIT}?|\d[\d,]*e-?\d+{UNIT}?|\d[\d,]*{UNIT})")
CITED = re.compile(r"(?:section|sections|eq\.|eqs\.|chapter|appendix|appendices|table|tables) [\w.]+(?:(?:,| and| to) [\w.]+)*")


def typed(text):
    """Numbers in sentences that look measured: decimals, percentages, and whatever has a unit."""
    return MEASURED.findall(CITED.sub("", ASIDE.sub("", MARKED.sub("", text))))


@pytest.fixture(scope="module")
def made():
    spec = spec_from_file_location("make_tables", DOCS / "make_tables.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(CLONE).as_posix()) for page in PAGES])
def test_no_measured_number_is_typed(page):
    name = page.relative_to(DOCS if page.is_relative_to(DOCS) else CLONE).with_suffix("").as_posix()
    assert not set(typed(page.read_text())) - ANYWHERE - GIVEN.get(name, set())
