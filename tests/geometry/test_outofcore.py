"""Distances in tiles and from disk are those from memory, bit by bit; and what disk and memory must not do.

Also tests geometry.arrays, geometry.memory, geometry.scratch, geometry.slices.
"""

import os
import re
import tempfile
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.geometry import affinity, folder_means, scratch, slices
from headscape.geometry import memory as memory_module
from headscape.geometry.arrays import as_lazy, blocks
from headscape.geometry.emd import slice_distance, tree_distance
from headscape.geometry.memory import disk_memory_estimate, memory_estimate
from headscape.geometry.questionnaire import Questionnaire
from headscape.geometry.scratch import Layouts, StoredSlices
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree
from reference import QUICK, arrays_on_trees, random_tree


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks and blocks so small that small arrays have many."""
    monkeypatch.setattr(folder_means, "CHUNK", 3e4)
    monkeypatch.setattr(slices, "LEAF_BLOCK", 1e5)


class Lazy:
    """Can be sliced along its first axis and nothing else; remembers how much was asked for at once."""

    def __init__(self, values):
        self._values, self.shape, self.dtype, self.most = values, values.shape, values.dtype, 0

    def __getitem__(self, rows):
        self.most = max(self.most, len(range(*rows.indices(len(self._values)))))
        return self._values[rows]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("read whole")


def same_fit(a, b):
    assert a.trees_ == b.trees_
    for axis in range(len(a.trees_)):
        assert np.array_equal(a.distances_[axis], b.distances_[axis])
        assert np.array_equal(a.affinities_[axis], b.affinities_[axis])
    assert [h.compression for h in a.history_] == [h.compression for h in b.history_]
    assert np.array_equal([h.change for h in a.history_], [h.change for h in b.history_], equal_nan=True)


# ------------------------------------------------------------------ the same bits


@given(
    arrays_on_trees(min_order=2, max_order=4),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([(0.0, 1.0), (0.5, 0.5)]),
    st.integers(1, 2),
    st.data(),
)
@QUICK
def test_tiles_and_files_give_the_same_bits(case, dtype, weights, threads, data):
    X, trees = case[0].astype(dtype), case[1]
    axis = data.draw(st.integers(0, X.ndim - 1))
    whole = tree_distance(X, trees, axis, *weights, threads=1)
    others = [tree for b, tree in enumerate(trees) if b != axis]
    columns = int(np.prod([len(tree.sizes) for tree in others]))
    least = 8 * columns * X.itemsize  # two tiles of four slices
    assert np.array_equal(tree_distance(X, trees, axis, *weights, max_memory=least, threads=threads), whole)
    names = tuple(f"axis{a}" for a in range(X.ndim))
    with Layouts(X, names, None, data.draw(st.sampled_from([1.0, 1e4])), threads) as files:
        stored = StoredSlices(files, axis, lambda part: part.astype(dtype, copy=False), np.dtype(dtype))
        for memory in (least, 3 * least, 1e9):
            assert np.array_equal(slice_distance(stored, others, *weights, memory, threads), whole)


@pytest.mark.parametrize("shape", [(70, 41), (41, 70), (37, 50, 20), (20, 9, 67), (6, 30, 5, 11)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_same_bits_beyond_one_chunk_and_one_tile(shape, dtype, small_chunks):
    rng = np.random.default_rng(sum(shape))
    X = rng.normal(size=shape).astype(dtype)
    trees = [random_tree(rng, n) for n in shape]
    names = tuple(f"axis{a}" for a in range(X.ndim))
    with Layouts(X, names, None, X.nbytes / 3, 2) as files:
        for axis in range(X.ndim):
            others = [tree for b, tree in enumerate(trees) if b != axis]
            whole = slice_distance(np.ascontiguousarray(np.moveaxis(X, axis, 0)), others, 0.0, 0.5, 1e9, 1)
            stored = StoredSlices(files, axis, lambda part: part, X.dtype)
            for memory in (5e4, 9e4, 1e9):
                for threads in (1, 2):
                    assert np.array_equal(slice_distance(stored, others, 0.0, 0.5, memory, threads), whole)
                    assert np.array_equal(tree_distance(X, trees, axis, 0.0, 0.5, memory, threads), whole)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((43, 38), np.float64),
        ((37, 50, 21), np.float32),
        ((30, 33, 26), np.float16),
        ((6, 13, 5, 11), np.float32),
        ((29, 18, 35), np.uint8),
        ((31, 17, 26), ">f4"),
    ],
)
@pytest.mark.parametrize("level_weight", [0.0, 0.5])
def test_a_fit_from_disk_is_the_fit_from_memory(shape, dtype, level_weight, small_chunks):
    X = (100 * np.random.default_rng(1).gamma(0.3, size=shape)).astype(dtype)
    settings = {"n_iter": 2, "level_weight": level_weight}
    whole = Questionnaire(**settings, n_jobs=1).fit(X)
    for n_jobs in (1, 2):
        least = disk_memory_estimate(shape, n_jobs)
        assert least < memory_estimate(shape)
        for memory in (1.001 * least, least + 1e5):
            same_fit(Questionnaire(**settings, max_memory=memory, n_jobs=n_jobs).fit(X), whole)


def test_a_shifted_array_has_its_offset_taken_out_on_disk_too():
    X = 1e6 + np.random.default_rng(3).normal(size=(12, 11, 10))
    tight = Questionnaire(n_iter=1, max_memory=1.01 * disk_memory_estimate(X.shape, 1), n_jobs=1)
    same_fit(tight.fit(X), Questionnaire(n_iter=1).fit(X))


# ------------------------------------------------------------------ nothing is read whole


def test_what_can_only_be_sliced_is_read_in_blocks():
    X = np.random.default_rng(2).random((40, 30, 20), dtype=np.float32)
    lazy = Lazy(X)
    memory = 1.2 * disk_memory_estimate(X.shape, 1)
    same_fit(Questionnaire(n_iter=1, max_memory=memory, n_jobs=1).fit(lazy), Questionnaire(n_iter=1).fit(X))
    assert 0 < lazy.most < 40
    same_fit(Questionnaire(n_iter=1).fit(Lazy(X)), Questionnaire(n_iter=1).fit(X))  # small: it may


def test_a_memory_map_keeps_its_content_and_its_pages_are_let_go(tmp_path):
    X = np.random.default_rng(4).random((64, 32, 16)).astype(np.float16)
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    memory = 1.2 * disk_memory_estimate(X.shape, 1)
    same_fit(Questionnaire(n_iter=1, max_memory=memory, n_jobs=1).fit(mapped), Questionnaire(n_iter=1).fit(X))
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[3, 2, 1] = 7  # only here, not in the file
    for start, block in blocks(private, 5000):
        assert np.array_equal(block, private[start : start + len(block)])
    assert private[3, 2, 1] == 7
    tensor = AttentionTensor(np.asarray(np.memmap(tmp_path / "t", np.float32, "w+", shape=(3, 4, 5))))
    assert isinstance(as_lazy(tensor)[0].base, np.memmap)


def test_a_tree_distance_of_what_can_only_be_sliced(small_chunks):
    rng = np.random.default_rng(6)
    X = rng.random((30, 26, 14), dtype=np.float32)
    trees = [random_tree(rng, n) for n in X.shape]
    for axis in range(3):
        lazy = Lazy(X)
        whole = tree_distance(X, trees, axis)
        assert np.array_equal(tree_distance(lazy, trees, axis, max_memory=0.9 * X.nbytes), whole)
        assert lazy.most < 30
        assert np.array_equal(tree_distance(Lazy(X), trees, axis), whole)


def test_a_fit_from_disk_stays_within_the_memory_given(monkeypatch):
    monkeypatch.setattr(slices, "LEAF_BLOCK", 1e6)
    monkeypatch.setattr(memory_module, "LEAF_BLOCK", 1e6)
    monkeypatch.setattr(folder_means, "CHUNK", 1e6)
    monkeypatch.setattr(affinity, "_BLOCK", 10**6)
    X = np.random.default_rng(7).random((140, 130, 120), dtype=np.float32)
    limit = 1.1 * disk_memory_estimate(X.shape, 1)
    assert limit < 0.9 * X.nbytes < 0.3 * memory_estimate(X.shape, limit)
    Questionnaire(n_iter=1, max_memory=disk_memory_estimate((9, 8, 7), 1), n_jobs=1).fit(X[:9, :8, :7])  # compiled
    tracemalloc.start()
    Questionnaire(n_iter=1, max_memory=limit, n_jobs=1).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < limit


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="looks at open files")
def test_scratch_files_are_gone_after_a_fit_and_after_an_error(tmp_path):
    X = np.random.default_rng(5).random((20, 18, 16), dtype=np.float32)
    tight = Questionnaire(n_iter=1, max_memory=1.2 * disk_memory_estimate(X.shape, 1), scratch=str(tmp_path), n_jobs=1)
    before = len(os.listdir("/proc/self/fd"))
    tight.fit(X)
    X[19, 2, 3] = np.nan
    with pytest.raises(InputError, match="nan at axis0 19, axis1 2, axis2 3"):
        tight.fit(X)
    assert not os.listdir(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


# ------------------------------------------------------------------ refusals


def test_too_little_disk_is_said_before_anything_is_written(monkeypatch, tmp_path):
    X = np.ones((40, 30, 20), dtype=np.float32)
    tight = Questionnaire(max_memory=1.2 * disk_memory_estimate(X.shape, 1), scratch=str(tmp_path), n_jobs=1)
    full = type("Usage", (), {"free": 200_000})
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda folder: full)
    with pytest.raises(InputError, match=r"files take 0.000288 GB, .* has 0.0002 GB free; name a larger"):
        tight.fit(X)
    with pytest.raises(InputError, match="scratch folder /nowhere does not exist"):
        tight.set_params(scratch="/nowhere").fit(X)


def test_refuses_when_not_even_the_matrices_fit():
    with pytest.raises(InputError, match=r"max_memory is .* shorten axis 'axis1' of length 400"):
        Questionnaire(max_memory=1e6).fit(np.ones((10, 400, 4), dtype=np.float32))
    trees = [PartitionTree.dyadic(n) for n in (9, 40, 30)]
    X = np.random.default_rng(0).random((9, 40, 30))
    with pytest.raises(InputError, match="bytes at least, max_memory leaves 100") as raised:
        tree_distance(X, trees, 0, max_memory=100)
    least = float(re.search(r"needs (\S+) bytes", str(raised.value)).group(1))  # three digits
    tree_distance(X, trees, 0, max_memory=1.01 * least)
    with pytest.raises(InputError, match="bytes at least"):
        tree_distance(X, trees, 0, max_memory=0.99 * least)


def test_the_temporary_folder_is_the_systems(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert scratch.check_disk(10, None) == str(tmp_path)
