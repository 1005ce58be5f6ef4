"""The command prompt: what it refuses before a model is loaded."""

from importlib import import_module

import pytest
from typer.testing import CliRunner

import headscape as hs
from commands import closing
from headscape.cli.shared import app

import_module("headscape.cli.prompt")  # registers the command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--alphas", "1,two"], "'1,two' is not a list of numbers like 0.5,2"),
        (["--sweep", "0,some"], "'0,some' is not a list of numbers like 0,1,3,5,8"),
        (["--word", "Qwertz"], "Qwertz"),
    ],
)
def test_a_wrong_request_is_refused_before_the_model_is_looked_for(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["prompt", "no-such-model", *words])
    assert isinstance(done.exception, hs.InputError) and message in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_what_to_do_next_is_a_command_that_this_run_can_follow(tiny, tmp_path):
    """Its run has no captured batches, so neither `heads` nor `organize` could."""
    place = str(tmp_path / "run")
    few = [
        "prompt",
        str(tiny[0]),
        "--prompts",
        "1",
        "--shots",
        "1",
        "--alphas",
        "2",
        "--no-control",
        "-q",
        "--out",
        place,
    ]
    for more, next_one in (([], "the same command with --sweep"), (["--sweep", "0,1"], f"headscape spectra {tiny[0]}")):
        done = CliRunner().invoke(app, [*few, *more])
        assert done.exit_code == 0, done.exception
        assert next_one in closing(done.stdout)[2] and closing(done.stdout)[1] == f"headscape report {place} --open"
