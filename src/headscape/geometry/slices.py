"""The array as the questionnaire works on it: float32, scaled, with any axis first; in memory or on disk."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.compiled import run_tasks
from headscape.geometry.affinity import cosine_of_blocks
from headscape.geometry.arrays import value_range
from headscape.geometry.folder_means import Slices
from headscape.geometry.l1 import COLUMNS, ROWS, add_pairwise_l1, symmetric
from headscape.geometry.memory import LEAF_BLOCK
from headscape.geometry.scratch import Layouts, StoredSlices

__all__ = ["AnySlices", "ArraySlices", "DiskSlices", "Scale"]

FloatArray = npt.NDArray[np.float64]
Values = npt.NDArray[np.float32]

_CACHE_LINE = 16
"""float32 entries of a cache line: slices are copied in such blocks, so that each line is read once."""


class Scale(NamedTuple):
    """How entries become float32 near 1.

    Distances do not depend on a shift, so a large common offset is subtracted before rounding; the scale is a power of
    two, so scaling rounds nothing. Both depend only on the largest and smallest entry, not on the order of the entries.
    """

    offset: float
    unit: float
    between: np.dtype[Any]  # the precision in which this is done

    @classmethod
    def of(cls, low: float, high: float, dtype: np.dtype[Any]) -> Scale:
        """Scale of an array with these extremes."""
        offset = low if low > high - low else high if high < low - high else 0.0
        exponent = int(np.clip(np.frexp(max(high - offset, offset - low))[1], -1000, 1000))
        # nothing is rounded then: a float16 is a float32, and so is either times a power of two
        single = dtype.kind == "f" and dtype.itemsize <= 4 and offset == 0 and abs(exponent) < 100
        return cls(offset, 2.0**exponent, np.dtype(np.float32 if single else np.float64))

    def apply(self, values: npt.NDArray[Any]) -> Values:
        """Scaled entries."""
        between = values.astype(self.between, copy=False)
        if self.offset:
            between = between - self.between.type(self.offset)
        scaled: npt.NDArray[Any] = between * self.between.type(1 / self.unit)
        return scaled.astype(np.float32, copy=False)


class ArraySlices(AbstractContextManager["ArraySlices"]):
    """The array in memory, with a copy per axis where there is room (`keep`), else copied again each time."""

    def __init__(
        self, values: npt.NDArray[Any], names: tuple[str, ...], tiles: float, keep: bool, threads: int
    ) -> None:
        self.shape: tuple[int, ...] = values.shape
        self.tiles = tiles
        self._values, self._keep, self._threads = values, keep, threads
        self._low, self._high = value_range(values, names)
        scale = Scale.of(self._low, self._high, values.dtype)
        self.unit = scale.unit
        self.work: Values = np.empty(values.shape, dtype=np.float32)

        def fill(i: int) -> None:  # a slice at a time, so that float64 in between stays small
            self.work[i] = scale.apply(values[i])

        run_tasks(fill, [(i,) for i in range(len(values))], threads)
        self._kept: dict[int, Values] = {}
        self._leaf_distances: dict[int, FloatArray] = {}

    def __exit__(self, *reason: object) -> None:
        self._kept.clear()

    def along(self, axis: int) -> Slices:
        """Return the array with `axis` first, contiguous."""
        return self._padded(axis)[: self.shape[axis]]

    def cosine(self, axis: int) -> FloatArray:
        """`cosine_affinity` of the array given."""
        moved = np.moveaxis(self._values, axis, 0)
        scale = max(self._high, -self._low)
        return cosine_of_blocks(lambda lo, hi: moved[:, lo:hi], moved.shape, moved.dtype, scale)

    def leaf_distance(self, axis: int) -> FloatArray:
        """L1 distances of the slices as they are: the part of every tree distance that does not depend on the trees."""
        if axis not in self._leaf_distances:
            padded = self._padded(axis)
            total = np.zeros((len(padded), len(padded)))
            add_pairwise_l1(padded.reshape(len(padded), -1), total, self._threads)
            n = self.shape[axis]
            self._leaf_distances[axis] = symmetric(total[:n, :n])
        return self._leaf_distances[axis]

    def _padded(self, axis: int) -> Values:
        """Return the array with `axis` first, and slices of zeros behind, for the kernel."""
        if axis in self._kept:
            return self._kept[axis]
        view = np.moveaxis(self.work, axis, 0)
        n = len(view)
        if axis == 0 and n % ROWS == 0:
            return self.work
        if not self._keep:
            self._kept.clear()  # one at a time
        padded = np.zeros((n + -n % ROWS, *view.shape[1:]), dtype=np.float32)

        def copy(lo: int) -> None:
            padded[lo : min(lo + _CACHE_LINE, n)] = view[lo : lo + _CACHE_LINE]

        run_tasks(copy, [(lo,) for lo in range(0, n, _CACHE_LINE)], self._threads)
        self._kept[axis] = padded
        return padded


class DiskSlices(AbstractContextManager["DiskSlices"]):
    """The array on disk, with a copy per axis in scratch files; the array given is read once, in blocks.

    Gives the same numbers as `ArraySlices`, bit by bit. The files never have a name, so they are gone when this is
    closed or the process ends, however it ends.
    """

    def __init__(self, layouts: Layouts, threads: int) -> None:
        self.shape, self._dtype, self.tiles = layouts.shape, layouts.dtype, layouts.memory
        self._layouts, self._threads = layouts, threads
        self._low, self._high = self._layouts.value_range
        self._scale = Scale.of(self._low, self._high, self._dtype)
        self.unit = self._scale.unit
        self._leaf_distances: dict[int, FloatArray] = {}

    def __exit__(self, *reason: object) -> None:
        self._layouts.close()

    @property
    def bytes_read(self) -> int:
        """Bytes read from the scratch files so far."""
        return self._layouts.bytes_read

    @property
    def work(self) -> Slices:
        """The array, scaled, slice by slice of its first axis."""
        return self.along(0)

    def along(self, axis: int) -> Slices:
        """Return the slices of `axis`; each is read on access."""
        return StoredSlices(self._layouts, axis, self._scale.apply, np.dtype(np.float32))

    def cosine(self, axis: int) -> FloatArray:
        """`cosine_affinity` of the array given."""
        first = 1 if axis == 0 else 0  # of the other axes
        order = [first, *(b for b in range(len(self.shape)) if b != first)]
        shape = (self.shape[axis], *(n for b, n in enumerate(self.shape) if b != axis))

        def read(lo: int, hi: int) -> npt.NDArray[Any]:
            return np.moveaxis(self._layouts.read(first, lo, hi), order.index(axis), 0)

        return cosine_of_blocks(read, shape, self._dtype, max(self._high, -self._low))

    def leaf_distance(self, axis: int) -> FloatArray:
        """As of `ArraySlices`, reading a few columns of all slices at a time."""
        if axis not in self._leaf_distances:
            n, length = self.shape[axis], math.prod(self.shape) // self.shape[axis]
            rows = n + -n % ROWS
            total = np.zeros((rows, rows))
            step = max(1, int(LEAF_BLOCK / (4 * rows * COLUMNS))) * COLUMNS  # whole sums of the kernel
            buffer = np.zeros(rows * min(step, length), dtype=np.float32)
            for lo in range(0, length, step):
                hi = min(lo + step, length)
                block = buffer[: rows * (hi - lo)].reshape(rows, hi - lo)
                block[n:] = 0

                def fill(i: int, lo: int = lo, hi: int = hi, block: Values = block) -> None:
                    block[i] = self._scale.apply(self._layouts.read_entries(axis, i, lo, hi))

                run_tasks(fill, [(i,) for i in range(n)], self._threads)
                add_pairwise_l1(block, total, self._threads)
            self._leaf_distances[axis] = symmetric(total[:n, :n])
        return self._leaf_distances[axis]


AnySlices = ArraySlices | DiskSlices
