"""headscape organize and report on a small run; analyze is tested in test_analyze.py."""

import json

import pytest
from typer.testing import CliRunner

import headscape as hs
from commands import closing
from headscape.cli import app


def called(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_an_estimate_writes_nothing(run):
    before = sorted(run.rglob("*"))
    done = called("organize", run, "--estimate", "--json")
    assert done.exit_code == 0, done.output
    needed = json.loads(done.stdout)
    assert needed["batches"] == 3 and needed["fits"] == 6 and needed["seconds"] > 0
    assert sorted(run.rglob("*")) == before
    assert "memory" in called("organize", run, "--estimate").stdout


def test_settings_reach_the_study_and_the_end_says_what_to_do_next(run):
    done = called("organize", run, "--no-model", "--iterations", 1, "--seed", 3, "-q")
    assert done.exit_code == 0, done.output
    result = hs.open_result(run, "organize")
    assert result.settings["questionnaire"]["n_iter"] == 1 and result.settings["seed"] == 3
    found, look, then = closing(done.stdout)
    assert found == result.headline() and look == f"headscape report {run} --open"
    assert then.startswith(f"headscape heads {run}") and f"headscape prune {run}" in then


def test_the_page_is_written_and_figures_as_files(run, tmp_path):
    called("organize", run, "--no-model", "--iterations", 1, "-q")
    done = called("report", run, "--figures", tmp_path / "figures", "--format", "svg", "-q")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip().replace("\n", "") == str((run / "report.html").resolve())
    assert "study-organize" in (run / "report.html").read_text(encoding="utf-8")
    assert len(list((tmp_path / "figures").rglob("*.svg"))) > 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["organize", "RUN", "--kind", "logits"], "kind is one of probs, scores, not 'logits'"),
        (["organize", "RUN", "--distance", "guess"], "guess"),
        (["organize", "RUN", "--block", "encoder"], "no block 'encoder' was captured"),
        (["report", "RUN", "--format", "gif"], "format is one of png, svg, pdf, not 'gif'"),
    ],
)
def test_mistakes_are_named(run, arguments, message):
    done = called(*(run if word == "RUN" else word for word in arguments))
    assert isinstance(done.exception, hs.InputError) and message in str(done.exception)
