"""Distances between metric spaces against the definition, brute force and many starts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from headscape.errors import InputError
from headscape.geometry.gromov import (
    _annealed,
    _onto_marginals,
    classical_map,
    geometry_bound,
    in_order,
    match_geometries,
    refine,
)


def cloud(n, seed):
    """Distance matrix of n random points."""
    points = np.random.default_rng(seed).normal(size=(n, 3))
    return np.linalg.norm(points[:, None] - points, axis=-1)


def quadruple_sum(A, B, T):
    """The loss as it is written: sum over i, j, k, l."""
    n, m = T.shape
    return sum(
        (A[i, k] - B[j, l]) ** 2 * T[i, j] * T[k, l]
        for i, j, k, l in itertools.product(range(n), range(m), range(n), range(m))
    )


def slow_bound(A, B):
    """Rows repeated to a common length and sorted; the coupling by linear programming."""
    n, m = len(A), len(B)
    rows = [np.sort(np.repeat(D, k, axis=1), axis=1) for D, k in ((A, m), (B, n))]
    cost = np.array([[np.mean((a - b) ** 2) for b in rows[1]] for a in rows[0]])
    marginals = [np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))]
    sums = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    return np.sqrt(linprog(cost.ravel(), A_eq=np.vstack(marginals), b_eq=sums).fun)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 6), m=st.integers(2, 6), seed=st.integers(0, 99))
def test_lower_bound_is_that_of_the_definition_and_below_what_is_found(n, m, seed):
    A, B = cloud(n, seed), cloud(m, seed + 100)
    bound = geometry_bound(A, B)
    assert bound.distance == pytest.approx(slow_bound(A, B), abs=1e-6)
    found = match_geometries(A, B)
    assert bound.distance <= found.distance + 1e-9
    assert found.distance == pytest.approx(np.sqrt(quadruple_sum(A, B, found.coupling)), abs=1e-6)
    for coupling in (bound.coupling, found.coupling):
        np.testing.assert_allclose(coupling.sum(axis=1), 1 / n, atol=1e-9)
        np.testing.assert_allclose(coupling.sum(axis=0), 1 / m, atol=1e-9)


def test_search_reaches_the_best_permutation():
    """Permutations are couplings, so that the distance is at most the best of them."""
    for seed in range(5):
        A, B = cloud(6, seed), cloud(6, seed + 50)
        best = min(np.sqrt(np.mean((A - B[np.ix_(order, order)]) ** 2)) for order in itertools.permutations(range(6)))
        assert match_geometries(A, B).distance <= best * 1.02


def clustered(n, seed, k):
    """Distances over their median between points in k clouds, as heads of a few kinds have them."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(k, 3))[rng.integers(k, size=n)] + 0.3 * rng.normal(size=(n, 3))
    D = np.linalg.norm(points[:, None] - points, axis=-1)
    return D / np.median(D[np.triu_indices(n, 1)])


def test_search_is_as_good_as_the_best_of_many_random_starts():
    """POT's descent from 30 random couplings: four chosen starts are no worse on average, and never far off."""
    ratios = []
    for seed, (n, m) in enumerate([(12, 12), (20, 15), (24, 24), (16, 30), (15, 10), (18, 18)]):
        A, B, rng = clustered(n, seed, 4), clustered(m, seed + 50, 5), np.random.default_rng(seed)
        p, q = np.full(n, 1 / n), np.full(m, 1 / m)
        rough = (rng.random((n, m)) ** 4 for _ in range(30))
        best = min(refine(A, B, _onto_marginals(T / T.sum(), p, q)).distance for T in rough)
        ratios.append(match_geometries(A, B).distance / best)
    assert np.mean(ratios) < 1.02 and max(ratios) < 1.1


def test_the_annealed_start_is_a_coupling_even_where_costs_are_large():
    """exp(-cost / 0.02) of such distances underflows; Sinkhorn must not see rows or columns of zeros."""
    A, B = clustered(9, 0, 2), 40 * clustered(7, 1, 3)
    T = _annealed(A, B)
    assert np.isfinite(T).all() and (T >= 0).all()
    np.testing.assert_allclose(T.sum(axis=1), 1 / 9, atol=1e-12)
    np.testing.assert_allclose(T.sum(axis=0), 1 / 7, atol=1e-12)


def test_geometry_does_not_know_the_order_of_heads():
    A, order = cloud(20, 0), np.random.default_rng(1).permutation(20)
    assert match_geometries(A, A[np.ix_(order, order)]).distance < 1e-6
    doubled = A.repeat(2, axis=0).repeat(2, axis=1)  # every head twice is the same geometry
    assert match_geometries(A, doubled).distance < 1e-6
    B = cloud(15, 2)
    assert match_geometries(A, B).distance == pytest.approx(match_geometries(B, A).distance, rel=0.05)


def test_refine_never_goes_uphill():
    A, B = cloud(8, 0), cloud(5, 1)
    start = in_order(8, 5)
    assert refine(A, B, start).distance <= np.sqrt(quadruple_sum(A, B, start)) + 1e-9


def test_a_matrix_that_is_not_square_is_refused():
    with pytest.raises(InputError, match="square"):
        match_geometries(np.zeros((3, 2)), np.zeros((3, 3)))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 9), m=st.integers(1, 9), seed=st.integers(0, 99))
def test_couplings_have_their_marginals(n, m, seed):
    p, q = np.full(n, 1 / n), np.full(m, 1 / m)
    rough = np.random.default_rng(seed).random((n, m)) ** 4
    for T in (in_order(n, m), _onto_marginals(rough / rough.sum(), p, q)):
        assert (T >= 0).all()
        np.testing.assert_allclose(T.sum(axis=1), p, atol=1e-12)
        np.testing.assert_allclose(T.sum(axis=0), q, atol=1e-12)


def test_classical_map_lays_out_points_of_a_plane():
    points = np.random.default_rng(0).normal(size=(7, 2))
    D = np.linalg.norm(points[:, None] - points, axis=-1)
    found, share = classical_map(D)
    np.testing.assert_allclose(np.linalg.norm(found[:, None] - found, axis=-1), D, atol=1e-9)
    assert share == pytest.approx(1)
    assert (classical_map(np.zeros((3, 3)))[0] == 0).all()
