"""The model of a run: the same as when it was captured, or what is different about it."""

import shutil
import sys

import pytest

import headscape as hs
from headscape.attention import models
from headscape.attention.models import verify_weights
from headscape.cli import main
from headscape.report import write_report
from headscape.studies.work.models import Loader
from writers import saved, tiny


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    model = saved(place / "model")
    return place, hs.capture(model, ["the quick brown fox " * 9], tokens=12, batches=1, out=place / "run").run


def test_a_model_that_is_gone_or_other_is_named_with_what_differs(captured):
    """F6."""
    place, run = captured
    assert Loader().model(run).fingerprint == run.meta["model"]["fingerprint"]
    shutil.move(place / "model", place / "away")
    with pytest.raises(hs.InputError, match=r"the model of .*run is no longer at .*model; put it back"):
        Loader().model(run)
    for seed, kind, message in (
        (1, "llama", "the same architecture with other weights"),
        (0, "qwen3", "family is qwen3 and was llama"),
    ):
        other = tiny(kind, seed=seed)
        other.module.save_pretrained(place / "model")
        other.tokenizer.save_pretrained(place / "model")
        with pytest.raises(hs.InputError, match=message):
            Loader().model(run)
        shutil.rmtree(place / "model")
    shutil.move(place / "away", place / "model")


def test_what_a_result_lacks_without_its_model_is_said_also_of_a_quiet_command(captured, monkeypatch, capsys):
    """F6: a cron job without induction scores has to show it."""
    place, run = captured
    monkeypatch.setattr(sys, "argv", ["headscape", "organize", str(run.path), "--quiet"])
    shutil.move(place / "model", place / "away")
    try:
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        lacks = f"no induction scores: the model of {run.path} is no longer at"
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(lacks)
        with pytest.warns(UserWarning, match=lacks):
            hs.organize(run)
        said = []
        hs.organize(run, say=said.append)
        assert said[0].startswith(lacks)
    finally:
        shutil.move(place / "away", place / "model")


def test_where_the_model_is_does_not_reach_the_page(captured):
    place, run = captured
    assert run.meta["model"]["location"] == str(place / "model")
    assert str(place) not in write_report(run, []).read_text(encoding="utf-8")
    assert str(place) not in str(run.shown)


def test_weights_are_read_in_full_when_they_are_checked(captured, monkeypatch):
    """F6: a file that changed without a trace in its times."""
    place, _ = captured
    model = hs.load_model(place / "model", device="cpu")
    assert verify_weights(model) == model.fingerprint
    monkeypatch.setattr(models, "file_hash", lambda file: "0" * 64)  # what was believed of it
    with pytest.raises(hs.InputError, match=r"model\.safetensors is not what it was"):
        verify_weights(model)
