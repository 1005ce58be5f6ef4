"""capture and import, as a user meets them."""

import json
import subprocess
import sys

import numpy as np
import pytest

import headscape as hs
from commands import headscape, one_line_error
from headscape.cli import main
from headscape.cli.runs import _numbers
from tiny import attention


def test_capture_writes_a_run_that_can_be_listed_and_deleted(tiny, tmp_path):
    folder, text = tiny
    done = headscape(
        "capture",
        folder,
        "--text",
        text,
        "--tokens",
        16,
        "--batches",
        3,
        "--out",
        "runs/a",
        "--json",
        cwd=tmp_path,
        check=0,
    )
    facts = json.loads(done.stdout)
    assert facts["batches"] == 3 and facts["shape of a batch"] == [16, 16, 8] and facts["parity"] == 0
    assert "memory" in done.stderr and "storage" in done.stderr
    assert hs.open_capture(tmp_path / "runs" / "a").tensor(2).query_tokens[0].startswith("w")
    listed = json.loads(headscape("runs", "list", "runs", "--json", cwd=tmp_path, check=0).stdout)
    assert [run["batches"] for run in listed] == [3]
    assert "runs/a" in headscape("runs", cwd=tmp_path, check=0).stdout
    headscape("runs", "delete", "runs/a", "--yes", cwd=tmp_path, check=0)
    assert not (tmp_path / "runs" / "a").exists()


def test_the_same_seed_gives_the_same_bytes(tiny, tmp_path):
    folder, text = tiny
    for out in ("a", "b"):
        headscape(
            "capture", folder, "--text", text, "--tokens", 16, "--batches", 2, "--out", out, "-q", cwd=tmp_path, check=0
        )
    for name in ("batch-0000.safetensors", "batch-0001.safetensors"):
        assert (tmp_path / "a/attention" / name).read_bytes() == (tmp_path / "b/attention" / name).read_bytes()


def test_import_makes_a_run(tmp_path):
    np.save(tmp_path / "a.npy", attention())
    done = headscape("import", "a.npy", "--layout", "layer,head,query,key", cwd=tmp_path, check=0)
    assert "causal" in done.stdout
    found, look, then = done.stdout.splitlines()[-3:]
    assert (found, then) == ("found  6 heads in 2 layers", "next   headscape organize runs/a")
    assert look == "look   headscape report runs/a --open"
    assert hs.open_capture(tmp_path / "runs" / "a").tensor(0).shape == (5, 5, 6)


def test_mistakes_are_one_line_and_exit_code_two(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder, text = tiny
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("w1 w2")
    (tmp_path / "nothing").mkdir()
    base = ["capture", folder, "--out", "run", "--tokens", "16"]
    for arguments, message in [
        (["capture", "smollm2-135n"], "did you mean smollm2-135m"),
        (["capture", "no/such"], "not in the local hub cache"),
        (["capture", tmp_path / "nothing", "--text", text], "holds no weights"),
        ([*base, "--text", "missing.txt"], "no file or folder"),
        ([*base, "--text", "empty.txt"], "the text is empty"),
        ([*base, "--text", "short.txt"], "longest text has 2 tokens, a window needs 16"),
        ([*base, "--text", text, "--tokens", "9999"], "takes at most 2048"),
        ([*base, "--text", text, "--images", text], "--text or --images, not both"),
        ([*base, "--text", text, "--layers", "a-b"], "not a list of numbers"),
        ([*base, "--text", text, "--keep", "everything"], "keep is a selection"),
        (["import", "none.npy"], "no file"),
        (["import", "short.txt", "--kind", "logits"], "kind is one of probs, scores, not 'logits'"),
        (["runs", "delete", "nothing", "--yes"], "not a run directory"),
    ]:
        monkeypatch.setattr(sys, "argv", ["headscape", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        done = subprocess.CompletedProcess(arguments, stopped.value.code, printed.out, printed.err)
        assert message in one_line_error(done, 2)
        assert not (tmp_path / "run").exists()


def test_layers_are_a_short_list_of_numbers():
    assert _numbers("0,2,5-7") == [0, 2, 5, 6, 7] and _numbers(None) is None
    with pytest.raises(hs.InputError, match="names more than 10,000 layers"):
        _numbers("0-99999999999")
    with pytest.raises(hs.InputError, match="'7-5' ends before it begins"):
        _numbers("0,7-5")


def test_help_has_an_example_for_every_command():
    for command in ("demo", "capture", "import"):
        done = headscape(*command.split(), "--help", check=0)
        assert "Example" in done.stdout, command
