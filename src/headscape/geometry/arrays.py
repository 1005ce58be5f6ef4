"""Input: any real array of order two or more, or an AttentionTensor, with names for its axes."""

from __future__ import annotations

import math
import mmap
from collections import namedtuple
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from headscape.checks import check_finite
from headscape.errors import InputError
from headscape.tensor import AXES, AttentionTensor

__all__ = ["LazyArray", "as_lazy", "as_values", "blocks", "per_axis", "value_range"]

_BLOCK = 2**26
"""Bytes of a block."""


@runtime_checkable
class LazyArray(Protocol):
    """An array that is read by slicing along its first axis: an h5py or zarr dataset, or a class of your own."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # as of an ndarray
    @property
    def dtype(self) -> Any: ...  # what np.dtype understands
    def __getitem__(self, rows: slice, /) -> Any: ...  # rows lo..hi of the first axis, as what np.asarray understands


def as_lazy(X: AttentionTensor | LazyArray | npt.ArrayLike) -> tuple[npt.NDArray[Any] | LazyArray, tuple[str, ...]]:
    """Return the array and the names of its axes without reading its entries.

    An AttentionTensor has axes query, key, head; another array axis0, axis1, ... Nothing is copied. An object with a
    shape and a numpy dtype that can be sliced, but is not in memory like an ndarray, stays as it is.

    Raises
    ------
    InputError
        If the order is below two, an axis is empty, or the entries are not real numbers.
    """
    values: npt.NDArray[Any] | LazyArray
    if isinstance(X, AttentionTensor):
        values = X.values
    elif _is_lazy(X):
        values = X  # type: ignore[assignment]  # just checked
    else:
        values = np.asarray(X)
    shape, dtype = tuple(values.shape), np.dtype(values.dtype)
    names = AXES if isinstance(X, AttentionTensor) else tuple(f"axis{a}" for a in range(len(shape)))
    if dtype.kind not in "fiub":
        raise InputError(f"an array of real numbers is needed, this one has dtype {dtype}")
    if len(shape) < 2:
        raise InputError(f"an array of order 2 or more is needed, this one has shape {shape}")
    for name, size in zip(names, shape, strict=True):
        if size == 0:
            raise InputError(f"axis '{name}' of the array of shape {shape} is empty")
    return values, names


def as_values(X: AttentionTensor | LazyArray | npt.ArrayLike) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Return the array, in memory, and the names of its axes.

    Raises an `InputError` as `as_lazy` does, and if an entry is NaN, infinite or beyond 1e300, with its axis and index.
    """
    lazy, names = as_lazy(X)
    values = lazy if isinstance(lazy, np.ndarray) else np.asarray(lazy[0 : lazy.shape[0]])
    value_range(values, names)
    return values, names


def blocks(values: npt.NDArray[Any] | LazyArray, n_bytes: float = _BLOCK) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The array in blocks of its first axis, each with its start; at most this many bytes, but at least one row.

    Pages of a memory map are released afterwards, so that reading through a file does not fill the memory.
    """
    row = math.prod(values.shape[1:]) * np.dtype(values.dtype).itemsize
    step = max(1, int(n_bytes // row))
    for lo in range(0, values.shape[0], step):
        yield lo, np.asarray(values[lo : lo + step])
        _release(values)


def value_range(values: npt.NDArray[Any] | LazyArray, names: tuple[str, ...]) -> tuple[float, float]:
    """Smallest and largest entry; raises as `check_finite`."""
    ranges = [check_finite(block, names, start) for start, block in blocks(values)]
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _is_lazy(X: object) -> bool:
    """Whether to slice it instead of passing it to numpy, which would read all of it."""
    if isinstance(X, np.ndarray | np.generic) or hasattr(X, "__array_interface__") or hasattr(X, "iloc"):
        return False
    if not (isinstance(getattr(X, "shape", None), tuple) and hasattr(X, "__getitem__")):
        return False
    try:
        np.dtype(X.dtype)  # type: ignore[attr-defined]  # torch has its own
    except (AttributeError, TypeError):
        return False
    return True


def _release(values: object) -> None:
    """Drop the pages of a read-only memory map; they are read from the file again when needed."""
    while isinstance(values, np.ndarray):
        if isinstance(values, np.memmap) and values.mode != "r":
            return  # what was written to a private map would be lost
        values = values.base
    if isinstance(values, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        values.madvise(mmap.MADV_DONTNEED)


def per_axis(names: tuple[str, ...], values: Iterable[Any]) -> Any:
    """Make a named tuple with one value per axis.

    >>> per_axis(("query", "key"), [3, 4])
    Axes(query=3, key=4)
    """
    return _axes(names)(*values)


@cache
def _axes(names: tuple[str, ...]) -> Any:
    axes = namedtuple("Axes", names)  # type: ignore[misc]  # the names are known when an array is
    setattr(axes, "__reduce__", lambda self: (per_axis, (names, tuple(self))))  # noqa: B010 - so that it pickles
    return axes
