"""The questionnaire against its slow twin, its manners, and what must not change its result.

Also tests geometry.compression, geometry.consensus, geometry.matrix.
"""

import pickle
import tracemalloc

import numpy as np
import pytest
from sklearn.base import clone

from headscape.errors import InputError
from headscape.geometry.affinity import dual_affinity
from headscape.geometry.build import BUILDERS
from headscape.geometry.compression import CompressionSample
from headscape.geometry.consensus import consensus
from headscape.geometry.emd import tree_distance
from headscape.geometry.matrix import organize_matrix
from headscape.geometry.memory import memory_estimate
from headscape.geometry.planted import planted
from headscape.geometry.questionnaire import Questionnaire
from headscape.tensor import AttentionTensor
from headscape.wavelets.haar import haar_transform
from reference_geometry import slow_questionnaire, slow_tree_distance


@pytest.fixture(scope="module")
def tensor():
    return planted("softmax", (24, 20, 16), noise=0.5, random_state=1).values


@pytest.fixture(scope="module")
def fitted(tensor):
    return Questionnaire().fit(tensor)


# ------------------------------------------------------------------ it is Algorithm 1


@pytest.mark.parametrize("tree", sorted(BUILDERS))
@pytest.mark.parametrize("shape", [(11, 14), (9, 8, 7), (5, 6, 4, 5)])
@pytest.mark.parametrize("level_weight", [0.0, 0.5])
def test_equals_the_slow_twin(tree, shape, level_weight):
    X = np.random.default_rng(len(shape)).gamma(1.0, size=shape)
    weights = {"level_weight": level_weight, "size_weight": 0.75}
    truth = slow_questionnaire(X, n_iter=2, tree=tree, **weights)
    q = Questionnaire(n_iter=2, tree=tree, **weights).fit(X)
    assert list(q.trees_) == truth
    last = len(shape) - 1 if len(shape) == 2 else len(shape) - 2  # the axis compared last saw the final trees
    np.testing.assert_allclose(q.distances_[last], slow_tree_distance(X, truth, last, level_weight, 0.75), rtol=1e-5)
    np.testing.assert_allclose(q.affinities_[last], dual_affinity(q.distances_[last]), rtol=1e-6)


def test_updates_use_the_trees_they_say(tensor):
    settings = {"n_iter": 2, "size_weight": 1.0}
    fits = {
        update: Questionnaire(update=update, **settings).fit(tensor) for update in ("latest", "previous", "published")
    }
    heads = {update: fit.distances_[2] for update, fit in fits.items()}
    first = {update: Questionnaire(update=update, n_iter=1, size_weight=1.0).fit(tensor) for update in fits}
    # heads of the second round: seen through the first round's trees, or still through the initial ones
    for update in ("latest", "previous"):
        expected = tree_distance(tensor, first[update].trees_, 2)
        np.testing.assert_allclose(heads[update], expected, rtol=1e-5)
    np.testing.assert_allclose(heads["published"], first["published"].distances_[2])
    assert not np.allclose(heads["latest"], heads["published"])
    # keys of the second round: through the first round's queries and heads if "previous"
    np.testing.assert_allclose(
        fits["previous"].distances_[1], tree_distance(tensor, first["previous"].trees_, 1), rtol=1e-5
    )
    np.testing.assert_allclose(fits["latest"].distances_[1], tree_distance(tensor, fits["latest"].trees_, 1), rtol=1e-5)


def test_paper_takes_the_settings_of_the_order():
    rng = np.random.default_rng(0)
    M, X = rng.random((12, 10)), rng.random((12, 10, 8))
    paper = Questionnaire.paper
    assert paper(n_iter=4).get_params()["tree"] == "flexible"
    assert paper().fit(M).n_iter_ == 10
    assert paper().fit(X).n_iter_ == 3
    explicit = Questionnaire(tree="flexible", n_iter=10, level_weight=1.0, size_weight=0.0)
    assert paper().fit(M).trees_ == explicit.fit(M).trees_
    explicit = Questionnaire(tree="flexible", n_iter=3, level_weight=0.0, size_weight=1.0)
    assert paper().fit(X).trees_ == explicit.fit(X).trees_
    assert paper(size_weight=1.0).fit(M).trees_ != paper().fit(M).trees_


# ------------------------------------------------------------------ what must not change the result


def test_permuting_axes_permutes_the_leaves_and_nothing_else(tensor, fitted):
    rng = np.random.default_rng(2)
    moves = [rng.permutation(n) for n in tensor.shape]
    moved = Questionnaire().fit(tensor[np.ix_(*moves)])
    for axis, move in enumerate(moves):
        assert moved.trees_[axis] == fitted.trees_[axis].permute(move)
        np.testing.assert_allclose(moved.distances_[axis], fitted.distances_[axis][np.ix_(move, move)], rtol=1e-6)


@pytest.mark.parametrize("scale", [3.7, 1e-30, 1e30, 1e-300, 1e300])
def test_scaling_changes_nothing_in_the_trees(tensor, fitted, scale):
    scaled = Questionnaire().fit(tensor.astype(np.float64) * scale)
    assert scaled.trees_ == fitted.trees_
    np.testing.assert_allclose(scaled.distances_[2], fitted.distances_[2] * scale, rtol=1e-5)


def test_a_large_offset_does_not_drown_the_distances():
    X = np.random.default_rng(3).normal(size=(12, 11, 10))
    for shift in (1e6, -1e6):
        shifted = Questionnaire(n_iter=1).fit(X + shift)
        truth = slow_tree_distance(X, shifted.trees_, 1, 0.0, 0.5)
        np.testing.assert_allclose(shifted.distances_[1], truth, rtol=1e-5)  # float32 of 1e6 knows no tenths


def test_any_number_of_threads_gives_the_same_bytes(tensor):
    X = planted("blocks", (64, 48, 40), noise=1.0).values
    one = Questionnaire(n_jobs=1).fit(X)
    for n_jobs in (2, 5):
        many = Questionnaire(n_jobs=n_jobs).fit(X)
        assert many.trees_ == one.trees_
        assert many.history_[1:] == one.history_[1:]
        for axis in range(3):
            assert np.array_equal(many.distances_[axis], one.distances_[axis])
            assert np.array_equal(many.affinities_[axis], one.affinities_[axis])


def test_less_memory_gives_the_same_trees(tensor, fitted):
    tight = Questionnaire(max_memory=1.01 * memory_estimate(tensor.shape, 0)).fit(tensor)
    assert tight.trees_ == fitted.trees_


# ------------------------------------------------------------------ manners


def test_is_an_estimator():
    q = Questionnaire(n_iter=5, tree="average", random_state=3)
    assert clone(q).get_params() == q.get_params()
    assert q.set_params(tree="binary").tree == "binary"
    assert not hasattr(q, "trees_")
    X = np.random.default_rng(0).random((6, 5, 4))
    assert q.fit(X) is q
    assert not hasattr(clone(q), "trees_")


def test_results_are_named_tuples_that_pickle(tensor, fitted):
    named = Questionnaire(n_iter=1).fit(AttentionTensor(tensor))
    assert named.trees_._fields == ("query", "key", "head")
    assert named.trees_.head is named.trees_[2]
    assert fitted.trees_._fields == ("axis0", "axis1", "axis2")
    for name in ("trees_", "distances_", "affinities_", "orders_"):
        assert len(getattr(named, name)) == 3
    again = pickle.loads(pickle.dumps(named))
    assert again.trees_.head == named.trees_.head
    assert np.array_equal(again.distances_.query, named.distances_.query)
    assert np.array_equal(again.orders_.key, named.trees_.key.order)


def test_input_is_left_alone(tensor):
    before = tensor.copy()
    Questionnaire(n_iter=1).fit(tensor)
    assert np.array_equal(tensor, before)


def test_history_measures_change_and_compression(tensor, fitted):
    first, second, third = fitted.history_
    assert np.isnan(first.change).all()
    two = Questionnaire(n_iter=2).fit(tensor)
    three = fitted
    for axis in range(3):
        off = ~np.eye(tensor.shape[axis], dtype=bool)
        a, b = (D / np.median(D[off]) for D in (two.distances_[axis], three.distances_[axis]))
        assert third.change[axis] == pytest.approx(np.abs(a - b)[off].mean(), rel=1e-6, abs=1e-9)
    assert max(third.change) <= max(second.change)
    assert 0 < third.compression < 0.95


def test_compression_is_the_ratio_to_shuffled_leaves(tensor, fitted):
    organized = np.abs(haar_transform(tensor, fitted.trees_)).sum()
    rng = np.random.default_rng(5)
    shuffled = [
        np.abs(haar_transform(tensor[np.ix_(*(rng.permutation(n) for n in tensor.shape))], fitted.trees_)).sum()
        for _ in range(20)
    ]
    measured = CompressionSample(tensor, 0).compression(fitted.trees_)
    assert measured == pytest.approx(organized / np.mean(shuffled), rel=0.02)
    noise = rng.normal(size=tensor.shape)
    assert CompressionSample(noise, 0).compression(fitted.trees_) == pytest.approx(1, abs=0.05)
    assert CompressionSample(np.zeros((3, 4)), 0).compression(Questionnaire().fit(np.ones((3, 4))).trees_) == 1.0


def test_a_sample_of_a_large_array_tells_the_same():
    P = planted("blocks", (128, 96, 40), noise=0.5)
    q = Questionnaire(n_iter=1).fit(P.values)
    organized = np.abs(haar_transform(P.values, q.trees_)).sum()
    rng = np.random.default_rng(1)
    mixed = P.values[np.ix_(*(rng.permutation(n) for n in P.values.shape))]
    assert q.history_[0].compression == pytest.approx(
        organized / np.abs(haar_transform(mixed, q.trees_)).sum(), abs=0.05
    )


def test_stops_when_every_change_is_below_the_tolerance(tensor, fitted):
    changes = [max(round_.change) for round_ in fitted.history_]
    assert changes[1] > 0.001
    stopped = Questionnaire(n_iter=3, tol=1.01 * changes[1]).fit(tensor)
    assert stopped.n_iter_ == len(stopped.history_) == 2
    assert Questionnaire(n_iter=3, tol=0.99 * min(changes[1:])).fit(tensor).n_iter_ == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tree": "oak"}, "tree is one of average, binary, flexible, ward, not 'oak'"),
        ({"update": "never"}, "update is one of latest, previous, published, not 'never'"),
        ({"n_iter": 0}, "n_iter must be at least 1, not 0"),
        ({"n_iter": np.nan}, "n_iter must be a whole number, not nan"),
        ({"level_weight": np.inf}, "level_weight must be a finite number, not inf"),
        ({"size_weight": np.nan}, "size_weight must be a finite number, not nan"),
        ({"markov_alpha": np.nan}, "markov_alpha must be a number from -10 to 10, not nan"),
        ({"n_eigenvectors": 0}, "n_eigenvectors must be at least 1, not 0"),
        ({"merge_scale": -1.0}, "merge_scale must be positive, not -1.0"),
        ({"eps_scale": 0.0}, "eps_scale must be positive"),
        ({"max_memory": np.nan}, "max_memory must be positive, not nan"),
        ({"tol": np.nan}, "tol must be a finite number, not nan"),
        ({"random_state": -1}, "random_state must be at least 0, not -1"),
        ({"n_jobs": 0}, "threads must be at least 1"),
    ],
)
def test_settings_that_do_not_exist(settings, message):
    with pytest.raises(InputError, match=message):
        Questionnaire(**settings).fit(np.ones((3, 3, 3)))


def test_what_the_arithmetic_cannot_hold_is_refused():
    X = np.random.default_rng(0).normal(size=(6, 5, 4))
    with pytest.raises(InputError, match=r"e\+308 at axis0 0, axis1 0, axis2 0 .* scale the array first"):
        Questionnaire().fit(np.full((6, 5, 4), np.finfo(np.float64).max))
    with pytest.raises(InputError, match=r"1e\+301 at axis0 1, axis1 2, axis2 3 \(1 such"):
        Questionnaire().fit(np.where(np.arange(120).reshape(X.shape) == 31, 1e301, X))
    with pytest.raises(InputError, match="leave the range of float64 with level_weight 0 and size_weight -500"):
        Questionnaire(size_weight=-500.0).fit(X * 1e290)


# ------------------------------------------------------------------ memory


def test_memory_is_estimated_before_anything_is_started():
    X = np.broadcast_to(np.float32(1), (20_000, 8, 4))  # takes no memory itself
    tracemalloc.start()
    with pytest.raises(InputError, match=r"takes about 10 GB, max_memory is 4 GB; .* axis 'axis0' of length 20000"):
        Questionnaire().fit(X)
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(700, 8, 5), (100, 90, 80), (600, 500)])
@pytest.mark.parametrize("tree", ["ward", "flexible"])
def test_the_estimate_is_an_upper_bound(shape, tree):
    X = np.random.default_rng(0).random(shape).astype(np.float32)
    Questionnaire(n_iter=1, tree=tree, n_jobs=1).fit(X[:8, :5])  # compiled before memory is counted
    tracemalloc.start()
    Questionnaire(n_iter=2, tree=tree, n_jobs=1).fit(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < memory_estimate(shape)


# ------------------------------------------------------------------ a matrix, and many batches


def test_organize_matrix_brings_blocks_together():
    rng = np.random.default_rng(7)
    rows, columns = rng.permutation(np.repeat(np.arange(4), 8)), rng.permutation(np.repeat(np.arange(3), 9))
    M = rng.normal(size=(4, 3))[np.ix_(rows, columns)] + 0.05 * rng.normal(size=(32, 27))
    found = organize_matrix(M)
    assert np.array_equal(found.matrix, M[np.ix_(*found.orders)])
    for labels, order, tree in zip((rows, columns), found.orders, found.trees, strict=True):
        assert np.count_nonzero(np.diff(labels[order])) == len(set(labels)) - 1  # each cluster in one run
        assert np.array_equal(order, tree.order)
    assert found.fit.distances_[0].shape == (32, 32)
    assert organize_matrix(M, Questionnaire.paper()).fit.n_iter_ == 10
    with pytest.raises(InputError, match="a matrix is needed"):
        organize_matrix(np.ones((2, 2, 2)))


def test_consensus_is_the_mean_of_scaled_distances():
    rng = np.random.default_rng(8)
    fits = [Questionnaire(n_iter=1).fit(scale * rng.random((7, 6, 9))) for scale in (1.0, 1.0, 50.0)]
    found = consensus(fits)
    off = np.triu_indices(9, 1)
    expected = np.mean([fit.distances_[2] / np.median(fit.distances_[2][off]) for fit in fits], axis=0)
    np.testing.assert_allclose(found.distances, expected)
    np.testing.assert_allclose(found.affinity, dual_affinity(expected))
    assert found.tree.n_leaves == 9
    assert found.n_fits == 3
    assert found.spread.shape == (9, 9)
    assert consensus(fits[:1]).tree == fits[0].trees_[2]
    np.testing.assert_allclose(consensus(fits, axis=1).distances.shape, (6, 6))


def test_consensus_finds_what_single_batches_do_not():
    labels = np.repeat(np.arange(4), 4)
    centres = np.random.default_rng(9).normal(size=(12, 12, 4))
    batches = [centres[:, :, labels] + 4.0 * np.random.default_rng(b).normal(size=(12, 12, 16)) for b in range(12)]
    found = consensus([Questionnaire(n_iter=2).fit(X) for X in batches]).tree
    four = found.labels[list(found.counts).index(4)]
    assert len(set(zip(labels, four, strict=True))) == 4


def test_consensus_refusals():
    q = Questionnaire(n_iter=1).fit(np.random.default_rng(0).random((4, 4, 4)))
    with pytest.raises(InputError, match="none was given"):
        consensus([])
    with pytest.raises(InputError, match="questionnaire 1 is not fitted"):
        consensus([q, Questionnaire()])
    other = Questionnaire(n_iter=1).fit(np.random.default_rng(0).random((4, 4, 5)))
    with pytest.raises(InputError, match="axis must be a whole number from -3 to 2, not 9"):
        consensus([q, q], axis=9)
    with pytest.raises(InputError, match=r"different lengths \[4, 5\]"):
        consensus([q, other])
