"""The strip: every head on every input, small; one picture per head, its inputs side by side on one scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.captures import Batch, Capture
from headscape.report.coarsen import block_means, cells_of
from headscape.report.gather import READING, reason_of
from headscape.report.greys import encode
from headscape.report.text import visible
from headscape.tensor import HeadId, Kind

__all__ = ["SIDES", "Strip", "draw_strip"]

SIDES = (64, 48, 32, 24, 16, 8)  # cells per side of one input
N_START = 12  # tokens that tell an input from the others
_SAMPLED = 6  # layers whose first heads are drawn to estimate the size of all
_Small = tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]


@dataclass
class Strip:
    """`facts` by block: where its pictures are and the name, shape and first tokens of each of `n_batch` inputs."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    images: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    n_batch: int = 0

    @property
    def size(self) -> int:
        """Characters that the pictures take."""
        return sum(len(picture) for images in self.images.values() for picture in images.values())


def draw_strip(capture: Capture, kind: Kind, index: Mapping[HeadId, int], budget: float) -> Strip:
    """Draw all heads on all inputs, as finely as the budget (of characters) allows; a single input has no strip."""
    strip = Strip()
    if len(capture) < 2:
        return strip
    side, strip.n_batch = _side(capture, kind, budget)
    drawn: dict[str, list[tuple[int, dict[HeadId, _Small], list[str]]]] = {block: [] for block in capture.blocks}
    for i in range(strip.n_batch):
        try:
            batch = capture.batch(i)
            found = {block: _small(batch, kind, block, side) for block in capture.blocks}
        except READING as error:
            strip.problems.append(f"the maps of batch {i} are not shown: {reason_of(error)}")
            continue
        for block, heads in found.items():
            tokens = batch.info["blocks"][block].get("key_tokens") or []
            drawn[block].append((i, heads, [visible(str(token)) for token in tokens[:N_START]]))
    for n, (block, inputs) in enumerate(drawn.items()):
        if len(inputs) > 1:
            shapes = [list(next(iter(heads.values()))[0].shape) for _, heads, _ in inputs]
            strip.images[f"strip-{n}"] = {
                str(index[head]): _side_by_side([heads[head] for _, heads, _ in inputs], kind) for head in inputs[0][1]
            }
            named = [
                {"name": i, "shape": shape, "tokens": tokens}
                for (i, _, tokens), shape in zip(inputs, shapes, strict=True)
            ]
            strip.facts[block] = {"images": f"strip-{n}", "batches": named}
    return strip


def _side(capture: Capture, kind: Kind, budget: float) -> tuple[int, int]:
    """The finest side at which all inputs fit the budget; at the coarsest, how many inputs do. Both are estimates."""
    batch, size = capture.batch(0), 0.0
    for side in SIDES:
        size = 0.0
        for block in capture.blocks:
            heads = _small(batch, kind, block, side, sample=True)
            mean = np.mean([len(_side_by_side([one], kind)) for one in heads.values()])
            size += float(mean) * len(capture.heads(block))
        if size * len(capture) <= budget:
            return side, len(capture)
    return SIDES[-1], min(len(capture), max(2, int(budget // max(size, 1))))


def _small(batch: Batch, kind: Kind, block: str, side: int, sample: bool = False) -> dict[HeadId, _Small]:
    """The heads of a block, averaged over equal runs of tokens, and which cells there are."""
    layers = batch.info["layers"][block]
    chosen = list(layers)[:: max(1, len(layers) // _SAMPLED)] if sample else list(layers)
    found = {}
    for layer in chosen:
        values = np.nan_to_num(batch.read(f"{kind}/{block}.{layer}").astype(np.float32))[: 3 if sample else None]
        n_query, n_key = values.shape[1:]
        present, cells = batch.present(block, (n_query, n_key)), (cells_of(n_query, side), cells_of(n_key, side))
        there = block_means(present[None].astype(np.float32), np.ones_like(present), *cells)[0] > 0
        for head, small in zip(layers[layer], block_means(values, present, *cells), strict=False):
            found[HeadId(block, int(layer), int(head))] = small, there
    return found


def _side_by_side(inputs: list[_Small], kind: Kind) -> str:
    """One picture of several maps, each in a field as large as the largest."""
    rows, columns = (max(values.shape[axis] for values, _ in inputs) for axis in (0, 1))
    canvas = np.zeros((rows, columns * len(inputs)), dtype=np.float32)
    seen = np.zeros(canvas.shape, dtype=bool)
    for n, (values, there) in enumerate(inputs):
        place = np.s_[: values.shape[0], n * columns : n * columns + values.shape[1]]
        canvas[place], seen[place] = values, there
    return encode(canvas, kind, seen)[0]
