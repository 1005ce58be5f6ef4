"""One head of 256 x 256, organized, decomposed and measured, beside decompositions written out level by level.

    python benchmarks/softmax.py [--tokens 256] [--repeats 5] [--threads 1]

The twin takes every average as a matrix of the head's size, by products with 0/1 matrices of folders, one pair of
levels after the other: eq. 11 and 12 as they stand, on the same trees. "all" is what the study does with a head: the
questionnaire with all its iterations on the head and on its shuffled control, six decompositions, exponents.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
import threadpoolctl

from _timing import in_turns, table
from headscape.geometry.questionnaire import Questionnaire
from headscape.studies.softmax.head import Head, log_attention, measure, organize
from headscape.tree import PartitionTree
from headscape.wavelets.paraproduct import paraproduct
from headscape.wavelets.regularity import holder_exponent


def level_matrices(tree: PartitionTree) -> list[np.ndarray]:
    """For each level the 0/1 matrix (n, n) that says which leaves share a folder."""
    return [(labels[:, None] == labels).astype(float) for labels in tree.labels]


def written_out(g: np.ndarray, rows: PartitionTree, columns: PartitionTree, present: np.ndarray) -> np.ndarray:
    """The paraproduct for exp, every average computed for itself."""
    filled, counted = np.where(present, g, 0.0), present.astype(float)
    left, right = level_matrices(rows), level_matrices(columns)

    def mean(j: int, k: int) -> np.ndarray:
        total, count = (left[j] @ X @ right[k] for X in (filled, counted))
        return np.where(present, total / np.maximum(count, 1), 0.0)

    u = {(j, k): mean(j, k) for j in range(len(left)) for k in range(len(right))}
    out = np.exp(u[len(left) - 1, 0]) + np.exp(u[0, len(right) - 1]) - np.exp(u[0, 0])
    for j in range(len(left) - 1):
        for k in range(len(right) - 1):
            here, below, beside = u[j, k], u[j + 1, k], u[j, k + 1]
            mixed = u[j + 1, k + 1] - below - beside + here
            out += np.exp(here) * (mixed + (below - here) * (beside - here))
    return np.where(present, out, np.nan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of BLAS and the questionnaire")
    options = parser.parse_args()
    n, threads = options.tokens, options.threads
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(n, 8)) @ rng.normal(size=(8, n)) + rng.normal(size=(n, n))
    default = Questionnaire(n_jobs=threads).get_params()
    paper = Questionnaire.paper(n_jobs=threads).get_params()
    rows = []
    with threadpoolctl.threadpool_limits(threads):
        for name, present in (("full", np.ones((n, n), dtype=bool)), ("causal", np.tri(n, dtype=bool))):
            g = log_attention(scores, present)
            head = Head(g, present, organize(g, present, default))
            ours = paraproduct(g, *head.trees, mask=present)
            twin = written_out(g, *head.trees, present)
            difference = np.nanmax(np.abs(twin - ours.approximation)) / np.nanmax(np.abs(twin))

            def whole(settings: dict, g: np.ndarray = g, present: np.ndarray = present) -> None:
                measure(Head(g, present, organize(g, present, settings)), settings)

            times = in_turns(
                {
                    "paraproduct": partial(paraproduct, g, *head.trees, mask=present),
                    "written out": partial(written_out, g, *head.trees, present),
                    "exponent": partial(holder_exponent, g, *head.trees, present),
                    "organize, 3 iterations": partial(organize, g, present, default),
                    "organize, paper's 10": partial(organize, g, present, paper),
                    "all, 3 iterations": partial(whole, default),
                    "all, paper's 10": partial(whole, paper),
                },
                options.repeats,
            )
            for what, taken in times.items():
                ratio = taken.cpu / times["paraproduct"].cpu
                extra = f"{difference:.0e}" if what == "written out" else ""
                rows.append([name, what, f"{taken.wall:.3f}", f"{taken.cpu:.3f}", f"{ratio:.1f}", extra])
    print(f"{n} x {n}, seconds, medians of {options.repeats}, {threads} thread(s)\n")
    print(table(["mask", "what", "wall", "cpu", "over paraproduct", "difference"], rows))


if __name__ == "__main__":
    main()
