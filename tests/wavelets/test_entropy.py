"""Entropies against explicit formulas on dense bases, and what they must be on heads whose answer is known."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.tensor import AttentionTensor, HeadId
from headscape.tree import PartitionTree
from headscape.wavelets import entropy
from headscape.wavelets.entropy import decay_curve, head_entropies, network_entropy, reconstruct, top_energy
from headscape.wavelets.haar import haar_support, haar_transform, inverse_haar_transform, largest_supports
from reference import (
    FEW,
    QUICK,
    arrays_on_trees,
    dense_haar,
    dense_supports,
    dense_transform,
    random_tree,
    slow_entropies,
    sorted_supports,
    trees,
)


def agree(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-10, err_msg=name)


def check_heads(X, axes, n_basis):
    table = head_entropies(X, axes, n_basis)
    for h in range(X.shape[-1]):
        expected = slow_entropies(dense_transform(X[..., h], axes), axes, n_basis)
        agree(table.iloc[h].to_dict(), expected)
    assert table.attrs["n_ties"] == table["n_ties"].iloc[0]


@given(st.lists(trees(max_leaves=9), min_size=1, max_size=3), st.integers(1, 400))
@QUICK
def test_largest_supports_are_those_of_the_full_sort(axes, k):
    listed, support = sorted_supports(axes), dense_supports(axes)
    found = largest_supports([haar_support(tree).support for tree in axes], k)
    k = min(k, len(listed))
    assert [tuple(i) for i in found.indices] == listed[:k]
    assert found.support.tolist() == [support[i] for i in listed[:k]]
    cut_a_tie = k < len(listed) and support[listed[k]] == support[listed[k - 1]]
    assert found.n_ties == (np.count_nonzero(support == support[listed[k - 1]]) if cut_a_tie else 0)


@given(arrays_on_trees(min_order=3, max_order=4, max_leaves=6), st.integers(1, 60))
@FEW
def test_heads_follow_the_formulas(case, n_basis):
    X, axes = case
    check_heads(X, axes[:-1], n_basis)


@given(arrays_on_trees(max_order=4, max_leaves=6), st.integers(1, 60))
@FEW
def test_network_follows_the_formulas(case, n_basis):
    X, axes = case
    agree(network_entropy(X, axes, n_basis).to_dict(), slow_entropies(dense_transform(X, axes), axes, n_basis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("max_buffer", [entropy.MAX_BUFFER, 0])
@pytest.mark.parametrize("shape", [(5, 6, 8), (6, 4, 32), (3, 7, 33), (12, 1, 70), (2, 3, 4, 9)])
def test_every_arrangement_of_lanes(shape, max_buffer, dtype, monkeypatch):
    monkeypatch.setattr(entropy, "MAX_BUFFER", max_buffer)
    rng = np.random.default_rng(shape[-1])
    axes = [random_tree(rng, n) for n in shape]
    X = rng.normal(size=shape).astype(dtype)
    check_heads(X, axes[:-1], 10)
    agree(network_entropy(X, axes, 20).to_dict(), slow_entropies(dense_transform(X, axes), axes, 20))


def test_ties_are_counted():
    axes = [PartitionTree.dyadic(4)] * 2  # supports 4, 4, 2, 2 on each axis: 4 of 16, 8 of 8, 4 of 4
    X = np.random.default_rng(0).normal(size=(4, 4, 2))
    for n_basis, ties in ((4, 0), (5, 8), (11, 8), (12, 0), (13, 4), (16, 0), (400, 0)):
        table = head_entropies(X, axes, n_basis)
        assert (table["n_ties"] == ties).all()
        assert table.attrs["n_ties"] == ties
        assert table.attrs["n_basis"] == min(n_basis, 16)
    assert head_entropies(X, axes, 5).attrs["support_at_cut"] == 8


def test_a_single_basis_function_is_as_sparse_as_can_be():
    rng = np.random.default_rng(5)
    axes = [random_tree(rng, n) for n in (12, 9)]
    i, j = 7, 5
    head = 3.0 * np.outer(dense_haar(axes[0])[i], dense_haar(axes[1])[j])
    row = head_entropies(np.stack([head, head + 1], axis=-1), axes, 108).iloc[0]
    scale = haar_support(axes[0]).scale[i] + haar_support(axes[1]).scale[j]
    np.testing.assert_allclose(row[["l1_top", "l1_all", "l1_rel", f"l1_scale_{scale}"]].astype(float), [3, 3, 1, 3])
    np.testing.assert_allclose(row[["dc", "shannon"]].astype(float), 0, atol=1e-10)


@given(arrays_on_trees(min_order=3, max_order=3), st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
@FEW
def test_units_and_order_of_rows_do_not_matter(case, unit, seed):
    X, axes = case
    perms = [np.random.default_rng(seed).permutation(n) for n in X.shape]
    table, moved = (
        head_entropies(X, axes, 7),
        head_entropies(unit * X[np.ix_(*perms)], [tree.permute(p) for tree, p in zip(axes, perms, strict=True)], 7),
    )
    moved = moved.iloc[np.argsort(perms[-1])]
    np.testing.assert_allclose(moved[["l1_rel", "shannon"]], table[["l1_rel", "shannon"]], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved[["l1_top", "l1_all", "dc"]], unit * table[["l1_top", "l1_all", "dc"]], rtol=1e-9)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 3), (12, 12, 1), (12, 2, 40), (7, 5, 11)])
@pytest.mark.parametrize("value", [0.0, 0.3, -2.0])
def test_constant_and_zero_tensors(shape, value):
    rng = np.random.default_rng(0)
    axes = [random_tree(rng, n) for n in shape]
    X = np.full(shape, value)
    for found in (head_entropies(X, axes).iloc[0], network_entropy(X, axes)):
        size = X[..., 0].size if found.name != "network" else X.size
        np.testing.assert_allclose(
            found[["dc", "l1_all", "l1_top"]].astype(float), np.sqrt(size) * np.array([value, *[abs(value)] * 2])
        )
        assert found["l1_rel"] == 0  # 0/0, not the ratio of two rounding errors
        np.testing.assert_allclose(found["shannon"], 0, atol=1e-12)
    assert top_energy(X, axes) == pytest.approx(float(value != 0))
    assert top_energy(X, axes, constant=False) == 0
    np.testing.assert_allclose(reconstruct(X, axes, 1), X, atol=1e-12)


def test_rows_carry_the_names_of_heads():
    heads = [HeadId("encoder", 0, 0), HeadId("encoder", 0, 1), HeadId("decoder", 2, 0)]
    X = AttentionTensor(np.random.default_rng(0).random((4, 6, 3)), heads=heads)
    axes = [PartitionTree.dyadic(n) for n in X.shape]
    table = head_entropies(X, axes)
    assert table.index.names == ["block", "layer", "head"]
    assert [HeadId(*row) for row in table.index] == heads
    plain = head_entropies(np.asarray(X), axes[:2])
    assert plain.index.name == "head"
    np.testing.assert_array_equal(plain.to_numpy(), table.to_numpy())
    assert isinstance(network_entropy(X, axes), pd.Series)


def test_a_matrix_is_one_head_and_its_own_network():
    rng = np.random.default_rng(1)
    M = rng.normal(size=(11, 12))
    axes = [random_tree(rng, n) for n in M.shape]
    table = head_entropies(M, axes, 30)
    assert len(table) == 1
    np.testing.assert_allclose(table.iloc[0].to_numpy(), network_entropy(M, axes, 30).to_numpy(), rtol=1e-12)
    np.testing.assert_allclose(table, head_entropies(M[..., None], axes, 30), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.int16, bool])
def test_other_dtypes_and_layouts(dtype):
    rng = np.random.default_rng(2)
    X = (rng.random((6, 10, 9)) * 3).astype(dtype)
    axes = [random_tree(rng, n) for n in X.shape]
    expected = head_entropies(X.astype(np.float64), axes)
    for layout in (X, np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2]):
        np.testing.assert_allclose(head_entropies(layout, axes), expected, rtol=1e-12)


def test_threads_change_no_byte(monkeypatch):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(20, 21, 130)).astype(np.float32)
    axes = [random_tree(rng, n) for n in X.shape]
    found = set()
    for threads in (1, 2, 5):
        monkeypatch.setattr(entropy, "n_threads", lambda threads=threads: threads)
        found.add((head_entropies(X, axes).to_numpy().tobytes(), network_entropy(X, axes).to_numpy().tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e299])
def test_the_scale_of_the_entries_changes_no_ratio(scale):
    """Squares of such entries leave the range of float64."""
    rng = np.random.default_rng(5)
    X = rng.random((9, 8, 4))
    axes = [random_tree(rng, n) for n in X.shape]
    free, sized = ["l1_rel", "shannon"], ["l1_top", "l1_all", "dc"]
    for measure in (head_entropies, network_entropy):
        plain, found = measure(X, axes), measure(X * scale, axes)
        np.testing.assert_allclose(found[free], plain[free], rtol=1e-10)
        np.testing.assert_allclose(found[sized], plain[sized] * scale, rtol=1e-10)
    assert top_energy(X * scale, axes, 0.1) == pytest.approx(top_energy(X, axes, 0.1), rel=1e-10)
    mixed = head_entropies(X * np.array([1.0, scale, 1.0, 1.0]), axes)  # a head has its own scale
    np.testing.assert_allclose(mixed[free], head_entropies(X, axes)[free], rtol=1e-10)


@given(arrays_on_trees(min_order=3, max_order=3), st.integers(1, 500))
@FEW
def test_decay_curves_are_sorted_coefficients(case, n):
    X, axes = case
    C = np.abs(dense_transform(X, axes))
    heads = np.abs(dense_transform(X, [*axes[:-1], None]))
    np.testing.assert_allclose(decay_curve(X, axes, n=n), np.sort(C, axis=None)[::-1][:n], atol=1e-12)
    np.testing.assert_allclose(
        decay_curve(X, axes, per="head", n=n), np.sort(heads.reshape(-1, X.shape[2]), axis=0)[::-1][:n], atol=1e-12
    )
    np.testing.assert_allclose(
        decay_curve(X, axes, by="support", n=n), [C[i] for i in sorted_supports(axes)[:n]], atol=1e-12
    )
    np.testing.assert_allclose(
        decay_curve(X, axes[:-1], by="support", per="head", n=None),
        [heads[i] for i in sorted_supports(axes[:-1])],
        atol=1e-12,
    )


@given(arrays_on_trees(max_order=3), st.integers(0, 30))
@FEW
def test_reconstruction_leaves_out_the_smallest(case, k):
    X, axes = case
    dropped = np.sort(dense_transform(X, axes) ** 2, axis=None)[::-1][k:]
    error = ((reconstruct(X, axes, k) - X) ** 2).sum()
    np.testing.assert_allclose(error, dropped.sum(), rtol=1e-9, atol=1e-12)


def test_reconstruction_keeps_ties_in_index_order():
    tree = PartitionTree.dyadic(4)
    X = inverse_haar_transform([0.0, 1.0, -1.0, 1.0], tree)
    exact = np.round(haar_transform(X, tree), 12)
    assert np.count_nonzero(exact) == 3
    for k in range(5):
        assert np.count_nonzero(np.round(haar_transform(reconstruct(X, tree, k), tree), 9)) == min(k, 3)


@pytest.mark.parametrize("constant", [True, False])
def test_top_energy_is_a_share(constant):
    rng = np.random.default_rng(4)
    X = rng.random((9, 8, 7))
    axes = [random_tree(rng, n) for n in X.shape]
    energy = dense_transform(X, axes).ravel()[0 if constant else 1 :] ** 2
    for fraction in (0.001, 0.01, 0.5, 1.0):
        k = int(np.ceil(fraction * len(energy)))
        expected = np.sort(energy)[::-1][:k].sum() / energy.sum()
        assert top_energy(X, axes, fraction, constant) == pytest.approx(expected, rel=1e-10)


def test_the_logarithm_of_the_kernel():
    x = np.concatenate([np.exp(np.random.default_rng(0).uniform(-690, 700, 2000)), 1 + np.linspace(-1e-3, 1e-3, 2001)])
    found = np.array([entropy._log(v) for v in x])
    np.testing.assert_allclose(found, np.log(x), rtol=5e-16, atol=1e-300)


def test_refusals_say_what_is_wrong():
    dyadic = PartitionTree.dyadic
    X = np.ones((4, 16, 2))
    axes = (dyadic(4), dyadic(16), dyadic(2))
    with pytest.raises(InputError, match="tree on axis 'key' covers 12 leaves, the tensor has 16"):
        head_entropies(AttentionTensor(X), (dyadic(4), dyadic(12)))
    with pytest.raises(InputError, match="tree on axis 'axis2' covers 3 leaves, the tensor has 2"):
        head_entropies(X, (*axes[:2], dyadic(3)))
    with pytest.raises(InputError, match="2 trees given"):
        head_entropies(X, axes[:1])
    with pytest.raises(InputError, match="needs a tree, None"):
        network_entropy(X, (*axes[:2], None))
    with pytest.raises(InputError, match="use network_entropy"):
        head_entropies([1.0, 2.0], dyadic(2))
    with pytest.raises(InputError, match="number of basis functions must be at least 1, not 0"):
        head_entropies(X, axes, 0)
    with pytest.raises(InputError, match="by is one of magnitude, support, not 'size'"):
        decay_curve(X, axes, by="size")
    with pytest.raises(InputError, match="k must be at least 0, not -1"):
        reconstruct(X, axes, -1)
    with pytest.raises(InputError, match=r"fraction must lie in \(0, 1\], not 0"):
        top_energy(X, axes, 0)
    with pytest.raises(InputError, match="n must be a whole number, not 2.5"):
        decay_curve(X, axes, n=2.5)
    with pytest.raises(InputError, match=r"e\+308 at axis0 .* scale the array first"):
        head_entropies(np.sign(X) * np.finfo(np.float64).max, axes)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_head", [1, 2, 40])
def test_what_is_not_finite_is_named(bad, n_head):
    X = np.random.default_rng(0).random((4, 16, n_head))
    X[1, 2, 0] = bad
    axes = [PartitionTree.dyadic(n) for n in X.shape]
    for measure in (head_entropies, network_entropy):
        with pytest.raises(InputError, match=f"{bad} at query 1, key 2, head 0"):
            measure(AttentionTensor(X), axes)
        with pytest.raises(InputError, match=f"{bad} at axis0 1, axis1 2, axis2 0"):
            measure(X, axes)
    with pytest.raises(InputError, match=f"{bad} at axis0 1, axis1 2 "):
        head_entropies(X[..., 0], axes[:2])
