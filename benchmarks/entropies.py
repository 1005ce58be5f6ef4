"""Head and network entropies beside the same measures on dense bases with all supports sorted, in one run.

    python benchmarks/entropies.py [--threads 2] [--repeats 9]

Ours is timed whole, tree to table; of the dense twin the construction of the bases is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import threadpoolctl
from scipy.cluster import hierarchy

from headscape.compiled import kernel_threads
from headscape.tree import PartitionTree
from headscape.wavelets.entropy import head_entropies, network_entropy
from headscape.wavelets.haar import haar_transform

SHAPES = [(256, 256, 128), (197, 197, 144), (256, 256, 270)]


def ward_tree(rng: np.random.Generator, n: int) -> PartitionTree:
    return PartitionTree.from_linkage(hierarchy.linkage(rng.normal(size=(n, 8)), "ward"))


def dense_basis(tree: PartitionTree) -> np.ndarray:
    return haar_transform(np.eye(tree.n_leaves), (tree, None))


def dense_entropies(X: np.ndarray, bases: list[np.ndarray], n_basis: int) -> dict[str, np.ndarray]:
    """Columns of (n_head,) for a basis on every axis but the last; a trailing axis of length 1 makes it the network."""
    letters = "abcdefg"[: len(bases)]
    spec = ",".join(f"{new}{old}" for new, old in zip(letters.upper(), letters, strict=True))
    C = np.einsum(f"{spec},{letters}z->{letters.upper()}z", *bases, X.astype(np.float64), optimize=True)
    support = np.ones(1, dtype=np.int64)
    for basis in bases:
        support = np.multiply.outer(support, np.count_nonzero(basis, axis=1)).reshape(-1)
    C = C.reshape(-1, X.shape[-1])
    top = np.argsort(-support, kind="stable")[:n_basis]
    size, energy = np.abs(C), C**2
    share = energy / energy.sum(axis=0)
    return {
        "l1_top": size[top].sum(axis=0),
        "l1_all": size.sum(axis=0),
        "dc": C[0],
        "l1_rel": size[1:].sum(axis=0) / np.sqrt(energy[1:].sum(axis=0)),
        "shannon": -np.where(share > 0, share * np.log(np.where(share > 0, share, 1)), 0).sum(axis=0),
    }


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU milliseconds; the second hardly feels other work on the machine."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="threads of ours and of the twin's BLAS")
    parser.add_argument("--repeats", type=int, default=9, help="runs of ours; the twin gets a third of them")
    options = parser.parse_args()
    threads = options.threads
    print(f"ms, median of {options.repeats} runs, of the twin {-(-options.repeats // 3)}; float32 input")
    columns = ("shape", "measure", "1 thread", "(cpu)", f"{threads} threads", "(cpu)", "twin", "ratio", "difference")
    print("{:>12} {:>8} {:>9} {:>7} {:>9} {:>7} {:>7} {:>6} {:>11}".format(*columns))
    for shape in SHAPES:
        rng = np.random.default_rng(0)
        weights = np.exp(rng.normal(size=shape))
        X = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        trees = [ward_tree(rng, n) for n in shape]
        bases = [dense_basis(tree) for tree in trees]
        measures: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "heads": (partial(head_entropies, X, trees), partial(dense_entropies, X, bases[:2], 400)),
            "network": (partial(network_entropy, X, trees), partial(dense_entropies, X[..., None], bases, 100)),
        }
        for measure, (ours, twin) in measures.items():
            found, expected = ours(), twin()  # compiles, and checks that both compute the same
            difference = max(float(np.max(np.abs(found[c] / expected[c] - 1))) for c in expected)
            one, several, slow = [], [], []
            with threadpoolctl.threadpool_limits(threads, user_api="blas"):
                for i in range(options.repeats):
                    with kernel_threads(1):
                        one.append(timed(ours))
                    with kernel_threads(threads):
                        several.append(timed(ours))
                    if i % 3 == 0:
                        slow.append(timed(twin))
            (a, a_cpu), (b, b_cpu), (t, _) = (np.median(times, axis=0) for times in (one, several, slow))
            name = "x".join(map(str, shape))
            figures = f"{a:>9.0f} {a_cpu:>7.0f} {b:>9.0f} {b_cpu:>7.0f} {t:>7.0f} {t / b:>5.0f}x {difference:>11.1e}"
            print(f"{name:>12} {measure:>8} {figures}", flush=True)


if __name__ == "__main__":
    main()
