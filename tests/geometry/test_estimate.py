"""Operations are counted as a fit does them; time is operations over rates."""

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.geometry import scratch
from headscape.geometry import slices as slices_module
from headscape.geometry.estimate import Operations, Rates, estimate_fit, fit_operations, measure_rates
from headscape.geometry.memory import disk_memory_estimate
from headscape.geometry.questionnaire import Questionnaire

UNIT = Rates(1.0, 1.0, 1.0, 1.0, 1.0)


def counted(q, shape):
    """Pairs times tuples of folders, with the trees that were found."""
    total = 0.0
    for axis, n in enumerate(shape):
        tuples = np.prod([len(tree.sizes) for b, tree in enumerate(q.trees_) if b != axis])
        total += n * (n - 1) / 2 * tuples
    return total


@pytest.mark.parametrize("shape", [(80, 70), (50, 40, 30), (300, 20, 6), (12, 10, 9, 8)])
@pytest.mark.parametrize("tree", ["ward", "binary"])
def test_counts_are_those_of_the_trees_found(shape, tree):
    q = Questionnaire(n_iter=1, tree=tree, n_jobs=1).fit(np.random.default_rng(0).random(shape, dtype=np.float32))
    found = fit_operations(q, shape)
    assert counted(q, shape) <= found.l1 <= 1.4 * counted(q, shape)
    assert found.disk == 0
    # every further round costs the tuples that are not all leaves
    more = fit_operations(Questionnaire(n_iter=3, tree=tree), shape).l1
    pairs = sum(n * (n - 1) / 2 * np.prod(shape) / n for n in shape)
    assert more == pytest.approx(pairs + 3 * (found.l1 - pairs))


def test_a_sketch_costs_what_it_keeps():
    shape = (32, 32, 5000)
    exact = fit_operations(Questionnaire(), shape)
    rough = fit_operations(Questionnaire(distance="sketch", sketch_columns=256), shape)
    assert rough.l1 < 0.5 * exact.l1
    assert fit_operations(Questionnaire(distance="sketch"), (32, 32, 500)) == fit_operations(
        Questionnaire(), (32, 32, 500)
    )


def test_bytes_read_are_those_counted(monkeypatch):
    X = np.random.default_rng(1).random((40, 36, 28), dtype=np.float32)
    q = Questionnaire(n_iter=2, n_jobs=1, max_memory=disk_memory_estimate(X.shape, 1) + 1e4)
    estimate = estimate_fit(q, X.shape, rates=UNIT)
    assert estimate.on_disk and estimate.memory == q.max_memory
    assert estimate.disk == 3 * X.nbytes
    read = []
    leave = slices_module.DiskSlices.__exit__
    monkeypatch.setattr(
        slices_module.DiskSlices, "__exit__", lambda self, *why: (read.append(self.bytes_read), leave(self, *why))[1]
    )
    q.fit(X)
    tiles = q.max_memory - (disk_memory_estimate(X.shape, 1) - 8 * 64e6 / 40)
    counted = fit_operations(q, X.shape, 4, tiles).disk - 3 * X.nbytes  # without what is written
    assert 0.3 * counted < read[0] < 3 * counted


def test_time_is_operations_over_rates():
    done = Operations(10.0, 20.0, 30.0, 40.0, 50.0)
    assert Rates(1.0, 2.0, 3.0, 4.0, 5.0).seconds(done) == 50.0
    q = Questionnaire(n_jobs=1)
    slow = estimate_fit(q, (20, 20, 20), rates=UNIT).seconds
    assert slow == pytest.approx(sum(vars(fit_operations(q, (20, 20, 20))).values()))


def test_rates_are_measured_and_nothing_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    rates = measure_rates(1)
    assert all(rate > 1e5 for rate in vars(rates).values())
    assert rates.l1 > rates.means  # a kernel of subtractions against sums that go through trees
    assert not list(tmp_path.iterdir())


def test_says_at_once_what_cannot_be_done():
    with pytest.raises(InputError, match="shorten axis 'key' of length 3000"):
        estimate_fit(Questionnaire(max_memory=1e8), (10, 3000, 4), rates=UNIT, names=("query", "key", "head"))
    with pytest.raises(InputError, match=r"not shape \(5,\)"):
        estimate_fit(Questionnaire(), (5,), rates=UNIT)
