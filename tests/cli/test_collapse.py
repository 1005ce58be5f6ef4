"""The command collapse on a run of `headscape train`."""

from importlib import import_module

import pytest
from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app
from headscape.runs import Run

command = import_module("headscape.cli.collapse")


@pytest.mark.parametrize("option", [None, "--text", "--images", "--out", "--alpha", "--block", "--alpha-hidden"])
def test_a_training_run_is_measured_on_its_own_inputs(option, tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", config={"kind": "train"})
    measured = []
    monkeypatch.setattr(command, "_trained", lambda source, *_: measured.append(source))
    given = [] if option is None else [option, "0.3" if "alpha" in option else str(tmp_path)]
    done = CliRunner().invoke(app, ["collapse", str(run.path), *given])
    if option is None:
        assert done.exit_code == 0 and measured == [str(run.path)]
    else:
        assert isinstance(done.exception, hs.InputError) and "choose --arm and --step" in str(done.exception)
        assert not measured


@pytest.mark.parametrize(
    "given", [["minilm-l6", "--arm", "both"], ["minilm-l6", "--step", "5"], ["--table1", "--arm", "both"]]
)
def test_what_chooses_a_trained_network_is_refused_elsewhere(given):
    done = CliRunner().invoke(app, ["collapse", *given])
    assert isinstance(done.exception, hs.InputError) and "choose a network of a training run" in str(done.exception)
