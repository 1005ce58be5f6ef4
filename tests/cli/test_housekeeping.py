"""headscape runs: list, measure and delete runs and studies."""

import io
import json
import sys

import numpy as np
import pytest

import headscape as hs
from headscape.cli import main
from headscape.cli.shared import out
from headscape.runs import Run
from headscape.storage import write_json
from headscape.studies.work.folder import kept_studies, study_folder
from headscape.studies.work.how import Work
from tiny import attention


@pytest.fixture
def headscape(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["headscape", *map(str, arguments)])
        monkeypatch.setattr(out, "_width", 200)
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        assert (end.value.code or 0) == code, said
        return said.err if code else said.out

    return call


def make_run(path):
    np.save("a.npy", attention())
    hs.import_array("a.npy", path, layout="layer,head,query,key")
    return Run.open(path)


def begin(run, study, seed, finished=True):
    """Leave a study of some settings; return its key."""
    with study_folder(run, study, {"seed": seed}, {}, Work.of()) as folder:
        folder.unit("batch", seed).parent.mkdir(exist_ok=True)
        folder.unit("batch", seed).write_text("a unit")
        if finished:
            write_json(folder.path / "result.json", {})
    return folder.key


def test_studies_are_counted_by_kind(headscape):
    run = make_run("runs/a")
    begin(run, "organize", 0), begin(run, "organize", 1), begin(run, "organize", 2, finished=False)
    begin(run, "prune", 0, finished=False)
    assert "organize 2/3, prune 0/1" in headscape("runs", "list")
    listed = headscape("runs", "list", "runs/a")
    assert all(kept.path.name in listed for kept in kept_studies(run, "organize"))
    (facts,) = json.loads(headscape("runs", "list", "--json"))
    assert [study["study"] for study in facts["studies"]] == ["organize"] * 3 + ["prune"]
    assert [study["finished"] is None for study in facts["studies"]] == [True, False, False, True]
    assert facts["batches"] == 1 and facts["bytes"] == run.n_bytes


def test_one_study_is_deleted_and_the_others_stay(headscape):
    run = make_run("runs/a")
    first, second = begin(run, "organize", 0), begin(run, "organize", 1)
    begin(run, "prune", 0)
    assert "2 studies 'organize'; name one of" in headscape(
        "runs", "delete", "runs/a", "--study", "organize", "--yes", code=2
    )
    headscape("runs", "delete", "runs/a", "--study", f"organize/{first[:6]}", "--yes")
    assert [kept.path.name for kept in kept_studies(run, "organize")] == [second]
    assert list((run.path / "organize" / "units").iterdir())  # the other one uses them
    headscape("runs", "delete", "runs/a", "--study", "organize", "--yes")
    assert kept_studies(run, "organize") == [] and not (run.path / "organize" / "units").exists()
    assert len(kept_studies(run, "prune")) == 1 and run.n_finished == 1


@pytest.mark.parametrize("study", ["softmax", "nosuch", "organize/zz", "../b", "", "/"])
def test_a_study_that_is_not_there_is_said_and_nothing_changes(headscape, study):
    run = make_run("runs/a")
    begin(run, "organize", 0)
    before = sorted(run.path.rglob("*"))
    assert "has no study" in headscape("runs", "delete", "runs/a", "--study", study, "--yes", code=2)
    assert sorted(run.path.rglob("*")) == before


def test_a_study_in_work_is_not_deleted(headscape):
    run = make_run("runs/a")
    begin(run, "organize", 0)
    with study_folder(run, "organize", {"seed": 0}, {}, Work.of()):
        said = headscape("runs", "delete", "runs/a", "--study", "organize", "--yes", code=2)
    assert "is being written by process" in said and len(kept_studies(run, "organize")) == 1


@pytest.mark.parametrize(
    "change",
    [{"created": None}, {"model": ["a", "list"]}, {"created": ["x"]}, {"config": 3}, {"format": 99}, "{", "[]", "7"],
)
def test_a_damaged_run_is_listed_with_its_reason_and_blocks_no_other(headscape, change):
    make_run("runs/good")
    bad = make_run("runs/bad")
    if isinstance(change, str):
        (bad.path / "run.json").write_text(change)
    else:
        write_json(bad.path / "run.json", {k: v for k, v in (bad.meta | change).items() if v is not None})
    listed = headscape("runs", "list")
    assert "runs/good" in listed and "runs/bad" in listed and "damaged: " in listed
    facts = {entry["path"]: entry for entry in json.loads(headscape("runs", "list", "--json"))}
    assert facts["runs/good"]["batches"] == 1 and set(facts["runs/bad"]) == {"path", "damaged"}


def test_names_are_shown_and_not_obeyed(headscape):
    run = make_run("runs/a")
    run.update(model={"source": "[/red] [bold]x[/bold] :smile: \x1b[31mred"})
    assert "[/red] [bold]x[/bold] :smile:  [31mred" in headscape("runs", "list")


def test_an_empty_folder_says_how_to_begin(headscape):
    assert "no runs in runs; `headscape capture` makes one" in headscape("runs")


def test_a_whole_run_is_deleted(headscape, tmp_path, monkeypatch):
    make_run("runs/a")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "no answer" in headscape("runs", "delete", "runs/a", code=1)  # nobody answers
    assert (tmp_path / "runs" / "a").exists()
    headscape("runs", "delete", "runs/a", "--yes")
    assert not (tmp_path / "runs" / "a").exists()


def test_help_has_an_example():
    from commands import headscape as run

    for command in ("list", "delete"):
        assert "Example" in run("runs", command, "--help", check=0).stdout


def test_deleting_a_run_does_not_take_what_is_not_of_headscape(headscape, tmp_path):
    run = make_run("runs/a")
    begin(run, "organize", 0)
    (run.path / "report.html").write_text("the page")
    (run.path / "thesis.txt").write_text("mine")
    assert "also holds thesis.txt" in headscape("runs", "delete", "runs/a", "--yes", code=2)
    (tmp_path / "link").symlink_to(run.path)
    assert "is a link" in headscape("runs", "delete", "link", "--yes", code=2)
    assert (run.path / "thesis.txt").exists() and kept_studies(run, "organize")
    (run.path / "thesis.txt").unlink()
    headscape("runs", "delete", "runs/a", "--yes")
    assert not run.path.exists()


def test_a_lost_batch_shows_in_the_list(headscape):
    np.save("a.npy", np.stack([attention()] * 3))
    hs.import_array("a.npy", "runs/a", layout="batch,layer,head,query,key")
    assert " 3/3 " in headscape("runs", "list")
    Run.open("runs/a").batch_path(1).unlink()
    assert " 2/3 " in headscape("runs", "list")
