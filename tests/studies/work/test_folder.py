"""A study's folder: one for its settings and inputs, held by one process, finished when its result is there."""

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import pytest

from headscape.errors import InputError
from headscape.fingerprints import file_hash
from headscape.locks import locked
from headscape.results import Result
from headscape.runs import Run
from headscape.storage import write_json
from headscape.studies import load_results
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.folder import kept_studies, newest_by_block, study_folder, working_folder
from headscape.studies.work.how import Work

INPUTS = {"batch 0": "abc"}


@dataclass(frozen=True)
class Small(Result):
    study: ClassVar[str] = "small"
    title: ClassVar[str] = "Small"
    value: int = 7

    def to_frame(self):
        return pd.DataFrame({"value": [self.value]})

    def figures(self):
        return []

    def findings(self):
        return []


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run")


def study(run, settings, inputs=INPUTS, finish=True, resume=False):
    """Run a study that writes what it has been asked."""
    with study_folder(run, "small", settings, inputs, Work(resume=resume)) as folder:
        if finish:
            folder.save(Small(settings["seed"]))
    return folder


def newest(run):
    """The newest finished one; the studies here know no blocks."""
    return next(iter(newest_by_block(run, "small")), None)


def aged(folder, seconds):
    os.utime(folder.path / "result.json", (seconds, seconds))


def test_settings_and_inputs_name_the_folder(run):
    first = study(run, {"seed": 0, "n": (1, 2)})
    assert study(run, {"n": [1, 2], "seed": 0}).path == first.path == run.path.resolve() / "small" / first.key
    others = [study(run, {"seed": 1, "n": [1, 2]}), study(run, {"seed": 0, "n": [1, 2]}, {"batch 0": "abd"})]
    assert len({first.key, *(other.key for other in others)}) == 3
    with study_folder(run, "another", {"seed": 0, "n": (1, 2)}, INPUTS, Work()) as other:
        assert other.key != first.key
    said = json.loads((first.path / "study.json").read_text())
    assert said["study"] == "small" and said["settings"] == {"seed": 0, "n": [1, 2]} and said["inputs"] == INPUTS


def test_units_are_shared_by_studies_and_named_by_what_can_change_them(run):
    first, second = study(run, {"seed": 0}), study(run, {"seed": 1})
    path = first.unit("batch-0000", {"n_iter": 3}, "abc")
    assert path.parent == run.path.resolve() / "small" / "units" and path.name.startswith("batch-0000-")
    assert path.suffix == ".safetensors" and first.unit("a", ending="json").suffix == ".json"
    assert second.unit("batch-0000", {"n_iter": 3}, "abc") == path
    for name, *facts in (["batch-0001", {"n_iter": 3}, "abc"], ["batch-0000", {"n_iter": 4}, "abc"], ["batch-0000"]):
        assert first.unit(name, *facts) != path


def test_a_second_process_at_the_same_study_is_refused_and_another_study_is_not(run):
    with study_folder(run, "small", {"seed": 0}, INPUTS, Work()) as folder:
        before = sorted(folder.path.parent.rglob("*"))
        with pytest.raises(
            InputError, match=f"the study small in {run.path} is being written by process {os.getpid()}"
        ):
            study(run, {"seed": 0})
        assert sorted(folder.path.parent.rglob("*")) == before
        study(run, {"seed": 1})
    study(run, {"seed": 0})
    assert not list(run.path.rglob("*.lock"))


def test_the_lock_is_let_go_when_a_study_fails_and_what_it_did_is_kept(run):
    def fail():
        with study_folder(run, "small", {"seed": 0}, INPUTS, Work()) as folder:
            (folder.path / "part").touch()
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert not list(run.path.rglob("*.lock"))
    assert (study(run, {"seed": 0}, finish=False).path / "part").exists()


def test_data_in_memory_leave_nothing():
    with study_folder(None, "small", {"seed": 0}, {}, Work()) as folder:
        folder.save(Small(3))
        folder.unit("a").parent.mkdir()
        folder.unit("a").touch()
        place = folder.path.parent
        assert Small.load(folder.path).value == 3
    assert not place.exists()


def test_resuming_with_other_settings_names_what_differs_and_touches_nothing(run):
    study(run, {"seed": 0, "depth": 3}, finish=False)
    before = sorted(run.path.rglob("*"))
    words = f"the study small in {run.path} cannot be resumed: depth was 3 and is 4"
    with pytest.raises(InputError, match=words):
        study(run, {"seed": 0, "depth": 4}, resume=True)
    with pytest.raises(InputError, match="extra was None and is 1"):
        study(run, {"seed": 0, "depth": 3, "extra": 1}, resume=True)
    with pytest.raises(InputError, match="batch 0 was 'abc' and is 'abd'"):
        study(run, {"seed": 0, "depth": 3}, {"batch 0": "abd"}, resume=True)
    assert sorted(run.path.rglob("*")) == before
    study(run, {"seed": 0, "depth": 3}, resume=True)
    study(run, {"seed": 0, "depth": 4})
    assert len(kept_studies(run, "small")) == 2


def test_resuming_where_nothing_was_begun_begins(run):
    assert study(run, {"seed": 0}, resume=True).path.is_dir()


def test_the_newest_is_the_one_finished_last(run):
    assert newest(run) is None and kept_studies(run, "small") == []
    first, second = study(run, {"seed": 0}), study(run, {"seed": 1})
    unfinished = study(run, {"seed": 2}, finish=False)
    aged(first, 2000), aged(second, 1000)
    assert [kept.path.name for kept in kept_studies(run, "small")] == [unfinished.key, second.key, first.key]
    assert [kept.finished for kept in kept_studies(run, "small")] == [None, 1000, 2000]
    assert newest(run).path == run.path / "small" / first.key
    assert newest(run).facts["settings"] == {"seed": 0}
    assert Small.load(run.path / "small").value == 0


def test_an_unfinished_study_is_not_the_newest(run):
    study(run, {"seed": 0}, finish=False)
    assert newest(run) is None and len(kept_studies(run, "small")) == 1


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_damaged_study_is_listed_without_facts(run, content):
    folder = study(run, {"seed": 0})
    (folder.path / "study.json").write_text(content)
    assert newest(run).facts == {}


def test_a_study_is_deleted_with_the_units_that_nobody_shares(run):
    for seed in range(2):
        unit = study(run, {"seed": seed}).unit("a")
    unit.parent.mkdir()
    unit.write_text("x" * 100)
    first, second = kept_studies(run, "small")
    files = [path for path in first.path.rglob("*") if path.is_file()]
    assert first.n_bytes == sum(path.stat().st_size for path in files) > 0
    first.delete()
    assert not first.path.exists() and unit.exists()
    second.delete()
    assert not unit.exists() and kept_studies(run, "small") == []


def test_the_lock_of_a_study_is_beside_its_folder(run):
    key = study(run, {"seed": 0}).key
    with (
        locked(run.path / "small" / f"{key}.lock", "it", print),
        pytest.raises(InputError, match="is being written by"),
    ):
        study(run, {"seed": 0})


def lose(run, *numbers):
    """A run of four batches without some."""
    folder = run.path / "attention"
    folder.mkdir()
    for i in set(range(4)) - set(numbers):
        (folder / f"batch-{i:04d}.safetensors").write_bytes(bytes([i]))


def test_a_gap_in_the_batches_is_said(run):
    """F5: a study of batches 0 and 2 says that 1 is missing."""
    lose(run, 1)
    said = []
    with study_folder(run, "small", {"seed": 0}, INPUTS, Work.of(say=said.append)):
        pass
    assert len(said) == 1 and "has a gap: batch 1 is missing" in said[0]


def test_a_result_of_other_batches_is_refused_by_name(run):
    """F4, F5: an exchanged batch is told, and one that is gone; a new one is not, nor that none is left."""
    lose(run)
    hashes = {f"batch {i}": file_hash(run.batch_path(i)) for i in range(3)}
    study(run, {"seed": 0}, hashes)
    kept = newest(run)
    assert kept.result(run, Small).value == 0
    before = run.batch_path(1).read_bytes()
    run.batch_path(1).write_bytes(b"another")
    with pytest.raises(InputError, match="made from batch 1, which has changed"):
        kept.result(run, Small)
    run.batch_path(1).unlink()
    with pytest.raises(InputError, match="made from batch 1, which is gone"):
        kept.result(run, Small)
    run.batch_path(1).write_bytes(before)
    assert kept.result(run, Small).value == 0
    for i in range(4):
        run.batch_path(i).unlink()
    assert kept.result(run, Small).value == 0


def test_what_is_being_written_is_not_deleted(run):
    folder = study(run, {"seed": 0})
    (kept,) = kept_studies(run, "small")
    with locked(folder.path.with_name(f"{folder.key}.lock"), "it", lambda _: None):
        for doomed in (kept, run):
            with pytest.raises(InputError, match="is being written by process"):
                doomed.delete()
        assert (folder.path / "result.json").is_file()
    folder.units.mkdir()
    kept.delete()
    assert not folder.path.exists() and not folder.units.exists()
    run.delete()
    assert not run.path.exists()


def test_a_study_of_version_0_1_is_not_read_and_its_remedy_is_named(run):
    write_json(run.path / "organize" / "result.json", {"format": 1})
    (found,) = load_results(run)
    assert found == ("organize", f"written by headscape 0.1: run `headscape organize {run.path}` again")


def test_a_run_is_made_once_the_engine_is_ready_and_only_where_there_is_none(tmp_path):
    place, done = tmp_path / "run", []

    class Ready(LocalEngine):
        @contextmanager
        def started(self, folders, say):
            done.append(("ready", place.exists()))
            yield

    def make(path):
        done.append(("made", path))
        return Run.create(path, config={"kind": "small"})

    work = Work(engine=Ready())
    with working_folder(place, "small", {}, {}, work, make) as folder:
        assert folder.units.parent == place / "small" and done == [("ready", False), ("made", place)]
    with working_folder(Run.open(place), "small", {}, {}, work, make) as again:
        assert again == folder and len(done) == 3
    with working_folder(None, "small", {}, {}, work, make) as scratch:
        assert not scratch.path.is_relative_to(tmp_path / "run") and len(done) == 4
