"""The command heads prints the heads of a role with what its columns mean."""

import json
from importlib import import_module

from typer.testing import CliRunner

from commands import headscape
from headscape.cli.shared import app
from tiny import captured

import_module("headscape.cli.heads")  # registers the command


def test_the_columns_that_are_shown_are_explained(tmp_path):
    captured("llama", out=tmp_path / "run")
    shown = CliRunner().invoke(app, ["heads", str(tmp_path / "run"), "--role", "first"])
    assert shown.exit_code == 0, shown.exception
    table, _, explained = shown.stdout.partition("score: ")
    for column in table.splitlines()[1].split()[3:]:  # after block, layer, head
        assert f"{column}: " in f"score: {explained}", column
    assert "copying:" not in explained
    found = json.loads(CliRunner().invoke(app, ["heads", str(tmp_path / "run"), "--role", "sink", "--json"]).stdout)
    assert list(found) == ["first"] and len(found["first"]) == 8


def test_a_run_that_is_not_organized_shows_how_far_it_is_unless_quiet(tmp_path):
    captured("llama", out=tmp_path / "run")
    loud, quiet = (headscape("heads", tmp_path / "run", *more, check=0) for more in ((), ("--quiet",)))
    assert "reading maps" in loud.stderr and "/" in loud.stderr
    assert "reading maps" not in quiet.stderr and quiet.stdout == loud.stdout != ""
