"""Units of work: what is there is not done again, what fails does not take the others down.

Also tests studies.work.how.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import headscape as hs
from headscape.captures import Capture
from headscape.errors import HeadscapeError, InputError
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.how import Work
from headscape.studies.work.units import reachable, run_units
from tiny import attention


def write(path, text, cause=None):
    if cause is not None:
        raise cause
    path.write_text(text)


class Bar:
    def __init__(self):
        self.seen, self.stages = [], []

    def __call__(self, done, total):
        self.seen.append((done, total))

    def stage(self, name):
        self.stages.append(name)


def units(folder, **causes):
    return {name: (folder / name, f"{name}!", causes.get(name)) for name in "abcd"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_there_is_left_and_the_rest_is_done(tmp_path, jobs):
    (tmp_path / "b").write_text("of before")
    bar = Bar()
    run_units(write, units(tmp_path), Work(LocalEngine(jobs, "threads"), progress=bar))
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "a!", "b": "of before", "c": "c!", "d": "d!"}
    assert bar.seen == [(i, 4) for i in range(5)] and bar.stages == ["working"]


def test_steps_of_a_larger_stage_are_counted_there(tmp_path):
    bar = Bar()
    work = Work(progress=bar)
    steps = work.stage("all of it", 6)
    run_units(write, units(tmp_path), work, steps)
    assert bar.seen == [(i, 6) for i in range(5)] and bar.stages == ["all of it"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_that_fails_is_named_and_the_others_are_kept(tmp_path, jobs):
    said = []
    work = Work(LocalEngine(jobs, "threads"), say=said.append)
    with pytest.raises(HeadscapeError) as caught:
        run_units(write, units(tmp_path, b=OSError("disk\non fire")), work)
    assert str(caught.value) == (
        "1 of 4 units failed: b (OSError: disk); the others are kept: the same command redoes only what is missing"
    )
    assert not isinstance(caught.value, InputError) and said == ["failed: b: OSError: disk"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c", "d"]
    run_units(write, units(tmp_path), work)
    assert (tmp_path / "b").read_text() == "b!"


def test_a_failed_unit_counts_as_done_on_the_bar(tmp_path):
    bar = Bar()
    with pytest.raises(HeadscapeError):
        run_units(write, units(tmp_path, a=OSError("x")), Work(progress=bar))
    assert bar.seen[-1] == (4, 4)


def test_a_mistake_in_all_of_them_is_the_users(tmp_path):
    cause = InputError("take more tokens")
    with pytest.raises(InputError, match="^take more tokens$"):
        run_units(write, units(tmp_path, **dict.fromkeys("abcd", cause)), Work())


def test_a_mistake_in_some_is_the_users_and_names_them(tmp_path):
    cause = InputError("take more tokens")
    with pytest.raises(InputError, match=re.escape("2 of 4 units failed: a, c (take more tokens); the others")):
        run_units(write, units(tmp_path, a=cause, c=cause), Work())
    (tmp_path / "b").unlink(), (tmp_path / "d").unlink()
    several = {name: InputError(f"of {name}") for name in "abcd"}
    with pytest.raises(InputError, match=re.escape("4 of 4 units failed: a (of a), b (of b), c (of c), d (of d); ")):
        run_units(write, units(tmp_path, **several), Work())


def test_a_mistake_beside_a_failure_is_not_the_users(tmp_path):
    with pytest.raises(HeadscapeError, match="2 of 4 units failed") as caught:
        run_units(write, units(tmp_path, a=InputError("x"), b=OSError("y")), Work())
    assert not isinstance(caught.value, InputError)


def test_many_failures_are_counted_not_listed(tmp_path):
    same = {str(i): (tmp_path / str(i), "", OSError("x")) for i in range(8)}
    with pytest.raises(HeadscapeError, match=re.escape("8 of 8 units failed: 0, 1, 2, 3, 4 and 3 more (OSError: x);")):
        run_units(write, same, Work())
    apart = {str(i): (tmp_path / str(i), "", OSError(str(i))) for i in range(6)}
    with pytest.raises(HeadscapeError, match=re.escape("4 (OSError: 4) and 1 more; the others are kept")):
        run_units(write, apart, Work())
    five = dict(list(apart.items())[:5])
    with pytest.raises(HeadscapeError, match=re.escape("4 (OSError: 4); the others are kept")):
        run_units(write, five, Work())


def test_nothing_to_do_is_done(tmp_path):
    bar = Bar()
    run_units(write, {}, Work(progress=bar))
    assert bar.seen == [(0, 0)]


# --- a capture as units see it ---------------------------------------------------------------------------------------


def captured(folder, in_memory):
    np.save(folder / "a.npy", attention())
    cap = hs.import_array(folder / "a.npy", folder / "run", layout="layer,head,query,key", dtype="float32")
    return Capture.in_memory([cap.batch(i) for i in range(len(cap))]) if in_memory else cap


def test_a_run_is_named_by_its_directory(tmp_path):
    cap = captured(tmp_path, in_memory=False)
    for jobs in (1, 2):
        with reachable(cap, LocalEngine(jobs), tmp_path / "scratch") as source:
            assert source == cap.run.path.resolve()
    assert not (tmp_path / "scratch").exists()


def test_data_in_memory_stay_there_for_this_process(tmp_path):
    cap = captured(tmp_path, in_memory=True)
    with reachable(cap, LocalEngine(1), tmp_path / "scratch") as source:
        assert source is cap
    assert not (tmp_path / "scratch").exists()


def test_data_in_memory_are_written_for_other_processes_and_taken_away(tmp_path):
    cap = captured(tmp_path, in_memory=True)
    with reachable(cap, LocalEngine(2), tmp_path / "scratch") as source:
        assert isinstance(source, Path) and tmp_path / "scratch" in source.parents
        again = hs.open_capture(source)
        assert len(again) == len(cap) and again.tensor(0).heads == cap.tensor(0).heads
        np.testing.assert_array_equal(again.tensor(0).values, cap.tensor(0).values)
    assert list((tmp_path / "scratch").iterdir()) == []
