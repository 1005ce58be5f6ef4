"""Hölder exponents of matrices whose exponent is known, and the definition of eq. 2 checked by brute force.

Also tests wavelets.powerlaw.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster import hierarchy

from headscape.errors import InputError
from headscape.tree import PartitionTree
from headscape.wavelets.haar import haar_support, inverse_haar_transform
from headscape.wavelets.paraproduct import paraproduct
from headscape.wavelets.powerlaw import PowerLaw
from headscape.wavelets.regularity import holder_constants, holder_exponent, mixed_difference
from reference import FEW, dense_haar, folder_list, trees

DYADIC = PartitionTree.dyadic(256)


def ragged_tree(rng, n):
    """A tree with folders of all sizes, as linkage gives them."""
    return PartitionTree.from_linkage(hierarchy.linkage(rng.normal(size=(n, 4)), "ward"))


def synthetic(rng, rows, columns, alpha, beta=None):
    """Normal Haar coefficients of exactly the size the definition allows for exponents alpha (rows), beta (columns)."""
    sizes = []
    for tree, exponent in ((rows, alpha), (columns, alpha if beta is None else beta)):
        about = haar_support(tree)
        sizes.append(about.l1 * (tree.sizes[about.folder] / tree.n_leaves) ** exponent)
    return inverse_haar_transform(
        rng.normal(size=(rows.n_leaves, columns.n_leaves)) * np.outer(*sizes), (rows, columns)
    )


def brownian_sheet(rng, n, hurst):
    """A fractional Brownian sheet: mixed increments over s x t have standard deviation (s t)^hurst."""
    t = np.arange(1, n + 1) / n
    K = (t[:, None] ** (2 * hurst) + t ** (2 * hurst) - np.abs(t[:, None] - t) ** (2 * hurst)) / 2
    L = np.linalg.cholesky(K + 1e-12 * np.eye(n))
    return L @ rng.normal(size=(n, n)) @ L.T


# ---------------------------------------------------------------------- known exponents


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("kind", ["dyadic", "ragged", "causal"])
def test_the_exponent_is_recovered_with_and_without_noise(alpha, noise, kind):
    rng = np.random.default_rng([int(10 * alpha), int(100 * noise)])
    rows, columns = (ragged_tree(rng, 256), ragged_tree(rng, 200)) if kind == "ragged" else (DYADIC, DYADIC)
    M = synthetic(rng, rows, columns, alpha)
    M += noise * M.std() * rng.normal(size=M.shape)
    fit = holder_exponent(M, rows, columns, mask=np.tri(256, dtype=bool) if kind == "causal" else None)
    assert fit.exponent == pytest.approx(alpha, abs=0.1)
    if noise >= 0.05 and alpha >= 0.5:
        assert fit.noise == pytest.approx(noise * M.std(), rel=0.2)
    if not noise:
        assert fit.exponent == pytest.approx(alpha, abs=0.02)
        assert fit.noise == 0
        assert alpha - 0.15 < fit.holder < alpha - 0.03  # the largest of many normal numbers is larger


@pytest.mark.parametrize("hurst", [0.3, 0.5, 0.8])
def test_brownian_sheets_have_their_hurst_exponent(hurst):
    found = [
        holder_exponent(brownian_sheet(np.random.default_rng(s), 256, hurst), DYADIC, DYADIC, n_draws=0).exponent
        for s in range(3)
    ]
    assert np.mean(found) == pytest.approx(hurst, abs=0.1)


def test_exponents_along_rows_and_columns_apart():
    rng = np.random.default_rng(1)
    rows, columns = ragged_tree(rng, 256), ragged_tree(rng, 256)
    fit = holder_exponent(synthetic(rng, rows, columns, 0.2, 0.7), rows, columns)
    assert fit.row == pytest.approx(0.2, abs=0.05) and fit.col == pytest.approx(0.7, abs=0.05)
    assert fit.row_interval.low < 0.2 < fit.row_interval.high and fit.col_interval.low < 0.7 < fit.col_interval.high


def test_white_noise_has_minus_one_half_and_a_smooth_matrix_about_one():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        fit = holder_exponent(rng.normal(size=(256, 256)), DYADIC, DYADIC, n_draws=0)
        assert fit.exponent == pytest.approx(-0.5, abs=0.02) and fit.noise == 0
        rows, columns = ragged_tree(rng, 64), ragged_tree(rng, 256)  # sizes vary within a bin: less exact
        fit = holder_exponent(rng.normal(size=(64, 256)), rows, columns, n_draws=0)
        assert fit.exponent == pytest.approx(-0.5, abs=0.1) and fit.noise == 0
    x = np.linspace(0, 1, 256)
    assert holder_exponent(np.sin(3 * x[:, None] + 2 * x**2), DYADIC, DYADIC).exponent == pytest.approx(1, abs=0.06)


def test_only_the_largest_coefficients_see_an_isolated_cusp():
    edges = np.linspace(0, 1, 257) - 1 / 3
    x = np.diff(np.sign(edges) * np.abs(edges) ** 1.3 / 1.3) * 256  # means of |t - 1/3|^0.3 over cells
    fit = holder_exponent(np.outer(x, x), DYADIC, DYADIC)
    assert fit.holder == pytest.approx(0.3, abs=0.05)
    assert fit.exponent > fit.holder + 0.2


def test_intervals_cover_the_truth_and_shrink_with_size():
    widths = {}
    for n in (64, 256):
        tree = PartitionTree.dyadic(n)
        fits = [holder_exponent(synthetic(np.random.default_rng(s), tree, tree, 0.4), tree, tree) for s in range(10)]
        assert sum(fit.interval.low <= 0.4 <= fit.interval.high for fit in fits) >= 8
        widths[n] = np.mean([fit.interval.high - fit.interval.low for fit in fits])
    assert widths[256] < widths[64] / 2


def test_the_residual_is_one_and_a_half_times_as_regular_not_twice():
    """Theorem 1 says 2 alpha; counting scales gives F^2a G^a + F^a G^2a, 1.5 alpha by volume."""
    ratios = []
    for seed in range(4):
        g = 0.1 * synthetic(np.random.default_rng(seed), DYADIC, DYADIC, 0.3)
        pair = (g, paraproduct(g, DYADIC, DYADIC).residual)
        a, b = (holder_exponent(X, DYADIC, DYADIC, leave_finest=True, noise="none", n_draws=0).exponent for X in pair)
        ratios.append(b / a)
    assert 1.4 < np.mean(ratios) < 1.7


# ---------------------------------------------------------------------- what it is made of


@given(trees(min_leaves=6, max_leaves=14), trees(min_leaves=6, max_leaves=14), st.integers(0, 2**32 - 1), st.booleans())
@FEW
def test_bins_hold_the_coefficients_of_dense_bases(rows, columns, seed, masked):
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(rows.n_leaves, columns.n_leaves))
    present = rng.random(M.shape) < 0.9 if masked else np.ones(M.shape, dtype=bool)
    try:
        bins = holder_exponent(M, rows, columns, present, n_draws=0).bins
    except InputError:  # too few scales, or none wholly present
        return
    bases = [dense_haar(tree)[1:] for tree in (rows, columns)]
    listed = [folder_list(tree) for tree in (rows, columns)]
    folders = [haar_support(tree).folder[1:] for tree in (rows, columns)]
    gathered = {}
    for i, k in itertools.product(range(len(bases[0])), range(len(bases[1]))):
        psi = np.outer(bases[0][i], bases[1][k])
        if not present[psi != 0].all():
            continue
        volumes = [np.log2(len(listed[a][folders[a][j]]) / M.shape[a]) for a, j in ((0, i), (1, k))]
        gathered.setdefault(tuple(np.rint(volumes)), []).append(
            ((psi * np.where(present, M, 0)).sum() / np.abs(psi).sum(), np.abs(psi).sum())
        )
    expected = sorted(
        (np.sqrt(np.mean([c**2 for c, _ in v])), max(abs(c) for c, _ in v), len(v), np.mean([n**-2 for _, n in v]))
        for v in gathered.values()
    )
    found = sorted(zip(bins.rms, bins.largest, bins.n, bins.noise**2, strict=True))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_leaving_the_finest_out_uses_no_folder_of_single_leaves():
    rng = np.random.default_rng(0)
    tree = ragged_tree(rng, 64)
    M = synthetic(rng, tree, tree, 0.4)
    fine = np.zeros(64)
    pair = next(f for f in folder_list(tree) if len(f) == 2)  # two leaves of one folder
    fine[list(pair)] = [1, -1]
    rough = M + 100 * np.outer(fine, rng.normal(size=64))
    a, b = (holder_exponent(X, tree, tree, leave_finest=True, n_draws=0).exponent for X in (M, rough))
    assert a == pytest.approx(b, abs=1e-9)
    assert holder_exponent(rough, tree, tree, n_draws=0).exponent != pytest.approx(a, abs=0.05)


@given(st.integers(0, 2**32 - 1), st.booleans())
@FEW
def test_row_and_column_terms_scale_and_absent_entries_change_nothing(seed, masked):
    rng = np.random.default_rng(seed)
    rows, columns = ragged_tree(rng, 40), ragged_tree(rng, 30)
    M = rng.normal(size=(40, 30))
    present = rng.random(M.shape) < 0.97 if masked else np.ones(M.shape, dtype=bool)
    fit = holder_exponent(M, rows, columns, present, noise="none", n_draws=20)
    other = -3 * M + rng.normal(size=(40, 1)) + rng.normal(size=30)
    moved = holder_exponent(np.where(present, other, np.nan), rows, columns, present, noise="none", n_draws=20)
    assert moved.exponent == pytest.approx(fit.exponent, abs=1e-6)
    assert (moved.interval.low, moved.interval.high) == pytest.approx((fit.interval.low, fit.interval.high), abs=1e-6)
    perm = rng.permutation(40)
    permuted = holder_exponent(M[perm], rows.permute(perm), columns, present[perm], noise="none", n_draws=0)
    assert permuted.exponent == pytest.approx(fit.exponent, abs=1e-6)


def test_the_same_seed_gives_the_same_interval_and_no_draws_none():
    M = np.random.default_rng(0).normal(size=(64, 64))
    tree = PartitionTree.dyadic(64)
    a, b, c = (holder_exponent(M, tree, tree, random_state=seed) for seed in (1, 1, 2))
    assert a.interval == b.interval != c.interval
    assert not holder_exponent(M, tree, tree, n_draws=0).interval.known and a.interval.n == len(M) - 1
    assert float(a) == a.exponent and "HolderFit(-0.5" in repr(a)


def test_the_power_law_beside_noise_is_found_exactly_from_exact_energies():
    v = -np.arange(12.0)
    n = np.full(12, 10**9)
    noise = 2.0 ** (0.5 * np.arange(12))
    energy = 2.0 ** (1 + 2 * 0.4 * v) + 0.01**2 * noise**2
    law = PowerLaw(v[:, None], n, noise)
    found = law.choose(np.log2(energy)[None], "auto")
    np.testing.assert_allclose(found, [[1, 0.4, 2 * np.log2(0.01)]], atol=1e-5)
    np.testing.assert_allclose(law.signal_share(found)[0], 2.0 ** (1 + 0.8 * v) / energy, rtol=1e-4)
    plain = law.choose((1 + 0.8 * v)[None], "auto")
    np.testing.assert_allclose(plain, [[1, 0.4]], atol=1e-9)


# ---------------------------------------------------------------------- the definition


@given(trees(min_leaves=2, max_leaves=6), trees(min_leaves=2, max_leaves=6), st.integers(0, 2**32 - 1))
@FEW
def test_constants_are_the_largest_quotients_of_the_definition(rows, columns, seed):
    rng = np.random.default_rng(seed)
    f = rng.normal(size=(rows.n_leaves, columns.n_leaves))
    present = rng.random(f.shape) < 0.8
    present.flat[0] = True
    alpha = 0.4
    d, e = rows.common_size() / rows.n_leaves, columns.common_size() / columns.n_leaves
    best = {"row": [], "col": [], "mixed": []}
    pairs = [list(itertools.permutations(range(n), 2)) for n in f.shape]
    for (x, y), s in itertools.product(pairs[0], range(f.shape[1])):
        if present[x, s] and present[y, s]:
            best["row"].append(abs(f[x, s] - f[y, s]) / d[x, y] ** alpha)
    for x, (s, t) in itertools.product(range(f.shape[0]), pairs[1]):
        if present[x, s] and present[x, t]:
            best["col"].append(abs(f[x, s] - f[x, t]) / e[s, t] ** alpha)
    for (x, y), (s, t) in itertools.product(*pairs):
        if present[x, s] and present[x, t] and present[y, s] and present[y, t]:
            mixed = f[y, t] - f[x, t] - f[y, s] + f[x, s]
            best["mixed"].append(abs(mixed) / (d[x, y] * e[s, t]) ** alpha)
    found = holder_constants(f, rows, columns, alpha, present, n_samples=60_000)
    for name, values in best.items():
        expected = max(values) if values else np.nan
        np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-12)


def test_constants_are_finite_for_the_exponent_and_grow_beyond_it():
    rng = np.random.default_rng(0)
    grow = {}
    for n in (64, 512):
        tree = PartitionTree.dyadic(n)
        M = synthetic(rng, tree, tree, 0.4)
        grow[n] = [holder_constants(M, tree, tree, a).mixed for a in (0.2, 0.9)]
    assert grow[512][0] < 2 * grow[64][0]
    assert grow[512][1] > 3 * grow[64][1]


@given(st.integers(0, 2**32 - 1))
@FEW
def test_the_mixed_difference_is_its_sum_written_out(seed):
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(7, 6))
    present = rng.random(M.shape) < 0.9
    p, q = rng.permutation(7), rng.permutation(6)
    sizes = []
    for i, k in itertools.product(range(6), range(5)):
        corners = [(p[i], q[k]), (p[i + 1], q[k]), (p[i], q[k + 1]), (p[i + 1], q[k + 1])]
        if all(present[c] for c in corners):
            a, b, c, d = (M[c] for c in corners)
            sizes.append(abs(a - b - c + d))
    expected = np.mean(sizes) / M[present].std() if sizes else np.nan
    np.testing.assert_allclose(mixed_difference(np.where(present, M, np.nan), p, q, present), expected, rtol=1e-12)


def test_the_mixed_difference_of_known_matrices():
    rng = np.random.default_rng(0)
    assert mixed_difference(rng.normal(size=(500, 500))) == pytest.approx(4 / np.sqrt(2 * np.pi), abs=0.02)
    assert mixed_difference(np.add.outer(np.arange(5.0) ** 2, np.arange(4.0))) == 0
    x = np.linspace(0, 1, 50)
    smooth = np.sin(3 * x[:, None] * x)
    assert mixed_difference(smooth) < 0.01 * mixed_difference(smooth, rng.permutation(50), rng.permutation(50))
    assert np.isnan(mixed_difference(np.ones((4, 4)))) and np.isnan(mixed_difference(np.ones((1, 4))))


def test_coefficients_that_break_off_have_no_exponent():
    """Coarse structure and next to nothing below it: a slope far beyond what a power of the volume can be."""
    rng = np.random.default_rng(0)
    tree = PartitionTree.dyadic(4)
    coarse = np.kron([[1.0, -1.0], [-1.0, 1.0]], np.ones((2, 2)))
    fit = holder_exponent(coarse + 1e-10 * rng.normal(size=(4, 4)), tree, tree)
    assert np.isnan(fit.exponent) and not fit.interval.known
    assert "no power law: their slope of" in fit.why and fit.why in repr(fit)
    fit = holder_exponent(rng.normal(size=(16, 16)), PartitionTree.dyadic(16), PartitionTree.dyadic(16))
    assert np.isfinite(fit.exponent) and fit.why == ""


def test_refusals_say_what_is_wrong():
    tree = PartitionTree.dyadic(16)
    M = np.random.default_rng(0).normal(size=(16, 16))
    with pytest.raises(InputError, match="row tree covers 16 leaves"):
        holder_exponent(M[:8], tree, tree)
    with pytest.raises(InputError, match="noise is one of auto, none, white, not 'pink'"):
        holder_exponent(M, tree, tree, noise="pink")
    for flat in (np.full((16, 16), 0.1), np.add.outer(np.arange(16.0), np.sin(np.arange(16.0)))):
        with pytest.raises(InputError, match="no mixed coefficient above round-off"):
            holder_exponent(flat, tree, tree)
    with pytest.raises(InputError, match=r"shape \(1, 16\) has no mixed differences"):
        holder_exponent(M[:1], PartitionTree.dyadic(1), tree)
    with pytest.raises(InputError, match="a slope needs trees with more levels"):
        holder_exponent(M[:2, :2], PartitionTree.dyadic(2), PartitionTree.dyadic(2))
    with pytest.raises(InputError, match="n_draws must be at least 0, not -1"):
        holder_exponent(M, tree, tree, n_draws=-1)
    with pytest.raises(InputError, match="random_state must be at least 0, not -1"):
        holder_exponent(M, tree, tree, random_state=-1)
    with pytest.raises(InputError, match="alpha must be a finite number, not nan"):
        holder_constants(M, tree, tree, np.nan)
    with pytest.raises(InputError, match="n_samples must be at least 1"):
        holder_constants(M, tree, tree, 0.5, n_samples=0)
    with pytest.raises(InputError, match="a matrix and a mask of its shape"):
        mixed_difference(M, mask=np.ones((2, 2), bool))
