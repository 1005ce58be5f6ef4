"""Numbers of the documents come from the files in docs/results; what is typed by hand is a definition or a setting."""

import re
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
DOCS = CLONE / "docs"
PAGES = [CLONE / "README.md", CLONE / "CHANGELOG.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("theory/*.md"))]

ANYWHERE = {"95 %", "0.1", "0.2", "3.11"}
"""The level of all intervals, and versions."""
GIVEN = {
    "README": {"1 %", "20 %"},
    "capture": {"1e-5", "1e-6"},
    "collapse": {".05", ".60", ".99", "1.00", "1 %", "1e-7", "2e-7", "1e-15", "1.8e-6"},
    "gaussian": {"90 %", "1e-7", "1e-11"},
    "glossary": {"1 %", "40 %"},
    "hopfield": {"0.02", "1e-5", "1e-6"},
    "hopfield_layers": {"0.99"},
    "organize": {".9", "1 %", "40 %"},
    "prompt": {"10 %", "90 %", "less than half"},
    "prune": {"10 %", "20 %", "30 %", "40 %"},
    "reliability": {"1.2 times", "1e99", "25 MB"},
    "report": {"3.5", "7.2", "15 MB", "more than half"},
    "scale": {"0.5 GB", "1 GB", "2 GB", "256 GB", "1.5 times", "10 s"},
    "softmax": {"0.01 nats", "1 %", "more than half"},
    "spectra": {"0.5", "1 %", "90 %", "99 %", "1e-8", "8 bits"},
    "verdicts": {"16 %", "90 %", "98 %", "5e19", "four orders of magnitude"},
    "theory/collapse": {"1e-7", "1.8e-6"},
    "theory/matrices": {"4 bits", "99 %"},
    "theory/regularity": {"1.5"},
}
"""Definitions, settings, tolerances of tests, and what papers or version 0.1 printed, by page."""
MARKED = re.compile(r"<!-- (?:made|from|cost|tables): .*?<!-- end (?:of tables )?-->", re.DOTALL)
ASIDE = re.compile(
    r"^```.*?^```|^## References.*?(?=^## |\Z)|\$\$?[^$]+\$\$?|`[^`\n]+`|\]\([^)]+\)|^#.*?$|^\d+\. ",
    re.DOTALL | re.MULTILINE,
)
UNIT = r"(?: ?%| (?:s|ms|seconds?|minutes?|hours?|[KMG]B|nats|bits|times)\b)"
MEASURED = re.compile(
    rf"(?<![\w.])(?<![A-Za-z]-)(?:[\d,]*\.\d+(?:e-?\d+)?{UNIT}?|\d[\d,]*e-?\d+{UNIT}?|\d[\d,]*{UNIT})"
)
NUMERAL = "two|three|four|five|six|seven|eight|nine|ten|twelve|twenty"
WORDED = re.compile(
    rf"\b(?:(?:{NUMERAL}) (?:bits|nats|decades|percent|points|orders of magnitude)|"
    r"(?:more than|less than|over|about|nearly|almost|regains?|only) "
    r"(?:half|(?:an?|one|two|three|four) (?:third|quarter|fifth|tenth)s?)|half as|(?:two|three) (?:third|fifth)s of)\b"
)
CITED = re.compile(r"(?:sections?|eqs?\.|chapters?|append\w+|tables?) [\w.]+(?:(?:,| and| to) [\w.]+)*", re.IGNORECASE)


def typed(text):
    """Numbers in sentences that look measured: decimals, percentages, whatever has a unit, and shares in words."""
    sentences = CITED.sub("", ASIDE.sub("", MARKED.sub("", text)))
    return MEASURED.findall(sentences) + WORDED.findall(sentences)


@pytest.fixture(scope="module")
def made():
    spec = spec_from_file_location("make_tables", DOCS / "make_tables.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(page):
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else CLONE).with_suffix("").as_posix()


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_no_measured_number_is_typed(page):
    assert set(typed(page.read_text())) <= ANYWHERE | GIVEN.get(name_of(page), set())


def test_the_scan_sees_what_is_measured_and_passes_over_what_is_made():
    text = "It costs 1.5 [0.2, -3.4] nats, 12 % or 3 GB (n = 8), `0.7` of $0.8$; <!-- from: a b {} -->9.9<!-- end --> in section 2.5."
    assert typed(text) == ["1.5", "0.2", "3.4", "12 %", "3 GB"]
    assert typed("It regains a third, more than two bits or half as much, twice.") == [
        "regains a third",
        "two bits",
        "half as",
    ]


def test_numbers_in_sentences_are_those_of_the_results(made):
    found = [(page, one) for page in PAGES for one in made.INLINE.finditer(page.read_text())]
    assert sum(page.name == "README.md" for page, _ in found) >= 5
    for page, one in found:
        assert made.inline(one) == one[0], page.name
        assert not page.read_text()[: one.start()].endswith("\n")  # a line that begins with a comment is no paragraph


def test_a_number_is_found_by_the_words_around_it(made, tmp_path, monkeypatch):
    monkeypatch.setattr(made, "DOCS", tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a.json").write_text(
        '{"rows": [{"loss": 2.125}, "a rise of 1.5 [1, 2] (n = 8) nats, or 3 nats."]}'
    )
    (tmp_path / "results" / "b.csv").write_text("# how\ntokens,time\n512,1.25 s\n")
    assert made.quoted("a", "a rise of {} nats") == "1.5 [1, 2] (n = 8)"
    assert made.quoted("a", "rows.0.loss: {.2f}") == "2.12"
    assert made.quoted("a", "a rise ... or {} nats") == "3"
    assert made.quoted("b", "512.time: {} s") == "1.25"
    for words in ("{} nats", "a fall of {}"):  # two numbers, none
        with pytest.raises(ValueError, match="where one is asked for"):
            made.quoted("a", words)


def test_the_hostile_cases_that_are_counted_are_there():
    page = (DOCS / "reliability.md").read_text()
    families = import_module("hostile").families()
    assert f"{sum(map(len, families.values()))} cases." in page


ENDS = re.compile(r"\[[-+]?[\d.]+(?:e[-+]?\d+)?%?, [-+]?[\d.]+(?:e[-+]?\d+)?%?\](?! ?%? \(n = \d)")


def bare(text):
    """Rows with an interval that has no n, neither beside it nor in a column; a range of seeds is no interval."""
    found, columns, title = [], [], ""
    for line in text.splitlines():
        if not line.startswith("|"):
            columns, title = [], line or title
            continue
        columns = columns or [cell.strip() for cell in line.strip("|").split("|")]
        if ENDS.search(line) and not {"n", "seeds"} & set(columns) and "[smallest, largest seed]" not in title:
            found.append(line)
    return found


@pytest.mark.parametrize("page", [pytest.param(page, id=name_of(page)) for page in PAGES])
def test_n_stands_beside_every_interval_of_a_table(page):
    assert not bare(page.read_text())


def test_an_interval_without_its_n_is_seen():
    row = "| a | {} |\n"
    head = "| what | cost |\n| --- | --- |\n"
    assert bare(head + row.format("1 [0.2, 3]")) and bare(head + row.format("+.92 [-.06, 2.35]"))
    assert not bare(head + row.format("1 [0.2, 3] (n = 8)")) and not bare(head + row.format("1 [0.2, 3] % (n = 8)"))
    assert not bare(head.replace("cost", "n") + row.format("1 [0.2, 3]"))


def test_intervals_of_documents_and_benchmarks_come_from_the_one_place():
    """A bootstrap over five batches covers four times in five, and calls itself 95 %."""
    scripts = [
        file for folder in ("benchmarks", "scripts", "docs", "examples") for file in (CLONE / folder).rglob("*.py")
    ]
    assert len(scripts) > 20
    for file in scripts:
        words = file.read_text(encoding="utf-8")
        assert not re.search(r"bootstrap\(|scipy\.stats import .*\bt\b|1\.96|\bsem\(", words), file
