import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headscape as hs
from headscape.pruning.search import within_budget
from reference import QUICK


@QUICK
@given(
    st.lists(st.floats(0.01, 5), min_size=2, max_size=30),
    st.floats(0.05, 20),
    st.integers(0, 100),
    st.booleans(),
)
def test_the_budget_holds_and_one_head_stays(prices, budget, seed, with_tree):
    n = len(prices)
    order = np.random.default_rng(seed).permutation(n).tolist()
    tree = hs.PartitionTree.dyadic(n) if with_tree else None
    calls = []

    def cost(heads):
        assert len(set(heads)) == len(heads)
        calls.append(heads)
        return sum(prices[h] for h in heads)

    found = within_budget(order, cost, budget, tree=tree, evaluations=25)
    assert sum(prices[h] for h in found.heads) <= budget + 1e-12
    assert found.cost == pytest.approx(sum(prices[h] for h in found.heads))
    assert len(found.heads) < n and len(calls) == len(found.trials) <= 25
    longest = next((k for k in range(n - 1, 0, -1) if sum(prices[h] for h in order[:k]) <= budget), 0)
    assert len(found.heads) >= longest


def test_a_folder_goes_together():
    order = [0, 1, 2, 3, 4, 5, 6, 7]

    def cost(heads):  # heads 4 and 5 only cost something when one of them is left alone; 2 is dear
        split = len({4, 5} & set(heads)) == 1
        return 0.1 * len(heads) + 10 * split + 10 * (2 in heads) + 10 * bool({3, 6, 7} & set(heads))

    tree = hs.PartitionTree.from_labels([[0, 0, 1, 1, 2, 2, 3, 3]])
    assert set(within_budget(order, cost, 1.0, tree=tree).heads) == {0, 1, 4, 5}
    assert set(within_budget(order, cost, 1.0).heads) == {0, 1}


def test_nothing_fits():
    assert within_budget([0, 1, 2], lambda heads: 9.0, 1.0).heads == ()
    with pytest.raises(hs.InputError, match="must be above 0"):
        within_budget([0, 1], lambda heads: 0.0, 0.0)
