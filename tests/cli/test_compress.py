"""headscape compress on a small run: from shares typed as percent to its table, its closing lines and JSON."""

import json

import pytest
from typer.testing import CliRunner

import headscape as hs
from commands import closing
from headscape.cli import app


def compress(run, *more):
    return CliRunner().invoke(app, ["compress", str(run), "--shares", "5%,0.2", "--batches", "2", *more])


def test_shares_are_typed_as_percent_or_as_numbers(run):
    done = compress(run, "--no-model", "-q")
    assert done.exit_code == 0, done.output
    result = hs.open_result(run, "compress")
    assert result.shares.tolist() == [0.05, 0.2] and len(result.error) == 2
    assert result.change is None  # the model was not run
    found, look, _ = closing(done.stdout)
    assert found == result.headline() and look == f"headscape report {run} --open"


def test_the_model_is_run_with_the_rebuilt_maps_and_json_is_alone_on_the_output(run):
    done = compress(run, "--json", "-q")
    assert done.exit_code == 0, done.output
    result = hs.open_result(run, "compress")
    assert result.unit == "loss" and result.change.shape == result.error.shape
    assert {"findings", *result.tables()} == set(json.loads(done.stdout))


def test_a_share_that_is_no_number_is_named(run):
    done = CliRunner().invoke(app, ["compress", str(run), "--shares", "1%,x%"])
    assert isinstance(done.exception, hs.InputError) and "'x' is not a number" in str(done.exception)
    with pytest.raises(hs.InputError, match="shares lie above 0"):
        hs.compress(run, shares=(0.0,))
