"""A small run that commands are tried on."""

import pytest

import headscape as hs
from prunable import JUDGE, reader


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three inputs of a tiny Llama in a folder, probabilities and scores, for one module."""
    place = tmp_path_factory.mktemp("command")
    hs.capture(reader(place / "model"), JUDGE, tokens=24, batches=3, keep=("probs", "scores"), out=place / "run")
    return place / "run"
