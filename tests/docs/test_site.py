"""The site has a place for everything that is public."""

import doctest
import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import headscape as hs
from headscape.papers import claims

DOCS = Path(__file__).parents[2] / "docs"
PACKAGES = {"collapse": "headscape.studies.collapse.study", "report": "headscape.report.showing"}
"""Packages that can be called, and where the function is."""


def test_every_public_name_is_in_the_api_reference():
    listed = re.findall(r"^   (\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(set(hs.__all__) - {"__version__"})


def test_every_public_name_says_what_it_is():
    for name in set(hs.__all__) - {"__version__"}:
        assert (getattr(hs, name).__doc__ or "").strip().split("\n")[0].endswith((".", "?", ":", ")")), name


def test_every_public_name_has_an_example_that_is_run():
    """As pytest finds them, in the module where a name is at home."""
    homes = {name: PACKAGES.get(name) or getattr(hs, name).__module__ for name in set(hs.__all__) - {"__version__"}}
    found = [test for home in set(homes.values()) for test in doctest.DocTestFinder().find(import_module(home))]
    run = {test.name: test.examples for test in found}
    without = [name for name, home in homes.items() if not run.get(f"{home}.{name}")]
    assert not without
    assert not [name for name, examples in run.items() if any(doctest.SKIP in one.options for one in examples)]


def test_every_page_has_a_place():
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    pages = {page for page in pages if not page.startswith(("_build", "made", "results"))}
    placed = {"index"}
    for index in (DOCS / "index.md", DOCS / "theory" / "index.md"):
        for tree in re.findall(r"```{toctree}\n(.*?)```", index.read_text(), re.S):
            lines = [line for line in tree.splitlines() if line and not line.startswith(":")]
            placed |= {(index.parent / line).relative_to(DOCS).as_posix() for line in lines}
    assert pages <= placed


def test_every_page_links_the_glossary():
    pages = {
        page for page in DOCS.rglob("*.md") if not {"_build", "made", "results"} & set(page.relative_to(DOCS).parts)
    }
    pages -= {DOCS / "glossary.md", DOCS / "changelog.md"}
    assert not [page.name for page in pages if "glossary.md)" not in page.read_text()]
    assert not [file.name for file in (DOCS / "tutorials").glob("*.py") if ":doc:`/glossary`" not in file.read_text()]


def test_no_page_has_two_headings_alike():
    for page in DOCS.rglob("*.md"):
        if not {"_build", "made"} & set(page.relative_to(DOCS).parts):
            heads = re.findall(r"^#+ .*", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M), re.M)
            assert len(heads) == len(set(heads)), page.name


def test_words_are_spelled_one_way():
    """Hölder and learned, on pages and in what the program says; keys and ids stay as they are."""
    said = [
        page.read_text() for page in DOCS.rglob("*.md") if not {"_build", "made"} & set(page.relative_to(DOCS).parts)
    ]
    said += [file.read_text() for file in (DOCS.parent / "src" / "headscape" / "studies").rglob("findings.py")]
    said += [f"{one.statement} {one.statistic} {one.holds} {one.fails}" for one in claims().values()]
    assert not [found for text in said for found in re.findall(r"\b[Hh]oelder|(?<![.])\blearnt\b", text)]


def test_the_percent_sign_stands_beside_its_number():
    kept = [
        text for file in (DOCS / "results").rglob("*.json") for text in re.findall(r'"text": "(.+)"', file.read_text())
    ]
    assert len(kept) > 100 and not [text for text in kept if re.search(r"\(n = [^)]*\) %", text)]


def test_the_tables_of_the_pages_are_those_of_the_results():
    spec = spec_from_file_location("make_tables", DOCS / "make_tables.py")
    tables = module_from_spec(spec)
    spec.loader.exec_module(tables)
    found = [(page, table) for page in DOCS.rglob("*.md") for table in tables.MADE.finditer(page.read_text())]
    assert len(found) > 50
    for page, table in found:
        if table[2] != "coverage":  # it draws for seconds
            assert table[0] == table[1] + tables.MAKERS[table[2]](table[3].strip()) + table[4], (page.name, table[1])


def test_every_theory_page_has_formula_picture_correction_and_references():
    pages = [page for page in (DOCS / "theory").glob("*.md") if page.name != "index.md"]
    assert len(pages) == 9
    for page in pages:
        text = page.read_text()
        parts = re.findall(r"^## (.*)$", text, re.M)
        wanted = ["The idea", "The formula", "The picture", "How headscape computes it", "References"]
        assert [part for part in parts if part in wanted] == wanted, page.name
        assert sum(bool(re.fullmatch("What the (paper|thesis) got wrong", part)) for part in parts) == 1, page.name
        assert f"<!-- made: checks {page.stem} -->" in text and "```{math}" in text, page.name
        for ground in ("light", "dark"):  # drawn by docs/theory/make_pictures.py
            assert f"```{{image}} ../images/theory/{page.stem}-{ground}.svg\n:class: only-{ground}\n" in text
            assert (DOCS / "images" / "theory" / f"{page.stem}-{ground}.svg").is_file()


def test_no_interval_on_a_page_is_typed_by_hand():
    """What was measured comes from a result file; sentences say what it means."""
    made = re.compile(r"<!-- (?:made|tables|from|cost): .*?<!-- end.*?-->|```.*?```", re.DOTALL)
    interval = re.compile(r"[+-]?[\d.]+ \[[+-]?[\d.e-]+, [+-]?[\d.e-]+\]")
    typed = {
        page.relative_to(DOCS).as_posix(): found
        for page in DOCS.rglob("*.md")
        if not {"_build", "made"} & set(page.relative_to(DOCS).parts)
        and (found := interval.findall(made.sub("", page.read_text())))
    }
    assert not typed
