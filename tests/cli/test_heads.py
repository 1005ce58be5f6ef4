"""The command heads prints the heads of a role with what its columns mean."""

import json
from importlib import import_module

import pandas as pd
from typer.testing import CliRunner

import headscape as hs
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


def test_an_organized_run_shows_what_of_the_circuits_bears_on_a_role(tmp_path):
    model, _ = captured("llama", out=tmp_path / "run", batches=2, tokens=10)
    known = hs.organize(tmp_path / "run", model=model).heads.set_index(["block", "layer", "head"])
    for role, columns in {"first": ["score_key", "sink_features"], "induction": ["copying", "score_pair"]}.items():
        found = hs.find_heads(tmp_path / "run", role, top=None).set_index(["block", "layer", "head"])
        assert list(found.columns) == ["score", "chance", "share", *columns, "has_role"]
        pd.testing.assert_frame_equal(found[columns], known.loc[found.index, columns])
        shown = CliRunner().invoke(app, ["heads", str(tmp_path / "run"), "--role", role]).stdout
        assert all(f"{column}: " in shown for column in columns)


def test_a_run_that_is_not_organized_shows_how_far_it_is_unless_quiet(tmp_path):
    captured("llama", out=tmp_path / "run")
    loud, quiet = (headscape("heads", tmp_path / "run", *more, check=0) for more in ((), ("--quiet",)))
    assert "reading maps" in loud.stderr and "/" in loud.stderr
    assert "reading maps" not in quiet.stderr and quiet.stdout == loud.stdout != ""
