"""A command that is asked to stop ends its workers, leaves no half-written file, and resumes to the same bytes."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import headscape as hs
from killing import hearing

LIMIT = 60  # seconds, on a very busy machine; a quiet one needs two


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("stops")
    X = np.random.default_rng(0).gamma(0.5, size=(10, 12, 96, 96)) * np.tri(96)  # seconds of work after the first unit
    np.save(place / "a.npy", X / X.sum(axis=-1, keepdims=True))
    hs.import_array(place / "a.npy", place / "run", layout="batch,head,query,key")
    return place / "run"


def start(*arguments):
    code = "from headscape.cli import main; main()"
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], preexec_fn=hearing, **streams)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize(("name", "jobs"), [("SIGTERM", 2), ("SIGHUP", 1), ("SIGINT", 2)])
def test_organize_stops_in_order_and_resumes_to_the_same_bytes(run, tmp_path, name, jobs):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    shutil.copytree(run, whole)
    shutil.copytree(run, stopped)
    hs.organize(whole, threads=1)
    process = start("organize", stopped, "--jobs", jobs)
    until = time.monotonic() + LIMIT
    while not list((stopped / "organize").glob("units/*")) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.02)  # at least one unit is written or being written
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + getattr(signal, name), said
    assert f"to resume, run it again: headscape organize {stopped} --jobs {jobs}" in said
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(children, timeout=LIMIT)
    assert not alive
    left = list(stopped.rglob("*.partial")) + list(stopped.rglob("*.lock"))
    assert not left, left
    hs.organize(stopped, threads=1)
    assert contents(stopped / "organize") == contents(whole / "organize")


def test_two_commands_at_once_do_not_mix_their_settings(run, tmp_path):
    """The race that once mixed seeds: both finish, each with its own units, or the second is sent away by name."""
    place = tmp_path / "run"
    shutil.copytree(run, place)
    both = [start("organize", place, "--seed", seed) for seed in (1, 2)]
    ends = [(*process.communicate(timeout=4 * LIMIT), process.returncode) for process in both]
    assert [code for *_, code in ends] == [0, 0], ends
    for seed in (1, 2):
        alone = tmp_path / f"alone-{seed}"
        shutil.copytree(run, alone)
        hs.organize(alone, random_state=seed, threads=1)
        found = contents(alone / "organize")
        assert found.items() <= contents(place / "organize").items()
    kept = {name for name in contents(place / "organize") if name.endswith("result.json")}
    assert len(kept) == 2


def test_the_same_command_twice_at_once_is_one_study(run, tmp_path):
    place, alone = tmp_path / "run", tmp_path / "alone"
    shutil.copytree(run, place)
    shutil.copytree(run, alone)
    both = [start("organize", place) for _ in range(2)]
    ends = [(*process.communicate(timeout=4 * LIMIT), process.returncode) for process in both]
    codes = sorted(code for *_, code in ends)
    assert codes in ([0, 0], [0, 2]), ends
    if codes == [0, 2]:
        said = next(error for _, error, code in ends if code == 2)
        assert "is being written by process" in said and f" on {os.uname().nodename}" in said
    hs.organize(alone, threads=1)
    assert contents(place / "organize") == contents(alone / "organize")
