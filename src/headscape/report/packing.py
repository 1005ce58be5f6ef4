"""Arrays inside JSON: long ones as base64 of their bytes, short ones as numbers. `unpack` in data.js reads them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["pack"]

SHORT = 32  # numbers up to which plain JSON is smaller and easier to read
LARGE = 250_000  # numbers from which two bytes each must do: a matrix of 500 heads
_NAN = 65_535  # the 16-bit code of a missing number


def pack(value: Any) -> Any:
    """Turn arrays, numpy scalars, mappings and sequences into JSON values; NaN and infinities become None.

    An array of more than 32 numbers becomes ``{"$": type, "shape": [..], "data": base64}``: float32 ("f4"), or 16 bits
    between "low" and "high" ("u2") above 250,000 numbers, or int32 ("i4").

    >>> pack({"x": np.arange(3), "y": [1.5, float("nan")]})
    {'x': [0, 1, 2], 'y': [1.5, None]}
    >>> pack(np.zeros((10, 10)))["shape"]
    [10, 10]
    """
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, np.ndarray):
        return _pack_array(value)
    if isinstance(value, np.generic):
        return pack(value.item())
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): pack(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) > SHORT and all(type(item) in (int, float) for item in value):
            return _pack_array(np.asarray(value))
        return [pack(item) for item in value]
    return str(value)


def _pack_array(array: npt.NDArray[Any]) -> Any:
    if array.dtype.kind not in "fiub" or array.size <= SHORT:
        return [pack(item) for item in array.tolist()] if array.ndim else pack(array.item())
    packed: dict[str, Any] = {"shape": list(array.shape)}
    if array.dtype.kind != "f":
        if array.dtype.kind == "b" or -(2**31) <= array.min() <= array.max() < 2**31:
            return packed | {"$": "i4", "data": _base64(array.astype("<i4"))}
        array = array.astype(np.float64)
    finite = np.isfinite(array)
    if array.size < LARGE or not finite.any():
        return packed | {"$": "f4", "data": _base64(np.where(finite, array, np.nan).astype("<f4"))}
    low, high = float(array[finite].min()), float(array[finite].max())
    step = (high - low) / (_NAN - 1) or 1.0
    codes = np.full(array.shape, _NAN, dtype="<u2")
    codes[finite] = np.rint((array[finite] - low) / step).astype("<u2")
    return packed | {"$": "u2", "low": low, "high": high, "data": _base64(codes)}


def _base64(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
