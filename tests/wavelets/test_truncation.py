"""Arrays from few numbers, against dense bases and sums of products."""

import numpy as np
import pytest

from headscape.wavelets.truncation import truncated, truncated_svd
from reference import dense_haar, random_tree


@pytest.fixture
def tensor():
    rng = np.random.default_rng(0)
    trees = [random_tree(rng, n) for n in (5, 6, 4)]
    return rng.normal(size=(5, 6, 4)), trees


def product_functions(trees):
    """Every product of basis functions as an array, with the size of its support."""
    bases = [dense_haar(tree) for tree in trees]
    for i in np.ndindex(*(len(basis) for basis in bases)):
        parts = [basis[k] for basis, k in zip(bases, i, strict=True)]
        function = np.einsum("a,b,c->abc", *parts)
        yield function, np.count_nonzero(np.abs(function) > 1e-12)


@pytest.mark.parametrize("by", ["magnitude", "support"])
def test_few_coefficients_are_a_sum_of_few_basis_functions(tensor, by):
    X, trees = tensor
    terms = [((X * f).sum() * f, abs((X * f).sum()) if by == "magnitude" else s) for f, s in product_functions(trees)]
    ranked = sorted(range(len(terms)), key=lambda i: -terms[i][1])
    for count, found in zip((1, 7, 40, X.size), truncated(X, trees, (1, 7, 40, X.size), by), strict=True):
        np.testing.assert_allclose(found, sum(terms[i][0] for i in ranked[:count]), atol=1e-10)


def test_singular_values_of_all_heads_are_ranked_together(tensor):
    X, _ = tensor
    each = 5 + 6 + 1
    pieces = []
    for h in range(X.shape[2]):
        U, s, V = np.linalg.svd(X[..., h])
        pieces += [(s[k], h, s[k] * np.outer(U[:, k], V[k])) for k in range(5)]
    pieces.sort(key=lambda piece: -piece[0])
    for count, found in zip((each - 1, 3 * each, 999), truncated_svd(X, (each - 1, 3 * each, 999)), strict=True):
        slow = np.zeros_like(X)
        for _, h, piece in pieces[: count // each]:
            slow[..., h] += piece
        np.testing.assert_allclose(found, slow, atol=1e-10)
