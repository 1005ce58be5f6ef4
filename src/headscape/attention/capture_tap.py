"""The tap of capture: what is kept of every attention layer is stored as soon as the layer has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.pooling import Grid, grid_of, sampled_rows
from headscape.attention.sites import Site
from headscape.attention.taps import AttentionCall, Tap
from headscape.errors import InputError

__all__ = ["CaptureTap", "Memory", "Sink"]


class Sink(Protocol):
    """Where arrays go: an `ArrayWriter` or `Memory`."""

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Take one array."""


@dataclass
class Memory:
    """Keeps a batch's arrays in memory, as `ArrayWriter` does on disk."""

    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Take one array."""
        self.arrays[name] = array


class CaptureTap(Tap):
    """Writes what is kept of every layer as soon as the layer has run.

    Parameters
    ----------
    chosen
        {site name: (site, heads to keep)}.
    pool, n_rows, seed
        With `pool`, maps are averaged onto a pool x pool grid of token blocks as their rows are computed, and `n_rows`
        seeded rows are kept whole beside it.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        chosen: Mapping[str, tuple[Site, list[int]]],
        keep: Sequence[str],
        dtype: str,
        pool: int | None = None,
        n_rows: int = 0,
        seed: int = 0,
    ) -> None:
        names = {name: id(module) for name, module in network.named_modules()}
        self.chosen = {names[name]: place for name, place in chosen.items()}
        self.keep, self.dtype = set(keep), dtype
        self.pool, self.n_rows, self.seed = pool, n_rows, seed
        self.narrow = pool is not None
        self.start(Memory())

    def overrides(self, *names: str) -> bool:
        """Whether scores are needed: only to be kept."""
        return super().overrides(*(name for name in names if name != "scores" or "scores" in self.keep))

    def start(self, sink: Sink, batch: int = 0) -> None:
        """Begin a new batch."""
        self.sink, self.batch = sink, batch
        self.seen: set[int] = set()
        self.shapes: dict[int, tuple[int, int]] = {}  # queries and keys of a module's maps
        self._open: dict[str, npt.NDArray[Any]] = {}
        self._sums: dict[str, tuple[Grid, Tensor]] = {}
        self._index: dict[str, npt.NDArray[np.int64]] = {}  # sampled rows by block

    def store(self, name: str, tensor: Tensor) -> npt.NDArray[Any]:
        """A tensor as it is stored; refused when it does not fit."""
        array = tensor.detach().to(getattr(torch, self.dtype)).cpu().numpy()
        if not np.isfinite(array).all():
            cause = "overflows float16; capture with dtype float32" if self.dtype == "float16" else "is not finite"
            raise InputError(f"{name} {cause}")
        return array

    def _rows(self, what: str, call: AttentionCall, maps: Tensor) -> None:
        """Take a block of rows (1, head, row, key) of a map, until the layer is complete."""
        site, heads = self.chosen[id(call.module)]
        name = f"{what}/{site.block}.{site.layer}"
        kept = maps[0] if len(heads) == site.n_heads else maps[0, heads]
        rows = call.rows or slice(0, maps.shape[2])
        n_query, n_key = self.shapes.get(id(call.module), (rows.stop, maps.shape[3]))
        if self.pool is None:
            self._put(name, self.store(name, kept), rows, (len(heads), n_query, n_key))
            return
        grid = grid_of(site.mask, n_query, n_key, self.pool)
        if name not in self._sums:
            self._sums[name] = grid, grid.zeros(len(heads), kept)
            self._describe(site.block, grid)
        grid.add(self._sums[name][1], kept, rows.start)
        if self.n_rows:
            index = self._index[site.block]
            here = (index >= rows.start) & (index < rows.stop)
            chosen = kept[:, torch.from_numpy(index[here] - rows.start).to(kept.device)]
            block = self.store(name, F.pad(chosen, (0, n_key - chosen.shape[2])))
            first = int(np.count_nonzero(index < rows.start))
            place = slice(first, first + block.shape[1])
            self._put(f"rows.{name}", block, place, (len(heads), self.n_rows, n_key))

    def _put(self, name: str, block: npt.NDArray[Any], rows: slice, shape: tuple[int, int, int]) -> None:
        if rows == slice(0, shape[1]):
            self._open[name] = block
            return
        if name not in self._open:
            self._open[name] = np.empty(shape, dtype=self.dtype)
        self._open[name][:, rows] = block

    def _describe(self, block: str, grid: Grid) -> None:
        """Note the blocks of tokens and the sampled rows, once a block of the network."""
        if block in self._index:
            return
        n_query = int(grid.query_bounds[-1])
        self._index[block] = sampled_rows(n_query, self.n_rows, self.seed, self.batch)
        self.sink.add(f"query_bounds/{block}", grid.query_bounds)
        self.sink.add(f"key_bounds/{block}", grid.key_bounds)
        if self.n_rows:
            self.sink.add(f"row_index/{block}", self._index[block])

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep queries, keys and values; learn the shape of the maps."""
        self.shapes[id(call.module)] = query.shape[2], key.shape[2]
        if id(call.module) not in self.chosen:
            return
        site, heads = self.chosen[id(call.module)]
        for what, tensor in (("queries", query), ("keys", key), ("values", value)):
            if what in self.keep:
                name = f"{what}/{site.block}.{site.layer}"
                self.sink.add(name, self.store(name, tensor[0, heads] if what == "queries" else tensor[0]))

    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        """Keep what softmax sees."""
        if "scores" in self.keep and id(call.module) in self.chosen:
            self._rows("scores", call, scores)
        return scores

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        """Keep what softmax gives."""
        self.seen.add(id(call.module))
        if "probs" in self.keep and id(call.module) in self.chosen:
            self._rows("probs", call, probs)
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        """The layer is complete: write its maps, and the head outputs if kept."""
        self.flush()
        if "head_outputs" in self.keep and id(call.module) in self.chosen:
            site, heads = self.chosen[id(call.module)]
            name = f"head_outputs/{site.block}.{site.layer}"
            flat = outputs.reshape(-1, *outputs.shape[-2:])  # batch of one: (query, head, dim) in any layout
            self.sink.add(name, self.store(name, flat[:, heads].transpose(0, 1).contiguous()))
        return outputs

    def flush(self) -> None:
        """Hand the finished maps to the sink."""
        for name in sorted({*self._open, *self._sums}):
            if name in self._sums:
                grid, sums = self._sums.pop(name)
                self.sink.add(name, self.store(name, grid.means(sums)))
            else:
                self.sink.add(name, self._open.pop(name))
