"""Mantel's correlation and Hartigan's dip, against slow twins and shapes whose answer is known."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from headscape.geometry.distances import dip, mantel, mantel_permuted, pairs_of, ring_dips
from reference_geometry import dip_slowly, mantel_slowly


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_mantel_is_spearman_over_pairs(rng):
    points, layers = rng.normal(size=(9, 3)), rng.integers(0, 3, 9)
    D, L = squareform(pdist(points)), np.abs(layers[:, None] - layers)
    assert mantel(D, L) == pytest.approx(mantel_slowly(D, L))
    assert mantel(D, D**3) == 1.0 and mantel(D, -D) == -1.0
    assert mantel(D, np.zeros_like(D)) == 0.0


def test_permuted_heads_know_nothing_of_layers_and_planted_depth_is_found(rng):
    layers = np.repeat(np.arange(6), 6)
    apart = np.abs(layers[:, None] - layers)
    near = squareform(pdist(layers[:, None] + rng.normal(size=(36, 4))))
    chance = mantel_permuted(near, apart, 200, 0)
    assert mantel(near, apart) > chance.max() and abs(chance.mean()) < 0.02
    move = rng.permutation(36)
    assert mantel(near[np.ix_(move, move)], apart[np.ix_(move, move)]) == pytest.approx(mantel(near, apart))


@pytest.mark.parametrize(
    "draw", [lambda r: r.normal(size=60), lambda r: np.r_[r.normal(size=40), 6 + r.normal(size=20)]]
)
def test_the_dip_is_half_of_the_least_distance_to_one_mode(rng, draw):
    values = draw(rng)
    assert dip(values, cells=12) == pytest.approx(dip_slowly(values, 12))


def test_clusters_have_a_larger_dip_than_any_continuous_shape(rng):
    n, noise = 72, 0.05 * rng.normal(size=(72, 20))
    turn = rng.uniform(0, 2 * np.pi, n)
    ring = np.quantile(ring_dips(n, 40, 0), 0.975)
    arc = np.pad(np.c_[np.cos(turn / 2), np.sin(turn / 2)], ((0, 0), (0, 18)))
    line = np.pad(turn[:, None], ((0, 0), (0, 19)))
    for shape in (arc, line, 20 * noise, np.exp(rng.normal(size=(n, 3)))):
        assert dip(pdist(shape if shape.shape[1] < 20 else shape + noise)) < ring
    clusters = rng.normal(size=(5, 20))[rng.integers(0, 5, n)]
    assert dip(pdist(4 * clusters + 20 * noise)) > ring
    assert dip(np.ones(5)) == 0.0 and len(pairs_of(squareform(pdist(arc)))) == n * (n - 1) / 2
