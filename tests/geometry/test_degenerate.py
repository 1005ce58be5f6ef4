"""Inputs that must not crash the questionnaire, nor make it see what is not there."""

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.geometry.build import BUILDERS
from headscape.geometry.diffusion import diffusion_map
from headscape.geometry.questionnaire import Questionnaire
from headscape.tensor import AttentionTensor

RNG = np.random.default_rng(0)
every_builder = pytest.mark.parametrize("tree", sorted(BUILDERS))


def organized(X, tree):
    """Fit, with every floating-point accident an error; the results are finite and cover the axes."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        q = Questionnaire(tree=tree, n_iter=2).fit(X)
    for size, built, D, G, order in zip(np.shape(X), q.trees_, q.distances_, q.affinities_, q.orders_, strict=True):
        assert built.n_leaves == size
        assert D.shape == G.shape == (size, size)
        assert np.isfinite(D).all()
        assert np.isfinite(G).all()
        assert sorted(order) == list(range(size))
        assert np.isfinite(diffusion_map(G)).all()
    assert all(np.isfinite(round_.compression) for round_ in q.history_)
    return q


@every_builder
@pytest.mark.parametrize("length", [1, 2, 12])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_short_axes(tree, length, axis):
    shape = [7, 6, 5]
    shape[axis] = length
    organized(RNG.random(shape), tree)


@every_builder
@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1), (1, 9), (9, 1), (2, 2, 2), (1, 1, 8), (2, 1, 3, 1)])
def test_tiny_arrays(tree, shape):
    organized(RNG.random(shape), tree)


@every_builder
def test_identical_heads(tree):
    X = np.repeat(RNG.random((9, 8, 1)), 20, axis=2)
    q = organized(X, tree)
    assert not q.distances_[2].any()
    assert (q.affinities_[2] == 1).all()
    assert q.trees_[2].n_levels <= (6 if tree == "binary" else 2)  # not one level per head


@every_builder
def test_groups_of_identical_heads_share_a_folder(tree):
    kinds = np.repeat([0, 1, 2], [30, 3, 3])
    q = organized(RNG.random((9, 8, 3))[:, :, kinds], tree)
    if tree != "binary":
        assert any(len(set(zip(kinds, level, strict=True))) == len(set(level)) == 3 for level in q.trees_[2].labels)
    assert q.trees_[2].n_levels <= 7


@every_builder
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e30])
def test_constant_tensor(tree, value):
    q = organized(np.full((6, 7, 8), value), tree)
    assert not any(D.any() for D in q.distances_)
    if tree != "binary":
        assert [built.n_levels for built in q.trees_] == [2, 2, 2]
    assert q.history_[-1].compression == pytest.approx(1)


@every_builder
def test_zero_rows(tree):
    X = RNG.random((8, 7, 6))
    X[2] = X[5] = 0
    X[:, 3] = 0
    X[:, :, 1] = 0
    q = organized(X, tree)
    assert q.distances_[0][2, 5] == 0


@every_builder
def test_causal_attention(tree):
    scores = np.where(np.tri(20, dtype=bool)[:, :, None], RNG.normal(size=(20, 20, 6)), -np.inf)
    power = np.exp(scores)
    organized(AttentionTensor(power / power.sum(axis=1, keepdims=True), mask="causal"), tree)


@every_builder
def test_two_disconnected_blocks(tree):
    X = np.zeros((12, 10, 8))
    X[:6, :5, :4] = 1 + RNG.random((6, 5, 4))
    X[6:, 5:, 4:] = 1 + RNG.random((6, 5, 4))
    q = organized(X, tree)
    for built, half in zip(q.trees_, (6, 5, 4), strict=True):
        first = built.level(1)
        assert len(set(first[:half])) == len(set(first[half:])) == 1
        assert first[0] != first[-1]


@every_builder
def test_one_head(tree):
    X = RNG.random((10, 9, 1))
    q = organized(X, tree)
    assert q.trees_[2].n_levels == 1
    # the same as the matrix, but for the turn that the single head takes
    flat = Questionnaire(tree=tree, n_iter=2).fit(X[:, :, 0])
    assert q.trees_[:2] == flat.trees_


@every_builder
def test_one_far_outlier(tree):
    X = RNG.random((10, 9, 8))
    X[:, :, 3] += 1e6
    q = organized(X, tree)
    assert np.argmax(q.distances_[2].sum(axis=0)) == 3
    if tree in ("ward", "average"):
        first = q.trees_[2].level(1)
        assert (first == first[3]).sum() == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_is_refused_with_its_place(value):
    X = RNG.random((4, 5, 6))
    X[1, 2, 3] = value
    with pytest.raises(InputError, match=f"{value} at axis0 1, axis1 2, axis2 3"):
        Questionnaire().fit(X)
    with pytest.raises(InputError, match="at query 1, key 2, head 3"):
        Questionnaire().fit(AttentionTensor(X))


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int32, np.uint8, bool])
def test_other_dtypes_and_layouts(dtype):
    X = (RNG.random((12, 10, 8)) * 2).astype(dtype)
    truth = Questionnaire().fit(X.astype(np.float32))
    for same in (X, np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X.tolist()):
        q = Questionnaire().fit(same)
        if dtype != np.float64:  # rounded to float32, near ties may go the other way
            assert q.trees_ == truth.trees_
        for D, expected in zip(q.distances_, truth.distances_, strict=True):
            np.testing.assert_allclose(D, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (np.ones(5), r"order 2 or more is needed, this one has shape \(5,\)"),
        (np.float64(3), r"order 2 or more is needed, this one has shape \(\)"),
        (np.ones((3, 0)), r"axis 'axis1' of the array of shape \(3, 0\) is empty"),
        (np.array([["a", "b"], ["c", "d"]]), "real numbers is needed, this one has dtype <U1"),
    ],
)
def test_what_is_not_an_array_of_numbers(bad, why):
    with pytest.raises(InputError, match=why):
        Questionnaire().fit(bad)
