"""One captured and organized run of a tiny network, and its prune study."""

import pytest

import headscape as hs
from headscape.studies.prune.study import STUDY_CRITERIA, prune
from prunable import JUDGE, QUICK, RANK, wrapped


@pytest.fixture(scope="session")
def model():
    return wrapped()


@pytest.fixture(scope="session")
def run(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prune") / "run"
    captured = hs.capture(model, RANK, tokens=12, batches=None, dtype="float32", out=folder)
    hs.organize(captured, model=False)
    return folder


@pytest.fixture(scope="session")
def result(run, model):
    return prune(run, model=model, inputs=JUDGE, budget=0.2, study=True, **{**QUICK, "criteria": STUDY_CRITERIA})
