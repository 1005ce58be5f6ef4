"""The cost of a capture, before it starts: memory and storage from shapes, time from a short calibrating run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.attention.models import Model
from headscape.attention.sites import example_input
from headscape.attention.tapping import masks_in_rows, way_of
from headscape.attention.taps import BLOCK_BYTES
from headscape.runs import human_bytes

__all__ = ["Estimate", "Pace", "Stored", "estimate", "measure_pace"]

LONGEST = 1024  # tokens of the longest calibrating pass
SHORTEST = 16
REPEATS = 2  # the faster of two counts: the first one may pay for what later ones find warm


@dataclass(frozen=True)
class Pace:
    """Seconds of one captured context as a + b n + c n^2 in its tokens n, fitted to timed passes."""

    coefficients: tuple[float, float, float]
    tokens: tuple[int, ...]
    measured: tuple[float, ...]

    def seconds(self, n_tokens: int) -> float:
        """Of one context."""
        a, b, c = self.coefficients
        return a + b * n_tokens + c * n_tokens**2


@dataclass(frozen=True)
class Estimate:
    """The memory, storage and time of a capture, known before it starts."""

    memory_bytes: int  # above the model itself, at the peak of one layer
    model_bytes: int
    batch_bytes: int  # stored, per batch
    batches: int
    n_tokens: int = 0
    seconds: float | None = None  # of all passes, when it was calibrated; writing to disk comes on top
    pace: Pace | None = None

    def __str__(self) -> str:
        return (
            f"memory {human_bytes(self.model_bytes)} for the model and about {human_bytes(self.memory_bytes)} more; "
            f"storage {human_bytes(self.batch_bytes)} per batch, "
            f"{human_bytes(self.batch_bytes * self.batches)} in all"
        )

    def timed(self, pace: Pace) -> Estimate:
        """The same with the time of all its batches."""
        return replace(self, seconds=pace.seconds(self.n_tokens) * self.batches, pace=pace)


class Stored(NamedTuple):
    """What a capture stores of each batch, and in which number type."""

    keep: Sequence[str]
    dtype: str
    n_heads: int
    pool: int | None = None
    n_rows: int = 0


def estimate(model: Model, n_tokens: int, stored: Stored, batches: int, on_disk: bool) -> Estimate:
    """Memory and storage of a capture, from shapes alone; `benchmarks/capture.py` compares it with measurements.

    At any moment one layer's maps are held: the stored copy, the working set of one block of rows, the mask and the
    streams of the layer. With `pool` the stored copy is the grid of blocks, and networks on the attention interface
    build their mask in blocks of rows too. In memory, all that is kept stays as well.
    """
    keep, dtype, kept_heads, pool, n_rows = stored
    item = np.dtype(dtype).itemsize
    width = max(site.n_heads for site in model.sites)
    area = n_tokens**2
    cells = area if pool is None else pool**2 + n_rows * n_tokens
    maps = sum(what in keep for what in ("probs", "scores"))
    hidden = getattr(model.config, "hidden_size", 0) or 0
    vectors = sum(what in keep for what in ("queries", "keys", "values", "hidden", "head_outputs"))
    batch_bytes = maps * kept_heads * cells * item + vectors * len(model.sites) * n_tokens * hidden * item
    streams = 36 * n_tokens * hidden * 4  # queries, keys, values, outputs, the wide middle of the MLP, gaps between
    block = width * area * 4
    if way_of(model.module, model.attention) != "softmax":  # attention of its own comes as whole maps
        block = min(block, BLOCK_BYTES)
    masks = 3 * area * 4
    if masks_in_rows(model.module):
        masks = min(masks, 3 * BLOCK_BYTES)
    working = 10 * block + masks
    held = cells * item if pool is None else pool**2 * (item + 4) + n_rows * n_tokens * item
    kept = maps * width * held if on_disk else batch_bytes * batches
    bytes_of = {"float32": 4, "float16": 2, "bfloat16": 2}
    return Estimate(
        kept + working + streams, model.n_parameters * bytes_of[model.dtype], batch_bytes, batches, n_tokens
    )


def measure_pace(model: Model, n_tokens: int, once: Callable[[Any, int], object]) -> Pace:
    """Time `once(arguments, n)` on a few contexts of growing length and fit seconds = a + b n + c n^2, none negative.

    Lengths double up to 1,024 tokens, or to `n_tokens` where that is less. Images and plain modules have one length:
    there the time is a constant.
    """
    if model.images is not None or model.task == "module":
        seconds = _seconds(once, example_input(model), n_tokens)
        return Pace((seconds, 0.0, 0.0), (n_tokens,), (seconds,))
    most = min(n_tokens, LONGEST)
    lengths = sorted({max(min(SHORTEST, most), most // part) for part in (8, 4, 2, 1)})
    measured = [_seconds(once, example_input(model, n), n) for n in lengths]
    return Pace(fit_pace(lengths, measured), tuple(lengths), tuple(measured))


def fit_pace(lengths: Sequence[int], seconds: Sequence[float]) -> tuple[float, float, float]:
    """Coefficients a, b, c >= 0 of a + b n + c n^2 by least squares in relative error.

    >>> fit_pace([10, 20, 40], [1.1 + n * 0.2 + n * n * 0.03 for n in (10, 20, 40)])
    (1.1, 0.2, 0.03)
    """
    from scipy.optimize import nnls

    n = np.asarray(lengths, dtype=np.float64)
    y = np.asarray(seconds, dtype=np.float64)
    powers: npt.NDArray[np.float64] = np.stack([np.ones_like(n), n / n.max(), (n / n.max()) ** 2], axis=1)
    found, _ = nnls(powers / y[:, None], np.ones_like(y))
    a, b, c = found / np.array([1.0, n.max(), n.max() ** 2])
    return round(float(a), 12), round(float(b), 12), round(float(c), 15)


def _seconds(once: Callable[[Any, int], object], arguments: Any, n: int) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        once(arguments, n)
        times.append(time.perf_counter() - start)
    return min(times)
