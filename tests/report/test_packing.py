"""Arrays in JSON come back as they were."""

import base64
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headscape.report.packing import pack


def unpack(packed):
    """Read an array back, as data.js does."""
    if not isinstance(packed, dict):
        return np.asarray(packed)
    codes = np.frombuffer(base64.b64decode(packed["data"]), dtype="<" + packed["$"]).reshape(packed["shape"])
    if packed["$"] != "u2":
        return codes
    step = (packed["high"] - packed["low"]) / 65_534 or 1.0
    return np.where(codes == 65_535, np.nan, packed["low"] + codes.astype(float) * step)


@given(
    hnp.arrays(
        np.float32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=9), elements=st.floats(-1e6, 1e6, width=32)
    )
)
def test_packed_floats_come_back(array):
    assert np.allclose(unpack(json.loads(json.dumps(pack(array)))), array, rtol=1e-6)


@given(hnp.arrays(np.int64, st.integers(0, 80), elements=st.integers(-(2**31), 2**31 - 1)))
def test_packed_integers_come_back(array):
    assert np.array_equal(unpack(json.loads(json.dumps(pack(array)))), array)


def test_large_arrays_take_two_bytes_and_keep_missing_numbers():
    values = np.random.default_rng(0).normal(size=(600, 500))
    values[3, 4] = np.nan
    packed = pack(values)
    assert packed["$"] == "u2"
    back = unpack(packed)
    assert np.isnan(back[3, 4])
    assert np.nanmax(np.abs(back - values)) <= np.ptp(values[np.isfinite(values)]) / 65_000


def test_numbers_json_does_not_know_become_none():
    assert pack({"a": float("inf"), "b": np.array([np.nan, 1.0]), 3: np.float32(2)}) == {
        "a": None,
        "b": [None, 1.0],
        "3": 2.0,
    }
