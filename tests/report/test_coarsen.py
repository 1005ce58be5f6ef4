"""Cells of a coarse map are means over the tokens they hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.report.coarsen import block_means, cells_of


@given(st.integers(1, 40), st.integers(1, 40), st.integers(2, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_block_means_are_means(n_query, n_key, most, seed, causal):
    """Slow twin: average the present entries of every cell one by one."""
    rng = np.random.default_rng(seed)
    values = rng.random((2, n_query, n_key)).astype(np.float32)
    present = np.tri(n_query, n_key, k=n_key - n_query, dtype=bool) if causal else np.ones((n_query, n_key), bool)
    query = cells_of(n_query, most, rng.permutation(n_query))
    key = cells_of(n_key, most)
    means = block_means(values, present, query, key)
    assert max(means.shape[1:]) <= most
    for i, j in np.ndindex(means.shape[1:]):
        rows = query.order[query.bounds[i] : query.bounds[i + 1]]
        columns = key.order[key.bounds[j] : key.bounds[j + 1]]
        inside = [(q, k) for q in rows for k in columns if present[q, k]]
        for h in range(2):
            expected = np.mean([values[h, q, k] for q, k in inside]) if inside else 0
            assert means[h, i, j] == pytest.approx(expected, abs=1e-5)


def test_cells_follow_the_tree_where_there_is_one():
    labels = np.array([[0] * 8, [0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 2, 3, 3, 4, 5, 6], list(range(8))])
    cells = cells_of(8, 3, np.arange(8), labels)
    assert cells.bounds.tolist() == [0, 3, 5, 8]  # the finest level with at most three folders
    assert cells_of(8, 8, np.arange(8), labels).bounds.tolist() == list(range(9))
