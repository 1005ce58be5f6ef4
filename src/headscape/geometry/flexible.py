"""The paper's flexible tree: grown bottom up from diffusion distances at doubling times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import pdist, squareform

from headscape.compiled import compiled
from headscape.geometry.diffusion import Spectrum, one_blas_thread

__all__ = ["flexible_levels"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

_SAME = 1e-9
"""Nodes closer than this share of the largest distance are the same: eigenvectors of equal rows differ by as much."""


def flexible_levels(spectrum: Spectrum, merge_scale: float = 1.0) -> list[IntArray]:
    """Partitions of the flexible tree, fine to coarse: from the first above the singletons to one folder.

    Level l = 0, 1, ... compares folders at diffusion time t = 2^l: leaves have coordinates
    (lambda_k / max |lambda|)^t psi_k, folders the mean distance over pairs of their leaves. Nodes are taken in order of
    the distance d to their nearest node. A single node joins that node's cluster of current size s if s = 1 or
    d < median 2^(1 - s) / merge_scale; if refused, it tries its next nearest when that distance is due. The level ends
    when d reaches the median. If the median is 0, all nodes at distance 0 are joined at once.

    Returns one label array (n,) per level; the last is all 0.
    """
    n = len(spectrum.vectors)
    labels = np.arange(n, dtype=np.intp)
    levels: list[IntArray] = []
    ratio = spectrum.values / np.abs(spectrum.values).max(initial=1e-300)
    time = 1
    while labels.max() > 0:
        leaf_distances = squareform(pdist(ratio**time * spectrum.vectors)) if len(ratio) else np.zeros((n, n))
        distances = _mean_over_pairs(leaf_distances, labels)
        distances[distances <= _SAME * distances.max()] = 0.0
        labels = _join(distances, merge_scale)[labels]
        levels.append(labels)
        time *= 2
    return levels


def _mean_over_pairs(leaf_distances: FloatArray, labels: IntArray) -> FloatArray:
    """Mean distance between the leaves of two folders."""
    count = np.bincount(labels)
    if len(count) == len(labels):
        return leaf_distances
    member = np.zeros((len(labels), len(count)))
    member[np.arange(len(labels)), labels] = 1.0 / count[labels]
    with one_blas_thread():
        means = member.T @ leaf_distances @ member
    return (means + means.T) / 2


def _join(distances: FloatArray, merge_scale: float) -> IntArray:
    """One level: cluster of every node, numbered from 0."""
    rows, columns = np.triu_indices(len(distances), 1)
    above = distances[rows, columns]
    median = np.median(above)
    if median == 0:
        return np.asarray(connected_components(distances == 0)[1], dtype=np.intp)
    first = np.flatnonzero(above < median)
    first = first[np.argsort(above[first], kind="stable")] if len(first) else np.argmin(above, keepdims=True)
    clusters = _join_pairs(rows[first], columns[first], above[first], len(distances), median, merge_scale)
    return np.asarray(np.unique(clusters, return_inverse=True)[1], dtype=np.intp).ravel()


@compiled
def _join_pairs(
    rows: IntArray, columns: IntArray, distances: FloatArray, n: int, median: float, merge_scale: float
) -> IntArray:
    """Go through pairs by rising distance; that is the queue of nodes with their nearest, next nearest, ... partners.

    A node that joined, or was joined, is not processed again, so every node processed is still single.
    """
    cluster = np.arange(n)
    size = np.ones(n, dtype=np.intp)
    for pair in range(len(rows)):
        i, j = rows[pair], columns[pair]
        s_i, s_j = size[cluster[i]], size[cluster[j]]
        if s_i > 1 and s_j > 1:
            continue
        if s_i > 1:
            i, j, s_j = j, i, s_i
        if s_j == 1 or distances[pair] < median * 2.0 ** (1 - s_j) / merge_scale:
            cluster[i] = cluster[j]
            size[cluster[j]] += 1
    return cluster
