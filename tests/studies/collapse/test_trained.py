"""Collapse in networks of a training run.

Also tests hopfield.trained.
"""

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
    which = "at its best validation loss" if step is None else "after 4 steps"
    assert f"{which}: " in result.notes[0] and f"(arm {arm}, seed 1)" in result.notes[0]


def test_steps_and_arms_differ_and_what_is_missing_is_named(run):
    early, late = (collapse_trained(run, arm="both", step=step, batches=2).residual[0] for step in (4, 8))
    assert is_training_run(run) and np.abs(early - late).max() > 1e-6
    with pytest.raises(InputError, match=r"no finished network of arm 'hidden': both \(seed 0\), both \(seed 1\)"):
        collapse_trained(run, arm="hidden")
    with pytest.raises(InputError, match="keeps no weights of step 5; there are 4, 8"):
        collapse_trained(run, step=5)


def test_a_layer_that_iterates_counts_once(tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat. " * 300)
    sizes = {"layers": 2, "heads": 2, "dim": 16, "tokens": 16}
    options = {"arms": ["implicit"], "seeds": 1, "rates": [1e-2], "steps": 4, "evaluations": 1, "batch": 4}
    found = train("gpt", tmp_path / "run", text=tmp_path / "text.txt", sizes=sizes, **options)
    assert list(found.heads["layer"]) == [0, 0, 1, 1]
    result = collapse_trained(tmp_path / "run", arm="implicit", batches=2)
    assert result.entropy.shape == (3, 2, 4)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    place = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    np.savez(place / "halves.npz", images=rng.integers(0, 90, (60, 28, 28)).astype(np.uint8), labels=np.arange(60) % 2)
    sizes = {"layers": 3, "heads": 2, "dim": 16, "patch": 14}
    options = {"arms": ["standard", "both"], "seeds": 1, "rates": [1e-2], "steps": 4, "evaluations": 1, "batch": 4}
    train("vit", place / "run", images=place / "halves.npz", sizes=sizes, **options)
    return place / "run"


@pytest.mark.parametrize("arm", ["standard", "both"])
def test_a_vit_has_the_bounds_of_what_its_layers_compute(images, arm):
    result = collapse_trained(images, arm=arm, batches=2)
    assert len(result.bounds) == 2 * 2 * 3 and set(result.bounds["arm"]) == {"standard", "random"}
    assert result.bounds["keeps_repaired"].all() and np.isfinite(result.bounds["printed"]).all()
    found = find_trained(images, Run.open(images).meta["config"], arm, 0, None)
    network, x = found.network().double(), next(iter(found.inputs(1))).double()
    with torch.no_grad():
        hidden = torch.zeros(2, 5, 5, dtype=torch.float64)
        for n, (block, entering) in enumerate(zip(network.blocks, network(x).hidden, strict=False)):
            layer, tokens = block.attention, block.norm1(entering)[0]
            q, k, v = (p(tokens).view(5, 2, 8).transpose(0, 1) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
            hidden = layer.alpha_hidden * hidden + (1 - layer.alpha_hidden) * (q @ k.transpose(1, 2)) / 8**0.5
            out = layer.out_proj((hidden.softmax(-1) @ v).transpose(0, 1).reshape(5, 16)).numpy()
            row = result.bounds[(result.bounds["arm"] == "standard") & (result.bounds["layer"] == n)].iloc[0]
            left = out - out.mean(axis=0)
            size = (np.abs(left).sum(axis=0).max() * np.abs(left).sum(axis=1).max()) ** 0.5
            assert row["measured"] == pytest.approx(size, rel=1e-9)


def test_the_command(run):
    done = CliRunner().invoke(app, ["collapse", str(run), "--arm", "both", "--batches", "2", "--json", "-q"])
    assert done.exit_code == 0, done.exception
    assert [row["arm"] for row in json.loads(done.stdout)["arms"]] == ["standard", "shuffled", "random"]
    said = CliRunner().invoke(app, ["collapse", str(run), "--batches", "2", "-q"]).output
    assert "headscape heads" not in said and "--arm or --step" in said  # it has no captured heads
    wrong = CliRunner().invoke(app, ["collapse", str(run), "--alpha", "0.5"]).exception
    assert isinstance(wrong, InputError) and "choose --arm and --step" in str(wrong)
