"""The tensor of attention: which entries exist, what blocks of tokens hold, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.tensor import (
    AttentionTensor,
    HeadId,
    block_bounds,
    block_labels,
    check_finite,
    named_heads,
    present_entries,
    present_pairs,
)
from reference import QUICK

masks = st.sampled_from(["causal", "full"])


@st.composite
def bounds(draw, n):
    """Any cut of n tokens into blocks."""
    inner = draw(st.sets(st.integers(1, n - 1))) if n > 1 else set()
    return np.array([0, *sorted(inner), n])


@st.composite
def cuts(draw):
    n_query = draw(st.integers(1, 9))
    n_key = n_query + draw(st.integers(0, 4))  # a memory of earlier tokens
    return draw(bounds(n_query)), draw(bounds(n_key))


def exists(mask, n_query, n_key):
    """Every query sees the keys up to its own place, the last query all of them."""
    return [[mask == "full" or key <= query + n_key - n_query for key in range(n_key)] for query in range(n_query)]


@given(masks, cuts())
@QUICK
def test_entries_are_counted_one_by_one(mask, blocks):
    rows, columns = blocks
    shape = (rows[-1], columns[-1])
    there = np.array(exists(mask, *shape))
    np.testing.assert_array_equal(present_entries(mask, shape), there)
    counts = [[there[a:b, c:d].sum() for c, d in pairwise(columns)] for a, b in pairwise(rows)]
    np.testing.assert_array_equal(present_pairs(mask, rows, columns), counts)
    grid = (len(rows) - 1, len(columns) - 1)
    np.testing.assert_array_equal(present_entries(mask, grid, rows, columns), np.array(counts) > 0)
    X = AttentionTensor(np.zeros((*grid, 1)), mask=mask, query_bounds=rows, key_bounds=columns)
    np.testing.assert_array_equal(X.present, np.array(counts) > 0)


@given(masks, cuts(), st.integers(0, 2**32 - 1))
@QUICK
def test_the_mass_of_a_pooled_tensor_is_that_of_its_tokens(mask, blocks, seed):
    """Attention of a query to all keys of a block, averaged over the queries of a block: rows sum to 1."""
    rows, columns = blocks
    there = np.array(exists(mask, rows[-1], columns[-1]))
    maps = np.random.default_rng(seed).random(there.shape) * there
    maps /= maps.sum(axis=1, keepdims=True)
    means = np.zeros((len(rows) - 1, len(columns) - 1, 1))
    mass = np.zeros(means.shape)
    for i, (a, b) in enumerate(pairwise(rows)):
        for j, (c, d) in enumerate(pairwise(columns)):
            if there[a:b, c:d].any():
                means[i, j] = maps[a:b, c:d][there[a:b, c:d]].mean()
            mass[i, j] = maps[a:b, c:d].sum(axis=1).mean()
    X = AttentionTensor(means, mask=mask, query_bounds=rows, key_bounds=columns)
    np.testing.assert_allclose(X.mass(), mass, atol=1e-6)
    np.testing.assert_allclose(X.mass().sum(axis=1), 1, atol=1e-5)
    assert X.mass().dtype == np.float32


def test_without_pooling_the_mass_is_the_values():
    X = AttentionTensor(np.random.default_rng(0).random((3, 4, 2)))
    assert X.mass() is X.values and not X.pooled


def test_a_tensor_is_pooled_when_a_block_holds_several_tokens():
    single, double = np.array([0, 1, 2]), np.array([0, 1, 3])
    for rows, columns, pooled in ((single, single, False), (double, single, True), (single, double, True)):
        X = AttentionTensor(np.zeros((2, 2, 1)), query_bounds=rows, key_bounds=columns)
        assert X.pooled is pooled and f"pooled from {rows[-1]} x {columns[-1]} tokens" in repr(X)


@pytest.mark.parametrize("n", range(1, 12))
def test_blocks_are_cut_as_numpy_cuts(n):
    for pool in range(1, n + 1):
        sizes = [len(part) for part in np.array_split(np.arange(n), pool)]
        np.testing.assert_array_equal(np.diff(block_bounds(n, pool)), sizes)
    for pool, said in ((0, "must be at least 1, not 0"), (n + 1, f"not {n + 1}")):
        with pytest.raises(InputError, match=said):
            block_bounds(n, pool)


def test_labels_say_where_a_block_is_and_shorten_its_tokens():
    tokens = ["a", " ", "exactly10c", "exactly11ch"]
    assert block_labels(tokens, np.array([0, 1, 4])) == ["a", "1-3   … exactly11…"]
    assert block_labels(tokens, np.array([0, 3, 4])) == ["0-2 a … exactly10c", "exactly11ch"]
    assert block_labels([], np.array([0, 1, 3])) == ["0", "1-2"]


def test_names_have_defaults_and_follow_the_blocks():
    X = AttentionTensor(np.zeros((2, 3, 2)))
    assert X.query_tokens == ["0", "1"] and X.key_tokens == ["0", "1", "2"] and X.shape == (2, 3, 2)
    assert X.heads == [HeadId("heads", 0, 0), HeadId("heads", 0, 1)] and (X.mask, X.kind) == ("full", "probs")
    P = AttentionTensor(np.zeros((1, 2, 1)), query_bounds=np.array([0, 4]), key_bounds=np.array([0, 1, 4]))
    assert P.query_tokens == ["0-3"] and P.key_tokens == ["0", "1-3"]


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8", "uint8", "bool"])
def test_values_are_float32_whatever_comes_in(dtype):
    X = AttentionTensor(np.ones((2, 2, 1), dtype=dtype))
    assert X.values.dtype == np.float32 and (X.values == 1).all()
    assert np.asarray(X, dtype=np.float64).dtype == np.float64


def test_an_array_of_it_is_shared_unless_a_copy_is_asked_for():
    X = AttentionTensor(np.ones((2, 2, 1), dtype=np.float32))
    assert np.shares_memory(np.asarray(X), X.values) and not np.shares_memory(np.array(X, copy=True), X.values)


two = np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"values": np.zeros((2, 2))}, r"three axes .* has shape \(2, 2\)"),
        ({"values": np.zeros((2, 2, 1), dtype=complex)}, "real numbers, this array has dtype complex128"),
        ({"values": np.full((2, 2, 1), "a")}, "real numbers"),
        ({"heads": [HeadId("a", 0, 0)] * 2}, r"2 heads given, the tensor of shape \(2, 2, 1\) needs 1"),
        ({"query_tokens": ["a"]}, "1 query_tokens given, .* needs 2"),
        ({"key_tokens": ["a"] * 3}, "3 key_tokens given, .* needs 2"),
        ({"mask": "upper"}, "mask is one of causal, full, not 'upper'"),
        ({"kind": "logits"}, "kind is one of probs, scores, not 'logits'"),
        ({"query_bounds": two}, "one is missing"),
        ({"key_bounds": two}, "one is missing"),
        ({"query_bounds": two, "key_bounds": np.array([0, 2])}, "key_bounds must rise from 0 in 2 steps"),
        ({"query_bounds": np.array([1, 2, 3]), "key_bounds": two}, "query_bounds must rise from 0 in 2 steps"),
        ({"query_bounds": two, "key_bounds": np.array([0, 2, 2])}, "key_bounds must rise from 0 in 2 steps"),
    ],
)
def test_what_does_not_fit_is_named(options, message):
    with pytest.raises(InputError, match=message):
        AttentionTensor(**{"values": np.zeros((2, 2, 1)), **options})


@pytest.mark.parametrize("text", ["", "decoder", "decoder.1", "decoder.1.x", "1.2"])
def test_a_head_is_read_as_it_is_written_or_refused(text):
    with pytest.raises(InputError, match="is not a head; write BLOCK.LAYER.HEAD"):
        HeadId.parse(text)
    for head in (HeadId("decoder", 3, 7), HeadId("decoder.cross", 0, 11)):
        assert HeadId.parse(str(head)) == head


def test_a_head_of_the_only_block_needs_no_block():
    known = [HeadId("decoder", layer, head) for layer in range(3) for head in range(4)]
    assert named_heads(known, ["2.3", "decoder.0.1", known[5]]) == [known[1], known[5], known[11]]
    with pytest.raises(InputError, match="head decoder.3.0 was not captured"):
        named_heads(known, ["3.0"])
    with pytest.raises(InputError, match="head 2.3 needs its block, one of decoder, encoder"):
        named_heads([*known, HeadId("encoder", 0, 0)], ["2.3"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_number_that_is_not_finite_is_placed(bad):
    values = np.zeros((2, 3, 4))
    check_finite(values, ("query", "key", "head"))
    values[1, 2, 0] = values[1, 0, 3] = bad
    with pytest.raises(InputError, match=rf"^{bad} at query 1, key 0, head 3 \(2 such entries\)"):
        check_finite(values, ("query", "key", "head"))
