"""The questionnaire beside its slow twin and a version on scipy's cityblock, in one run; and how it grows.

    python benchmarks/questionnaire.py [--threads 2] [--repeats 5] [--growth] [--beside OTHER/src]

Compilation is cached and left out. Both wall clock and CPU time (of all threads) are given: the second hardly feels
other work on the machine. The slow twin, a direct sum over all folder tuples, runs on a small tensor only.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import math
import os
import pstats
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from scipy.spatial.distance import pdist, squareform

from _timing import in_turns, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from headscape.geometry.affinity import cosine_affinity
from headscape.geometry.folder_means import folder_weights
from headscape.geometry.planted import planted
from headscape.geometry.questionnaire import Questionnaire
from headscape.tree import PartitionTree
from reference_geometry import slow_questionnaire

SHAPES = [(256, 256, 128), (197, 197, 144), (256, 256, 270)]
SMALL = (24, 24, 16)
GROWTH = [(64, 64, 32), (128, 128, 64), (256, 256, 128), (256, 256, 270), (512, 512, 270), (1024, 1024, 270)]


def scipy_tree_distance(
    X: np.ndarray, trees: list[PartitionTree], axis: int, level_weight: float, size_weight: float
) -> np.ndarray:
    """The tree distance from prefix sums in numpy and scipy's cityblock."""
    features = np.moveaxis(np.asarray(X, dtype=np.float64), axis, 0)
    others = [tree for b, tree in enumerate(trees) if b != axis]
    for b, tree in enumerate(others, start=1):
        along = np.moveaxis(features, b, 0)[tree.order]
        sums = np.concatenate([np.zeros((1, *along.shape[1:])), along.cumsum(axis=0)])
        folders = tree.folders()
        scale = folder_weights(tree, level_weight, size_weight) / tree.sizes
        means = (sums[folders.stop] - sums[folders.start]) * scale.reshape(-1, *[1] * (along.ndim - 1))
        features = np.moveaxis(means, 0, b)
    return squareform(pdist(features.reshape(len(features), -1), "cityblock"))


def attention(shape: tuple[int, int, int]) -> np.ndarray:
    """Planted attention where it fits, else rows of random weights; float32."""
    if math.prod(shape) < 2e7 and not any(n < m for n, m in zip(shape, (16, 16, 8), strict=True)):
        return planted("softmax", shape, noise=1.0).values
    values = np.random.default_rng(0).random(shape, dtype=np.float32) ** 8
    values /= values.sum(axis=1, keepdims=True)
    return values


def compare(threads: int, repeats: int) -> None:
    weights = {"level_weight": 0.0, "size_weight": 1.0, "tree": "flexible"}
    rows = []
    for shape in SHAPES:
        X = attention(shape)
        default, paper = Questionnaire(n_jobs=threads), Questionnaire.paper(n_jobs=threads)
        calls: dict[str, Callable[[], object]] = {
            "ours, default settings": lambda X=X, q=default: q.fit(X),
            "ours, the paper's settings": lambda X=X, q=paper: q.fit(X),
        }
        rows += [["x".join(map(str, shape)), *row] for row in measured(calls, repeats)]
        if shape == SHAPES[0]:
            calls = {
                "scipy cityblock, the paper's settings": lambda X=X: slow_questionnaire(
                    X, cosine=cosine_affinity, distance=scipy_tree_distance, **weights
                )
            }
            rows += [["x".join(map(str, shape)), *row] for row in measured(calls, 1, warm=False)]
    X = attention(SMALL)
    calls = {
        "ours, the paper's settings": lambda: Questionnaire.paper(n_jobs=threads).fit(X),
        "scipy cityblock, the paper's settings": lambda: slow_questionnaire(
            X, cosine=cosine_affinity, distance=scipy_tree_distance, **weights
        ),
        "slow twin, the paper's settings": lambda: slow_questionnaire(X, **weights),
    }
    rows += [["x".join(map(str, SMALL)), *row] for row in measured(calls, 1)]
    print(f"{threads} threads for ours, 1 for the others; medians of {repeats}\n")
    print(table(["shape", "", "seconds", "CPU seconds"], rows))
    print("\nWhere the time goes, default settings, 1 thread:\n")
    profile(attention(SHAPES[0]))


def measured(calls: dict[str, Callable[[], object]], repeats: int, warm: bool = True) -> list[list[str]]:
    times = in_turns(calls, repeats, warm)
    return [[name, f"{time.wall:.3f}", f"{time.cpu:.3f}"] for name, time in times.items()]


def profile(X: np.ndarray) -> None:
    Questionnaire(n_jobs=1).fit(X)  # what is compiled is loaded
    profiler = cProfile.Profile()
    profiler.runcall(Questionnaire(n_jobs=1).fit, X)
    stats = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    whole = sum(entry[2] for entry in stats.values())
    top = sorted(stats.items(), key=lambda item: -item[1][2])[:10]
    print(table(["function", "share"], [[name, f"{entry[2] / whole:.0%}"] for (_, _, name), entry in top]))


def unchanged(X: np.ndarray) -> None:
    """Print how much of the last round's work is about folders that the round before had too."""
    rounds = [Questionnaire(n_jobs=1, n_iter=n).fit(X).trees_ for n in (2, 3)]
    names = ("query", "key", "head")
    larger = [[{frozenset(tree.order[a:b]) for a, b in spans(tree) if b - a > 1} for tree in trees] for trees in rounds]
    kept = [old & new for old, new in zip(*larger, strict=True)]
    rows = []
    for axis, name in enumerate(names):
        others = [b for b in range(3) if b != axis]
        counted = [math.prod(X.shape[b] + len(found[b]) for b in others) for found in (kept, larger[1])]
        leaves = math.prod(X.shape[b] for b in others)
        share = (counted[0] - leaves) / (counted[1] - leaves)
        rows.append([name, f"{len(kept[axis])} of {len(larger[1][axis])}", f"{share:.0%}"])
    print(table(["axis", "clusters kept from round 2 to 3", "kept pairs of clusters of the other axes"], rows))


def spans(tree: PartitionTree) -> list[tuple[int, int]]:
    """Where the folders of a tree begin and end among its ordered leaves."""
    folders = tree.folders()
    return list(zip(folders.start.tolist(), folders.stop.tolist(), strict=True))


def growth(threads: int) -> None:
    rows = []
    for shape in GROWTH:
        text = ",".join(map(str, shape))
        command = [sys.executable, __file__, "--one", text, "--threads", str(threads)]
        found = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        rows.append(["x".join(map(str, shape)), f"{found['wall']:.2f}", f"{found['cpu']:.2f}", f"{found['peak']:.2f}"])
        print(rows[-1], file=sys.stderr)
    print(f"\nDefault settings, {threads} threads, one run each; memory of the whole process, the array included\n")
    print(table(["shape", "seconds", "CPU seconds", "peak GB"], rows))


def one(shape: tuple[int, int, int], threads: int) -> None:
    Questionnaire(n_jobs=threads).fit(attention((32, 32, 16)))
    X = attention(shape)
    time = in_turns({"": lambda: Questionnaire(n_jobs=threads).fit(X)}, 1, warm=False)[""]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"wall": time.wall, "cpu": time.cpu, "peak": peak}))


CHILD = """
import hashlib, json, sys, time
import numpy as np
from headscape.geometry.questionnaire import Questionnaire
X = np.load(sys.argv[1])
Questionnaire(n_jobs=1).fit(X)
for line in sys.stdin:
    began = time.process_time()
    q = Questionnaire(n_jobs=1).fit(X)
    took = time.process_time() - began
    bits = hashlib.sha256(b"".join(np.ascontiguousarray(tree.labels).tobytes() for tree in q.trees_)).hexdigest()
    print(json.dumps([took, bits]), flush=True)
"""


def beside(other: Path, repeats: int) -> None:
    """Time this source and another, in turns in two processes: CPU seconds, and whether the trees have the same bits."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "X.npy"
        np.save(file, attention(SHAPES[0]))
        children = {
            name: subprocess.Popen(
                [sys.executable, "-c", CHILD, str(file)],
                env=os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, tree in (("this", Path(__file__).parents[1] / "src"), ("other", other))
        }
        found: dict[str, list[tuple[float, str]]] = {name: [] for name in children}
        for _ in range(repeats):
            for name, child in children.items():
                assert child.stdin is not None
                assert child.stdout is not None
                child.stdin.write("\n")
                child.stdin.flush()
                found[name].append(tuple(json.loads(child.stdout.readline())))
        for child in children.values():
            child.communicate()
    seconds = {name: median(took for took, _ in runs) for name, runs in found.items()}
    same = len({bits for runs in found.values() for _, bits in runs}) == 1
    print(f"{SHAPES[0]}: {seconds['this']:.2f} CPU seconds, the other source {seconds['other']:.2f}: ", end="")
    print(f"{seconds['other'] / seconds['this']:.2f} times as fast; trees {'have the same bits' if same else 'DIFFER'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--growth", action="store_true", help="the table of shapes up to (1024, 1024, 270)")
    parser.add_argument("--beside", type=Path, help="the src folder of another version, to compare with")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        query, key, head = (int(n) for n in given.one.split(","))
        one((query, key, head), given.threads)
    elif given.beside:
        beside(given.beside.resolve(), given.repeats)
        print("\nWhere the time goes, 1 thread:\n")
        profile(attention(SHAPES[0]))
        print("\nWhat rounds have in common:\n")
        unchanged(attention(SHAPES[0]))
    elif given.growth:
        growth(given.threads)
    else:
        compare(given.threads, given.repeats)


if __name__ == "__main__":
    main()
