"""Cells of a coarse map are means over the tokens they hold."""

import base64
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import result_of
from headscape.report.coarsen import CELLS, block_means, cells_of
from headscape.report.gather import gather
from headscape.report.pictures import picture


def unpacked(value):
    """What `unpack` of data.js does."""
    if isinstance(value, list):
        return np.array(value)
    kinds = {"f4": "<f4", "i4": "<i4", "u2": "<u2"}
    flat = np.frombuffer(base64.b64decode(value["data"]), kinds[value["$"]]).reshape(value["shape"])
    if value["$"] != "u2":
        return flat
    return np.where(flat == 65_535, np.nan, value["low"] + flat * (value["high"] - value["low"]) / 65_534)


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


def test_a_large_matrix_is_averaged_along_the_tree_and_the_nearest_heads_come_from_all_of_it():
    n_layer, n_head = 60, 20
    n = n_layer * n_head
    result = result_of(n_layer, n_head, 8)
    section = gather([result]).sections[0]
    spec = section.of_kind("head_matrix")[0]
    values, order = spec.data["values"].copy(), spec.data["order"]
    values[3, 5] = values[5, 3] = np.nan
    spec = replace(spec, data={**spec.data, "values": values})
    drawn = picture(spec, section)
    data = {key: unpacked(drawn["data"][key]) for key in ("values", "bounds", "near", "near_values")}
    m = len(data["bounds"]) - 1
    assert m <= CELLS and data["values"].shape == (m, m)
    labels = section.of_kind("head_tree")[0].data["labels"]
    inside = [order[a:b] for a, b in itertools.pairwise(data["bounds"])]
    assert any(all(len(set(level[cell])) == 1 for cell in inside) for level in labels)  # clusters of one level
    for i, j in ((0, 0), (1, m - 1), (m // 2, 3)):
        assert data["values"][i, j] == pytest.approx(np.nanmean(values[np.ix_(inside[i], inside[j])]), abs=2e-4)
    for head in (0, 3, n - 1):  # the slow twin: sort all others
        others = [k for k in range(n) if k != head and not np.isnan(values[head, k])]
        best = sorted(others, key=lambda k: -np.float32(values[head, k]))[:8]
        assert data["near"][head].tolist() == best
        assert data["near_values"][head] == pytest.approx(values[head, best], abs=1e-5)
    assert (
        drawn["note"]
        == f"To keep the page small, the 1,200 x 1,200 matrix is shown as {m} x {m} means over clusters of the tree."
    )
