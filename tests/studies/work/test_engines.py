"""Engines run units: what is handed to them, what is said of units that fail, and what is refused.

Also tests studies.engines.
"""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import engine_units
import headscape as hs
from engine_runs import call, make_run
from headscape.captures import open_capture
from headscape.compiled import cores
from headscape.studies.organize import study as organize_module
from headscape.studies.work import dask as engine_dask
from headscape.studies.work.dask import DaskEngine
from headscape.studies.work.engines import LocalEngine, engine_of, make_engine
from headscape.studies.work.folder import study_folder
from headscape.studies.work.how import Work
from headscape.studies.work.units import reachable, run_units


def test_a_capture_in_memory_reaches_other_processes_as_a_directory(tmp_path):
    shown = hs.Capture.in_memory([open_capture(make_run(tmp_path)).batch(i) for i in range(4)])
    with reachable(shown, LocalEngine(1), tmp_path) as source:
        assert source is shown
    with reachable(shown, LocalEngine(2), tmp_path) as source:
        there = open_capture(source)
        for i in range(4):
            np.testing.assert_array_equal(there.tensor(i).values, shown.tensor(i).values)
            assert there.batch(i).info == shown.batch(i).info
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_a_mistake_in_a_unit_keeps_its_exit_code(tmp_path, monkeypatch, capfd):
    run = make_run(tmp_path)
    monkeypatch.setattr(organize_module, "measure_batch", engine_units.is_mistaken)
    code, _, said = call(monkeypatch, capfd, "organize", run, "--quiet")
    assert (code, said) == (2, "error: capture with more --tokens\n")


def test_many_failures_are_one_line():
    def fail(_, i):
        if i % 2:
            raise ValueError(f"odd {i}")

    with pytest.raises(
        hs.HeadscapeError, match="10 of 20 units failed: unit 1 .* unit 9 .*odd 9. and 5 more;"
    ) as raised:
        run_units(fail, {f"unit {i}": (Path("nowhere"), i) for i in range(20)}, Work())
    assert not isinstance(raised.value, hs.InputError) and "\n" not in str(raised.value)

    def alike(_, i):
        if i:
            raise ValueError("alike")

    with pytest.raises(hs.HeadscapeError, match=r"3 of 4 units failed: 1, 2, 3 \(ValueError: alike\);"):
        run_units(alike, {str(i): (Path("nowhere"), i) for i in range(4)}, Work())


def test_resume_refuses_other_settings_and_nothing_is_thrown_away(tmp_path):
    run = hs.Run.open(make_run(tmp_path))
    first, other = {"seed": 0, "kind": "probs"}, {"seed": 1, "kind": "probs"}
    with study_folder(run, "organize", first, {}, Work()) as folder:
        (folder.path / "mine").write_text("done")
    with (
        pytest.raises(hs.InputError, match="cannot be resumed: seed was 0 and is 1; without --resume it starts over"),
        study_folder(run, "organize", other, {}, Work(resume=True)),
    ):
        pass
    with study_folder(run, "organize", first, {}, Work(resume=True)) as again:
        assert again.path == folder.path
    with study_folder(run, "organize", other, {}, Work()) as another:
        assert another.path != folder.path
    assert (folder.path / "mine").read_text() == "done"


def test_names_and_numbers_are_checked(monkeypatch):
    with pytest.raises(hs.InputError, match="engine is one of local, dask, not 'ray'"):
        engine_of("ray", 1)
    with pytest.raises(hs.InputError, match="needs the engine dask: add --engine dask"):
        make_engine("local", 1, "tcp://127.0.0.1:8786")
    for make in (LocalEngine, DaskEngine, partial(engine_of, "local")):
        with pytest.raises(hs.InputError, match="jobs must be at least 1, not 0"):
            make(0)
    assert make_engine("dask", 1, "tcp://[::1]:8786").scheduler == "tcp://[::1]:8786"
    monkeypatch.setattr(engine_dask, "find_spec", lambda name: None)
    with pytest.raises(hs.InputError, match=r"pip install 'headscape\[scale\]'"):
        engine_of("dask", 1)


def test_dask_is_imported_only_when_asked_for():
    code = (
        "import sys, headscape.cli, headscape.studies.organize.study; from headscape.studies.work.engines import make_engine; "
        "make_engine('local', 2); assert not {'dask', 'distributed'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_threads_are_explicit(monkeypatch):
    assert DaskEngine(2).threads(None) == 1 and DaskEngine(2).threads(3) == 3
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert LocalEngine(1).threads(None) == cores() and LocalEngine(10**6).threads(None) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert LocalEngine(1).threads(None) == 1 and LocalEngine(1).threads(3) == 3
    assert {"OMP_NUM_THREADS", "NUMBA_NUM_THREADS"} <= engine_dask.WORKER_ENVIRONMENT.keys()
    assert set(engine_dask.WORKER_ENVIRONMENT.values()) == {"1"}
