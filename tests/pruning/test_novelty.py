"""Block elimination is additive and exact: its slow twin solves anew for every candidate.

Also tests pruning.units.
"""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import headscape as hs
from headscape.pruning.novelty import Elimination
from headscape.pruning.units import units_of
from reference import QUICK
from reference_pruning import error_without
from tiny import Letters
from zoo import make


@QUICK
@given(st.integers(2, 5), st.integers(1, 3), st.integers(0, 1000))
def test_rises_add_up_to_the_error_of_solving_anew(n_blocks, dim, seed):
    rng = np.random.default_rng(seed)
    n = n_blocks * dim
    rows = rng.standard_normal((4 * n, n)) @ rng.standard_normal((n, n)) + rng.standard_normal(n)
    with_one = np.c_[rows, np.ones(len(rows))]
    S, W = with_one.T @ with_one / len(rows), rng.standard_normal((3, n))
    blocks = [torch.arange(i * dim, (i + 1) * dim) for i in range(n_blocks)]
    layer, gone, total = Elimination(torch.from_numpy(S), torch.from_numpy(W), blocks), [], 0.0
    for block in rng.permutation(n_blocks):
        for other, rise in layer.rises().items():
            gone_too = np.concatenate([blocks[i].numpy() for i in (*gone, other)])
            np.testing.assert_allclose(total + rise, error_without(S, W, gone_too), rtol=1e-6)
        total += layer.rises()[int(block)]
        layer.remove(int(block))
        gone.append(int(block))


def test_units_are_heads_groups_and_layers():
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    name = model.sites[0].name
    assert units_of(model, "head")[name] == [(0,), (1,), (2,), (3,)]
    assert units_of(model, "group")[name] == [(0, 1), (2, 3)]
    assert units_of(model, "layer")[name] == [(0, 1, 2, 3)]
