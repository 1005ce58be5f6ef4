"""Pairwise distances of folder means in tiles, so that what is held at a time fits the memory given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.geometry.folder_means import Chunk, Slices, fill_means
from headscape.geometry.l1 import ROWS, add_cross_l1, add_pairwise_l1, symmetric

__all__ = ["add_chunks", "distance_tiles", "groups_within"]

FloatArray = npt.NDArray[np.float64]

_TILE = 8 * ROWS
"""Tiles are a multiple of this many slices where there is room: the kernel's own tile."""


def groups_within(
    chunks: Sequence[Chunk], column_bytes: int, memory: float, at_most: int | None = None
) -> Iterator[list[Chunk]]:
    """Neighbouring chunks whose means fit into `memory` together, at least one at a time.

    `column_bytes` is what a column takes, all slices counted.
    """
    group: list[Chunk] = []
    columns = 0
    for chunk in chunks:
        if group and ((columns + chunk.columns) * column_bytes > memory or len(group) == at_most):
            yield group
            group, columns = [], 0
        group.append(chunk)
        columns += chunk.columns
    if group:
        yield group


def add_chunks(slices: Slices, chunks: Sequence[Chunk], total: FloatArray, memory: float, threads: int) -> None:
    """Add the L1 distances of the means of these chunks to `total`, (rows, rows), above the diagonal.

    An array in memory has one chunk made at a time. From disk as many are made with one reading of the slices as fit
    into `memory`. A chunk that does not fit is compared in tiles of slices.

    Raises
    ------
    InputError
        If not even the smallest tile of a chunk fits.
    """
    rows, itemsize = len(total), slices.dtype.itemsize
    at_most = 1 if isinstance(slices, np.ndarray) else None
    groups = list(groups_within(chunks, rows * itemsize, memory, at_most))
    sizes = [rows * sum(chunk.columns for chunk in group) for group in groups]
    largest = max((size for size in sizes if size * itemsize <= memory), default=0)
    buffer = np.empty(largest, dtype=slices.dtype)  # one for all, since fresh memory is slow
    for group, size in zip(groups, sizes, strict=True):
        if size > largest:
            _add_in_tiles(slices, group[0], total, tile_height(slices, group[0], rows, memory), threads)
            continue
        ends = rows * np.cumsum([chunk.columns for chunk in group])
        means = [part.reshape(rows, -1) for part in np.split(buffer[:size], ends[:-1])]
        fill_means(slices, group, means, 0, threads)
        for array in means:
            add_pairwise_l1(array, total, threads)


def tile_height(slices: Slices, chunk: Chunk, rows: int, memory: float) -> int:
    """Slices of a tile, so that two tiles of this chunk's means fit into `memory`."""
    fits = int(memory / (2 * chunk.columns * slices.dtype.itemsize))
    height = fits // _TILE * _TILE or fits // ROWS * ROWS
    if height == 0:
        need = 2 * ROWS * chunk.columns * slices.dtype.itemsize
        raise InputError(
            f"the tree distance between {slices.shape[0]} slices of shape {slices.shape[1:]} needs {need:.3g} bytes at "
            f"least, max_memory leaves {memory:.3g}; raise it, or shorten the axes"
        )
    return min(height, rows)


def _add_in_tiles(slices: Slices, chunk: Chunk, total: FloatArray, height: int, threads: int) -> None:
    """Add the distances of one chunk, two tiles of slices at a time."""
    rows = len(total)
    buffer = np.empty((2 * height, chunk.columns), dtype=slices.dtype)
    for i in range(0, rows, height):
        n_i = min(height, rows - i)
        fill_means(slices, [chunk], [buffer[:n_i]], i, threads)
        inside = total[i : i + n_i, i : i + n_i].copy()
        add_pairwise_l1(buffer[:n_i], inside, threads)
        total[i : i + n_i, i : i + n_i] = inside
        for j in range(i + height, rows, height):
            n_j = min(height, rows - j)
            fill_means(slices, [chunk], [buffer[n_i : n_i + n_j]], j, threads)
            add_cross_l1(buffer[: n_i + n_j], n_i, total[i : i + n_i, j : j + n_j], threads)


def distance_tiles(
    slices: Slices, chunks: Sequence[Chunk], height: int, threads: int
) -> Iterator[tuple[int, int, FloatArray]]:
    """The distances in blocks of `height` x `height` pairs, never all of them: i <= j and D[i : i + .., j : j + ..].

    `height` is a multiple of `ROWS`. Folder means are made anew for every block, which costs little beside comparing
    some hundred slices with one another.
    """
    n = slices.shape[0]
    rows = n + -n % ROWS
    width = max(chunk.columns for chunk in chunks)
    buffer = np.empty(2 * height * width, dtype=slices.dtype)
    for i in range(0, rows, height):
        n_i = min(height, rows - i)
        for j in range(i, rows, height):
            n_j = min(height, rows - j)
            total = np.zeros((n_i, n_j))
            for chunk in chunks:
                if i == j:
                    own = buffer[: n_i * chunk.columns].reshape(n_i, -1)
                    fill_means(slices, [chunk], [own], i, threads)
                    add_pairwise_l1(own, total, threads)
                    continue
                both = buffer[: (n_i + n_j) * chunk.columns].reshape(n_i + n_j, -1)
                fill_means(slices, [chunk], [both[:n_i]], i, threads)
                fill_means(slices, [chunk], [both[n_i:]], j, threads)
                add_cross_l1(both, n_i, total, threads)
            if i == j:
                total = symmetric(total)
            yield i, j, total[: n - i, : n - j]
