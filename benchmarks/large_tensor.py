"""A tensor that is not read into memory whole: generated in blocks on disk, organised within `--memory` bytes.

    python benchmarks/large_tensor.py [--shape 1024,1024,1000] [--memory 6e9] [--threads 2] [--iterations 3]

Prints the time of each phase, the peak of the process's memory (resident set, pages of mapped files counted), and the
bytes read from the scratch files. The array on disk is float16; the machine may hold files in memory that it can spare,
which is not counted.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from _timing import table
from headscape.geometry import questionnaire, slices
from headscape.geometry.estimate import estimate_fit, measure_rates
from headscape.geometry.memory import disk_memory_estimate, memory_estimate
from headscape.geometry.questionnaire import Questionnaire
from headscape.geometry.scratch import scratch_bytes
from headscape.runs import human_bytes


def generate(path: Path, shape: tuple[int, int, int], seed: int = 0) -> None:
    """Random attention-like rows, block by block: softmax over keys of noisy low-rank scores; 8 kinds of heads."""
    n_query, n_key, n_head = shape
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 8, n_head)
    query, key = (rng.standard_normal((8, n, 4)).astype(np.float32) for n in (n_query, n_key))
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    rows = max(1, int(5e6 // (n_key * n_head)))
    for lo in range(0, n_query, rows):
        hi = min(lo + rows, n_query)
        scores = np.einsum("cqr,ckr->qkc", query[:, lo:hi], key)[:, :, kinds]
        scores += rng.standard_normal(scores.shape, dtype=np.float32)
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        out[lo:hi] = scores / scores.sum(axis=1, keepdims=True)
    out.flush()


class Phases:
    """Seconds spent in functions that are wrapped."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, name: str, phase: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                self.seconds[phase] = self.seconds.get(phase, 0.0) + took
                print(f"{phase}: {took:.1f} s", file=sys.stderr)

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="512,512,500")
    parser.add_argument("--memory", type=float, default=1e9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=3)
    given = parser.parse_args()
    n_query, n_key, n_head = (int(n) for n in given.shape.split(","))
    shape = (n_query, n_key, n_head)
    Questionnaire(n_iter=1, n_jobs=1).fit(np.random.default_rng(0).random((32, 32, 16), dtype=np.float32))  # compiled
    phases = Phases()
    phases.watch(slices, "Layouts", "writing scratch files")
    phases.watch(slices.DiskSlices, "cosine", "cosines (the sum of two threads)")
    phases.watch(slices.DiskSlices, "leaf_distance", "distances of bare slices")
    phases.watch(questionnaire, "slice_distance", "distances through trees")
    phases.watch(questionnaire, "build_tree", "trees")
    counted: list[slices.DiskSlices] = []
    leave = slices.DiskSlices.__exit__

    def close(self: slices.DiskSlices, *reason: object) -> None:
        counted.append(self)
        leave(self, *reason)

    slices.DiskSlices.__exit__ = close  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(prefix="headscape-") as folder:
        path = Path(folder) / "attention.npy"
        began = time.perf_counter()
        other = multiprocessing.get_context("spawn").Process(target=generate, args=(path, shape))
        other.start()  # its memory is not counted
        other.join()
        generated = time.perf_counter() - began
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        X = np.load(path, mmap_mode="r")
        rates = measure_rates(given.threads)
        settings = {"n_iter": given.iterations, "max_memory": given.memory, "n_jobs": given.threads}
        expected = estimate_fit(Questionnaire(**settings), shape, 2, rates=rates).seconds
        wall, cpu = time.perf_counter(), time.process_time()
        q = Questionnaire(**settings, scratch=folder).fit(X)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows = [[name, f"{seconds:.1f}"] for name, seconds in phases.seconds.items()]
    print(f"{shape}, float16 on disk, {human_bytes(2 * math.prod(shape))}; {given.threads} threads\n")
    print(table(["phase", "seconds"], [*rows, ["whole fit", f"{wall:.1f}"], ["CPU of the fit", f"{cpu:.1f}"]]))
    print(f"\nestimated {expected:.0f} s, {expected / wall:.2f} of what it took")
    print(f"generating took {generated:.0f} s")
    print(f"peak memory {human_bytes(peak)} (before the fit {human_bytes(before)}), max_memory {given.memory:.2g}")
    print(f"estimates: {human_bytes(int(memory_estimate(shape)))} in memory,", end=" ")
    print(f"{human_bytes(int(disk_memory_estimate(shape, given.threads)))} at least from disk")
    print(f"scratch files {human_bytes(scratch_bytes(shape, 2))}")
    print(f"read from them {human_bytes(counted[0].bytes_read) if counted else 'nothing: it fitted into memory'}")
    print(f"trees {q.trees_}")


if __name__ == "__main__":
    main()
