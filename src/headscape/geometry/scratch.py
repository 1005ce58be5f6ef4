"""Scratch files: an array copied to disk once per axis, with that axis first, so that slices are read in one piece."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from headscape.checks import check_finite
from headscape.compiled import run_tasks
from headscape.errors import InputError
from headscape.geometry.arrays import LazyArray, blocks

__all__ = ["Layouts", "StoredSlices", "check_disk", "scratch_bytes"]

Convert = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
_LINE = 64
"""Bytes of a cache line: this much of an axis is transposed at a time."""
_SPARE = 1.02
"""Space the file system needs, relative to the files."""


def scratch_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Bytes of scratch files for an array: one copy per axis.

    >>> scratch_bytes((1024, 1024, 1000), 2) / 1e9
    6.291456
    """
    return len(shape) * math.prod(shape) * itemsize


def check_disk(need: float, directory: str | None) -> str:
    """The folder of the scratch files; an `InputError` if it is missing, not writable, or has too little space."""
    folder = directory or tempfile.gettempdir()
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise InputError(f"the scratch folder {folder} does not exist or cannot be written to; name another")
    free = shutil.disk_usage(folder).free
    if need * _SPARE > free:
        found = f"the scratch files take {need / 1e9:.3g} GB, {folder} has {free / 1e9:.3g} GB free"
        raise InputError(f"{found}; name a larger folder (scratch, or TMPDIR), or raise max_memory")
    return folder


class Layouts(AbstractContextManager["Layouts"]):
    """Copies of an array on disk, in its own dtype: for every axis one with that axis first, the others in their order.

    Parameters
    ----------
    values, names
        The array, read once in blocks of its first axis, and the names of its axes for messages.
    directory
        Where; the system's temporary folder if None.
    memory
        Bytes for a block and its transposed copies.
    threads
        How many files are written at a time.
    axes
        Which axes get a copy; all by default.

    Raises
    ------
    InputError
        If there is not enough disk space, or an entry is not finite.
    """

    def __init__(
        self,
        values: npt.NDArray[Any] | LazyArray,
        names: tuple[str, ...],
        directory: str | None,
        memory: float,
        threads: int,
        axes: Sequence[int] | None = None,
    ) -> None:
        self.shape, self.dtype, self.memory = tuple(values.shape), np.dtype(values.dtype), memory
        self.bytes_read = 0
        self._lock = threading.Lock()
        wanted = list(range(len(self.shape)) if axes is None else axes)
        copies = len(wanted) / len(self.shape)
        folder = check_disk(copies * scratch_bytes(self.shape, self.dtype.itemsize), directory)
        # never with a name where the system allows it: nothing is left behind, however the process ends
        self._files: dict[int, IO[bytes]] = {}
        try:
            for axis in wanted:
                self._files[axis] = tempfile.TemporaryFile(dir=folder, prefix="headscape-", buffering=0)  # noqa: SIM115
            ranges = []
            for start, block in blocks(values, memory / 4):
                ranges.append(check_finite(block, names, start))
                run_tasks(self._write, [(axis, start, block) for axis in wanted], threads)
            self.value_range = min(low for low, _ in ranges), max(high for _, high in ranges)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise InputError(f"writing scratch files to {folder} failed: {error}") from None
            raise

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def read(self, axis: int, lo: int, hi: int) -> npt.NDArray[Any]:
        """Slices lo..hi of an axis, (hi - lo, other axes ..)."""
        rest = tuple(n for b, n in enumerate(self.shape) if b != axis)
        length = math.prod(rest)
        return self._entries(axis, lo * length, hi * length).reshape(hi - lo, *rest)

    def read_entries(self, axis: int, i: int, lo: int, hi: int) -> npt.NDArray[Any]:
        """Entries lo..hi of slice i of an axis, flat."""
        length = math.prod(self.shape) // self.shape[axis]
        return self._entries(axis, i * length + lo, i * length + hi)

    def _write(self, axis: int, start: int, block: npt.NDArray[Any]) -> None:
        """Put a block of rows of the first axis where it belongs in the file of `axis`."""
        file, itemsize = self._files[axis], self.dtype.itemsize
        if axis == 0:
            _write_at(file, start * math.prod(self.shape[1:]) * itemsize, np.ascontiguousarray(block))
            return
        turned = np.moveaxis(block, axis, 0)
        row = math.prod(turned.shape[2:]) * itemsize  # of one index of the first axis, which comes second here
        line = max(1, _LINE // itemsize)
        for lo in range(0, len(turned), line):
            for i, piece in enumerate(np.ascontiguousarray(turned[lo : lo + line]), start=lo):
                _write_at(file, (i * self.shape[0] + start) * row, piece)

    def _entries(self, axis: int, lo: int, hi: int) -> npt.NDArray[Any]:
        found = np.empty(hi - lo, dtype=self.dtype)
        _read_at(self._files[axis], lo * self.dtype.itemsize, found)
        with self._lock:
            self.bytes_read += found.nbytes
        return found


class StoredSlices:
    """The slices of one axis, each read and converted to `dtype` on access; see `folder_means.Slices`."""

    def __init__(self, layouts: Layouts, axis: int, convert: Convert, dtype: np.dtype[Any]) -> None:
        self._layouts, self._axis, self._convert = layouts, axis, convert
        self.shape = (layouts.shape[axis], *(n for b, n in enumerate(layouts.shape) if b != axis))
        self.dtype = dtype

    def __getitem__(self, i: int, /) -> npt.NDArray[Any]:
        return self._convert(self._layouts.read(self._axis, int(i), int(i) + 1)[0])


_seeking = threading.Lock()
"""For systems without positioned reads (Windows)."""


def _read_at(file: IO[bytes], offset: int, into: npt.NDArray[Any]) -> None:
    """Fill an array from a position in a file; safe from any number of threads."""
    left = into.view(np.uint8).data
    while left:
        if hasattr(os, "preadv"):
            count = os.preadv(file.fileno(), [left], offset)
        else:
            with _seeking:
                file.seek(offset)
                count = file.readinto(left)  # type: ignore[attr-defined]  # unbuffered files have it
        if not count:
            raise OSError(f"a scratch file ends before byte {offset}")
        left, offset = left[count:], offset + count


def _write_at(file: IO[bytes], offset: int, values: npt.NDArray[Any]) -> None:
    left = values.reshape(-1).view(np.uint8).data
    while left:
        if hasattr(os, "pwrite"):
            count = os.pwrite(file.fileno(), left, offset)
        else:
            with _seeking:
                file.seek(offset)
                count = file.write(left)
        left, offset = left[count:], offset + count
