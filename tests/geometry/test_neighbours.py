"""Geometry by neighbours: with all neighbours it is the dense one; with few it still finds what is planted."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.metrics import adjusted_rand_score

from headscape.errors import InputError
from headscape.geometry import diffusion, memory, neighbours
from headscape.geometry.affinity import dual_affinity, median_distance
from headscape.geometry.build import build_tree
from headscape.geometry.consensus import consensus
from headscape.geometry.diffusion import diffusion_map
from headscape.geometry.emd import slice_distance
from headscape.geometry.neighbours import (
    neighbour_affinity,
    neighbour_tree,
    neighbours_of,
    slice_neighbours,
)
from headscape.geometry.planted import planted
from headscape.geometry.questionnaire import Questionnaire
from reference import random_tree

WEIGHTS = (0.0, 0.5)


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    X = rng.gamma(0.5, size=(83, 12, 11)).astype(np.float32)
    trees = [random_tree(rng, 12), random_tree(rng, 11)]
    return X, trees, slice_distance(X, trees, *WEIGHTS, 1e9, 1)


# ------------------------------------------------------------------ the dense twin


@pytest.mark.parametrize("bytes_given", [1e9, 1e5])
@pytest.mark.parametrize("threads", [1, 2])
def test_all_neighbours_are_the_matrix(case, bytes_given, threads):
    X, trees, D = case
    graph = slice_neighbours(X, trees, *WEIGHTS, 82, 0, bytes_given, threads)
    assert np.array_equal(graph.distances.toarray(), D)
    assert np.array_equal(graph.to_landmarks, D)
    assert graph.median == median_distance(D)
    affinity = neighbour_affinity(graph, 0.7)
    np.testing.assert_array_equal(affinity.toarray(), dual_affinity(D, 0.7))
    assert neighbour_tree(graph, affinity) == build_tree(D, dual_affinity(D, 0.7), "ward")


@pytest.mark.parametrize("bytes_given", [1e9, 1e5])
def test_the_nearest_are_kept_whatever_the_tiles(case, bytes_given, monkeypatch):
    monkeypatch.setattr(neighbours, "LANDMARKS", 20)
    X, trees, D = case
    graph = slice_neighbours(X, trees, *WEIGHTS, 7, 3, bytes_given, 1)
    far = D + np.diag(np.full(len(D), np.inf))
    near = far <= np.sort(far, axis=1)[:, [6]]
    assert np.array_equal(graph.distances.toarray() > 0, near | near.T)
    assert np.array_equal(graph.distances.toarray()[near | near.T], D[near | near.T])
    assert graph.to_landmarks.shape == (83, 20)
    assert np.array_equal(graph.to_landmarks, D[:, graph.landmarks])
    again = neighbours_of(D, 7, 3)
    assert np.array_equal(again.distances.toarray(), graph.distances.toarray())
    assert np.array_equal(again.to_landmarks, graph.to_landmarks)


def test_a_questionnaire_with_all_neighbours_is_the_dense_one(monkeypatch):
    X = planted("softmax", (40, 36, 44), noise=0.5).values
    dense = Questionnaire(n_iter=2, n_jobs=1).fit(X)
    monkeypatch.setattr(neighbours, "NEIGHBOURS_FROM", 38)
    near = Questionnaire(n_iter=2, n_jobs=1, n_neighbours=43).fit(X)
    assert near.trees_ == dense.trees_
    assert not scipy.sparse.issparse(near.distances_[1])
    for axis in (0, 2):
        assert scipy.sparse.issparse(near.distances_[axis])
        np.testing.assert_allclose(near.distances_[axis].toarray(), dense.distances_[axis], rtol=1e-5)
        np.testing.assert_allclose(near.affinities_[axis].toarray(), dense.affinities_[axis], rtol=1e-5)
    np.testing.assert_allclose(near.history_[1].change, dense.history_[1].change, rtol=1e-3)
    with pytest.raises(InputError, match="fit with n_neighbours=None for a consensus"):
        consensus([near])
    everything = Questionnaire(n_iter=2, n_jobs=1, n_neighbours=None).fit(X)
    assert np.array_equal(everything.distances_[2], dense.distances_[2])


def test_sparse_diffusion_is_the_dense_one(monkeypatch):
    rng = np.random.default_rng(1)
    points = rng.normal(size=(60, 3)) * [5, 2, 1]
    D = np.abs(points[:, None] - points).sum(axis=2)
    G = np.where(D < 6, np.exp(-D), 0.0)
    dense = diffusion_map(G, 3)
    np.testing.assert_allclose(diffusion_map(scipy.sparse.csr_array(G), 3), dense, atol=1e-10)
    monkeypatch.setattr(diffusion, "_DENSE_UP_TO", 10)
    for markov_alpha in (0.0, 1.0):
        dense = diffusion_map(G, 3, markov_alpha=markov_alpha)
        for kind in (scipy.sparse.csr_array, scipy.sparse.coo_matrix):
            np.testing.assert_allclose(diffusion_map(kind(G), 3, markov_alpha=markov_alpha), dense, atol=1e-7)
    assert not diffusion_map(scipy.sparse.csr_array(np.ones((20, 20))), 2).any()


# ------------------------------------------------------------------ few neighbours


def test_few_neighbours_and_landmarks_find_the_planted_clusters(monkeypatch):
    monkeypatch.setattr(neighbours, "LANDMARKS", 60)
    monkeypatch.setattr(neighbours, "NEIGHBOURS_FROM", 300)
    P = planted("blocks", (32, 32, 400), noise=1.0, random_state=2)
    q = Questionnaire(n_iter=2, n_jobs=1, n_neighbours=12).fit(P.values)
    assert q.distances_[2].nnz < 0.1 * 400**2
    for scale in ("coarse", "fine"):
        truth = P.labels["head"][scale]
        assert max(adjusted_rand_score(truth, level) for level in q.trees_[2].labels) > 0.95
    assert diffusion_map(q.affinities_[2]).shape == (400, 3)


def test_separate_and_identical_slices(monkeypatch):
    monkeypatch.setattr(neighbours, "LANDMARKS", 30)
    kinds = np.repeat([0, 1, 2], 30)
    centres = 10 * np.random.default_rng(3).random((3, 6, 5), dtype=np.float32)
    trees = [random_tree(np.random.default_rng(4), n) for n in (6, 5)]
    graph = slice_neighbours(centres[kinds], trees, *WEIGHTS, 5, 0, 1e9, 1)  # no edge between kinds
    assert graph.distances.nnz > 0 and not graph.distances.data.any()  # zeros are stored
    tree = neighbour_tree(graph, neighbour_affinity(graph))
    assert any(len(set(zip(kinds, level, strict=True))) == len(set(level)) == 3 for level in tree.labels)
    same = slice_neighbours(centres[np.zeros(50, dtype=int)], trees, *WEIGHTS, 5, 0, 1e9, 1)
    assert same.median == 0
    assert neighbour_tree(same, neighbour_affinity(same)).n_levels == 2


# ------------------------------------------------------------------ memory and refusals


def test_memory_grows_with_neighbours_not_pairs():
    shape = (64, 64, 20_000)
    assert memory.disk_memory_estimate(shape, 1, 64) < 1e9 < 10e9 < memory.disk_memory_estimate(shape, 1)


def test_refusals(case):
    X, trees, _ = case
    with pytest.raises(InputError, match="n_neighbours must be at least 1"):
        Questionnaire(n_neighbours=0).fit(np.ones((3, 3, 3)))
    with pytest.raises(InputError, match="neighbours of 83 slices .* bytes at least"):
        slice_neighbours(X, trees, *WEIGHTS, 5, 0, 1e3, 1)
    bad = scipy.sparse.csr_array(np.array([[1.0, 0.5], [0.5, -1.0]]))
    with pytest.raises(InputError, match=r"entry \(1, 1\) is -1.0"):
        diffusion_map(bad)
    with pytest.raises(InputError, match="is symmetric"):
        diffusion_map(scipy.sparse.csr_array(np.array([[1.0, 0.5], [0.0, 1.0]])))
    with pytest.raises(InputError, match="row 1 of the affinity is all zeros"):
        diffusion_map(scipy.sparse.csr_array(np.array([[1.0, 0.0], [0.0, 0.0]])))
    with pytest.raises(InputError, match="square"):
        diffusion_map(scipy.sparse.csr_array(np.ones((2, 3))))
