"""Collapse in networks of a training run."""

import json
from importlib import import_module

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from headscape.cli.shared import app
from headscape.collapse.residual import effective_rank, relative_residual
from headscape.collapse.similarity import histogram, token_similarities
from headscape.errors import InputError
from headscape.hopfield.trained import find_trained, is_training_run
from headscape.runs import Run
from headscape.studies.collapse.trained import collapse_trained
from headscape.studies.train import train

import_module("headscape.cli.collapse")  # registers the command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    rng = np.random.default_rng(0)
    (place / "text.txt").write_text("".join(rng.choice(["the cat sat. ", "a dog ran. "], 300)))
    sizes = {"layers": 2, "heads": 2, "dim": 16, "tokens": 16}
    options = {"arms": ["standard", "both"], "seeds": 2, "rates": [1e-2], "steps": 8, "evaluations": 2, "batch": 4}
    train("gpt", place / "run", text=place / "text.txt", sizes=sizes, **options)
    return place / "run"


@pytest.mark.parametrize(("arm", "step"), [("standard", None), ("both", 4)])
def test_it_measures_the_network_asked_for(run, arm, step):
    result = collapse_trained(run, arm=arm, step=step, seed=1, batches=3)
    assert result.variants == ("standard", "shuffled", "random") and len(result.heads) == 4
    found = find_trained(run, Run.open(run).meta["config"], arm, 1, step)
    network = found.network().double()
    for i, x in enumerate(found.inputs(3)):
        with torch.no_grad():
            states = torch.stack(network(x).hidden)[:, 0].numpy()
        np.testing.assert_allclose(result.residual[0, i], relative_residual(states), rtol=1e-9)
        np.testing.assert_allclose(result.rank[0, i], effective_rank(states), rtol=1e-9)
        expected = [histogram(token_similarities(tokens, x[0])) for tokens in states]
        np.testing.assert_array_equal(result.different[0, i], expected)
    assert np.abs(result.residual[0] - result.residual[2]).max() > 1e-4  # before training
    assert result.findings() and {spec.id for spec in result.figures()} >= {"residual", "similarity"}


def test_steps_and_arms_differ_and_what_is_missing_is_named(run):
    early, late = (collapse_trained(run, arm="both", step=step, batches=2).residual[0] for step in (4, 8))
    assert is_training_run(run) and np.abs(early - late).max() > 1e-6
    with pytest.raises(InputError, match=r"no finished network of arm 'hidden': both \(seed 0\), both \(seed 1\)"):
        collapse_trained(run, arm="hidden")
    with pytest.raises(InputError, match="keeps no weights of step 5; there are 4, 8"):
        collapse_trained(run, step=5)


def test_the_command(run):
    done = CliRunner().invoke(app, ["collapse", str(run), "--arm", "both", "--batches", "2", "--json", "-q"])
    assert done.exit_code == 0, done.exception
    assert [row["arm"] for row in json.loads(done.stdout)["arms"]] == ["standard", "shuffled", "random"]
    wrong = CliRunner().invoke(app, ["collapse", str(run), "--alpha", "0.5"]).exception
    assert isinstance(wrong, InputError) and "choose --arm and --step" in str(wrong)
