"""Sketches of the distances between heads: which one errs least for the same work; and neighbours beside all pairs.

    python benchmarks/sketch.py [--heads 2500] [--seeds 3] [--neighbours 0]

The tree distance is an L1 distance between vectors of folder means, so two sketches are known: 1-stable (Cauchy)
projections, whose median |y_p - y_j| estimates it, and a random part of the coordinates. Given are the relative error
that 95 % of the pairs are within, at the same number of columns, for coordinates drawn evenly, drawn by their spread
(what `distance="sketch"` does, with the error it states itself), and for Cauchy projections (on 250 heads: a column
costs a product with all folder means there); and CPU times of one round in one run.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from sklearn.metrics import adjusted_rand_score

from _timing import in_turns, table
from headscape.geometry import neighbours
from headscape.geometry.emd import slice_distance
from headscape.geometry.folder_means import chunks_of, fill_means, folder_weights
from headscape.geometry.l1 import pairwise_l1
from headscape.geometry.planted import planted
from headscape.geometry.questionnaire import Questionnaire
from headscape.geometry.sketch import sketch_distance
from headscape.tree import PartitionTree

WEIGHTS = (0.0, 0.5)
COLUMNS = (512, 2048, 8192)
FEW = 250


def features(slices: np.ndarray, trees: list[PartitionTree]) -> np.ndarray:
    """All folder means of every slice, (n, n_tuples)."""
    weights = [folder_weights(tree, *WEIGHTS) / tree.sizes for tree in trees]
    parts = []
    for chunk in chunks_of(slices, trees, weights, leaves=True):
        means = np.empty((len(slices), chunk.columns), dtype=np.float32)
        fill_means(slices, [chunk], [means], 0, 1)
        parts.append(means)
    return np.hstack(parts)


def within(estimate: np.ndarray, truth: np.ndarray) -> float:
    above = np.triu_indices(len(truth), 1)
    return float(np.quantile(np.abs(estimate[above] / truth[above] - 1), 0.95))


def evenly(values: np.ndarray, columns: int, seed: int) -> np.ndarray:
    chosen = np.random.default_rng(seed).choice(values.shape[1], columns, replace=False)
    return pairwise_l1(values[:, chosen], 1) * (values.shape[1] / columns)


def cauchy(values: np.ndarray, columns: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y = np.hstack(
        [
            values @ rng.standard_cauchy((values.shape[1], min(128, columns - lo))).astype(np.float32)
            for lo in range(0, columns, 128)
        ]
    )
    return np.array([np.median(np.abs(y - row), axis=1) for row in y])


def sketches(n_heads: int, seeds: int) -> None:
    for kind in ("softmax", "low_rank"):
        X = planted(kind, (64, 64, n_heads), noise=1.0).values
        small = Questionnaire(n_iter=1, n_jobs=1).fit(X[:, :, :FEW])
        trees = list(small.trees_[:2])
        slices = np.ascontiguousarray(np.moveaxis(X, 2, 0))
        truth = slice_distance(slices, trees, *WEIGHTS, 4e9, 1)
        values = features(slices[:FEW], trees)
        rows = []
        for columns in COLUMNS:
            found = [sketch_distance(slices, trees, *WEIGHTS, columns, seed, 4e9, 1) for seed in range(seeds)]
            above = np.triu_indices(n_heads, 1)
            inside = [(np.abs(one.distances - truth)[above] <= one.error * truth[above]).mean() for one in found]
            rows.append(
                [
                    str(columns),
                    f"{np.median([within(one.distances, truth) for one in found]):.3f}",
                    f"{np.median([one.error for one in found]):.3f}",
                    f"{min(inside):.3f}",
                    f"{np.median([within(evenly(values, columns, s), truth[:FEW, :FEW]) for s in range(seeds)]):.3f}",
                    f"{within(cauchy(values, columns, 0), truth[:FEW, :FEW]):.3f}" if columns < 8192 else "",
                ]
            )
        header = ["columns", "by spread", "as it states", "pairs inside, lowest", "evenly", "Cauchy"]
        print(f"\n{kind}, (64, 64, {n_heads}), {values.shape[1]} cluster tuples; error of 95 % of the pairs\n")
        print(table(header, rows))
    times = in_turns(
        {
            "exact": lambda: slice_distance(slices, trees, *WEIGHTS, 4e9, 1),
            **{
                f"sketch, {c} columns": lambda c=c: sketch_distance(slices, trees, *WEIGHTS, c, 0, 4e9, 1)
                for c in COLUMNS
            },
        },
        1,
        warm=False,
    )
    print("\nCPU seconds of one comparison of the heads, one thread\n")
    print(
        table(
            ["", "CPU seconds", "of exact"],
            [[k, f"{t.cpu:.2f}", f"{t.cpu / times['exact'].cpu:.2f}"] for k, t in times.items()],
        )
    )


def by_neighbours(n_heads: int) -> None:
    """All pairs beside neighbours, on the same planted tensor."""
    P = planted("blocks", (32, 32, n_heads), noise=1.0)
    rows = []
    for name, near in (("all pairs", None), ("64 neighbours", 64)):
        neighbours.NEIGHBOURS_FROM = 2000
        began = time.process_time()
        q = Questionnaire(n_iter=1, n_jobs=1, n_neighbours=near).fit(P.values)
        cpu = time.process_time() - began
        agreement = [
            max(adjusted_rand_score(P.labels["head"][scale], level) for level in q.trees_[2].labels)
            for scale in ("coarse", "fine")
        ]
        D, G = q.distances_[2], q.affinities_[2]
        kept = sum(a.nbytes if near is None else a.data.nbytes + a.indices.nbytes + a.indptr.nbytes for a in (D, G))
        rows.append([name, f"{cpu:.1f}", f"{kept / 1e6:.0f}", *(f"{a:.2f}" for a in agreement)])
    print(f"\nblocks, (32, 32, {n_heads}), noise 1, one round\n")
    print(table(["heads by", "CPU seconds", "MB kept", "agreement, coarse", "fine"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=2500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--neighbours", type=int, default=0, help="heads of the comparison with neighbours")
    given = parser.parse_args()
    if given.neighbours:
        by_neighbours(given.neighbours)
    else:
        sketches(given.heads, given.seeds)


if __name__ == "__main__":
    main()
