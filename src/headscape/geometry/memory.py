"""How much memory the questionnaire will take, said before it starts."""

from __future__ import annotations

import math

from headscape.errors import InputError
from headscape.geometry.emd import CHUNK

__all__ = ["check_memory", "keeps_layouts", "memory_estimate"]

_NUMBER = 8
_SQUARES_KEPT = 4
"""(n, n) matrices an axis holds: distance, affinity, the distance of the round before, and that of bare slices."""
_SQUARES_PASSING = 6
"""(n, n) matrices at work at a time, for the longest axis: sums and their mirror, linkage, eigenvectors."""


def keeps_layouts(shape: tuple[int, ...], max_memory: float) -> bool:
    """Whether there is room for a copy of the array with each axis first; else they are made anew each time."""
    return len(shape) * 4 * math.prod(shape) <= max_memory / 4


def memory_estimate(shape: tuple[int, ...], max_memory: float = math.inf) -> float:
    """Bytes that organising an array of this shape takes at its peak, beside the array given.

    An axis of 10,000 costs 4 x 0.8 GB to hold and 6 x 0.8 GB to work on, whatever the others are.

    >>> f"{memory_estimate((256, 256, 128)):.2e}"
    '2.06e+08'
    >>> f"{memory_estimate((10_000, 8, 4)):.2e}"
    '8.07e+09'
    """
    entries = 4 * math.prod(shape)
    copies = 1 + (len(shape) if keeps_layouts(shape, max_memory) else 1)
    squares = _SQUARES_KEPT * sum(n * n for n in shape) + _SQUARES_PASSING * max(shape) ** 2
    # one chunk of folder means: at least one folder of the first other axis with all of the rest, under 2 n_b each
    widths = [others[1:] for others in ([n for b, n in enumerate(shape) if b != a] for a in range(len(shape)))]
    chunk = max(CHUNK, *(4 * n * math.prod(2 * m for m in rest) for n, rest in zip(shape, widths, strict=True)))
    return float(copies * entries + _NUMBER * squares + chunk)


def check_memory(shape: tuple[int, ...], names: tuple[str, ...], max_memory: float) -> None:
    """Raise an `InputError` if the estimate is above `max_memory`, naming the axis that costs most."""
    need = memory_estimate(shape, max_memory)
    if need > max_memory:
        longest = max(range(len(shape)), key=lambda axis: shape[axis])
        raise InputError(
            f"organising shape {shape} takes about {need / 1e9:.2g} GB, max_memory is {max_memory / 1e9:.2g} GB; "
            f"raise max_memory, or shorten axis '{names[longest]}' of length {shape[longest]}"
        )
