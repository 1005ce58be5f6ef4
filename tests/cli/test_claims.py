"""The command claims on a model and on its run.

Also tests report.claims_page.
"""

from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app
from writers import saved

import_module("headscape.cli.claims")  # registers the command


@pytest.mark.slow
def test_a_first_look_has_a_run_of_its_own_and_what_comes_after_it_another(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved("tiny")
    for more, place in ((["--quick"], "runs/tiny-claims-quick"), ([], "runs/tiny-claims")):
        done = CliRunner().invoke(app, ["claims", "tiny", "--only", "spectra.energy", "-q", *more])
        assert done.exit_code == 0, done.exception
        assert (Path(place) / "claims.html").is_file()
        found = hs.open_result(Path(place), "claims")
        assert list(found.claims["claim"]) == ["spectra.energy"] and found.settings["quick"] == bool(more)
    done = CliRunner().invoke(app, ["claims", "runs/tiny-claims", "--only", "no such claim"])
    assert isinstance(done.exception, hs.InputError) and "no claim, study or paper" in str(done.exception)
