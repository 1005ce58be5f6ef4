"""What round-off explains breaks no bound, and what it cannot explain does."""

import numpy as np
import pytest

from headscape.collapse.bounds import BOUNDS, LayerBounds, corrected_d3, layer_bounds, named_bounds
from headscape.collapse.residual import norm_1inf


def bounds(measured, floor, repaired=1.0, anywhere=1.0, printed=1.0):
    spread = np.array([0.5, 0.25])
    return LayerBounds(measured, floor, repaired, anywhere, printed, spread, np.ones(2), condition=True)


def test_a_bound_is_kept_up_to_the_floor():
    found = bounds(measured=1.0, floor=0.25)
    assert found.keeps(0.75) and found.keeps(0.8) and found.keeps(1.5)
    assert not found.keeps(0.7)


@pytest.mark.parametrize(
    ("bound", "kept"), [(0.7, False), (0.75, True), (0.8, True), (1.1, True), (float("nan"), True)]
)
@pytest.mark.parametrize("name", ["repaired", "anywhere", "printed"])
def test_the_table_says_the_same_and_an_unknown_bound_is_not_broken(name, bound, kept):
    found = named_bounds(bounds(1.0, 0.25, **{name: bound}).row)
    assert found[f"keeps_{name}"] is kept
    assert all(found[f"keeps_{other}"] for other in {"repaired", "anywhere", "printed"} - {name})
    assert list(found)[: len(BOUNDS)] == list(BOUNDS) and found["spread"] == 0.5


def test_the_floor_is_the_round_off_of_what_the_layer_puts_out():
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(5, 3)), rng.normal(size=(1, 3, 4))
    found = layer_bounds(X, np.zeros((1, 5, 5)), W)  # uniform attention: nothing is left
    out = np.full((5, 5), 0.2) @ (X - X.mean(axis=0)) @ W[0]
    assert found.measured <= found.floor + 5 * np.finfo(float).eps * norm_1inf(out)
    found = layer_bounds(X, 700 * np.eye(5)[None], W)  # every token attends to itself: all is left
    kept = (X - X.mean(axis=0)) @ W[0]
    assert found.floor == pytest.approx(5 * np.finfo(float).eps * norm_1inf(kept), rel=1e-9)


@pytest.mark.parametrize("log", [708.0, 709.9, 800.0])
def test_a_bound_beyond_the_largest_double_is_infinite(log):
    found = corrected_d3(1.0, 0.0, np.exp(log / 3), depth=1)  # R^3
    assert found == (pytest.approx(np.exp(log), rel=1e-9) if log < 709 else np.inf)
