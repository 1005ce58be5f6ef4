"""Networks with random weights earn no tick about what training made, in any study."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.papers import claim
from headscape.studies.collapse import collapse
from headscape.studies.compare import compare
from headscape.studies.gaussian import gaussian
from headscape.studies.organize import organize
from headscape.studies.softmax import softmax
from headscape.studies.softmax.findings import UNIFORM
from headscape.studies.spectra import spectra
from tiny import Letters
from zoo import ZOO

TEXT = "it was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness. "


WIDTH, FULL = 32, 768
"""Hidden size of the tiny networks, and of the networks they stand for."""


def untrained(name, seed):
    """A tiny network as transformers draws it, with scores as spread as in one of full width.

    At the width of the zoo all attention is uniform to a part in a thousand, and no claim about it can be tested.
    """
    torch.manual_seed(seed)
    network = ZOO[name]().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.mul_((FULL / WIDTH) ** 0.5)
    return hs.wrap_module(network, tokenizer=Letters(), name=f"{name}-{seed}")


def captured(model, out):
    images = np.random.default_rng(0).random((8, 28, 28, 1))
    inputs = [TEXT * 4] if model.images is None else (images, np.arange(8) % 2)
    keep = ("probs", "scores", "hidden")
    hs.capture(model, inputs, tokens=24, batches=8, keep=keep, dtype="float32", out=out)
    return out


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit"])
def test_random_weights_earn_no_tick_about_learning(name, tmp_path):
    draws = [untrained(name, seed) for seed in range(4)]
    model, control = draws[0], draws[1]
    run, other = captured(model, tmp_path / "run"), captured(control, tmp_path / "other")
    results = [
        organize(run, model=None, control=draws[1:]),
        softmax(run, heads=hs.open_capture(run).heads()[:2], model=model, control=control),
        gaussian(run, model=model, control=control),
        spectra(model, control=control, rotations=200),
        collapse(run, model=model, control=control),
    ]
    organize(other, model=None)
    organize(run, model=None)
    results.append(compare([run, other]))
    findings = [finding for result in results for finding in result.findings() if finding.claim]
    assert len({claim(finding.claim).study for finding in findings}) == 6
    learnt = {claim(finding.claim).study for finding in findings if claim(finding.claim).learnt}
    assert learnt >= {"organize", "softmax", "spectra", "collapse", "compare"}  # of Gaussians only the vocabulary is
    sharp = next(result for result in results if result.study == "softmax")
    assert (sharp.heads["mean_kl"] > UNIFORM).all()  # or nothing could fail
    ticks = [str(f) for f in findings if f.verdict == "holds" and claim(f.claim).learnt]
    assert not ticks
