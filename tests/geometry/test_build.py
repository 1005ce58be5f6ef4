"""Tree builders: the paper's rule against a queue of sets, and what all of them must hold."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from headscape.errors import InputError
from headscape.geometry.affinity import dual_affinity
from headscape.geometry.build import BUILDERS, BuildOptions, build_tree
from headscape.geometry.diffusion import markov_spectrum
from headscape.geometry.flexible import _join, flexible_levels
from reference import QUICK
from reference_geometry import slow_join

builders = pytest.mark.parametrize("tree", sorted(BUILDERS))


def geometry(points):
    """L1 distances and affinity of points."""
    points = np.asarray(points, dtype=float)
    D = np.abs(points[:, None] - points[None, :]).reshape(len(points), len(points), -1).sum(axis=2)
    return D, dual_affinity(D)


def nested_points(rng, sizes=(5, 6, 7, 8), spread=0.05):
    """Clusters on the line, pairs of them close; labels coarse and fine."""
    centres = [0.0, 1.0, 10.0, 11.0]
    fine = np.repeat(np.arange(4), sizes)
    points = np.array(centres)[fine] + spread * rng.normal(size=len(fine))
    move = rng.permutation(len(fine))
    return points[move], (fine // 2)[move], fine[move]


# ------------------------------------------------------------------ the flexible rule


@given(st.integers(2, 25), st.sampled_from([0.25, 1.0, 4.0]), st.integers(0, 2**32 - 1))
@QUICK
def test_flexible_level_equals_the_queue(n, merge_scale, seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, rng.integers(1, 4)))
    D = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    labels = _join(D, merge_scale)
    assert {frozenset(np.flatnonzero(labels == k).tolist()) for k in set(labels)} == slow_join(D, merge_scale)


def test_flexible_size_penalty_is_the_printed_one():
    # off-diagonal median is 10: a pair at .1, a third at 4 < 10 / 2 from it, a fourth at 4 >= 10 / 4 from the three
    D = np.full((5, 5), 10.0)
    np.fill_diagonal(D, 0)
    for i, j, d in [(0, 1, 0.1), (0, 2, 4.0), (0, 3, 4.1)]:
        D[i, j] = D[j, i] = d
    labels = _join(D, 1.0)
    assert labels[0] == labels[1] == labels[2]
    assert len({labels[0], labels[3], labels[4]}) == 3
    tight = _join(D, 2.0)  # 4 >= 10 / 2 / 2 holds no more
    assert tight[0] == tight[1] != tight[2]


def test_flexible_joins_equal_points_at_once():
    D, G = geometry([0.0] * 40 + [1.0] * 3)  # the median distance is 0
    levels = flexible_levels(markov_spectrum(G, 11))
    assert len(levels) <= 3
    assert len(set(levels[0][:40])) == len(set(levels[0][40:])) == 1
    assert build_tree(D, G, "flexible").n_levels <= 4


def test_flexible_levels_are_nested_and_end_in_one_folder():
    levels = flexible_levels(markov_spectrum(geometry(np.random.default_rng(3).normal(size=(80, 2)))[1], 11))
    assert not levels[-1].any()
    for fine, coarse in itertools.pairwise(levels):
        assert len({(f, c) for f, c in zip(fine, coarse, strict=True)}) == len(set(fine))
        assert len(set(coarse)) < len(set(fine))


# ------------------------------------------------------------------ all builders


@builders
def test_finds_well_separated_clusters(tree):
    points, coarse, fine = nested_points(np.random.default_rng(0), sizes=(8, 8, 8, 8))
    built = build_tree(*geometry(points), tree)
    for truth in (coarse, fine):
        best = max(adjusted_rand_score(truth, level) for level in built.labels)
        assert best == 1.0 if tree != "flexible" else best > 0.6  # its size penalty breaks clusters of eight up


@builders
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 30))
@QUICK
def test_permuting_the_points_permutes_the_leaves_and_nothing_else(tree, seed, n):
    rng = np.random.default_rng(seed)
    D, G = geometry(rng.gamma(1.0, size=(n, 4)))
    move = rng.permutation(n)
    moved = build_tree(D[np.ix_(move, move)], G[np.ix_(move, move)], tree)
    assert moved == build_tree(D, G, tree).permute(move)


@builders
def test_scale_changes_nothing(tree):
    D, G = geometry(np.random.default_rng(5).gamma(1.0, size=(25, 3)))
    assert build_tree(1e-7 * D, G, tree) == build_tree(D, G, tree)


@builders
@pytest.mark.parametrize("n", [1, 2, 3, 12])
def test_short_axes(tree, n):
    D, G = geometry(np.arange(n) ** 2.0)
    built = build_tree(D, G, tree)
    assert built.n_leaves == n
    assert built.n_levels == {1: 1, 2: 2}.get(n, built.n_levels)


@builders
def test_equal_points(tree):
    built = build_tree(np.zeros((9, 9)), np.ones((9, 9)), tree)
    if tree == "binary":
        assert built.n_levels == 5  # halves, whatever is in them
    else:
        assert built.n_levels == 2  # nothing to tell apart: no folder between root and leaves


@pytest.mark.parametrize("tree", ["ward", "average"])
def test_linkage_never_splits_equal_points_before_others(tree):
    built = build_tree(*geometry([0, 0, 0, 0, 0, 5, 5, 5, 9, 9]), tree)
    assert sorted(built.counts) == [1, 2, 3, 10]
    assert adjusted_rand_score(built.level(2), [0] * 5 + [1] * 3 + [2] * 2) == 1.0


def test_ward_levels_grow_in_quarter_octaves_up_to_half_or_a_quarter():
    rng = np.random.default_rng(6)
    assert list(build_tree(*geometry(rng.normal(size=(40, 3))), "ward").counts) == [
        *(1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19),
        40,
    ]
    assert build_tree(*geometry(rng.normal(size=(200, 3))), "ward").counts[-2] == 64
    assert build_tree(*geometry(rng.normal(size=(400, 3))), "ward").counts[-2] == 91  # of at most 100


def test_ward_splits_the_largest_and_most_spread_folder_first():
    # a tight, far pair and a wide, populous cluster: after the first split the cluster is next, not the pair
    points = np.concatenate([[100.0, 101.5], np.linspace(0, 2, 20)])
    level = build_tree(*geometry(points), "ward").level(2)
    assert level[0] == level[1]
    assert len(set(level[2:])) == 2


def test_binary_halves_every_folder():
    built = build_tree(*geometry(np.random.default_rng(7).normal(size=(13, 2))), "binary")
    assert sorted(built.sizes[built.folders().level == 1]) == [6, 7]
    assert list(built.counts) == [1, 2, 4, 8, 13]


@builders
def test_children_come_in_the_order_of_psi_2(tree):
    D, G = geometry(np.sort(np.random.default_rng(8).gamma(1.0, size=30)))
    psi = markov_spectrum(G, 1).vectors[:, 0]
    built = build_tree(D, G, tree)
    folders = built.folders()
    if tree == "binary":  # psi_2 of the folder itself from the second level on
        assert psi[built.order[:15]].max() <= psi[built.order[15:]].min()
        return
    for i in range(len(folders.start)):
        means = [psi[built.order[folders.start[c] : folders.stop[c]]].mean() for c in built.children(i)]
        assert means == sorted(means)


def test_options_reach_the_builder():
    D, G = geometry(np.random.default_rng(9).normal(size=(40, 3)))
    default = build_tree(D, G, "flexible")
    for options in (BuildOptions(merge_scale=20.0), BuildOptions(n_eigenvectors=1), BuildOptions(markov_alpha=0.0)):
        assert build_tree(D, G, "flexible", options) != default


def test_says_what_is_wrong():
    with pytest.raises(InputError, match="tree is one of average, binary, flexible, ward, not 'oak'"):
        build_tree(np.zeros((3, 3)), np.ones((3, 3)), "oak")
    with pytest.raises(InputError, match="square and alike"):
        build_tree(np.zeros((3, 3)), np.ones((2, 2)))
