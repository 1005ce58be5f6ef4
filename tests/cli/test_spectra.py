"""The command spectra on a run."""

from importlib import import_module

import pytest
from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app

import_module("headscape.cli.spectra")  # registers the command


@pytest.mark.parametrize(("option", "measured"), [("--control", True), ("--no-control", False)])
def test_the_model_of_a_run_is_measured_beside_random_weights_unless_they_are_left_out(run, option, measured):
    done = CliRunner().invoke(app, ["spectra", str(run), option, "--rotations", "9", "-q"])
    assert done.exit_code == 0, done.exception
    assert hs.open_result(run, "spectra").has_initial == measured
