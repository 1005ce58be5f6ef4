"""A text and images that tiny networks learn in seconds."""

import numpy as np
import pandas as pd
import pytest

from headscape.collapse.similarity import BINS
from headscape.studies.train import TrainResult


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "pattern.txt"
    rng = np.random.default_rng(0)
    path.write_text("".join(rng.choice(["the cat sat. ", "a dog ran. "], 900)))
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two classes, dark and bright."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    images = rng.integers(0, 90, (400, 28, 28)).astype(np.uint8)
    images[labels == 1] += 40
    path = tmp_path_factory.mktemp("images") / "halves.npz"
    np.savez(path, images=images, labels=labels)
    return path


@pytest.fixture
def made_up():
    """A result with given scores {arm: [by seed]}, of networks with so many layers."""

    def result(scores, kind="gpt", aligned=0.0, layers=1, baseline=None):
        trials = [
            {"arm": a, "rate": 1e-3, "seed": s, "kept": True, "chosen": True, "valid_loss": 1.0, "test_loss": 1.0}
            | {
                "score": v,
                "uniform": v + 1 + 0.01 * s,
                "removed": v + 2 + 0.01 * s,
                "steps": 10,
                "stopped_early": False,
                "diverged": False,
            }
            for a, values in scores.items()
            for s, v in enumerate(values)
        ]
        places = [
            {"arm": t["arm"], "seed": t["seed"], "step": 10, "layer": n} for t in trials for n in range(layers + 1)
        ]
        measured = {"residual": 0.5, "rank": 3.0, "similarity": 0.2}
        share = {"standard": 1.0}  # others have next to none
        rows = [p | measured | {"aligned": aligned * (share.get(p["arm"], 0.001) + 0.001 * p["seed"])} for p in places]
        heads = [
            p | {"head": 0, "entropy": 0.5, "alpha": 0.3 + 0.01 * p["seed"] if p["arm"] == "learned" else np.nan}
            for p in places
            if p["layer"] < layers
        ]
        least = (50.0 if kind == "vit" else 2.8) if baseline is None else baseline
        return TrainResult(
            trials=pd.DataFrame(trials),
            curves=pd.DataFrame(
                [{"arm": a, "rate": 1e-3, "seed": 0, "step": 1, "train": 1.0, "valid": 1.0} for a in scores]
            ),
            layers=pd.DataFrame(rows),
            heads=pd.DataFrame(heads),
            counts=np.ones((len(places), BINS), np.int64),
            baselines={"linear": least} if kind == "vit" else {"unigram": 4.5, "trigram": least},
            settings={
                "network": {"kind": kind},
                "rates": [1e-3],
                "seeds": [0, 1, 2],
                "finalists": 1,
                "search_steps": 10,
            },
            data={},
        )

    return result
