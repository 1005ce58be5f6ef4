"""How much memory and disk the questionnaire will take, said before it starts."""

from __future__ import annotations

import math
from typing import NamedTuple

from headscape.errors import InputError
from headscape.geometry.affinity import block_rows
from headscape.geometry.folder_means import CHUNK
from headscape.geometry.l1 import COLUMNS, ROWS
from headscape.geometry.scratch import scratch_bytes

__all__ = ["Plan", "disk_memory_estimate", "keeps_layouts", "memory_estimate", "plan_memory"]

_NUMBER = 8
_SQUARES_KEPT = 4
"""(n, n) matrices an axis holds: distance, affinity, the distance of the round before, and that of bare slices."""
_SQUARES_PASSING = 6
"""(n, n) matrices at work at a time, for the longest axis: sums and their mirror, linkage, eigenvectors."""
_READ_ENTRY = 16
"""Bytes an entry takes while it is read from disk: as stored, in float64 between, as float32."""
LEAF_BLOCK = 64e6
"""Bytes of bare slices read from disk at a time."""


class Plan(NamedTuple):
    """Where the array is worked on, and what that takes."""

    on_disk: bool
    """Slices are read from scratch files; else copies are held in memory."""
    memory: float
    """Bytes in memory at the peak, beside the array given; at most `max_memory`."""
    disk: float
    """Bytes of scratch files."""
    tiles: float
    """Bytes that folder means may take at a time."""


def keeps_layouts(shape: tuple[int, ...], max_memory: float) -> bool:
    """Whether there is room for a copy of the array with each axis first; else they are made anew each time."""
    return len(shape) * 4 * math.prod(shape) <= max_memory / 4


def memory_estimate(shape: tuple[int, ...], max_memory: float = math.inf) -> float:
    """Bytes that organising an array of this shape in memory takes at its peak, beside the array given.

    An axis of 4,000 costs 4 x 128 MB to hold and 6 x 128 MB to work on, whatever the others are.

    >>> f"{memory_estimate((256, 256, 128)):.2e}"
    '2.06e+08'
    >>> f"{memory_estimate((4_000, 8, 4)):.2e}"
    '1.35e+09'
    """
    entries = 4 * math.prod(shape)
    copies = 1 + (len(shape) if keeps_layouts(shape, max_memory) else 1)
    # one chunk of folder means: at least one folder of the first other axis with all of the rest
    return float(copies * entries + _squares(shape) + max(CHUNK, max(shape) * _column(shape)))


def disk_memory_estimate(shape: tuple[int, ...], threads: int = 1) -> float:
    """Bytes of memory that organising an array takes at least when it stays on disk.

    >>> f"{disk_memory_estimate((1024, 1024, 1000)):.2e}"
    '2.16e+08'
    """
    tiles = 0.0
    for axis, n in enumerate(shape):
        others = [2 * m for b, m in enumerate(shape) if b != axis]
        chunk = max(min(CHUNK / n, 4 * math.prod(others)), 4 * math.prod(others[1:]))  # bytes a slice
        tiles = max(tiles, 2 * ROWS * chunk)
    return _fixed(shape, threads) + tiles


def plan_memory(
    shape: tuple[int, ...],
    names: tuple[str, ...],
    itemsize: int,
    max_memory: float,
    threads: int,
    held: bool = True,
) -> Plan:
    """Choose: in memory where the estimate fits into `max_memory`, else on disk.

    `held` says that the array is in memory already and need not be counted.

    Raises
    ------
    InputError
        If not even the (n, n) matrices fit; the message names the axis that costs most.
    """
    need = memory_estimate(shape, max_memory) + (0 if held else math.prod(shape) * itemsize)
    if need <= max_memory:
        return Plan(False, need, 0.0, max_memory)
    fixed, least = _fixed(shape, threads), disk_memory_estimate(shape, threads)
    if least > max_memory:
        longest = max(range(len(shape)), key=lambda axis: shape[axis])
        raise InputError(
            f"organising shape {shape} takes about {least / 1e9:.2g} GB, max_memory is {max_memory / 1e9:.2g} GB; "
            f"raise max_memory, or shorten axis '{names[longest]}' of length {shape[longest]}"
        )
    return Plan(True, max_memory, float(scratch_bytes(shape, itemsize)), max_memory - fixed)


def _squares(shape: tuple[int, ...]) -> float:
    """Bytes of (n, n) matrices."""
    return float(_NUMBER * (_SQUARES_KEPT * sum(n * n for n in shape) + _SQUARES_PASSING * max(shape) ** 2))


def _column(shape: tuple[int, ...]) -> float:
    """Bytes a slice takes for one folder of the first other axis with all folders, under 2 n_b each, of the rest."""
    others = [[n for b, n in enumerate(shape) if b != a][1:] for a in range(len(shape))]
    return float(max(4 * math.prod(2 * m for m in rest) for rest in others))


def _fixed(shape: tuple[int, ...], threads: int) -> float:
    """Bytes beside the tiles: matrices, and the largest of what is read at a time."""
    entries = math.prod(shape)
    slices = threads * max(entries // n for n in shape) * _READ_ENTRY
    cosine = 0.0
    for axis, n in enumerate(shape):
        turned = (n, *(m for b, m in enumerate(shape) if b != axis))
        cosine = max(cosine, _READ_ENTRY * entries / turned[1] * min(block_rows(turned), turned[1]))
    leaf = max(n * min(entries // n, max(COLUMNS, LEAF_BLOCK / (4 * n))) * 4 for n in shape)
    return _squares(shape) + max(slices, threads * cosine, leaf + slices / 8)
