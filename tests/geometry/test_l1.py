"""The L1 kernel against pairs of rows."""

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.geometry.l1 import COLUMNS, pairwise_l1
from reference_geometry import slow_l1


@pytest.mark.parametrize("n", [1, 2, 3, 5, 33, 100])
@pytest.mark.parametrize("columns", [1, 17, 2047, 2049, 5000])
def test_equals_the_pairwise_sum(n, columns):
    rows = np.random.default_rng(n + columns).normal(size=(n, columns))
    truth = slow_l1(rows)
    np.testing.assert_allclose(pairwise_l1(rows), truth, rtol=1e-12)
    np.testing.assert_allclose(pairwise_l1(rows.astype(np.float32)), truth, rtol=1e-5, atol=1e-5)


def test_long_rows_do_not_lose_precision():
    rows = np.full((2, 3_000_000), 0.1, dtype=np.float32)
    rows[1] = 0.2
    truth = 3_000_000 * (float(rows[1, 0]) - float(rows[0, 0]))
    # float32 within COLUMNS, in at least four lanes: at most COLUMNS / 4 roundings of 2^-24 each, however long the row
    assert pairwise_l1(rows)[0, 1] == pytest.approx(truth, rel=COLUMNS / 4 * 2.0**-24)


def test_any_number_of_threads_gives_the_same_bytes():
    rows = np.random.default_rng(0).normal(size=(150, 3000)).astype(np.float32)
    one = pairwise_l1(rows, threads=1)
    for threads in (2, 3, 8):
        assert np.array_equal(one, pairwise_l1(rows, threads=threads))


def test_equal_rows_are_at_distance_zero_exactly():
    row = np.random.default_rng(1).normal(size=4096).astype(np.float32)
    assert not pairwise_l1(np.stack([row] * 7)).any()


def test_no_threads_are_refused():
    with pytest.raises(InputError, match="at least 1, not 0"):
        pairwise_l1(np.ones((2, 2)), threads=0)
