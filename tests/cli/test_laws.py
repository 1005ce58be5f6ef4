"""The command laws, which needs no model."""

from importlib import import_module

from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app

import_module("headscape.cli.laws")  # registers the command


def test_vectors_are_drawn_in_the_lengths_asked_for(tmp_path):
    words = ["laws", "--out", str(tmp_path / "run"), "--dim", "16", "--radii", "2,5", "--draws", "40", "-q"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    found = hs.open_result(tmp_path / "run", "laws")
    assert found.settings["radii"] == [2.0, 5.0] and found.settings["draws"] == 40


def test_lengths_that_are_no_numbers_are_named(tmp_path):
    done = CliRunner().invoke(app, ["laws", "--out", str(tmp_path / "run"), "--radii", "1,long"])
    assert isinstance(done.exception, hs.InputError) and "'1,long' is not a list of numbers" in str(done.exception)
    assert not (tmp_path / "run").exists()
