"""The attention maps of every head as 8-bit pictures, within a budget of bytes.

One picture per head and batch is kept, in the order of the tokens; the page makes the organized one from its pixels.
A strip of small ones comes first, so that every batch can be seen however few the budget leaves room for.
Only where tokens outnumber pixels are both kept, each averaged along its own order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.captures import Batch, Capture
from headscape.report.coarsen import Cells, block_means, cells_of
from headscape.report.gather import READING, reason_of
from headscape.report.greys import Encoded, encode, png
from headscape.report.orders import Orders
from headscape.report.packing import pack
from headscape.report.strip import draw_strip
from headscape.report.text import visible
from headscape.tensor import HeadId, Kind

__all__ = ["BUDGET", "RESOLUTIONS", "HeadMaps", "draw_maps"]

BUDGET = 15_000_000  # characters for all maps; with plotly's 4.8 MB and the data a page stays under 25 MB
RESOLUTIONS = (256, 128, 64, 32)  # pixels per side
STRIP_SHARE = 0.12  # of the budget, for the strip of small maps; what it leaves is for the large ones
N_PAIRS = 8
_SAMPLED_LAYERS = 6  # whose first heads are encoded to estimate the size of all
_PAIRS_SIZE, _NUMBER_SIZE = 250, 16 / 3  # characters per head for its strongest pairs, and per number of its rows


@dataclass
class HeadMaps:
    """What the page needs: `facts` for its data, `images` by the id of their script, notes and problems to report."""

    facts: dict[str, Any] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def draw_maps(
    capture: Capture,
    heads: Sequence[HeadId],
    orders: Orders | None = None,
    grid: Sequence[int] | None = None,
    budget: int = BUDGET,
) -> HeadMaps:
    """Encode the maps of all heads, in as many batches and as finely as the budget (of characters) allows.

    A map is filed under the index of its head in `heads`; `grid` is the rows and columns of patches of an image.
    """
    if not {"probs", "scores"} & set(capture.kept):
        why = f"the capture kept {', '.join(capture.kept)}; capture again with --keep probs"
        return HeadMaps(problems=[f"attention maps are not shown: {why}"])
    index = {head: i for i, head in enumerate(heads)}
    drawer = _Drawer(capture, capture.kind(), orders or Orders(), index, pictured=grid is not None)
    try:
        strip = draw_strip(capture, drawer.kind, index, STRIP_SHARE * budget)
        most = drawer.resolution(budget - strip.size)
    except READING as error:
        return HeadMaps(problems=[f"attention maps are not shown: {reason_of(error)}"])
    maps, batches = HeadMaps(problems=strip.problems, images=dict(strip.images)), []
    left, largest, n_batch = float(budget - strip.size), 0.0, 0
    for i in range(len(capture)):
        if largest > left:
            break
        n_batch = i + 1
        try:
            blocks = {block: drawer.draw(i, block, most, maps) for block in capture.blocks}
            batches.append({"name": i, "blocks": blocks, "picture": _picture(capture, i, grid)})
            size = sum(drawer.size(maps.images[facts["images"]], facts["shape"][1]) for facts in blocks.values())
            left, largest = left - size, max(largest, size)
        except READING as error:
            if (problem := f"the maps of batch {i} are not shown: {reason_of(error)}") not in maps.problems:
                maps.problems.append(problem)
    maps.facts = {"kind": drawer.kind, "batches": batches, "strip": strip.facts}
    maps.notes = _notes(capture, drawer.kind, most, batches)
    if n_batch < len(capture):
        small = f"{'all' if strip.n_batch == len(capture) else strip.n_batch} of them are in the strip"
        maps.notes.append(f"Only {n_batch} of {len(capture)} batches have large maps, to limit the file size; {small}.")
    return maps


def _notes(capture: Capture, kind: Kind, most: int, batches: list[dict[str, Any]]) -> list[str]:
    root = "the square root of the attention relative to the head's maximum"
    score = "the score before softmax, linear between the head's minimum and maximum"
    notes = [f"Color shows {root if kind == 'probs' else score} (8 bits)."]
    if capture.pool is not None:
        query, key = (len(side) for side in capture.batch(0).tokens(capture.blocks[0]))
        among = f"{query} x {key} tokens in " if query and key else ""
        blocks = f"{capture.pool} x {capture.pool} blocks"
        notes.append(f"The capture is pooled, {among}{blocks}; each cell is the mean over a pair of blocks.")
    coarse = {max(block["shape"]) for batch in batches for block in batch["blocks"].values() if block["coarse"]}
    if coarse:
        what = "tokens" if capture.pool is None else "blocks"
        notes.append(f"The {max(coarse)} {what} are averaged to at most {most} cells per side to limit the file size.")
    return notes


class _Views(NamedTuple):
    """Cells (query, key) of the picture in token order, and of the organized one where its orders are known."""

    original: tuple[Cells, Cells]
    organized: tuple[Cells, Cells] | None
    present: npt.NDArray[np.bool_]

    @property
    def coarse(self) -> bool:
        return any(cells.coarse for cells in self.original)


@dataclass(frozen=True)
class _Drawer:
    """Draws the heads of a capture; `index` is the number of each head on the page, `pictured` says that it saw images."""

    capture: Capture
    kind: Kind
    orders: Orders
    index: Mapping[HeadId, int]
    pictured: bool = False

    def resolution(self, budget: int) -> int:
        """The finest resolution at which one batch fits the budget, by a sample of its heads."""
        batch = self.capture.batch(0)
        for most in RESOLUTIONS:
            total = 0.0
            for block in self.capture.blocks:
                layers = list(batch.info["layers"][block])
                drawn: dict[str, list[str]] = {}
                for layer in layers[:: max(1, len(layers) // _SAMPLED_LAYERS)]:
                    values = self._read(batch, block, layer)
                    few = self._layer(values[:3], self._views(batch, block, 0, values.shape[1:], most))
                    drawn |= {f"{layer}.{h}": [picture for picture, *_ in head] for h, head in enumerate(few)}
                total += self.size(drawn, values.shape[2]) / len(drawn) * len(self.capture.heads(block))
            if total <= budget:
                return most
        return RESOLUTIONS[-1]

    def size(self, images: Mapping[str, list[str]], n_key: int) -> float:
        """Characters of the pictures of heads and of the numbers beside them."""
        beside = _PAIRS_SIZE + (_NUMBER_SIZE * 2 * n_key if self.pictured else 0)
        return sum(len(picture) for head in images.values() for picture in head) + beside * len(images)

    def draw(self, i: int, block: str, most: int, maps: HeadMaps) -> dict[str, Any]:
        """Encode the heads of one block of batch i into `maps`; return the facts beside the pictures."""
        batch = self.capture.batch(i)
        facts, layers = batch.info["blocks"][block], batch.info["layers"][block]
        shape = self._read(batch, block, next(iter(layers))).shape[1:]
        views = self._views(batch, block, i, shape, most)
        images: dict[str, Any] = {}
        heads: dict[str, Any] = {}
        for layer, kept in layers.items():
            values = self._read(batch, block, layer)
            drawn, strongest = self._layer(values, views), _strongest(values, views.present)
            for h, head in enumerate(kept):
                name = str(self.index[HeadId(block, int(layer), int(head))])
                images[name] = [picture for picture, *_ in drawn[h]]
                heads[name] = {"ranges": [ends for _, *ends in drawn[h]], "pairs": strongest[h]}
                if views.coarse and self.pictured:  # single rows are lost in the map; images need these two whole
                    heads[name]["rows"] = [values[h].mean(axis=0), values[h][0]]
        place = f"maps-{i}-{list(batch.info['layers']).index(block)}"
        maps.images[place] = images
        found = {"images": place, "mask": facts["mask"], "shape": list(shape), "coarse": views.coarse}
        for side, axis in enumerate(("query", "key")):
            tokens = facts.get(f"{axis}_tokens") or range(shape[side])
            found[f"{axis}_tokens"] = [visible(str(token)) for token in tokens]
            organized = views.organized and pack(views.organized[side]._asdict())
            found[axis] = {"bounds": pack(views.original[side].bounds), "organized": organized}
        return found | {"heads": pack(heads)}

    def _read(self, batch: Batch, block: str, layer: str) -> npt.NDArray[np.float32]:
        return np.nan_to_num(batch.read(f"{self.kind}/{block}.{layer}").astype(np.float32))

    def _views(self, batch: Batch, block: str, i: int, shape: Sequence[int], most: int) -> _Views:
        original, organized = [], []
        for n, axis in zip(shape, ("query", "key"), strict=True):
            original.append(cells_of(n, most))
            order, labels = (self.orders.of(f"{axis}_{what}", i, block) for what in ("orders", "trees"))
            if order is not None and np.array_equal(np.sort(order), np.arange(n)):
                fitting = labels is not None and labels.ndim == 2 and labels.shape[1] == n
                organized.append(cells_of(n, most, order, labels if fitting else None))
        both = (organized[0], organized[1]) if len(organized) == 2 else None
        return _Views((original[0], original[1]), both, batch.present(block, (shape[0], shape[1])))

    def _layer(self, values: npt.NDArray[np.float32], views: _Views) -> list[list[Encoded]]:
        """The pictures of each head: in token order, and organized too where cells hold several tokens."""
        if not views.coarse:
            return [[encode(head, self.kind, views.present)] for head in values]
        shown = [views.original] + ([views.organized] if views.organized else [])
        small = [block_means(values, views.present, *cells) for cells in shown]
        return [[encode(m[h], self.kind, np.ones(m[h].shape, bool)) for m in small] for h in range(len(values))]


def _strongest(values: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]) -> list[list[list[float]]]:
    """The strongest (query, key, value) of each head; one per key, so that a popular key leaves room for others.

    A query with a single key to attend to says nothing and is left out.
    """
    choosing = present & (present.sum(axis=1) > 1)[:, None]
    if not choosing.any():
        choosing = present
    kept = np.where(choosing, values, -np.inf)
    query = kept.argmax(axis=1)
    best = kept.max(axis=1)
    order = np.argsort(-best, axis=1, kind="stable")[:, :N_PAIRS]
    return [
        [[int(query[h, k]), int(k), float(best[h, k])] for k in keys if np.isfinite(best[h, k])]
        for h, keys in enumerate(order)
    ]


def _picture(capture: Capture, i: int, grid: Sequence[int] | None) -> dict[str, Any] | None:
    """The input image of batch i as a PNG, its contrast stretched, with the grid of its patches."""
    pixels = capture.pixels(i) if grid is not None and capture.pool is None else None  # blocks are not patches
    if pixels is None or grid is None:
        return None
    channels = np.moveaxis(pixels, 0, -1)
    low, high = float(channels.min()), float(channels.max())
    grey = np.rint(255 * (channels - low) / ((high - low) or 1.0)).astype(np.uint8)
    image = grey[..., 0] if grey.shape[-1] != 3 else grey
    step = max(1, -(-max(image.shape[:2]) // RESOLUTIONS[0]))
    return {"png": png(np.ascontiguousarray(image[::step, ::step])), "grid": [int(n) for n in grid]}
