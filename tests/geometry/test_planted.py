"""Planted tensors: what is said to be in them is."""

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.geometry.planted import planted
from headscape.tensor import AXES
from headscape.tree import PartitionTree
from headscape.wavelets.haar import haar_transform

KINDS = ["blocks", "softmax", "smooth", "low_rank"]


@pytest.mark.parametrize("kind", KINDS)
def test_seeded_float32_and_shuffled(kind):
    one, same, other = (planted(kind, (32, 64, 16), 0.5, seed) for seed in (4, 4, 5))
    assert one.values.dtype == np.float32
    assert one.values.shape == (32, 64, 16)
    assert np.array_equal(one.values, same.values)
    assert not np.array_equal(one.values, other.values)
    assert set(one.labels) == ({"head"} if kind == "low_rank" else set(AXES))
    for depths in one.labels.values():
        assert not np.array_equal(depths["fine"], np.sort(depths["fine"]))  # the clusters do not lie in order


@pytest.mark.parametrize(("axis", "size", "fine"), [("query", 64, 16), ("key", 64, 16), ("head", 32, 8)])
def test_clusters_are_balanced_and_nested(axis, size, fine):
    labels = planted("blocks", (64, 64, 32)).labels[axis]
    assert set(np.bincount(labels["coarse"])) == {size // 4}
    assert set(np.bincount(labels["fine"])) == {size // fine}
    assert np.array_equal(labels["coarse"], labels["fine"] // (fine // 4))


def test_blocks_without_noise_are_constant_on_fine_blocks_and_standardized():
    P = planted("blocks", (32, 48, 16), noise=0.0, random_state=1)
    q, k, h = (P.labels[axis]["fine"] for axis in AXES)
    block = (q[:, None, None] * 16 + k[None, :, None]) * 8 + h[None, None, :]
    for name in np.unique(block)[:200]:
        assert np.ptp(P.values[block == name]) == 0
    assert P.values.mean() == pytest.approx(0, abs=1e-6)
    assert P.values.std() == pytest.approx(1, abs=1e-6)


def test_noise_is_added_to_the_signal():
    P = planted("blocks", (64, 64, 32), noise=2.0, random_state=2)
    assert P.values.std() == pytest.approx(np.sqrt(5), rel=0.02)


@pytest.mark.parametrize("kind", ["softmax", "low_rank"])
def test_softmax_runs_over_keys(kind):
    P = planted(kind, (20, 30, 9), noise=1.0)
    assert (P.values > 0).all()
    np.testing.assert_allclose(P.values.sum(axis=1), 1, rtol=1e-5)


def test_heads_of_a_low_rank_cluster_are_alike_and_pairs_share_a_part():
    P = planted("low_rank", (40, 40, 16), noise=0.0, random_state=3)
    scores = np.log(P.values)
    scores = scores - scores.mean(axis=1, keepdims=True)  # softmax forgets shifts of a row
    flat = np.moveaxis(scores, 2, 0).reshape(16, -1)
    C = np.corrcoef(flat)
    fine, coarse = P.labels["head"]["fine"], P.labels["head"]["coarse"]
    same, pair = fine[:, None] == fine, coarse[:, None] == coarse
    np.testing.assert_allclose(C[same], 1, atol=1e-4)
    assert C[pair & ~same].min() > 0.2  # half of the scores is common
    assert np.abs(C[~pair]).max() < 0.2
    centred = scores[:, :, 0] - scores[:, :, 0].mean(axis=0)
    assert np.linalg.matrix_rank(centred, tol=1e-3) <= 8


def test_smooth_has_haar_coefficients_that_fall_with_the_volume():
    P = planted("smooth", (64, 64, 32), noise=0.0, random_state=6)
    # a dyadic tree on the planted order: the fine labels give its upper levels
    labels = [[P.labels[axis]["fine"] * 2 // 16 ** (axis != "head") // 8 ** (axis == "head")] for axis in AXES]
    trees = [
        PartitionTree.from_labels([top[0], P.labels[axis]["coarse"], P.labels[axis]["fine"]])
        for axis, top in zip(AXES, labels, strict=True)
    ]
    energy = haar_transform(P.values, trees) ** 2
    # functions 0 and 1 live on everything, 2 and 3 on half: volume^2.2 is .22 of it an axis
    along = [energy.sum(axis=tuple({0, 1, 2} - {axis})) for axis in range(3)]
    ratio = np.mean([row[2:4].mean() / row[:2].mean() for row in along])
    assert 0.05 < ratio < 0.6
    assert energy[:16, :16, :8].sum() > 0.85 * energy.sum()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "stripes"}, "kind is one of blocks, softmax, smooth, low_rank, not 'stripes'"),
        ({"shape": (8, 64, 32)}, "at least \\(16, 16, 8\\), not \\(8, 64, 32\\)"),
        ({"kind": "smooth", "shape": (48, 64, 32)}, "powers of two"),
        ({"noise": -1.0}, "noise must not be negative"),
        ({"noise": np.inf}, "noise must be a finite number, not inf"),
        ({"random_state": -1}, "random_state must be at least 0, not -1"),
    ],
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(InputError, match=message):
        planted(**arguments)
