"""Capture: what was kept of a model's attention, batch by batch, in memory or lazily from a run directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from headscape.checks import check_finite
from headscape.errors import InputError, about_a_file
from headscape.fingerprints import file_hash
from headscape.runs import Run
from headscape.storage import ArrayWriter
from headscape.tensor import AttentionTensor, HeadId, Kind, MaskKind, present_entries

__all__ = ["KEEP", "Batch", "Capture", "SampledRows", "open_capture"]

KEEP = ("probs", "scores", "queries", "keys", "values", "hidden", "head_outputs")


@dataclass
class Batch:
    """One captured input: arrays by name ("probs/decoder.3") and the facts beside them.

    info["blocks"][block] holds query_tokens, key_tokens and mask; info["layers"][block] the kept layers and, for each,
    the kept heads. In a pooled capture info["pool"] is the number of blocks per side, the tokens are names of blocks,
    and info["blocks"][block]["pooled_tokens"] has the tokens themselves.
    """

    info: dict[str, Any]
    names: list[str]
    read: Callable[[str], npt.NDArray[Any]]

    def write(self, path: Path) -> None:
        """Write it as a file of a run, one array at a time."""
        with ArrayWriter(path, len(self.names), {"headscape": json.dumps(self.info)}) as writer:
            for name in self.names:
                writer.add(name, self.read(name))

    def tokens(self, block: str) -> tuple[list[str], list[str]]:
        """The tokens of queries and keys, single tokens also in a pooled capture; empty if none are known."""
        facts = self.info["blocks"][block]
        named = facts.get("pooled_tokens") or {axis: facts.get(f"{axis}_tokens") or [] for axis in ("query", "key")}
        return named["query"], named["key"]

    def bounds(self, block: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | tuple[None, None]:
        """Where the blocks of tokens begin and end, for queries and keys; None without pooling."""
        if self.info.get("pool") is None:
            return None, None
        return self.read(f"query_bounds/{block}"), self.read(f"key_bounds/{block}")

    def present(self, block: str, shape: tuple[int, int]) -> npt.NDArray[np.bool_]:
        """Which entries of the block's maps exist."""
        return present_entries(self.info["blocks"][block]["mask"], shape, *self.bounds(block))


class SampledRows(NamedTuple):
    """Rows kept whole beside a pooled tensor: positions `queries` (n_row,), `values` (n_row, n_key, n_head)."""

    queries: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    query_tokens: list[str]  # of the sampled queries
    key_tokens: list[str]


def _open_batch(path: Path) -> Batch:
    try:
        with safe_open(path, framework="np") as file:
            info = json.loads(file.metadata()["headscape"])
            names = list(file.keys())
            _check_header(info, lambda name: tuple(file.get_slice(name).get_shape()))
    except OSError as error:
        raise about_a_file(error) or InputError(f"{path} cannot be read: {error}") from None
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        said = str(error) or type(error).__name__
        raise InputError(f"{path} is damaged ({said}); delete it and run the capture again") from None

    def read(name: str) -> npt.NDArray[Any]:
        with safe_open(path, framework="np") as file:
            return cast("npt.NDArray[Any]", file.get_tensor(name))

    return Batch(info, names, read)


def _check_header(info: dict[str, Any], shape: Callable[[str], tuple[int, ...]]) -> None:
    """Raise a `ValueError`, `KeyError`, `TypeError` or `AttributeError` unless a header fits the arrays of its file."""
    if not info["blocks"] or info["blocks"].keys() != info["layers"].keys():
        raise ValueError("its header names no block, or its blocks and layers do not match")
    if not info["keep"] or not set(info["keep"]) <= set(KEEP):
        raise ValueError("its header does not name what was kept")
    for block, facts in info["blocks"].items():
        tokens = [facts.get(f"{axis}_tokens") or [] for axis in ("query", "key")]
        if facts["mask"] not in ("causal", "full") or any(not isinstance(t, str) for each in tokens for t in each):
            raise ValueError(f"its header has an invalid entry for {block}")
        sizes: set[tuple[int, ...]] = set()
        for kind in ("probs", "scores"):
            for layer, heads in info["layers"][block].items() if kind in info["keep"] else ():
                n_head, *size = shape(f"{kind}/{block}.{int(layer)}")
                if n_head != len(heads) or len(size) != 2 or 0 in size:
                    raise ValueError(f"{kind} of layer {layer} of {block} has another shape than its header says")
                sizes.add(tuple(size))
        fits = all(len(each) in (0, n) for size in sizes for each, n in zip(tokens, size, strict=True))
        if info.get("pool") is not None:
            sizes.add(tuple(shape(f"{axis}_bounds/{block}")[0] - 1 for axis in ("query", "key")))
        if len(sizes) > 1 or not fits:
            raise ValueError(f"the maps of {block} differ in shape, or do not match their tokens")


class Capture:
    """A sequence of captured batches.

    `capture.tensor(i)` is the `AttentionTensor` of batch i. A network with several blocks (encoder, decoder,
    decoder.cross) keeps them apart: `capture.blocks` names them and `tensor(i, block)` takes one. Nothing is read from
    disk before it is needed; values are always returned as float32.

    >>> captured = hs.open_capture(run)
    >>> captured
    Capture(4 batches of decoder; keeps probs, scores in ...tiny)
    >>> captured.tensor(0, kind="scores")
    AttentionTensor(16 queries x 16 keys x 8 heads, causal, scores)
    """

    def __init__(self, batches: list[Callable[[], Batch]], run: Run | None = None) -> None:
        if not batches:
            raise InputError("the capture contains no batch")
        self._batches, self.run = batches, run
        self.facts: Mapping[str, Mapping[str, Any]] = {}  # of one in memory, what run.json would say
        self._lender: Callable[[], Any] = lambda: None
        self._sound: set[str] = set()  # contents that were found to be whole
        self.info = self._batches[0]().info

    @classmethod
    def of_run(cls, run: Run | str | Path) -> Capture:
        """The finished batches of a run directory."""
        run = run if isinstance(run, Run) else Run.open(run)
        paths = [run.batch_path(i) for i in run.finished_batches]
        if not paths:
            raise InputError(f"{run.path} holds no captured batch yet; run the capture again to finish it")
        return cls([partial(_open_batch, path) for path in paths], run)

    @classmethod
    def in_memory(
        cls,
        batches: list[Batch],
        facts: Mapping[str, Mapping[str, Any]] | None = None,
        lender: Callable[[], Any] = lambda: None,
    ) -> Capture:
        """Batches held as arrays; `facts` are the sections of run.json, `lender` returns the model."""
        made = cls([lambda batch=batch: batch for batch in batches])  # type: ignore[misc]
        made.facts, made._lender = facts or {}, lender
        return made

    @property
    def model(self) -> Any:
        """The model that a capture in memory was made from; None for a run, which names its own, and for given arrays.

        It is not kept alive: once nothing else refers to it, or its weights were changed, this is None, with a warning.
        """
        return self._lender()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[AttentionTensor]:
        return (self.tensor(i) for i in range(len(self)))

    @property
    def numbers(self) -> list[int]:
        """The numbers of the batches, as in their file names: a missing batch leaves a gap."""
        return list(range(len(self))) if self.run is None else self.run.finished_batches

    def content(self, n: int | None = None) -> dict[str, str]:
        """Content hash of the first n batches (by default all) by number: what a study of them has read.

        Empty for batches in memory: their results are not kept on disk.
        """
        if self.run is None:
            return {}
        found = {}
        for number, opened in zip(self.numbers[:n], self._batches, strict=False):
            path = self.run.batch_path(number)
            found[f"batch {number}"] = content = file_hash(path)
            if content not in self._sound:  # a damaged one is reported before anything is computed
                self._check(path, opened())
                self._sound.add(content)
        return found

    def _check(self, path: Path, batch: Batch) -> None:
        """Raise an `InputError` unless a batch has the heads of the first one, and valid numbers in its maps."""
        again = "delete it and run the command that made the run again"
        if batch.info["layers"] != self.info["layers"] or batch.info["keep"] != self.info["keep"]:
            raise InputError(f"{path} differs from the first batch in its heads or arrays; {again}")
        for name in batch.names:
            kind, _, where = name.partition("/")
            if kind in ("probs", "scores"):
                try:
                    low, _ = check_finite(batch.read(name), ("head", "query", "key"))
                except InputError as error:
                    raise InputError(f"{path} is damaged: {where}: {error}; {again}") from None
                if kind == "probs" and low < 0:
                    raise InputError(f"{path} is damaged: {where} has the probability {low:.3g}; {again}")

    def block(self, name: str | None = None) -> str:
        """The block of that name, or the only one; `InputError` if there are several or none of that name."""
        if name is None and len(self.blocks) > 1:
            raise InputError(f"this network has several blocks, name one: {', '.join(self.blocks)}")
        if name is not None and name not in self.blocks:
            raise InputError(f"no block {name!r} was captured; there are {', '.join(self.blocks)}")
        return self.blocks[0] if name is None else name

    def chosen(self, name: str | None = None) -> list[str]:
        """The block of that name, or all of them."""
        return self.blocks if name is None else [self.block(name)]

    def kind(self, asked: Kind | None = None) -> Kind:
        """The requested kind of map, which must have been kept; by default probabilities, else scores."""
        chosen: Kind = asked or ("probs" if "probs" in self.kept else "scores")
        self._need(chosen)
        return chosen

    def __repr__(self) -> str:
        where = f" in {self.run.path}" if self.run else ""
        pooled = f", pooled to {self.pool} blocks" if self.pool is not None else ""
        n = "1 batch" if len(self) == 1 else f"{len(self)} batches"
        return f"Capture({n} of {', '.join(self.blocks)}; keeps {', '.join(self.kept)}{pooled}{where})"

    @property
    def blocks(self) -> list[str]:
        """The blocks of the network that were captured."""
        return list(self.info["blocks"])

    @property
    def pool(self) -> int | None:
        """Blocks of tokens per side of a pooled capture; None if maps are whole."""
        return self.info.get("pool")

    def need_whole(self, what: str) -> None:
        """Refuse a pooled capture, because `what` needs single entries of maps."""
        if self.pool is not None:
            raise InputError(
                f"{what} needs whole maps, this capture is pooled to {self.pool} blocks; capture again without --pool"
            )

    @property
    def kept(self) -> list[str]:
        """Names of what was kept: probs, scores, ..."""
        return [str(k) for k in self.info["keep"]]

    def batch(self, i: int) -> Batch:
        """The raw arrays and facts of batch i."""
        if not -len(self) <= i < len(self):
            raise InputError(f"there is no batch {i}; the capture has {len(self)}, counted from 0")
        return self._batches[i]()

    def _need(self, what: str) -> None:
        if what not in self.kept:
            raise InputError(
                f"{what} were not captured (kept: {', '.join(self.kept)}); capture again with --keep {what}"
            )

    def heads(self, block: str | None = None) -> list[HeadId]:
        """The captured heads of a block.

        >>> hs.open_capture(run).heads()[:2]
        [HeadId(block='decoder', layer=0, head=0), HeadId(block='decoder', layer=0, head=1)]
        """
        block = self.block(block)
        layers: Mapping[str, list[int]] = self.info["layers"][block]
        return [HeadId(block, int(layer), h) for layer, found in layers.items() for h in found]

    def tensor(self, i: int, block: str | None = None, kind: Kind = "probs") -> AttentionTensor:
        """Probabilities or scores of batch i as an `AttentionTensor` (n_query, n_key, n_head).

        >>> X = hs.open_capture(run).tensor(0)
        >>> X.values.shape, len(X.key_tokens)
        ((16, 16, 8), 16)
        """
        block = self.block(block)
        self._need(kind)
        batch = self.batch(i)
        facts = batch.info["blocks"][block]
        maps = [batch.read(f"{kind}/{block}.{layer}") for layer in batch.info["layers"][block]]
        n_query, n_key = maps[0].shape[1:]
        values = np.empty((n_query, n_key, sum(len(m) for m in maps)), dtype=np.float32)
        start = 0
        for m in maps:
            values[:, :, start : start + len(m)] = np.moveaxis(m, 0, -1)
            start += len(m)
        mask: MaskKind = facts["mask"]
        query_tokens, key_tokens = (facts.get(f"{axis}_tokens") or [] for axis in ("query", "key"))
        bounds = batch.bounds(block)
        return AttentionTensor(values, self.heads(block), query_tokens, key_tokens, mask, kind, *bounds)

    def rows(self, i: int, block: str | None = None, kind: Kind = "probs") -> SampledRows:
        """The sampled full rows kept beside the pooled tensor of batch i, by `windows="rows:K"`.

        The same queries for all heads; values are (n_row, n_key, n_head) over all tokens.
        """
        block = self.block(block)
        self._need(kind)
        batch = self.batch(i)
        if f"row_index/{block}" not in batch.names:
            raise InputError('no rows were sampled; capture again with pool and windows="rows:K" (--pool, --rows)')
        index = batch.read(f"row_index/{block}")
        maps = [batch.read(f"rows.{kind}/{block}.{layer}") for layer in batch.info["layers"][block]]
        values = np.moveaxis(np.concatenate(maps), 0, -1).astype(np.float32)
        query, key = batch.tokens(block)
        shown = [query[j] if query else str(j) for j in index.tolist()]
        return SampledRows(index, values, shown, key or [str(j) for j in range(values.shape[1])])

    def stacked(self, what: str, i: int, block: str | None = None) -> npt.NDArray[np.float32]:
        """Queries, keys, values or head_outputs of batch i: (n_layer, n_head, n_token, dim)."""
        block = self.block(block)
        self._need(what)
        batch = self.batch(i)
        layers = [batch.read(f"{what}/{block}.{n}") for n in batch.info["layers"][block]]
        if len({array.shape for array in layers}) > 1:
            raise InputError(
                f"the layers of {block} keep different numbers of heads; read them one by one: "
                f'capture.batch({i}).read("{what}/{block}.0")'
            )
        return np.stack(layers).astype(np.float32)

    def queries(self, i: int, block: str | None = None) -> npt.NDArray[np.float32]:
        """Queries as they meet the keys, after rotary embedding: (n_layer, n_head, n_query, dim)."""
        return self.stacked("queries", i, block)

    def keys(self, i: int, block: str | None = None) -> npt.NDArray[np.float32]:
        """Keys (n_layer, n_kv_head, n_key, dim)."""
        return self.stacked("keys", i, block)

    def values(self, i: int, block: str | None = None) -> npt.NDArray[np.float32]:
        """Values (n_layer, n_kv_head, n_key, dim)."""
        return self.stacked("values", i, block)

    def head_outputs(self, i: int, block: str | None = None) -> npt.NDArray[np.float32]:
        """Each head's weighted values before the output projection: (n_layer, n_head, n_query, dim)."""
        return self.stacked("head_outputs", i, block)

    def hidden(self, i: int, block: str | None = None) -> npt.NDArray[np.float32]:
        """The residual stream entering each layer, and after the last: (n_layer + 1, n_token, dim)."""
        block = self.block(block)
        self._need("hidden")
        return self.batch(i).read(f"hidden/{block}").astype(np.float32)

    def input_ids(self, i: int) -> npt.NDArray[np.int64] | None:
        """The token ids of batch i, None for images and own arrays."""
        batch = self.batch(i)
        return batch.read("input_ids") if "input_ids" in batch.names else None

    def pixels(self, i: int) -> npt.NDArray[np.float32] | None:
        """The prepared image of batch i (channels, height, width), None for text."""
        batch = self.batch(i)
        return batch.read("pixel_values") if "pixel_values" in batch.names else None


def open_capture(source: Capture | Run | str | Path) -> Capture:
    """Open a capture, a run or its path as a capture.

    >>> [X.values.shape for X in map(hs.open_capture(run).tensor, range(2))]
    [(16, 16, 8), (16, 16, 8)]
    """
    return source if isinstance(source, Capture) else Capture.of_run(source)


def __getattr__(name: str) -> Any:
    if name == "import_array":  # its first address
        from headscape.imports import import_array

        return import_array
    raise AttributeError(f"headscape.captures has no name {name!r}")
