"""What the command says it would take; and that it writes nothing."""

import json
import shutil
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

import headscape as hs
from headscape.cli import app
from headscape.geometry.estimate import Rates
from headscape.studies.organize.estimate import estimate_organize
from headscape.studies.organize.units import BESIDE, measure_trees

FAST = Rates(1e10, 1e9, 1e10, 1e9, 1e9)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimate")
    batches = np.random.default_rng(0).random((3, 10, 20, 20)).astype(np.float32)
    np.save(folder / "a.npy", batches / batches.sum(axis=-1, keepdims=True))
    hs.import_array(folder / "a.npy", folder / "run", layout="batch,head,query,key")
    return folder / "run"


def everything(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_counts_batches_nulls_and_jobs(run):
    one = estimate_organize(run, rates=FAST)
    assert (one.shape, one.batches, one.fits, one.scratch) == ((20, 20, 10), 3, 6, 0)
    both = estimate_organize(run, rates=FAST, control=True, jobs=2, threads=1)
    assert (both.batches, both.fits) == (6, 12)
    assert both.memory > 1.5 * one.memory
    tight = hs.Questionnaire(max_memory=2e7)
    assert estimate_organize(run, rates=FAST, questionnaire=tight).scratch == 3 * 4 * 20 * 20 * 10


def test_what_is_measured_beside_the_fit_takes_no_more_than_is_said():
    X = hs.AttentionTensor(np.random.default_rng(0).random((64, 64, 24), dtype=np.float32))
    trees = [hs.PartitionTree.dyadic(n) for n in X.shape]
    measure_trees(X, trees)
    tracemalloc.start()
    try:
        measure_trees(X, trees)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 0.8 * BESIDE < peak / X.values.size < BESIDE


def test_a_limit_that_the_command_cannot_keep_is_said_beforehand(tmp_path):
    """F14: a limit on the fit was believed to be one on the command."""
    batch = np.random.default_rng(0).random((8, 96, 96), dtype=np.float32) * np.tri(96, dtype=np.float32)
    np.save(tmp_path / "a.npy", batch / batch.sum(axis=-1, keepdims=True))
    hs.import_array(tmp_path / "a.npy", tmp_path / "run", layout="head,query,key")
    said = []
    once = hs.Questionnaire(n_iter=1, max_memory=5e7)
    hs.organize(tmp_path / "run", questionnaire=once, threads=1, say=said.append)
    assert any("the memory limit of 50.0 MB" in line and "96 x 96 x 8" in line for line in said)
    said.clear()
    hs.organize(tmp_path / "run", questionnaire=hs.Questionnaire(n_iter=1), threads=1, say=said.append)
    assert not said


def test_the_command_prints_and_writes_nothing(run):
    before = everything(run)
    found = CliRunner().invoke(app, ["organize", str(run), "--estimate"])
    assert found.exit_code == 0, found.output
    assert "20 x 20 x 10" in found.output and "memory" in found.output and "time" in found.output
    found = CliRunner().invoke(app, ["organize", str(run), "--estimate", "--json", "--distance", "sketch"])
    assert json.loads(found.stdout)["fits"] == 6
    assert everything(run) == before


def test_organising_from_disk_gives_the_same_bytes_and_is_the_same_study(run, tmp_path):
    from headscape.studies.organize.study import organize

    other = tmp_path / "other"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("organize"))
    assert not (other / "organize").exists()  # nothing to go on with
    whole = organize(run, threads=1)
    tight = hs.Questionnaire(max_memory=2e7, scratch=str(tmp_path))
    found = organize(other, threads=1, questionnaire=tight)
    assert np.array_equal(whole.distances, found.distances) and whole.tree == found.tree
    assert everything(run / "organize") == everything(other / "organize")
    said = []
    written = {path: path.stat().st_mtime_ns for path in (run / "organize").glob("batch-*")}
    organize(run, threads=1, questionnaire=tight, say=said.append, resume=True)  # refused if it were another study
    assert written == {path: path.stat().st_mtime_ns for path in (run / "organize").glob("batch-*")}
    assert not [line for line in said if "memory limit" not in line]
