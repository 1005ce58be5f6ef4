"""The command gaussian on a run."""

from importlib import import_module

from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app

import_module("headscape.cli.gaussian")  # registers the command


def test_as_many_batches_are_measured_as_are_asked_for(run):
    done = CliRunner().invoke(app, ["gaussian", str(run), "--batches", "2", "-q"])
    assert done.exit_code == 0, done.exception
    found = hs.open_result(run, "gaussian")
    assert found.settings["batches"] == 2 and len(found.heads) == 8


def test_random_weights_are_measured_beside_the_model_only_where_they_are_asked_for(run):
    for more, beside in (([], False), (["--random-weights"], True)):
        done = CliRunner().invoke(app, ["gaussian", str(run), "-q", *more])
        assert done.exit_code == 0, done.exception
        assert (hs.open_result(run, "gaussian").control is not None) == beside
