"""The paraproduct against sums written out pair by pair, closed forms, the paper's dyadic operator, and masks."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.tree import PartitionTree
from headscape.wavelets.paraproduct import Averages, Smooth, paraproduct
from reference import FEW, QUICK, random_tree, trees

EXP = (np.exp, np.exp, np.exp)
SINE = (np.sin, np.cos, lambda x: -np.sin(x))


# ---------------------------------------------------------------------- slow twins


def slow_mean(g, row_labels, col_labels, present):
    """Joint mean of present entries over every pair of folders, one entry at a time."""
    out = np.full(g.shape, np.nan)
    for x, y in np.argwhere(present):
        pair = present & (row_labels == row_labels[x])[:, None] & (col_labels == col_labels[y])[None, :]
        out[x, y] = np.mean(g[pair])
    return out


def slow_paraproduct(g, rows, columns, function, present):
    """Eq. 12 with boundary terms, every average taken anew from the matrix; also the exact sum of mixed differences."""
    A, dA, ddA = function
    u = {
        (j, k): slow_mean(g, rows.level(j), columns.level(k), present)
        for j in range(rows.n_levels)
        for k in range(columns.n_levels)
    }
    N, K = rows.n_levels - 1, columns.n_levels - 1
    boundary = A(u[0, 0])
    for j in range(N):
        boundary = boundary + A(u[j + 1, 0]) - A(u[j, 0])
    for k in range(K):
        boundary = boundary + A(u[0, k + 1]) - A(u[0, k])
    approximation, exact, taylor = boundary.copy(), boundary.copy(), boundary.copy()
    for j in range(N):
        for k in range(K):
            here = u[j, k]
            mixed = u[j + 1, k + 1] - u[j, k + 1] - u[j + 1, k] + here
            approximation += dA(here) * mixed + ddA(here) * (u[j + 1, k] - here) * (u[j, k + 1] - here)
            exact += A(u[j + 1, k + 1]) - A(u[j, k + 1]) - A(u[j + 1, k]) + A(here)
            finer, signs = (u[j + 1, k + 1], u[j, k + 1], u[j + 1, k]), (1, -1, -1)
            taylor += sum(
                s * (dA(here) * (v - here) + ddA(here) / 2 * (v - here) ** 2) for v, s in zip(finer, signs, strict=True)
            )
    return approximation, exact, boundary, taylor


def paper_operator(f, N):
    """Eq. 11 and 12 as printed, for a 2^N x 2^N matrix on dyadic intervals: no boundary terms."""
    n = 2**N

    def P(j, k):  # noqa: N802 - the paper's name
        blocks = f.reshape(2**j, n >> j, 2**k, n >> k).mean(axis=(1, 3))
        return np.repeat(np.repeat(blocks, n >> j, axis=0), n >> k, axis=1)

    total = np.zeros_like(f)
    for j in range(N):
        for k in range(N):
            total += np.exp(P(j, k)) * (P(j + 1, k + 1) - P(j, k + 1) - P(j + 1, k) + P(j, k))
            total += np.exp(P(j, k)) * (P(j + 1, k) - P(j, k)) * (P(j, k + 1) - P(j, k))
    return total


@st.composite
def masked_cases(draw, max_leaves=9):
    """A matrix, two trees and a mask with at least one present entry."""
    rows, columns = draw(trees(max_leaves=max_leaves)), draw(trees(max_leaves=max_leaves))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    g = rng.normal(size=(rows.n_leaves, columns.n_leaves))
    present = rng.random(g.shape) < draw(st.sampled_from([0.2, 0.6, 1.1]))
    present[rng.integers(len(present)), rng.integers(present.shape[1])] = True
    return g, rows, columns, present


# ---------------------------------------------------------------------- formulas


@given(masked_cases())
@QUICK
def test_it_is_the_sum_written_out(case):
    g, rows, columns, present = case
    for function in (EXP, SINE):
        approximation, exact, boundary, taylor = slow_paraproduct(g, rows, columns, function, present)
        p = paraproduct(g, rows, columns, function, mask=present)
        np.testing.assert_allclose(p.approximation, approximation, atol=1e-12)
        np.testing.assert_allclose(p.exact, exact, atol=1e-12)
        np.testing.assert_allclose(p.boundary, boundary, atol=1e-12)
        np.testing.assert_allclose(p.second_order, taylor, atol=1e-12)
        np.testing.assert_allclose(p.residual, np.where(present, function[0](g), np.nan) - approximation, atol=1e-12)


@given(masked_cases(max_leaves=20))
@QUICK
def test_the_exact_mixed_sum_telescopes_to_the_function(case):
    g, rows, columns, present = case
    p = paraproduct(g, rows, columns, mask=present)
    np.testing.assert_allclose(p.exact[present], np.exp(g[present]), rtol=1e-12)
    assert np.isnan(p.exact[~present]).all() and np.isnan(p.approximation[~present]).all()


@given(masked_cases(max_leaves=20))
@QUICK
def test_the_identity_leaves_no_residual(case):
    g, rows, columns, present = case
    p = paraproduct(g, rows, columns, "identity", mask=present)
    assert np.abs(p.residual[present]).max() < 1e-12
    assert p.terms.second.max(initial=0) == 0
    np.testing.assert_allclose(p.terms.residual, 0, atol=1e-12)


def test_without_boundary_terms_the_identity_is_far_off():
    """Why they are restored: eq. 12 as printed misses row and column means, .38 to .62 of a typical matrix."""
    rng = np.random.default_rng(0)
    rows, columns = random_tree(rng, 32), random_tree(rng, 32)
    g = rng.normal(size=(32, 32)) + rng.normal(size=(32, 1)) + rng.normal(size=32)
    p = paraproduct(g, rows, columns, "identity")
    missing = np.linalg.norm(p.boundary) / np.linalg.norm(g)
    assert missing > 0.3
    np.testing.assert_allclose(p.approximation, g, atol=1e-12)


@pytest.mark.parametrize("N", [1, 2, 4])
def test_dyadic_trees_give_the_papers_operator(N):
    f = np.random.default_rng(N).normal(size=(2**N, 2**N))
    tree = PartitionTree.dyadic(2**N)
    p = paraproduct(f, tree, tree)
    np.testing.assert_allclose(p.approximation - p.boundary, paper_operator(f, N), atol=1e-12)


def test_no_power_of_two_is_needed():
    rng = np.random.default_rng(1)
    g = rng.normal(size=(197, 130))
    p = paraproduct(g, PartitionTree.dyadic(197), PartitionTree.dyadic(130))
    np.testing.assert_allclose(p.exact, np.exp(g), rtol=1e-11)


@given(trees(max_leaves=12), trees(max_leaves=12), st.integers(0, 2**32 - 1))
@FEW
def test_product_functions_have_only_the_second_term(rows, columns, seed):
    """exp of u(x) + v(y) is e^u e^v: mixed differences of g vanish, and A'' [D_x u][D_y v] is all there is."""
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=rows.n_leaves), rng.normal(size=columns.n_leaves)
    p = paraproduct(u[:, None] + v, rows, columns)
    assert p.terms.first.max(initial=0) < 1e-12
    expected = np.exp(u[:, None] + v.mean()) + np.exp(u.mean() + v) - np.exp(u.mean() + v.mean())

    def telescope(w, tree):  # sum over levels of e^(mean on folder) times the step to the next level
        level = [np.array([w[tree.level(l) == a].mean() for a in tree.level(l)]) for l in range(tree.n_levels)]
        return sum((np.exp(a) * (b - a) for a, b in itertools.pairwise(level)), np.zeros(len(w)))

    expected += telescope(u, rows)[:, None] * telescope(v, columns)
    np.testing.assert_allclose(p.approximation, expected, atol=1e-11)


def test_a_step_function_on_the_trees_has_terms_at_its_scale_only():
    tree = PartitionTree.dyadic(8)
    halves, quarters = tree.level(1), tree.level(2)
    g = 0.7 * np.where(halves == 0, 1, -1)[:, None] * np.where(quarters % 2 == 0, 1, -1)
    p = paraproduct(g, tree, tree)
    assert np.argwhere(p.terms.first > 1e-12).tolist() == [[0, 1]]
    assert p.terms.second.max() < 1e-12
    # means vanish at the base point: A(0) + A'(0) g, and the residual is e^g - 1 - g
    np.testing.assert_allclose(p.approximation, 1 + g, atol=1e-12)
    np.testing.assert_allclose(p.residual, np.exp(g) - 1 - g, atol=1e-12)
    np.testing.assert_allclose(p.terms.first[0, 1], np.linalg.norm(g), rtol=1e-12)


def test_a_quadratic_leaves_a_known_residual():
    """For A = x^2 each mixed difference minus its two terms is m^2 + 2 m (a + b), with a, b, m the differences."""
    tree = PartitionTree.dyadic(2)
    g = np.array([[1.0, 2.0], [4.0, 9.0]])
    square = Smooth(np.square, lambda x: 2 * x, lambda x: np.full_like(x, 2.0))
    p = paraproduct(g, tree, tree, square)
    u, rows, columns = g.mean(), g.mean(axis=1, keepdims=True), g.mean(axis=0)
    a, b, m = rows - u, columns - u, g - rows - columns + u
    np.testing.assert_allclose(p.residual, m**2 + 2 * m * (a + b), atol=1e-12)
    polynomial = paraproduct(g, tree, tree, np.polynomial.Polynomial([0, 0, 1]))
    np.testing.assert_allclose(polynomial.residual, p.residual, atol=1e-12)


# ---------------------------------------------------------------------- terms by scale


@given(masked_cases())
@FEW
def test_terms_add_up_and_their_norms_are_those_of_their_matrices(case):
    g, rows, columns, present = case
    p = paraproduct(g, rows, columns, mask=present)
    total = p.boundary.copy()
    for j, k in np.ndindex(p.terms.first.shape):
        at = p.terms.at(j, k)
        total += at["first"] + at["second"]
        for name in ("first", "second", "exact"):
            np.testing.assert_allclose(
                getattr(p.terms, name)[j, k], np.linalg.norm(at[name][present]), rtol=1e-9, atol=1e-12
            )
        left = at["exact"] - at["first"] - at["second"]
        np.testing.assert_allclose(p.terms.residual[j, k], np.linalg.norm(left[present]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(total, p.approximation, atol=1e-12)


@given(masked_cases(), st.data())
@FEW
def test_fewer_scales_stop_at_their_level(case, data):
    g, rows, columns, present = case
    scales = data.draw(st.integers(0, rows.n_levels - 1)), data.draw(st.integers(0, columns.n_levels - 1))
    p = paraproduct(g, rows, columns, mask=present, scales=scales)
    coarse = slow_mean(g, rows.level(scales[0]), columns.level(scales[1]), present)
    np.testing.assert_allclose(p.exact, np.exp(coarse), rtol=1e-12)
    assert p.terms.first.shape == scales
    np.testing.assert_allclose(p.approximation + p.residual, np.where(present, np.exp(g), np.nan), rtol=1e-12)


def test_base_points_are_the_averages_below_the_finest():
    rng = np.random.default_rng(2)
    rows, columns = random_tree(rng, 7), random_tree(rng, 9)
    present = rng.random((7, 9)) < 0.5
    means = Averages(rng.normal(size=(7, 9)), rows, columns, present)
    values, counts = means.base_points()
    expected = [means.at(j, k)[present] for j in range(rows.n_levels - 1) for k in range(columns.n_levels - 1)]
    assert counts.sum() == present.sum() * (rows.n_levels - 1) * (columns.n_levels - 1)
    np.testing.assert_allclose((values * counts).sum(), np.sum(expected), atol=1e-10)
    np.testing.assert_allclose((values**2 * counts).sum(), np.sum(np.square(expected)), rtol=1e-10)


# ---------------------------------------------------------------------- invariants


@given(masked_cases(), st.integers(0, 2**32 - 1))
@FEW
def test_absent_entries_change_nothing(case, seed):
    g, rows, columns, present = case
    rng = np.random.default_rng(seed)
    junk = np.where(present, g, rng.choice([np.nan, np.inf, 1e300, -7.0], g.shape))
    for function in ("exp", "corollary"):
        a, b = (paraproduct(x, rows, columns, function, present) for x in (g, junk))
        assert a.approximation.tobytes() == b.approximation.tobytes()
        assert a.residual.tobytes() == b.residual.tobytes() and a.terms.first.tobytes() == b.terms.first.tobytes()


@given(masked_cases())
@FEW
def test_an_all_present_mask_is_no_mask(case):
    g, rows, columns, present = case
    a, b = paraproduct(g, rows, columns), paraproduct(g, rows, columns, mask=np.ones_like(present))
    assert a.approximation.tobytes() == b.approximation.tobytes()


@given(masked_cases(), st.integers(0, 2**32 - 1))
@FEW
def test_permuting_rows_permutes_the_result(case, seed):
    g, rows, columns, present = case
    perm = np.random.default_rng(seed).permutation(len(g))
    moved = paraproduct(g[perm], rows.permute(perm), columns, mask=present[perm])
    np.testing.assert_allclose(
        moved.approximation, paraproduct(g, rows, columns, mask=present).approximation[perm], atol=1e-12
    )


@given(masked_cases())
@FEW
def test_the_corollary_is_slope_one_on_the_centred_matrix_times_the_mean(case):
    g, rows, columns, present = case
    c = g[present].mean()
    ones = (np.exp, np.ones_like, np.ones_like)
    centred = paraproduct(np.where(present, g - c, 0), rows, columns, ones, present)
    found = paraproduct(g, rows, columns, "corollary", present)
    np.testing.assert_allclose(found.approximation, np.exp(c) * centred.approximation, atol=1e-11)


@given(masked_cases(), st.floats(-30, 5))
@FEW
def test_a_constant_shift_multiplies_by_its_exponential(case, shift):
    g, rows, columns, present = case
    for function in ("exp", "corollary"):
        a, b = (paraproduct(x, rows, columns, function, present) for x in (g, g + shift))
        np.testing.assert_allclose(b.approximation, np.exp(shift) * a.approximation, rtol=1e-7, atol=1e-9)


def test_one_row_one_column_and_one_entry():
    g = np.array([[0.5, -1.0, 2.0]])
    one, three = PartitionTree.dyadic(1), PartitionTree.dyadic(3)
    for M, rows, columns in ((g, one, three), (g.T, three, one), (g[:, :1], one, one)):
        p = paraproduct(M, rows, columns)
        np.testing.assert_allclose(p.approximation, np.exp(M), rtol=1e-14)
        assert p.terms.first.size == 0


def test_refusals_say_what_is_wrong():
    tree = PartitionTree.dyadic(4)
    g = np.zeros((4, 4))
    with pytest.raises(InputError, match=r"column tree covers 3 leaves, the matrix of shape \(4, 4\) 4"):
        paraproduct(g, tree, PartitionTree.dyadic(3))
    with pytest.raises(InputError, match="row tree must be a PartitionTree, not int"):
        paraproduct(g, 3, tree)
    with pytest.raises(InputError, match="real matrix is needed"):
        paraproduct(np.zeros(4), tree, tree)
    with pytest.raises(InputError, match="mask has shape"):
        paraproduct(g, tree, tree, mask=np.ones((4, 3), bool))
    with pytest.raises(InputError, match="dtype int64; it must be boolean"):
        paraproduct(g, tree, tree, mask=np.ones((4, 4), int))
    with pytest.raises(InputError, match="no entry"):
        paraproduct(g, tree, tree, mask=np.zeros((4, 4), bool))
    with pytest.raises(InputError, match="unknown function 'tanh'; there are corollary, exp, identity"):
        paraproduct(g, tree, tree, "tanh")
    with pytest.raises(InputError, match="three callables"):
        paraproduct(g, tree, tree, np.exp)
    with pytest.raises(InputError, match="scales on the row axis must be a whole number from 0 to 2, not 5"):
        paraproduct(g, tree, tree, scales=(5, 1))
    with pytest.raises(InputError, match=r"no scale \(2, 0\)"):
        paraproduct(g, tree, tree).terms.at(2, 0)
    with pytest.raises(InputError, match="levels"):
        Averages(g, tree, tree).at(3, 0)
    g[1, 2] = np.nan
    with pytest.raises(InputError, match="nan at row 1, column 2"):
        paraproduct(g, tree, tree)
    g[1, 2] = 1000
    with pytest.raises(InputError, match="not finite at row 1, column 2; subtract the logsumexp"):
        paraproduct(g, tree, tree)
