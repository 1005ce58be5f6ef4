"""The flexible tree level by level: diffusion times double, folders are as far apart as their leaves on average."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.geometry.diffusion import Spectrum, markov_spectrum
from headscape.geometry.flexible import flexible_levels
from reference import QUICK
from reference_geometry import slow_join


def spectrum_of(points):
    """Of a Gaussian affinity."""
    squared = ((points[:, None] - points) ** 2).sum(axis=2)
    return markov_spectrum(np.exp(-squared / np.median(squared)), n_components=len(points))


def slow_levels(spectrum, merge_scale):
    """Partitions as sets of sets of leaves, written down as the docstring has them."""
    n, t = len(spectrum.vectors), 1
    folders = [frozenset([i]) for i in range(n)]
    levels = []
    while len(folders) > 1:
        at_t = [(spectrum.values / max(abs(spectrum.values))) ** t * row for row in spectrum.vectors]
        leaf = [[np.sqrt(sum((a - b) ** 2)) for b in at_t] for a in at_t]
        D = np.array([[np.mean([leaf[i][j] for i in one for j in other]) for other in folders] for one in folders])
        D = np.where(1e-9 * D.max() < D, (D + D.T) / 2, 0)
        joined = slow_join(D, merge_scale) if np.median(D[np.triu_indices(len(D), 1)]) > 0 else _at_zero(D)
        folders = [frozenset().union(*(folders[k] for k in cluster)) for cluster in joined]
        levels.append(set(folders))
        t = 2 * t
    return levels


def _at_zero(distances):
    """Nodes that steps of length 0 connect."""
    clusters = {frozenset(np.flatnonzero(row == 0).tolist()) for row in distances}
    while any(a != b and a & b for a in clusters for b in clusters):
        clusters = {frozenset().union(*(b for b in clusters if a & b)) for a in clusters}
    return clusters


def as_sets(labels):
    return {frozenset(np.flatnonzero(labels == k).tolist()) for k in set(labels.tolist())}


@given(st.integers(2, 24), st.integers(1, 3), st.sampled_from([0.25, 1.0, 4.0]), st.integers(0, 2**32 - 1))
@QUICK
def test_every_level_compares_folders_at_twice_the_time(n, width, merge_scale, seed):
    spectrum = spectrum_of(np.random.default_rng(seed).normal(size=(n, width)))
    levels = flexible_levels(spectrum, merge_scale)
    assert [as_sets(labels) for labels in levels] == slow_levels(spectrum, merge_scale)
    for labels in levels:
        assert sorted(set(labels.tolist())) == list(range(labels.max() + 1))


def test_points_that_differ_by_rounding_are_one():
    """Three places, six points each."""
    psi = np.repeat([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], 6, axis=0)
    noise = 1e-13 * np.random.default_rng(0).normal(size=psi.shape)
    exact, noisy = (
        flexible_levels(Spectrum(np.array([1.0, 0.9]), vectors, np.full(18, 1 / 18)))[0]
        for vectors in (psi, psi + noise)
    )
    assert as_sets(exact) == as_sets(noisy)


@pytest.mark.parametrize("n", [2, 5])
def test_without_any_eigenvalue_all_points_are_one(n):
    (labels,) = flexible_levels(Spectrum(np.zeros(0), np.zeros((n, 0)), np.full(n, 1 / n)))
    assert labels.tolist() == [0] * n


def test_one_point_needs_no_level():
    assert flexible_levels(Spectrum(np.zeros(0), np.zeros((1, 0)), np.ones(1))) == []


def test_only_ratios_of_eigenvalues_count():
    points = np.random.default_rng(3).normal(size=(20, 2))
    spectrum = spectrum_of(points)
    smaller = spectrum._replace(values=spectrum.values * 1e-3)
    for one, other in zip(flexible_levels(spectrum), flexible_levels(smaller), strict=True):
        np.testing.assert_array_equal(one, other)
