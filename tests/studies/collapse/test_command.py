"""The command `headscape collapse`."""

import json
from importlib import import_module
from pathlib import Path

import torch
from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app

import_module("headscape.cli.collapse")  # registers the command


def command(*arguments):
    return CliRunner().invoke(app, ["collapse", *map(str, arguments)])


def test_the_command_prints_tables_and_findings(vit_run, tmp_path):
    before = torch.get_num_threads()
    done = command(vit_run, "--threads", before + 1, "--no-control", "--no-cells", "--batches", 1, "--json", "-q")
    assert done.exit_code == 0, done.exception
    facts = json.loads(done.stdout)
    assert [row["arm"] for row in facts["arms"]] == ["standard", "shuffled"] and len(facts["heads"]) == 36
    assert len(facts["layers"]) == 2 * 7 and facts["findings"][0]["verdict"] == "cannot tell"
    assert set(facts) == {"findings", "arms", "layers", "bounds", "heads"}
    done = command("--table1", "--threads", before + 1, "--seeds", 1, "--depth", 2, "--out", tmp_path / "t", "-q")
    assert done.exit_code == 0, done.exception
    assert torch.get_num_threads() == before  # as it was
    assert "printed" in done.stdout and "0.489" in done.stdout and "0.88" in done.stdout
    assert "[cannot tell: " in " ".join(done.stdout.split())  # one seed decides nothing


def test_the_command_captures_a_model_first(tmp_path):
    done = command("vit-fmnist", "--no-control", "--batches", 1, "--out", tmp_path / "run", "-q", "--json")
    assert done.exit_code == 0, done.exception
    assert hs.Run.open(tmp_path / "run").meta["config"]["keep"] == ["hidden"]
    assert len(json.loads(done.stdout)["arms"]) == 5


def test_the_command_refuses_in_one_line(vit_run):
    for arguments, message in [
        ([], "name a run or a model, or ask for --table1"),
        ([vit_run, "--table1"], "name a run or a model, or ask for --table1"),
        (["--table1", "--text", __file__], "table 1 has its own images"),
        ([vit_run, "--text", __file__], "is a run and has its own inputs"),
        (["no-such-model", "--alpha-hidden", 1], "--alpha-hidden must be at least 0 and below 1, not 1.0"),
        (["--table1", "--alpha-hidden", "nan", "--out", "never-made"], "--alpha-hidden must be at least 0"),
        (["no-such-model"], "no bundled model 'no-such-model'"),
    ]:
        done = command(*arguments)
        assert isinstance(done.exception, hs.InputError) and message in str(done.exception)
    assert not Path("never-made").exists()
    assert "Example" in command("--help").stdout
