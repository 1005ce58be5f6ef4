"""The command softmax on a run."""

from importlib import import_module

from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app

import_module("headscape.cli.softmax")  # registers the command


def test_heads_are_chosen_as_findings_name_them(run):
    done = CliRunner().invoke(app, ["softmax", str(run), "--heads", "0.2,decoder.1.0", "--no-model", "-q"])
    assert done.exit_code == 0, done.exception
    found = hs.open_result(run, "softmax").to_frame()
    assert set(zip(found["layer"], found["head"], strict=True)) == {(0, 2), (1, 0)}


def test_some_heads_and_all_of_them_cannot_both_be_asked_for(run):
    done = CliRunner().invoke(app, ["softmax", str(run), "--heads", "0.2", "--all"])
    assert isinstance(done.exception, hs.InputError) and "either --heads or --all" in str(done.exception)
