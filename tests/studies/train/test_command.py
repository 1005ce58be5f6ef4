"""The command `headscape train`."""

import json
from importlib import import_module

from typer.testing import CliRunner

from commands import closing
from headscape.cli.shared import app
from headscape.errors import InputError

import_module("headscape.cli.train")  # registers the command


def test_the_command(text, tmp_path):
    runner = CliRunner()
    options = "--layers 1 --heads 2 --dim 8 --tokens 16 --steps 4 --evaluations 2 --batch 2 --seeds 1 --rates 1e-2"
    command = ["train", "gpt", "--out", str(tmp_path / "run"), "--text", str(text), "--quiet", *options.split()]
    shown = runner.invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "Kinds of attention, trained alike" in shown.output and "scaled skip" in shown.output
    _, look, then = closing(shown.output)
    assert look == f"headscape report {tmp_path / 'run'} --open" and f"headscape collapse {tmp_path / 'run'}" in then
    again = runner.invoke(app, [*command, "--json"])
    assert set(json.loads(again.stdout)) == {"findings", "arms", "trials", "baselines"}
    assert {row["arm"] for row in json.loads(again.stdout)["arms"]} == {
        "standard",
        "hidden",
        "skip",
        "both",
        "longer",
    }
    listed = runner.invoke(app, ["train", "--list"])
    assert "transformer-xl" in listed.output and "16 x 8 x 410" in listed.output
    for wrong, said in [
        ([], "name a run directory"),
        (["--out", str(tmp_path / "x"), "--rates", "a,b"], "not a list of numbers"),
        (["--out", str(tmp_path / "x"), "--tokenizer", str(tmp_path / "none")], "no tokenizer at"),
        (["--out", str(tmp_path / "x"), "--init", "one"], "init must be one of"),
    ]:
        error = runner.invoke(app, ["train", "gpt", *wrong]).exception
        assert isinstance(error, InputError) and said in str(error)
    assert not (tmp_path / "x").exists()


def test_the_command_says_which_networks_need_images():
    runner = CliRunner()
    listed = json.loads(runner.invoke(app, ["train", "--list", "--json"]).stdout)
    assert {row["name"] for row in listed if row["data"] == "images"} == {"vit", "vit-t", "vit-s", "vit-b", "vit-l"}
    assert "vit (trained on images)" in " ".join(runner.invoke(app, ["train", "--help"]).output.split())
