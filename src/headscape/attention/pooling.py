"""Pooling: attention averaged onto a grid of token blocks while the rows of a map are computed; no map is ever held whole."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headscape.errors import InputError
from headscape.tensor import MaskKind, block_bounds, present_pairs

__all__ = ["Grid", "check_pool", "rows_of_windows", "sampled_rows"]


class Grid:
    """A pool x pool grid of blocks over the entries of one map shape (n_query, n_key).

    The value of a pair of blocks is the mean over its present entries: with the mask "causal" those with
    key <= query + n_key - n_query, with "full" all. A pair without any is 0.
    """

    def __init__(self, mask: MaskKind, n_query: int, n_key: int, pool: int) -> None:
        for n, what in ((n_query, "queries"), (n_key, "keys")):
            if pool > n:
                raise InputError(f"pool {pool} is larger than the {n} {what} of a map; lower pool to {n} or less")
        self.mask, self.pool = mask, pool
        self.query_bounds, self.key_bounds = block_bounds(n_query, pool), block_bounds(n_key, pool)
        self._back = n_key - n_query
        self.counts = present_pairs(mask, self.query_bounds, self.key_bounds)

    def zeros(self, n_head: int, like: Tensor) -> Tensor:
        """Sums to add to, (n_head, pool, pool), in float32 whatever the model computes in."""
        return torch.zeros(n_head, self.pool, self.pool, dtype=torch.float32, device=like.device)

    def add(self, sums: Tensor, maps: Tensor, first: int) -> None:
        """Add rows first, first + 1, ... of maps (n_head, n_row, n_key) to the sums, in place.

        Rows are added within each block of queries, then the columns within each block of keys: one pass over the
        rows. Absent entries are left out whatever they hold; of a causal map they begin at the diagonal. The last keys
        may be missing where they are absent or 0 in all these rows.
        """
        n_row, n_key = maps.shape[1:]
        missing = int(self.key_bounds[-1]) - n_key
        block = int(np.searchsorted(self.query_bounds, first, side="right")) - 1
        start = 0
        while start < n_row:
            stop = min(n_row, int(self.query_bounds[block + 1]) - first)
            part = maps[:, start:stop]
            total = part.sum(dim=1, dtype=torch.float32)
            if self.mask == "causal":
                low = min(first + start + self._back + 1, n_key)  # the first row of the part has the keys below this
                high = min(first + stop + self._back, n_key)
                total[:, low:high] = part[:, :, low:high].tril(-1).sum(dim=1, dtype=torch.float32)
                total[:, high:] = 0
            sums[:, block] += block_sums(F.pad(total, (0, missing)), self.pool)
            start, block = stop, block + 1

    def means(self, sums: Tensor) -> Tensor:
        """Sums over the number of present entries."""
        counts = torch.from_numpy(np.maximum(self.counts, 1)).to(sums.device, sums.dtype)
        return sums / counts


@functools.lru_cache(maxsize=8)
def grid_of(mask: MaskKind, n_query: int, n_key: int, pool: int) -> Grid:
    """The grid of a map shape; layers of a block share it."""
    return Grid(mask, n_query, n_key, pool)


def block_sums(x: Tensor, pool: int) -> Tensor:
    """Sums over `pool` blocks of the last axis, cut as `block_bounds` cuts: (..., n) to (..., pool)."""
    size, longer = divmod(x.shape[-1], pool)
    cut = longer * (size + 1)
    lead = x.shape[:-1]
    first = x[..., :cut].reshape(*lead, longer, size + 1).sum(-1)
    return torch.cat([first, x[..., cut:].reshape(*lead, pool - longer, size).sum(-1)], dim=-1)


def rows_of_windows(windows: str | None) -> int:
    """The K of "rows:K", 0 for None.

    >>> rows_of_windows("rows:16")
    16
    """
    if windows is None:
        return 0
    kind, _, number = windows.partition(":")
    if kind != "rows" or not number.isdecimal() or int(number) < 1:
        raise InputError(f'windows is "rows:K" with K sampled rows of at least 1, not {windows!r}')
    return int(number)


def check_pool(pool: int | None, n_rows: int, lengths: Sequence[int]) -> None:
    """Refuse a pool or a number of rows that the shortest of the contexts cannot give."""
    if pool is None:
        if n_rows:
            raise InputError("sampled rows are kept beside a pooled capture: give pool too, or take them from the maps")
        return
    if pool < 1:
        raise InputError(f"pool must be at least 1, not {pool}")
    shortest = min(lengths, default=None)
    if shortest is None:
        return
    if pool > shortest:
        raise InputError(f"pool {pool} is larger than the {shortest} tokens of a context; lower pool or raise tokens")
    if n_rows > shortest:
        raise InputError(f"{n_rows} sampled rows from a context of {shortest} tokens; ask for {shortest} or fewer")


def sampled_rows(n_query: int, n_rows: int, seed: int, batch: int) -> npt.NDArray[np.int64]:
    """Which rows of a batch are kept, rising; the same for all heads, another choice in every batch."""
    if n_rows > n_query:
        raise InputError(f"{n_rows} sampled rows from a map with {n_query} queries; ask for {n_query} or fewer")
    return np.sort(np.random.default_rng([seed, batch]).choice(n_query, n_rows, replace=False)).astype(np.int64)
