"""How much memory and disk the questionnaire will take, estimated before it starts."""

from __future__ import annotations

import math
from typing import NamedTuple

from headscape.errors import InputError
from headscape.geometry.affinity import block_rows
from headscape.geometry.folder_means import CHUNK
from headscape.geometry.l1 import COLUMNS, ROWS
from headscape.geometry.neighbours import LANDMARKS, NEIGHBOURS_FROM
from headscape.geometry.scratch import scratch_bytes

__all__ = ["Plan", "disk_memory_estimate", "keeps_layouts", "memory_estimate", "plan_memory"]

_NUMBER = 8
_SQUARES_KEPT = 4
"""(n, n) matrices kept per axis: distance, affinity, the distance of the round before, and that of bare slices."""
_SQUARES_PASSING = 6
"""(n, n) matrices in use at a time, for the longest axis: sums and their mirror, linkage, eigenvectors."""
_SQUARES_COSINE = 3
"""(n, n) matrices of the first cosines, where an axis is organized by neighbours afterwards."""
_NEIGHBOUR = 16
"""Numbers kept per slice and neighbour: distance, affinity and their indices, twice, now and the round before."""
_READ_ENTRY = 16
"""Bytes per entry while it is read from disk: as stored, in float64 in between, as float32."""
LEAF_BLOCK = 64e6
"""Bytes of bare slices read from disk at a time."""


class Plan(NamedTuple):
    """Where the array is processed, and what that takes."""

    on_disk: bool  # slices are read from scratch files; else copies are held in memory
    memory: float  # bytes in memory at the peak, not counting the array given; at most `max_memory`
    disk: float  # bytes of scratch files
    tiles: float  # bytes that folder means may take at a time


def keeps_layouts(shape: tuple[int, ...], max_memory: float) -> bool:
    """Whether there is room for a copy of the array with each axis first; else they are copied again each time."""
    return len(shape) * 4 * math.prod(shape) <= max_memory / 4


def memory_estimate(shape: tuple[int, ...], max_memory: float = math.inf, n_neighbours: int | None = None) -> float:
    """Bytes that organizing an array of this shape in memory takes at its peak, not counting the array given.

    An axis of 4,000 costs 4 x 128 MB to keep and 6 x 128 MB to process, whatever the others are. With `n_neighbours`,
    an axis of more than 5,000 is counted as organized by neighbours.

    >>> f"{memory_estimate((256, 256, 128)):.2e}"
    '2.06e+08'
    >>> f"{memory_estimate((4_000, 8, 4)):.2e}"
    '1.35e+09'
    """
    entries = 4 * math.prod(shape)
    copies = 1 + (len(shape) if keeps_layouts(shape, max_memory) else 1)
    # one chunk of folder means: at least one folder of the first other axis with all folders of the rest
    return float(copies * entries + _squares(shape, n_neighbours) + max(CHUNK, max(shape) * _column(shape)))


def disk_memory_estimate(shape: tuple[int, ...], threads: int = 1, n_neighbours: int | None = None) -> float:
    """The least memory in bytes that organizing an array takes when it stays on disk.

    >>> f"{disk_memory_estimate((1024, 1024, 1000)):.2e}"
    '2.16e+08'
    """
    tiles = 0.0
    for axis, n in enumerate(shape):
        others = [2 * m for b, m in enumerate(shape) if b != axis]
        chunk = max(min(CHUNK / n, 4 * math.prod(others)), 4 * math.prod(others[1:]))  # bytes per slice
        tiles = max(tiles, 2 * ROWS * chunk)
    return _fixed(shape, threads, n_neighbours) + tiles


def plan_memory(
    shape: tuple[int, ...],
    names: tuple[str, ...],
    itemsize: int,
    max_memory: float,
    threads: int,
    held: bool = True,
    n_neighbours: int | None = None,
) -> Plan:
    """Choose: in memory where the estimate fits into `max_memory`, else on disk.

    `held` says that the array is in memory already and need not be counted. Raises an `InputError` if the (n, n)
    matrices alone do not fit, naming the axis that costs most.
    """
    need = memory_estimate(shape, max_memory, n_neighbours) + (0 if held else math.prod(shape) * itemsize)
    if need <= max_memory:
        return Plan(False, need, 0.0, max_memory)
    fixed = _fixed(shape, threads, n_neighbours)
    least = disk_memory_estimate(shape, threads, n_neighbours)
    if least > max_memory:
        longest = max(range(len(shape)), key=lambda axis: shape[axis])
        what = f"organizing shape {shape} takes about {least / 1e9:.2g} GB, max_memory is {max_memory / 1e9:.2g} GB"
        raise InputError(f"{what}; raise it, or shorten axis '{names[longest]}' of length {shape[longest]}")
    return Plan(True, max_memory, float(scratch_bytes(shape, itemsize)), max_memory - fixed)


def _squares(shape: tuple[int, ...], n_neighbours: int | None) -> float:
    """Bytes of (n, n) matrices, or of neighbours where there are many leaves."""
    kept, passing = 0.0, 0.0
    for axis, n in enumerate(shape):
        if n_neighbours is None or n <= NEIGHBOURS_FROM:
            kept += _SQUARES_KEPT * n * n
            passing = max(passing, _SQUARES_PASSING * n * n)
            continue
        own = n * (_NEIGHBOUR * n_neighbours + 2 * max(LANDMARKS, n_neighbours + 1))
        kept += own
        first = axis < len(shape) - 1 or len(shape) == 2  # cosines of all pairs come first, except for heads
        passing = max(passing, own + (_SQUARES_COSINE * n * n if first else 0))
    return float(_NUMBER * (kept + passing))


def _column(shape: tuple[int, ...]) -> float:
    """Bytes per slice for one folder of the first other axis with all folders, fewer than 2 n_b each, of the rest."""
    others = [[n for b, n in enumerate(shape) if b != a][1:] for a in range(len(shape))]
    return float(max(4 * math.prod(2 * m for m in rest) for rest in others))


def _fixed(shape: tuple[int, ...], threads: int, n_neighbours: int | None) -> float:
    """Bytes not counting the tiles: matrices, and the largest part read at a time."""
    entries = math.prod(shape)
    slices = threads * max(entries // n for n in shape) * _READ_ENTRY
    cosine = 0.0
    for axis, n in enumerate(shape):
        turned = (n, *(m for b, m in enumerate(shape) if b != axis))
        cosine = max(cosine, _READ_ENTRY * entries / turned[1] * min(block_rows(turned), turned[1]))
    leaf = max(n * min(entries // n, max(COLUMNS, LEAF_BLOCK / (4 * n))) * 4 for n in shape)
    return _squares(shape, n_neighbours) + max(slices, threads * cosine, leaf + slices / 8)
