"""Slow, obvious twins of the geometry's fast paths."""

from __future__ import annotations

import heapq
import itertools

import numpy as np

from headscape.geometry.affinity import dual_affinity
from headscape.geometry.build import BuildOptions, build_tree
from reference import folder_levels


def slow_l1(rows):
    """|a - b| summed pair by pair in float64."""
    rows = np.asarray(rows, dtype=np.float64)
    return np.array([[np.abs(a - b).sum() for b in rows] for a in rows])


def slow_tree_distance(X, trees, axis, level_weight=0.0, size_weight=1.0):
    """Eq. 15, mended: the sum over all tuples of folders, written down."""
    X = np.moveaxis(np.asarray(X, dtype=np.float64), axis, 0)
    others = [tree for b, tree in enumerate(trees) if b != axis]
    n = len(X)
    D = np.zeros((n, n))
    for folders in itertools.product(*(folder_levels(tree).items() for tree in others)):
        weight = 1.0
        for (folder, level), tree in zip(folders, others, strict=True):
            weight *= (len(folder) / tree.n_leaves) ** size_weight * 2.0 ** (-level_weight * level)
        box = X[np.ix_(range(n), *(sorted(folder) for folder, _ in folders))]
        means = box.reshape(n, -1).mean(axis=1)
        D += weight * np.abs(means[:, None] - means[None, :])
    return D


def slow_cosine(X, axis):
    """Cosines of the unfolded slices, one pair at a time."""
    slices = np.moveaxis(np.asarray(X, dtype=np.float64), axis, 0)
    G = np.eye(len(slices))
    for i, j in itertools.permutations(range(len(slices)), 2):
        a, b = slices[i].ravel(), slices[j].ravel()
        if a.any() and b.any():
            G[i, j] = max(0.0, a @ b / np.sqrt((a @ a) * (b @ b)))
    return G


def markov_matrix(K, alpha):
    """The chain's transition matrix, row by row."""
    K = np.asarray(K, dtype=np.float64)
    d = K.sum(axis=1)
    K = K / np.outer(d**alpha, d**alpha)
    return K / K.sum(axis=1, keepdims=True)


def slow_join(distances, merge_scale):
    """One level of the flexible tree with the queue of nodes that the text describes: sets of nodes."""
    n = len(distances)
    median = np.median([distances[i, j] for i in range(n) for j in range(i)])
    neighbours = [sorted((distances[i, j], j) for j in range(n) if j != i) for i in range(n)]
    queue = [(neighbours[i][0][0], i, 0) for i in range(n)]
    heapq.heapify(queue)
    clusters = {i: {i} for i in range(n)}
    taken, joins = set(), 0
    while queue:
        d, i, rank = heapq.heappop(queue)
        if i in taken:
            continue
        if d >= median and joins:
            break
        j = neighbours[i][rank][1]
        target = clusters[j]
        if len(target) == 1 or d < median * 2.0 ** (1 - len(target)) / merge_scale:
            target |= clusters[i]
            for member in target:
                clusters[member] = target
            taken |= {i, j}
            joins += 1
        elif rank + 1 < n - 1:
            heapq.heappush(queue, (neighbours[i][rank + 1][0], i, rank + 1))
    return {frozenset(cluster) for cluster in clusters.values()}


def slow_questionnaire(
    X,
    n_iter=3,
    tree="ward",
    level_weight=0.0,
    size_weight=0.5,
    cosine=slow_cosine,
    distance=slow_tree_distance,
):
    """Algorithm 1 with the slow twins of everything but the tree builders; returns the trees."""
    order = X.ndim
    head = order - 1 if order > 2 else None
    trees = [None] * order
    for axis in range(order):
        if axis != head:
            G = cosine(X, axis)
            trees[axis] = build_tree(1 - G, G, tree, BuildOptions())
    for _ in range(n_iter):
        for axis in [*([head] if head is not None else []), *(a for a in range(order) if a != head)]:
            D = distance(X, trees, axis, level_weight, size_weight)
            trees[axis] = build_tree(D, dual_affinity(D), tree, BuildOptions())
    return trees


def dip_slowly(values, cells):
    """Hartigan's dip on a grid, by linear programming: the least e such that a convex and, beyond a mode, a concave function stay within e."""
    from scipy.optimize import linprog

    def least(y, sign):
        n = len(y)
        curved = [[-sign * [1, -2, 1][j - i] if 0 <= j - i < 3 else 0 for j in range(n + 1)] for i in range(n - 2)]
        near = [[side * (j == i) - (j == n) for j in range(n + 1)] for side in (1, -1) for i in range(n)]
        limits = [0.0] * max(n - 2, 0) + [side * each for side in (1, -1) for each in y]
        return linprog([0] * n + [1], A_ub=[*curved, *near], b_ub=limits, bounds=[(None, None)] * (n + 1)).fun

    x = np.sort(values)
    F = [0.0, *(np.searchsorted(x, np.linspace(x[0], x[-1], cells + 1), side="right") / len(x))]
    return min(max(least(F[: mode + 1], 1), least(F[mode:], -1)) for mode in range(len(F)))


def mantel_slowly(one, other):
    """Spearman correlation over pairs, pair by pair."""
    from scipy.stats import spearmanr

    pairs = [(i, j) for i in range(len(one)) for j in range(i)]
    return spearmanr([one[i][j] for i, j in pairs], [other[i][j] for i, j in pairs]).statistic
