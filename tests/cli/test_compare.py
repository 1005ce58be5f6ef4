"""headscape compare: tables, page and errors as a user meets them.

Also tests report.compare_page.
"""

import json
import sys

import pytest

import headscape.cli.compare  # registers the command
from commands import closing
from headscape.cli import main
from headscape.cli.shared import out
from planted_runs import attention_of, make_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli-compare")
    one = make_run(place / "one", attention_of(1, 0, n_batch=6), "net-one")
    two = make_run(place / "two", attention_of(2, 1, n_batch=6), "net-two")
    return one, two, place


@pytest.fixture
def headscape(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["headscape", *map(str, arguments)])
        monkeypatch.setattr(out, "_width", 200)  # COLUMNS may have been read before
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


def test_compare_prints_tables_and_writes_a_page(runs, headscape):
    one, two, place = runs
    code, said, _ = headscape("compare", one, two, "--out", place / "out", "--draws", 20, "--quiet")
    assert code == 0
    assert "net-one / net-two" in said and "no second run" in said and "are different networks by their heads" in said
    page = (place / "out" / "report.html").read_text()
    assert "<h1><bdi>net-one / net-two</bdi></h1>" in page
    assert "Distances between networks" in page and "Depth profile" in page and "This picture is missing" not in page
    found, look, _ = closing(said)
    assert found == "All networks are distinguishable" and look == str(place / "out" / "report.html")
    code, said, _ = headscape("compare", one, two, "--out", place / "out", "--draws", 20, "--quiet", "--json")
    found = json.loads(said)
    assert {"findings", "distances", "runs"} == set(found)
    assert {row["measure"] for row in found["distances"]} >= {"together", "geometry", "depth"}


def test_mistakes_are_one_line_and_exit_with_2(runs, headscape):
    one, _, place = runs
    bare = make_run(place / "bare", attention_of(1, 5, n_batch=2), organized=False)
    for arguments, words in (
        ((one,), "two runs or more"),
        ((one, bare), "headscape organize"),
        ((one, place / "nowhere"), "no run at"),
    ):
        code, _, said = headscape("compare", *arguments, "--out", place / "never")
        lines = [line for line in said.splitlines() if line.strip()]
        assert code == 2 and len(lines) == 1 and lines[0].startswith("error: ") and words in lines[0], said
    assert not (place / "never").exists()


def test_help_has_an_example(headscape):
    code, said, _ = headscape("compare", "--help")
    assert code == 0 and "Example" in said and "--jobs" in said and "--seed" in said
