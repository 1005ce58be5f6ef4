"""`headscape capture --pool`, `--rows` and `--estimate`."""

import json

import pytest
from typer.testing import CliRunner

import headscape as hs
from headscape.cli import app


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_pooled_capture_says_what_it_is(tmp_path):
    out = tmp_path / "run"
    done = run("capture", "vit-fmnist", "--pool", 10, "--rows", 3, "--batches", 2, "--out", out, "--json", "--quiet")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["shape of a batch"] == [10, 10, 36] and facts["pooled"] == "50 tokens to 10 blocks"
    config = json.loads((out / "run.json").read_text())["config"]
    assert (config["pool"], config["windows"], config["tokens"]) == (10, "rows:3", 50)
    cap = hs.open_capture(out)
    assert cap.rows(1).values.shape == (3, 50, 36) and cap.tensor(0).query_tokens[1] == "5-9 (0,4) … (1,1)"


def test_an_estimate_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("capture", "vit-fmnist", "--estimate", "--batches", 4, "--json", "--quiet")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["disk in total"] == 4 * facts["disk per batch"] == 4 * 36 * 50 * 50 * 2
    assert facts["seconds"] == pytest.approx(4 * facts["timed seconds"][0])
    shown = run("capture", "vit-fmnist", "--estimate", "--pool", 10)
    assert shown.exit_code == 0
    assert "7.2 kB per batch" in shown.output and "an estimate" in shown.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pool", 51), "pool 51 is larger than the 50 tokens"),
        (("--pool", 0), "'--pool'"),
        (("--pool", 10, "--rows", 51), "51 sampled rows from a context of 50 tokens"),
        (("--rows", 3), "give --pool too"),
        (("--pool", 51, "--estimate"), "pool 51 is larger than the 50 tokens"),
    ],
)
def test_bad_pools_end_with_one_line_and_code_2(options, message, tmp_path, capsys, monkeypatch):
    from headscape.cli import main

    arguments = ["capture", "vit-fmnist", *map(str, options), "--out", str(tmp_path / "run"), "--quiet"]
    monkeypatch.setattr("sys.argv", ["headscape", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert message in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()
