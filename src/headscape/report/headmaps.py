"""The attention maps of every head as 8-bit pictures, within a budget of bytes.

One picture a head and batch is kept in the order of the tokens; the page makes the organised one of the same pixels.
Only where tokens outnumber pixels both are kept, each averaged along its own order.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image
from safetensors import SafetensorError

from headscape.captures import Batch, Capture
from headscape.errors import HeadscapeError
from headscape.report.coarsen import Cells, block_means, cells_of
from headscape.report.gather import reason_of
from headscape.report.packing import pack
from headscape.report.text import visible
from headscape.tensor import HeadId, Kind

__all__ = ["BUDGET", "RESOLUTIONS", "HeadMaps", "Orders", "draw_maps", "encode"]

BUDGET = 15_000_000  # characters for all maps; with plotly's 4.8 MB and the data a page stays under 25 MB
RESOLUTIONS = (256, 128, 64, 32)  # pixels a side
N_PAIRS = 8
_SAMPLED_LAYERS = 6  # whose first heads are encoded to estimate the size of all
_READING = (HeadscapeError, SafetensorError, OSError, KeyError, ValueError)


@dataclass(frozen=True)
class Orders:
    """Leaf orders of the tokens by (batch, block), and the labels of their trees where they are known."""

    query: Mapping[tuple[int, str], npt.NDArray[np.intp]] = field(default_factory=dict)
    key: Mapping[tuple[int, str], npt.NDArray[np.intp]] = field(default_factory=dict)
    query_labels: Mapping[tuple[int, str], npt.NDArray[np.intp]] = field(default_factory=dict)
    key_labels: Mapping[tuple[int, str], npt.NDArray[np.intp]] = field(default_factory=dict)

    @classmethod
    def of_figure(cls, data: Mapping[str, Any], blocks: Sequence[str]) -> Orders:
        """Read `query_orders`, `key_orders`, `query_trees`, `key_trees`: a list by batch, or by block one such list."""
        found: list[dict[tuple[int, str], npt.NDArray[np.intp]]] = []
        for key in ("query_orders", "key_orders", "query_trees", "key_trees"):
            given = data.get(key)
            by_block = given if isinstance(given, Mapping) else dict.fromkeys(blocks, given)
            found.append(
                {
                    (i, block): np.asarray(array, dtype=np.intp)
                    for block, arrays in by_block.items()
                    for i, array in enumerate([] if arrays is None else arrays)
                    if array is not None
                }
            )
        return cls(*found)


@dataclass
class HeadMaps:
    """What the page needs: `facts` for its data, `images` by the id of the script they go into, and what to tell."""

    facts: dict[str, Any] = field(default_factory=dict)
    images: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def encode(values: npt.NDArray[np.float32], kind: Kind, present: npt.NDArray[np.bool_]) -> tuple[str, float, float]:
    """One map as a base64 PNG of 8-bit greys, and the values of grey 0 and 255.

    Probabilities are shown by their square root, grey = 255 sqrt(p / max p), so that weak attention is seen too; scores
    linearly between their extremes.
    """
    shown = values[present] if present.any() else np.zeros(1, dtype=np.float32)
    low, high = (0.0, float(shown.max())) if kind == "probs" else (float(shown.min()), float(shown.max()))
    share = np.clip((values - low) / ((high - low) or 1.0), 0, 1)
    grey = np.rint(255 * (np.sqrt(share) if kind == "probs" else share)).astype(np.uint8)
    return _png(np.where(present, grey, 0).astype(np.uint8)), low, high


def _png(pixels: npt.NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=6)
    return base64.b64encode(file.getvalue()).decode("ascii")


def draw_maps(
    capture: Capture,
    heads: Sequence[HeadId],
    orders: Orders | None = None,
    grid: Sequence[int] | None = None,
    budget: int = BUDGET,
) -> HeadMaps:
    """Encode the maps of all heads, in as many batches and as finely as the budget allows.

    Parameters
    ----------
    heads
        The heads of the page; a map is filed under its head's index here.
    grid
        Rows and columns of patches when the inputs are images.
    budget
        Characters all pictures together may take.
    """
    orders = orders or Orders()
    maps = HeadMaps()
    if "probs" not in capture.kept and "scores" not in capture.kept:
        maps.problems.append(
            f"attention maps are not shown: the capture kept {', '.join(capture.kept)}; capture again with --keep probs"
        )
        return maps
    kind: Kind = "probs" if "probs" in capture.kept else "scores"
    index = {head: i for i, head in enumerate(heads)}
    try:
        most, per_batch = _resolution(capture, kind, orders, budget)
    except _READING as error:
        maps.problems.append(f"attention maps are not shown: {reason_of(error)}")
        return maps
    n_batch = max(1, min(len(capture), int(budget // max(per_batch, 1))))
    batches = []
    for i in range(n_batch):
        try:
            batch = capture.batch(i)
            blocks = {block: _draw_block(batch, block, i, kind, most, orders, index, maps) for block in capture.blocks}
            batches.append({"name": i, "blocks": blocks, "picture": _picture(capture, i, grid)})
        except _READING as error:
            maps.problems.append(f"the maps of batch {i} are not shown: {reason_of(error)}")
    maps.facts = {"kind": kind, "batches": batches}
    maps.notes = _notes(capture, kind, most, n_batch, batches)
    return maps


def _notes(capture: Capture, kind: Kind, most: int, n_batch: int, batches: list[dict[str, Any]]) -> list[str]:
    notes = [
        "Colour is the square root of the attention, as a share of the head's largest; 8 bits."
        if kind == "probs"
        else "Colour is the score before softmax, linear between the head's extremes; 8 bits."
    ]
    if capture.pool is not None:
        query, key = (len(side) for side in capture.batch(0).tokens(capture.blocks[0]))
        among = f"{query} x {key} tokens in " if query and key else ""
        grid = f"{capture.pool} x {capture.pool} blocks"
        notes.append(f"The capture is pooled, {among}{grid}; a cell is the mean over a pair of blocks.")
    coarse = {max(block["shape"]) for batch in batches for block in batch["blocks"].values() if block["coarse"]}
    if coarse:
        what = "tokens" if capture.pool is None else "blocks"
        notes.append(f"The {max(coarse)} {what} are averaged to at most {most} cells a side to keep this file small.")
    if n_batch < len(capture):
        notes.append(f"Maps of {n_batch} of {len(capture)} batches are kept to keep this file small.")
    return notes


def _resolution(capture: Capture, kind: Kind, orders: Orders, budget: int) -> tuple[int, float]:
    """Return the finest resolution at which one batch fits the budget, and the characters it then takes (estimated)."""
    n_head = sum(len(capture.heads(block)) for block in capture.blocks)
    size = 0.0
    for most in RESOLUTIONS:
        total = n = 0
        for block in capture.blocks:
            batch = capture.batch(0)
            layers = list(batch.info["layers"][block])
            for layer in layers[:: max(1, len(layers) // _SAMPLED_LAYERS)]:
                drawn = _draw_layer(batch, block, layer, _cells(batch, block, layer, 0, kind, most, orders), kind, 3)
                total += sum(len(png) for head in drawn for png in head.pictures)
                n += len(drawn)
        size = total / max(n, 1) * n_head
        if size <= budget:
            return most, size
    return RESOLUTIONS[-1], size


class _Views(NamedTuple):
    """Cells (query, key) of the picture in token order, and of the organised one where its orders are known."""

    original: tuple[Cells, Cells]
    organised: tuple[Cells, Cells] | None
    present: npt.NDArray[np.bool_]

    @property
    def coarse(self) -> bool:
        return any(cells.coarse for cells in self.original)


def _cells(batch: Batch, block: str, layer: str, i: int, kind: Kind, most: int, orders: Orders) -> _Views:
    n_query, n_key = batch.read(f"{kind}/{block}.{layer}").shape[1:]
    original, organised = [], []
    for n, known, trees in ((n_query, orders.query, orders.query_labels), (n_key, orders.key, orders.key_labels)):
        original.append(cells_of(n, most))
        order, labels = known.get((i, block)), trees.get((i, block))
        if order is not None and np.array_equal(np.sort(order), np.arange(n)):
            fitting = labels is not None and labels.ndim == 2 and labels.shape[1] == n
            organised.append(cells_of(n, most, order, labels if fitting else None))
    present = batch.present(block, (n_query, n_key))
    both = (organised[0], organised[1]) if len(organised) == 2 else None
    return _Views((original[0], original[1]), both, present)


class _Drawn(NamedTuple):
    pictures: list[str]  # in token order, and organised only where cells hold several tokens
    ranges: list[tuple[float, float]]  # values of grey 0 and 255, one a picture


def _draw_layer(
    batch: Batch, block: str, layer: str, views: _Views, kind: Kind, n_head: int | None = None
) -> list[_Drawn]:
    values = _read(batch, block, layer, kind)[:n_head]
    if not views.coarse:
        encoded = [[encode(v, kind, views.present)] for v in values]
    else:
        shown = [views.original] + ([views.organised] if views.organised else [])
        small = [block_means(values, views.present, *cells) for cells in shown]
        encoded = [[encode(s[h], kind, np.ones(s[h].shape, dtype=bool)) for s in small] for h in range(len(values))]
    return [_Drawn([png for png, *_ in head], [(low, high) for _, low, high in head]) for head in encoded]


def _read(batch: Batch, block: str, layer: str, kind: Kind) -> npt.NDArray[np.float32]:
    return np.nan_to_num(batch.read(f"{kind}/{block}.{layer}").astype(np.float32))


def _draw_block(
    batch: Batch, block: str, i: int, kind: Kind, most: int, orders: Orders, index: Mapping[HeadId, int], maps: HeadMaps
) -> dict[str, Any]:
    """Encode the heads of one block of one batch into `maps`; return the facts beside the pictures."""
    layers = batch.info["layers"][block]
    views = _cells(batch, block, next(iter(layers)), i, kind, most, orders)
    n_query, n_key = views.present.shape
    facts = batch.info["blocks"][block]
    tokens = {
        axis: facts.get(f"{axis}_tokens") or [str(t) for t in range(n)]
        for axis, n in (("query", n_query), ("key", n_key))
    }
    ranges: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    pictures: dict[str, Any] = {}
    for layer, kept in layers.items():
        values = _read(batch, block, layer, kind)
        drawn = _draw_layer(batch, block, layer, views, kind)
        strongest = _strongest(values, views.present)
        for h, head in enumerate(kept):
            name = str(index[HeadId(block, int(layer), int(head))])
            pictures[name], ranges[name], pairs[name] = drawn[h].pictures, drawn[h].ranges, strongest[h]
            if views.coarse:  # single rows are lost in the picture; images need these two whole
                rows[name] = [values[h].mean(axis=0), values[h][0]]
    place = f"maps-{i}-{list(batch.info['layers']).index(block)}"
    maps.images[place] = pictures
    organised = views.organised or (None, None)
    return {
        "images": place,
        "mask": facts["mask"],
        "shape": [n_query, n_key],
        "coarse": views.coarse,
        "query_tokens": [visible(t) for t in tokens["query"]],
        "key_tokens": [visible(t) for t in tokens["key"]],
        "query": _pack_axis(views.original[0], organised[0]),
        "key": _pack_axis(views.original[1], organised[1]),
        "ranges": pack(ranges),
        "pairs": pack(pairs),
        "rows": pack(rows),
    }


def _pack_axis(original: Cells, organised: Cells | None) -> dict[str, Any]:
    return {
        "bounds": pack(original.bounds),
        "organised": None if organised is None else {"order": pack(organised.order), "bounds": pack(organised.bounds)},
    }


def _strongest(values: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]) -> list[list[list[float]]]:
    """The strongest (query, key, value) of each head; one a key, so that a popular key leaves room for others.

    A query that can look at one key only says nothing by doing so, and is left out.
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
    pixels = capture.pixels(i) if grid is not None and capture.pool is None else None  # blocks are no patches
    if pixels is None or grid is None:
        return None
    channels = np.moveaxis(pixels, 0, -1)
    low, high = float(channels.min()), float(channels.max())
    grey = np.rint(255 * (channels - low) / ((high - low) or 1.0)).astype(np.uint8)
    image = grey[..., 0] if grey.shape[-1] != 3 else grey
    step = max(1, -(-max(image.shape[:2]) // RESOLUTIONS[0]))
    return {"png": _png(np.ascontiguousarray(image[::step, ::step])), "grid": [int(n) for n in grid]}
