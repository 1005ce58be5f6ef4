"""The sketch is right on average, stays within the error it states, and is the same however it is made.

Also tests geometry.folder_means.
"""

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.geometry import folder_means, sketch
from headscape.geometry.emd import slice_distance
from headscape.geometry.memory import disk_memory_estimate
from headscape.geometry.planted import planted
from headscape.geometry.questionnaire import Questionnaire
from headscape.geometry.sketch import _spread, sketch_distance
from reference import random_tree

WEIGHTS = (0.0, 0.5)


@pytest.fixture(scope="module", params=["softmax", "blocks", "heavy"])
def case(request):
    """Slices of 200 heads, trees, and the exact distances above the diagonal."""
    rng = np.random.default_rng(0)
    if request.param == "heavy":  # a few entries hold nearly everything
        X = rng.gamma(0.05, size=(200, 30, 30)).astype(np.float32)
        trees = [random_tree(rng, 30), random_tree(rng, 30)]
    else:
        P = planted(request.param, (32, 32, 200), noise=1.0)
        trees = list(Questionnaire(n_iter=1, n_jobs=1).fit(P.values).trees_[:2])
        X = np.ascontiguousarray(np.moveaxis(P.values, 2, 0))
    return X, trees, slice_distance(X, trees, *WEIGHTS, 1e9, 1)


def relative_errors(estimate, truth):
    above = np.triu_indices(len(truth), 1)
    return (estimate[above] - truth[above]) / truth[above]


@pytest.mark.parametrize("columns", [300, 1200])
def test_95_percent_of_pairs_are_within_the_stated_error(case, columns):
    X, trees, truth = case
    for seed in range(6):
        found = sketch_distance(X, trees, *WEIGHTS, columns, seed, 1e9, 1)
        errors = np.abs(relative_errors(found.distances, truth))
        assert (errors <= found.error).mean() >= 0.95
        assert found.error < 4 * np.quantile(errors, 0.95)  # an error of 1 would always hold


def test_the_mean_over_sketches_is_the_distance_and_more_columns_err_less(case):
    X, trees, truth = case
    found = [sketch_distance(X, trees, *WEIGHTS, 300, seed, 1e9, 1) for seed in range(30)]
    mean = np.mean([one.distances for one in found], axis=0)
    assert np.quantile(np.abs(relative_errors(mean, truth)), 0.95) < 0.3 * np.median([one.error for one in found])
    finer = sketch_distance(X, trees, *WEIGHTS, 1200, 0, 1e9, 1)
    assert finer.error < 0.75 * found[0].error


def test_is_a_metric(case):
    X, trees, _ = case
    D = sketch_distance(X, trees, *WEIGHTS, 300, 0, 1e9, 1).distances[:60, :60]
    assert np.array_equal(D, D.T)
    assert not np.diag(D).any()
    assert (D[:, None, :] <= (D[:, :, None] + D[None, :, :]) * (1 + 1e-6)).all()


def test_every_tuple_kept_is_the_exact_distance(case):
    X, trees, truth = case
    found = sketch_distance(X, trees, *WEIGHTS, 10**9, 0, 1e9, 1)
    np.testing.assert_allclose(found.distances, truth, rtol=1e-5)
    assert found.error < 1e-5


def test_threads_change_nothing_and_seeds_do(case, monkeypatch):
    monkeypatch.setattr(folder_means, "CHUNK", 3e5)
    X, trees, _ = case
    one = sketch_distance(X, trees, *WEIGHTS, 300, 0, 1e9, 1)
    two = sketch_distance(X, trees, *WEIGHTS, 300, 0, 1e9, 2)
    assert np.array_equal(one.distances, two.distances)
    assert one.error == two.error
    assert not np.array_equal(one.distances, sketch_distance(X, trees, *WEIGHTS, 300, 1, 1e9, 1).distances)


def test_columns_are_drawn_by_their_standard_deviation_whatever_their_offset():
    rows = np.random.default_rng(0).normal(loc=1000.0, size=(40, 300)) * np.geomspace(1, 10, 300)
    np.testing.assert_allclose(_spread(rows, 30, 2), rows[:30].std(axis=0), rtol=1e-9)


def test_identical_slices_are_at_distance_zero():
    rng = np.random.default_rng(0)
    X = np.repeat(rng.random((1, 8, 7), dtype=np.float32), 70, axis=0)
    found = sketch_distance(X, [random_tree(rng, 8), random_tree(rng, 7)], *WEIGHTS, 20, 0, 1e9, 1)
    assert not found.distances.any()
    assert found.error == 0


# ------------------------------------------------------------------ in the questionnaire


def test_long_axes_are_sketched_and_short_ones_exact(monkeypatch):
    monkeypatch.setattr(sketch, "SKETCH_FROM", 100)
    X = planted("blocks", (32, 24, 120), noise=0.5).values
    exact = Questionnaire(n_iter=1, n_jobs=1).fit(X)
    assert exact.sketch_error_ == (0.0, 0.0, 0.0)
    settings = {"n_iter": 1, "distance": "sketch", "sketch_columns": 600}
    rough = Questionnaire(**settings, n_jobs=1).fit(X)
    assert rough.sketch_error_[:2] == (0.0, 0.0)
    assert 0 < rough.sketch_error_.axis2 < 0.2
    errors = np.abs(relative_errors(rough.distances_[2], exact.distances_[2]))
    assert (errors <= rough.sketch_error_.axis2).mean() >= 0.95
    # the same from disk
    tight = Questionnaire(**settings, n_jobs=1, max_memory=disk_memory_estimate(X.shape, 1) + 1e6)
    monkeypatch.setattr(folder_means, "CHUNK", 2e5)
    rough = Questionnaire(**settings, n_jobs=1).fit(X)
    assert np.array_equal(tight.fit(X).distances_[2], rough.distances_[2])
    assert tight.sketch_error_ == rough.sketch_error_


def test_refusals(case):
    X, trees, _ = case
    with pytest.raises(InputError, match="distance is one of exact, sketch, not 'guess'"):
        Questionnaire(distance="guess").fit(np.ones((3, 3, 3)))
    with pytest.raises(InputError, match="sketch_columns must be at least 1"):
        Questionnaire(distance="sketch", sketch_columns=0).fit(np.ones((3, 3, 3)))
    with pytest.raises(InputError, match="a sketch of 200 slices .* or use distance='exact'"):
        sketch_distance(X, trees, *WEIGHTS, 300, 0, 1e4, 1)
