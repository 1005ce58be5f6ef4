"""How well each tree builder finds planted hierarchies; markdown to stdout.

    python benchmarks/builders.py [--seeds 3] [--shapes 64,64,32 128,128,64] [--threads 2] [--quick]

For each planted tensor and builder: adjusted Rand index of the best tree level against the coarse and the fine planted
partition of every axis that has one, and the energy in the largest 1 % of Haar coefficients on the trees found.
"""

from __future__ import annotations

import argparse
import itertools
import sys

import numpy as np
from sklearn.metrics import adjusted_rand_score

from _timing import table
from headscape.geometry.planted import Planted, planted
from headscape.geometry.questionnaire import Questionnaire
from headscape.tensor import AXES
from headscape.wavelets.entropy import top_energy

CASES = [
    *(("blocks", noise) for noise in (0.25, 0.5, 1.0, 2.0)),
    *(("softmax", noise) for noise in (0.25, 0.5, 1.0)),
    *(("smooth", noise) for noise in (0.0, 0.25, 0.5)),
    ("low_rank", 2.0),
]
PUBLISHED_ENERGY = {("blocks", 1.0): 0.54, ("softmax", 1.0): 0.42, ("smooth", 0.5): 0.80, ("low_rank", 2.0): 0.34}
"""What the published code's trees reach on (128, 128, 64)."""
COLUMNS = [f"{axis} {depth}" for axis in AXES for depth in ("coarse", "fine")]


def settings(threads: int) -> dict[str, Questionnaire]:
    return {
        "ward (default)": Questionnaire(n_jobs=threads),
        "ward, size_weight 1": Questionnaire(size_weight=1.0, n_jobs=threads),
        "average": Questionnaire(tree="average", n_jobs=threads),
        "binary": Questionnaire(tree="binary", n_jobs=threads),
        "flexible": Questionnaire(tree="flexible", n_jobs=threads),
        "flexible, the paper's settings": Questionnaire.paper(n_jobs=threads),
    }


def agreement(fit: Questionnaire, P: Planted) -> dict[str, float]:
    """Adjusted Rand index of the best level, for every planted partition."""
    found = {}
    for axis, depths in P.labels.items():
        tree = fit.trees_[AXES.index(axis)]
        for depth, truth in depths.items():
            found[f"{axis} {depth}"] = max(adjusted_rand_score(truth, level) for level in tree.labels)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=["64,64,32", "128,128,64"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="the default settings only")
    given = parser.parse_args()
    shapes = [tuple(int(n) for n in shape.split(",")) for shape in given.shapes]
    chosen = settings(given.threads)
    if given.quick:
        chosen = {"ward (default)": chosen["ward (default)"]}

    summary, rows = [], []
    for name, questionnaire in chosen.items():
        scores: list[float] = []
        for shape, (kind, noise) in itertools.product(shapes, CASES):
            cells: dict[str, list[float]] = {column: [] for column in COLUMNS}
            energies = []
            for seed in range(given.seeds):
                P = planted(kind, shape, noise, random_state=seed)
                fit = questionnaire.fit(P.values)
                for column, value in agreement(fit, P).items():
                    cells[column].append(value)
                energies.append(top_energy(P.values, fit.trees_))
            everything = [value for values in cells.values() for value in values]
            scores += everything
            known = PUBLISHED_ENERGY.get((kind, noise)) if shape == (128, 128, 64) else None
            rows.append(
                [name, kind, f"{noise:g}", "x".join(map(str, shape))]
                + [f"{np.mean(values):.2f}" if values else "" for values in cells.values()]
                + [f"{min(everything):.2f}", f"{np.mean(energies):.3f}" + (f" ({known})" if known else "")]
            )
            print(f"{name}: {kind} {noise:g} {shape}", file=sys.stderr)
        summary.append([name, f"{np.mean(scores):.3f}", f"{min(scores):.2f}",
                        f"{sum(s < 0.9 for s in scores)} of {len(scores)}"])  # fmt: skip
    print(table(["builder", "mean", "lowest", "below 0.9"], summary))
    print(f"\nMeans over {given.seeds} seeds; in brackets the energy that the published code's trees reach.\n")
    print(table(["builder", "kind", "noise", "shape", *COLUMNS, "lowest", "top-1 % energy"], rows))


if __name__ == "__main__":
    main()
