"""The command collapse on a run of `headscape train`."""

from importlib import import_module

import pytest
from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app
from headscape.runs import Run

command = import_module("headscape.cli.collapse")


@pytest.mark.parametrize("option", [None, "--text", "--images", "--out", "--alpha"])
def test_a_training_run_is_measured_on_its_own_inputs(option, tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", config={"kind": "train"})
    measured = []
    monkeypatch.setattr(command, "_trained", lambda source, *_: measured.append(source))
    given = [] if option is None else [option, "0.5" if option == "--alpha" else str(tmp_path)]
    done = CliRunner().invoke(app, ["collapse", str(run.path), *given])
    if option is None:
        assert done.exit_code == 0 and measured == [str(run.path)]
    else:
        assert isinstance(done.exception, hs.InputError) and "choose --arm and --step" in str(done.exception)
        assert not measured
