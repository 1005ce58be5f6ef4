"""Geometry of many slices by their nearest neighbours, without a matrix of all pairs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse

from headscape.errors import InputError
from headscape.geometry.affinity import positive_median
from headscape.geometry.build import BuildOptions, tree_of_linkage
from headscape.geometry.emd import distance_tiles
from headscape.geometry.folder_means import Slices, chunks_of, folder_weights
from headscape.geometry.l1 import ROWS
from headscape.tree import PartitionTree

__all__ = [
    "NeighbourGraph",
    "cosine_graph",
    "neighbour_affinity",
    "neighbour_tree",
    "neighbours_of",
    "slice_neighbours",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Tile = tuple[int, int, FloatArray]

NEIGHBOURS_FROM = 5000
"""An axis with more leaves is organized by neighbours."""
LANDMARKS = 512
"""Slices that all others are compared with; at least one more than there are neighbours."""
_ROWS = 256
"""Rows of a matrix of all distances processed together."""
_ZERO = 1e-10
"""Eigenvalues below this share of the largest are rounding."""


class NeighbourGraph(NamedTuple):
    """The distances that are kept of n slices."""

    distances: Any  # (n, n) scipy CSR array, symmetric: one of a pair is among the k nearest of the other; zeros stored
    landmarks: IntArray  # (m,); slices that all are compared with
    to_landmarks: FloatArray  # (n, m)

    def change(self, before: NeighbourGraph) -> float:
        """Mean absolute difference to the round before, of distances to the landmarks over their median."""
        n, m = self.to_landmarks.shape
        gap = np.abs(before.to_landmarks / (before.median or 1.0) - self.to_landmarks / (self.median or 1.0))
        return float(gap.sum() / (m * (n - 1)))

    @property
    def median(self) -> float:
        """Median distance to the landmarks; the smallest positive one if that is 0; 0 if all are."""
        n, m = self.to_landmarks.shape
        other = np.ones((n, m), dtype=bool)
        other[self.landmarks, np.arange(m)] = False
        return positive_median(self.to_landmarks[other])


def slice_neighbours(
    slices: Slices,
    others: Sequence[PartitionTree],
    level_weight: float,
    size_weight: float,
    n_neighbours: int,
    random_state: int | None,
    max_memory: float,
    threads: int,
) -> NeighbourGraph:
    """Nearest neighbours of every slice by the tree distance, found exactly, in tiles of pairs.

    Parameters as for `slice_distance`; `n_neighbours` is k, `random_state` draws the landmarks.
    """
    weights = [folder_weights(tree, level_weight, size_weight) / tree.sizes for tree in others]
    chunks = chunks_of(slices, others, weights, leaves=True)
    column = 2 * slices.dtype.itemsize * max(chunk.columns for chunk in chunks)
    # means of two tiles, and the tile with its candidates: 40 bytes per pair
    height = int(min(max_memory / 2 / column, np.sqrt(max_memory / 2 / 40))) // ROWS * ROWS
    if height < ROWS:
        what = f"neighbours of {slices.shape[0]} slices of shape {slices.shape[1:]}"
        need = f"{2 * ROWS * column:.3g} bytes at least, max_memory leaves {max_memory:.3g}"
        raise InputError(f"{what} need {need}; raise it, or shorten the axes")
    tiles = distance_tiles(slices, chunks, height, threads)
    return _graph(tiles, slices.shape[0], n_neighbours, random_state)


def neighbours_of(distances: FloatArray, n_neighbours: int, random_state: int | None = 0) -> NeighbourGraph:
    """Neighbours from a matrix of all distances, (n, n)."""
    rows = range(0, len(distances), _ROWS)
    return _graph(((i, 0, distances[i : i + _ROWS].copy()) for i in rows), len(distances), n_neighbours, random_state)


def _graph(tiles: Iterable[Tile], n: int, n_neighbours: int, random_state: int | None) -> NeighbourGraph:
    """Keep the nearest of every slice, and all distances to the landmarks, as tiles come."""
    k = min(n_neighbours, n - 1)
    m = min(n, max(LANDMARKS, k + 1))
    seed = 0 if random_state is None else random_state  # the same in every round, so that rounds can be compared
    landmarks = np.sort(np.random.default_rng(seed).choice(n, m, replace=False))
    to_landmarks = np.zeros((n, m))
    nearest = np.full((n, k), np.inf)
    index = np.full((n, k), -1, dtype=np.intp)

    def take(start: int, first: int, block: FloatArray) -> None:
        rows = slice(start, start + len(block))
        inside = np.flatnonzero((landmarks >= first) & (landmarks < first + block.shape[1]))
        to_landmarks[rows, inside] = block[:, landmarks[inside] - first]
        if first <= start < first + block.shape[1]:
            block[np.arange(len(block)), np.arange(start - first, start - first + len(block))] = np.inf  # itself
        candidates = np.hstack([nearest[rows], block])
        columns = np.broadcast_to(np.arange(first, first + block.shape[1]), block.shape)
        names = np.hstack([index[rows], columns])
        best = np.argpartition(candidates, k - 1, axis=1)[:, :k]
        nearest[rows] = np.take_along_axis(candidates, best, axis=1)
        index[rows] = np.take_along_axis(names, best, axis=1)

    for i, j, block in tiles:
        take(i, j, block)
        if i < j:  # above the diagonal: the other direction too
            take(j, i, np.ascontiguousarray(block.T))
    return NeighbourGraph(_symmetric(nearest, index), landmarks, to_landmarks)


def _symmetric(nearest: FloatArray, index: IntArray) -> Any:
    """Both directions of every pair that is kept, once; zeros are stored."""
    n, k = nearest.shape
    rows, columns = np.repeat(np.arange(n), k), index.ravel()
    keys, first = np.unique(np.minimum(rows, columns) * n + np.maximum(rows, columns), return_index=True)
    low, high, values = keys // n, keys % n, nearest.ravel()[first]
    both = (np.concatenate([values, values]), (np.concatenate([low, high]), np.concatenate([high, low])))
    return scipy.sparse.csr_array(both, shape=(n, n))


def neighbour_affinity(graph: NeighbourGraph, eps_scale: float = 1.0) -> Any:
    """Affinity exp(-D / eps) between neighbours, 1 on the diagonal, 0 elsewhere; eps as in `dual_affinity`.

    Returns a (n, n) scipy CSR array.
    """
    scale = graph.median
    affinity = graph.distances.copy()
    affinity.data = np.exp(affinity.data / (-eps_scale * scale)) if scale else np.ones_like(affinity.data)
    n = affinity.shape[0]
    return scipy.sparse.csr_array(affinity + scipy.sparse.eye_array(n, format="csr"))


def cosine_graph(cosine: FloatArray, n_neighbours: int, random_state: int | None) -> tuple[NeighbourGraph, Any]:
    """Neighbours by cosine, (n, n), at distance 1 - cosine, and the cosines as affinity between them."""
    graph = neighbours_of(1.0 - cosine, n_neighbours, random_state)
    affinity = graph.distances.copy()
    affinity.data = 1.0 - affinity.data
    return graph, scipy.sparse.csr_array(affinity + scipy.sparse.eye_array(len(cosine), format="csr"))


def neighbour_tree(graph: NeighbourGraph, affinity: Any, options: BuildOptions | None = None) -> PartitionTree:
    r"""Ward's tree in which only folders that contain neighbours of each other are joined.

    Roots of tree distances are Euclidean, so slices have coordinates whose squared distances they are. These are found
    from the landmarks (classical scaling of their distances D_m, then

    .. math:: x_p = \tfrac12 \Lambda^{-1/2} U^T (\bar d - d_p), \quad U \Lambda U^T = -\tfrac12 J D_m J

    with d_p the distances of p to the landmarks and J the centring), and joined by Ward's criterion along the graph.
    With all slices as landmarks and all pairs as neighbours this is the "ward" of `build_tree`.
    """
    from sklearn.cluster import ward_tree  # slow to import, and needed only here

    points = _landmark_coordinates(graph)
    n = len(points)
    connected = graph.distances.copy()
    connected.data = np.ones_like(connected.data)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the number of connected components")  # joined by the nearest pairs
        children, _, _, _, heights = ward_tree(points, connectivity=connected, return_distance=True)
    heights = heights.copy()
    size = np.ones(2 * n - 1)
    for row, (left, right) in enumerate(children):
        size[n + row] = size[left] + size[right]
        below = [heights[child - n] for child in (left, right) if child >= n]
        heights[row] = max(heights[row], *below, 0.0)  # along a graph a join can be cheaper than the one before
    Z = np.column_stack([children, heights, size[n:]]).astype(np.float64)
    return tree_of_linkage(Z, affinity, options or BuildOptions())


def _landmark_coordinates(graph: NeighbourGraph) -> FloatArray:
    inside = graph.to_landmarks[graph.landmarks]
    mean = inside.mean(axis=0)
    centred = -0.5 * (inside - mean - mean[:, None] + mean.mean())
    values, vectors = scipy.linalg.eigh(centred, driver="evd")
    keep = values > _ZERO * max(values[-1], 1e-300)
    if not keep.any():
        return np.zeros((len(graph.to_landmarks), 1))
    coordinates: FloatArray = 0.5 * (mean - graph.to_landmarks) @ (vectors[:, keep] / np.sqrt(values[keep]))
    return coordinates
