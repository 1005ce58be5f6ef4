"""The command heads prints the heads of a role with what its columns mean."""

import json
from importlib import import_module

from typer.testing import CliRunner

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
