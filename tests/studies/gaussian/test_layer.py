"""Units of the Gaussian study that need no model."""

import numpy as np
import pytest

import headscape as hs
from headscape.attention.layers import LayerData
from headscape.records import save_record
from headscape.statistics.layer import Reading
from headscape.studies.gaussian.layer import State, measure_layer, measure_state


def a_layer(n_input=2, n_head=2, n=30, dim=5):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(n_input, n_head, n, dim)).astype(np.float32) for _ in range(3))
    scores = q @ k.swapaxes(2, 3)
    probs = np.exp(scores) * np.tri(n, dtype=np.float32)
    probs /= probs.sum(axis=-1, keepdims=True)
    return LayerData(0, q, k, v, scores, probs, probs @ v, rotations=None, scaling=1.0, note="a note")


def test_data_may_come_from_a_file(tmp_path):
    data, reading = a_layer(), Reading(slice(1, None), True, [1], 0)
    save_record(data, tmp_path / "layer")
    save_record(State(1, data.outputs[:, 0]), tmp_path / "state")
    for function, given, folder in (
        (measure_layer, data, "layer"),
        (measure_state, State(1, data.outputs[:, 0]), "state"),
    ):
        function(tmp_path / "a.safetensors", given, reading)
        function(tmp_path / "b.safetensors", tmp_path / folder, reading)
        assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_tokens_that_are_all_equal_have_no_gaussian(tmp_path):
    message = "tokens before the first layer have no Gaussian: the 38 samples are all equal.*; capture inputs"
    with pytest.raises(hs.InputError, match=message):
        measure_state(
            tmp_path / "s.safetensors", State(0, np.ones((2, 20, 4))), Reading(slice(1, None), True, [1, 2], 0)
        )
    assert not list(tmp_path.iterdir())
