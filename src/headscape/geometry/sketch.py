"""Sketch of the tree distance: an estimate from a random part of the folder tuples, with its error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import erf

from headscape.compiled import compiled, run_tasks
from headscape.errors import InputError
from headscape.geometry.emd import groups_within
from headscape.geometry.folder_means import Chunk, Slices, chunks_of, fill_means, folder_weights
from headscape.geometry.l1 import ROWS, add_pairwise_l1, symmetric
from headscape.tree import PartitionTree

__all__ = ["SKETCH_FROM", "Sketch", "sketch_distance"]

Floats = npt.NDArray[Any]  # float32 or float64
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

SKETCH_FROM = 2000
"""An axis with more slices is sketched; fewer are compared exactly, which costs little more than the folder means."""
_PILOT = 64
"""Slices whose 2,016 pairs are also computed exactly."""
_FLUSH = 4096
"""Columns compared together."""
_STRIP = 4096
"""Columns per task when spreads are computed."""
_COVERED = 0.95
_MARGIN = 1.1
"""Factor by which the quantile of this many pairs may be too low."""


class Sketch(NamedTuple):
    """Estimated distances."""

    distances: FloatArray  # (n, n), symmetric, zero on the diagonal; the triangle inequality holds
    error: float  # |estimate - distance| / distance is below this for 95 % of the pairs, as the sketch estimates it


class _Some:
    """Some of the slices."""

    def __init__(self, slices: Slices, chosen: IntArray) -> None:
        self._slices, self._chosen = slices, chosen
        self.shape = (len(chosen), *slices.shape[1:])
        self.dtype = slices.dtype

    def __getitem__(self, i: int, /) -> Floats:
        return self._slices[int(self._chosen[i])]


def sketch_distance(
    slices: Slices,
    others: Sequence[PartitionTree],
    level_weight: float,
    size_weight: float,
    columns: int,
    random_state: int | None,
    max_memory: float,
    threads: int,
) -> Sketch:
    r"""Estimate the tree distance from about `columns` of the folder tuples.

    The tree distance is an L1 distance, D[p, j] = sum_f |a_pf - a_jf| over tuples f of folders. Tuple f is kept with
    probability pi_f = min(1, columns * s_f / sum s), s_f the standard deviation of a_pf over the slices, and counts
    1 / pi_f times:

    .. math:: \hat D[p, j] = \sum_{f\ kept} |a_{pf} - a_{jf}| / \pi_f

    which is unbiased, and exact in the tuples in which slices differ most. Tuples are drawn systematically, at even
    steps of their cumulated probabilities from a random start, so that every scale and place has its share.

    Its error is estimated twice: from the sketch itself (Var D = sum (1 - pi) / pi |a_pf - a_jf|^2, estimated from the
    tuples kept) and from the exact distances between 64 random slices; the larger one is given.

    Parameters
    ----------
    slices, others, level_weight, size_weight, max_memory, threads
        As for `slice_distance`.
    columns
        Approximate number of tuples to keep.
    random_state
        Seed of the choice. The number of threads changes nothing.

    Raises
    ------
    InputError
        If one chunk of folder means does not fit into `max_memory`.
    """
    n = slices.shape[0]
    rows = n + -n % ROWS
    weights = [folder_weights(tree, level_weight, size_weight) / tree.sizes for tree in others]
    pilot = np.sort(np.random.default_rng(random_state).choice(n, min(n, _PILOT), replace=False))
    exact, whole_spread = _exact(_Some(slices, pilot), others, weights, threads)
    kept = _Kept(np.zeros((rows, rows)), pilot, threads)
    step = float(np.random.default_rng(random_state).random())
    for group in _groups(chunks_of(slices, others, weights, leaves=True), slices, rows, max_memory):
        means = [np.empty((rows, chunk.columns), dtype=slices.dtype) for chunk in group]
        fill_means(slices, group, means, 0, threads)
        for array in means:
            chance = np.minimum(1.0, _spread(array, n, threads) * (columns / (whole_spread or 1.0)))
            steps = step + np.cumsum(chance)  # a column is kept where a whole number is passed
            chosen = np.flatnonzero(np.diff(np.floor(steps), prepend=np.floor(step)))
            step = float(steps[-1] % 1.0)
            kept.add(array[:, chosen], chance[chosen])
    distances, variance = kept.result()
    distances = symmetric(distances[:n, :n])
    return Sketch(distances, _error(distances[np.ix_(pilot, pilot)], variance, exact))


def _exact(
    slices: Slices, others: Sequence[PartitionTree], weights: Sequence[FloatArray], threads: int
) -> tuple[FloatArray, float]:
    """Distances of the pilot slices, and the sum over all tuples of the spread among them."""
    n = slices.shape[0]
    rows = n + -n % ROWS
    total, spread = np.zeros((rows, rows)), 0.0
    for chunk in chunks_of(slices, others, weights, leaves=True):
        means = np.empty((rows, chunk.columns), dtype=slices.dtype)
        fill_means(slices, [chunk], [means], 0, threads)
        add_pairwise_l1(means, total, threads)
        spread += float(_spread(means, n, threads).sum())
    return symmetric(total[:n, :n]), spread


def _groups(chunks: Sequence[Chunk], slices: Slices, rows: int, memory: float) -> Iterator[list[Chunk]]:
    """As many chunks together as fit; one at a time for an array in memory."""
    largest = max(chunk.columns for chunk in chunks) * rows * slices.dtype.itemsize
    if largest > memory:
        need = f"a sketch of {slices.shape[0]} slices of shape {slices.shape[1:]} needs {largest:.3g} bytes at least"
        raise InputError(f"{need}, max_memory leaves {memory:.3g}; raise it, or use distance='exact', which needs less")
    at_most = 1 if isinstance(slices, np.ndarray) else None
    return groups_within(chunks, rows * slices.dtype.itemsize, memory / 2, at_most)


class _Kept:
    """Sums over the columns kept so far."""

    def __init__(self, total: FloatArray, pilot: IntArray, threads: int) -> None:
        self._total, self._pilot, self._threads = total, pilot, threads
        self._variance = np.zeros((len(pilot), len(pilot)))
        self._waiting: list[Floats] = []

    def add(self, columns: Floats, chance: FloatArray) -> None:
        """Add columns that were kept with these probabilities."""
        scaled = np.divide(columns, chance, dtype=columns.dtype, casting="same_kind")
        self._waiting.append(scaled)
        own = scaled[self._pilot] * np.sqrt(1.0 - chance)
        square = (own**2).sum(axis=1)
        self._variance += np.maximum(square[:, None] + square - 2 * own @ own.T, 0.0)
        if sum(part.shape[1] for part in self._waiting) >= _FLUSH:
            self._flush()

    def result(self) -> tuple[FloatArray, FloatArray]:
        """Estimates above the diagonal, and variances of the pilot's."""
        self._flush()
        return self._total, self._variance

    def _flush(self) -> None:
        if self._waiting:
            add_pairwise_l1(np.ascontiguousarray(np.hstack(self._waiting)), self._total, self._threads)
            self._waiting.clear()


def _error(estimate: FloatArray, variance: FloatArray, exact: FloatArray) -> float:
    """Relative error that 95 % of the pairs stay within, by the variances and by the exact distances."""
    pairs = np.triu_indices(len(exact), 1)
    truth = exact[pairs]
    apart = truth > 0
    if not apart.any():
        return 0.0
    truth = truth[apart]
    seen = float(np.quantile(np.abs(estimate[pairs][apart] - truth) / truth, _COVERED))
    relative = np.sqrt(variance[pairs][apart]) / truth * np.sqrt(2)
    if not relative.any():
        return seen
    positive = relative[relative > 0]
    missed = 1 - _COVERED

    def too_small(bound: float) -> float:  # share of pairs beyond the bound if errors are normal
        return float((1 - erf(bound / positive)).sum()) / len(relative) - missed

    own = float(brentq(too_small, 0.0, 10 * positive.max())) if len(positive) > missed * len(relative) else 0.0
    return _MARGIN * max(seen, own)


def _spread(means: Floats, n: int, threads: int) -> FloatArray:
    """Standard deviation of every column over the first n rows."""
    found = np.empty(means.shape[1])
    strips = range(0, means.shape[1], _STRIP)
    run_tasks(_strip_spread, [(means, n, lo, min(lo + _STRIP, means.shape[1]), found) for lo in strips], threads)
    return found


@compiled
def _strip_spread(means: Floats, n: int, lo: int, hi: int, found: FloatArray) -> None:
    """Two passes over the rows of a strip: means first, so that a common offset does not swamp the spread."""
    centre, square = np.zeros(hi - lo), np.zeros(hi - lo)
    for p in range(n):
        row = means[p, lo:hi]
        for k in range(hi - lo):
            centre[k] += row[k]
    for k in range(hi - lo):
        centre[k] /= n
    for p in range(n):
        row = means[p, lo:hi]
        for k in range(hi - lo):
            gap = row[k] - centre[k]
            square[k] += gap * gap
    for k in range(hi - lo):
        found[lo + k] = np.sqrt(square[k] / n)
