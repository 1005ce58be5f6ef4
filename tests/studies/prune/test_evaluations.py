"""Evaluations are made once: a killed study resumes, another budget or more windows cost only what is new."""

import shutil

import numpy as np
import pytest

import headscape as hs
from headscape.pruning.ablation import Ablations
from headscape.studies.prune.study import prune
from prunable import JUDGE, QUICK, contents


@pytest.fixture
def measured(monkeypatch):
    """Keys of the pieces of inputs that the network is run on without some heads, as they are measured."""
    found, run = [], Ablations._run

    def watched(self, key, tasks, fitted):
        if fitted:
            found.append(key)
        return run(self, key, tasks, fitted)

    monkeypatch.setattr(Ablations, "_run", watched)
    return found


@pytest.fixture
def fresh(run, tmp_path):
    def copied(name="run"):
        shutil.copytree(run, tmp_path / name, ignore=shutil.ignore_patterns("prune"))
        return tmp_path / name

    return copied


def units(folder):
    return {name: bytes_ for name, bytes_ in contents(folder / "prune" / "units").items() if "evaluation" in name}


def test_a_killed_study_goes_on(fresh, model, measured):
    folder = fresh()
    options = {"model": model, "inputs": JUDGE, "budget": 0.2, "study": True, **QUICK}
    whole = prune(folder, **options)
    before = contents(folder / "prune")
    evaluations = sorted((folder / "prune" / "units").glob("evaluation-*"))
    n_all = len(measured)
    for path in evaluations[7:]:
        path.unlink()
    (folder / "prune" / "units" / f"{evaluations[9].name}.feedbeef.partial").write_bytes(b"half")
    measured.clear()
    again = prune(folder, **options)
    assert 0 < len(measured) < n_all
    assert contents(folder / "prune") == before and again.proposal == whole.proposal
    measured.clear()
    prune(folder, **options)
    assert not measured


def test_another_budget_costs_only_what_is_new(fresh, model, measured):
    folder = fresh()
    options = {"model": model, "inputs": JUDGE, "criterion": "gradient", "compensation": "mean", **QUICK}
    small = prune(folder, budget=0.1, **options)
    known, n_before = units(folder), len(measured)
    measured.clear()
    large = prune(folder, budget=0.3, **options)
    both = units(folder)
    assert {name: both[name] for name in known} == known
    new = {trial for trial in large.trials if trial not in small.trials}
    # two windows of text and two of each copying to choose on; four and two to judge on, for the proposal
    assert len(both) - len(known) <= len(new) + 1 and len(measured) <= 6 * len(new) + 8 < n_before + 14


def test_more_windows_cost_only_what_is_new(fresh, model, measured):
    options = {"model": model, "inputs": JUDGE, "criterion": "gradient", "compensation": "mean", "n_heads": 3}
    folder, other = fresh(), fresh("other")
    prune(folder, **{**options, **QUICK, "windows": 4})
    known, n_few = units(folder), len(measured)
    measured.clear()
    grown = prune(folder, **{**options, **QUICK, "windows": 8})
    n_more = len(measured)
    measured.clear()
    alone = prune(other, **{**options, **QUICK, "windows": 8})
    assert n_more < len(measured) < n_few + n_more
    both = units(folder)
    assert {name: both[name] for name in known} == known
    assert {name: both[name] for name in units(other)} == units(other)  # as if nothing had been known
    for one, same in zip(grown.curves, alone.curves, strict=True):
        np.testing.assert_array_equal(one.costs, same.costs)


def test_a_damaged_evaluation_is_named(fresh, model):
    folder = fresh()
    options = {"model": model, "inputs": JUDGE, "criterion": "gradient", "n_heads": 1, **QUICK}
    prune(folder, **options)
    some = sorted((folder / "prune" / "units").glob("evaluation-*"))[0]
    some.write_bytes(some.read_bytes()[:20])
    with pytest.raises(hs.InputError, match=rf"{some.name} is damaged .*delete it and run the same command again"):
        prune(folder, **options)


def test_a_control_that_is_not_finite_does_not_pass_for_chance(fresh, model, monkeypatch):
    from headscape.studies.prune.evaluations import Evaluations

    losses = Evaluations.losses

    def broken(self, on, *removal):
        found = losses(self, on, *removal)
        if on == "control":
            found["copy.text"].values[0] = np.nan
        return found

    monkeypatch.setattr(Evaluations, "losses", broken)
    with pytest.raises(hs.HeadscapeError, match=r"the loss of copy\.text or of its control is not finite"):
        prune(fresh(), model=model, inputs=JUDGE, budget=0.1, criterion="output_norm", **QUICK)
