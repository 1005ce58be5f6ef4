"""The default settings find what was planted. The whole grid is in benchmarks/builders.py; this is a part of it."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from headscape.geometry.planted import planted
from headscape.geometry.questionnaire import Questionnaire
from headscape.tensor import AXES
from headscape.wavelets.entropy import top_energy

SMALL, LARGE = (64, 64, 32), (128, 128, 64)
SHARP = [("blocks", 0.25), ("blocks", 1.0), ("blocks", 2.0), ("softmax", 0.25), ("softmax", 1.0), ("low_rank", 2.0)]
SMOOTH = [("smooth", 0.0), ("smooth", 0.25), ("smooth", 0.5)]
PUBLISHED = {("blocks", 1.0): 0.54, ("softmax", 1.0): 0.42, ("smooth", 0.5): 0.80, ("low_rank", 2.0): 0.34}


def agreement(kind, noise, shape, seed):
    """Adjusted Rand index of the best level, for each planted partition; and the fit."""
    P = planted(kind, shape, noise, random_state=seed)
    fit = Questionnaire(n_jobs=1).fit(P.values)
    scores = [
        max(adjusted_rand_score(truth, level) for level in fit.trees_[AXES.index(axis)].labels)
        for axis, depths in P.labels.items()
        for truth in depths.values()
    ]
    return scores, fit, P


@pytest.mark.parametrize("seed", [0, 1])
def test_blocks_and_heads_are_found(seed):
    scores = [score for kind, noise in SHARP for score in agreement(kind, noise, SMALL, seed)[0]]
    assert min(scores) >= 0.9
    assert np.mean(scores) >= 0.99


@pytest.mark.parametrize("seed", [0, 1])
def test_smooth_hierarchies_are_found(seed):
    # Not every planted quarter of a smooth tensor is one: coefficients are random, and a quarter's two halves can lie
    # closer to others than to each other, even without noise. So single agreements may fall below .9 here.
    scores = [score for kind, noise in SMOOTH for score in agreement(kind, noise, SMALL, seed)[0]]
    assert min(scores) >= 0.7
    assert np.mean(scores) >= 0.94


@pytest.mark.parametrize(("kind", "noise"), sorted(PUBLISHED))
def test_large_tensors_and_their_compression(kind, noise):
    scores, fit, P = agreement(kind, noise, LARGE, 0)
    assert min(scores) >= 0.9
    assert np.mean(scores) >= 0.97
    assert round(top_energy(P.values, fit.trees_), 2) >= PUBLISHED[kind, noise]
    shuffled = P.values[np.ix_(*(np.random.default_rng(0).permutation(n) for n in LARGE))]
    assert top_energy(shuffled, fit.trees_) < top_energy(P.values, fit.trees_) - 0.05


def test_pure_noise_has_no_structure_to_find():
    noise = np.random.default_rng(0).normal(size=SMALL)
    P = planted("blocks", SMALL)
    fit = Questionnaire(n_jobs=1).fit(noise)
    for axis, built in zip(AXES, fit.trees_, strict=True):
        assert max(adjusted_rand_score(P.labels[axis]["fine"], level) for level in built.labels) < 0.2
    assert fit.history_[-1].compression > 0.95
