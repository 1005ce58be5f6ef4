"""The spectra of one layer of Mistral-7B's shapes (random weights), four ways, in turns, each in a process of its own.

    python benchmarks/spectra.py [--repeats 1] [--threads 1] [--scale 1] [--weightwatcher FOLDER]

gram is what headscape does with large matrices; svdvals asks LAPACK for the values alone, in float64; full SVD computes
the bases too (numpy, float32 as the weights are); weightwatcher is the function its analysis calls for a layer, from a
folder made by `pip install --target FOLDER weightwatcher powerlaw`, and left out without one. Memory is the peak above
the process with its matrix. --scale 4 divides all sides by 4. The last table shows where Gram matrices begin to pay.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

SHAPES = {"W_q, W_o": (4096, 4096), "W_k, W_v": (1024, 4096), "W_gate, W_up, W_down": (14336, 4096)}
COUNTS = (2, 2, 3)


def one(method: str, shape: tuple[int, int], out: Path, folder: str) -> None:
    """Run one method on one matrix and write what it took."""
    if method == "weightwatcher":
        import contextlib
        import io

        sys.path.insert(0, folder)
        with contextlib.redirect_stdout(io.StringIO()):
            from weightwatcher.RMT_Util import svd_vals as run
    elif method == "full SVD":
        from numpy.linalg import svd

        def run(W: np.ndarray) -> np.ndarray:
            return svd(W, full_matrices=False)[1]
    else:
        from headscape.statistics.spectra import singular_values

        run = partial(singular_values, method={"gram": "gram", "svdvals": "svd"}[method])
    small = np.random.default_rng(1).standard_normal((300, 200), dtype=np.float32)
    run(small)  # libraries are loaded
    W = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    values = np.sort(np.asarray(run(W), dtype=np.float64))[::-1]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    np.save(out / f"{method}.npy", values)
    (out / "took.json").write_text(json.dumps({"wall": wall, "cpu": cpu, "peak": peak * 1024}))


def child(method: str, shape: tuple[int, int], out: Path, threads: int, folder: str) -> dict[str, float]:
    environment = os.environ | {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
    command = [sys.executable, __file__, "--one", method, "--shape", f"{shape[0]},{shape[1]}", "--out", str(out)]
    subprocess.run([*command, "--weightwatcher", folder], check=True, env=environment)
    return json.loads((out / "took.json").read_text())


def threshold(threads: int, repeats: int) -> None:
    """Small matrices: from which side on the Gram matrix pays."""
    import threadpoolctl

    from _timing import in_turns, table
    from headscape.statistics.spectra import singular_values

    rows = []
    with threadpoolctl.threadpool_limits(threads):
        for m, n in ((64, 576), (64, 4096), (96, 96), (128, 128), (192, 576), (256, 256), (576, 1536)):
            W = np.random.default_rng(0).standard_normal((m, n), dtype=np.float32)
            calls = {name: partial(singular_values, W, name) for name in ("gram", "svd")}
            took = in_turns(calls, 5 * repeats)
            rows.append(
                [
                    f"{m} x {n}",
                    *(f"{1e3 * took[k].cpu:.2f}" for k in calls),
                    f"{took['svd'].cpu / took['gram'].cpu:.1f}",
                ]
            )
    print("\nmilliseconds of CPU\n")
    print(table(["matrix", "gram", "svdvals", "svdvals/gram"], rows))


def main() -> None:
    from _timing import table

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of BLAS")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--weightwatcher", default="", help="folder it was installed into")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        m, n = map(int, options.shape.split(","))
        one(options.one, (m, n), options.out, options.weightwatcher)
        return
    methods = ["gram", "svdvals", "full SVD", *(["weightwatcher"] if options.weightwatcher else [])]
    rows, totals = [], {method: [0.0, 0.0, 0.0] for method in methods}
    for (name, shape), count in zip(SHAPES.items(), COUNTS, strict=True):
        size = (shape[0] // options.scale, shape[1] // options.scale)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            took: dict[str, list[dict[str, float]]] = {method: [] for method in methods}
            for _ in range(options.repeats):
                for method in methods:
                    took[method].append(child(method, size, out, options.threads, options.weightwatcher))
            values = {method: np.load(out / f"{method}.npy") for method in methods}
        for method in methods:
            wall, cpu, peak = (median(t[key] for t in took[method]) for key in ("wall", "cpu", "peak"))
            base = median(t["cpu"] for t in took["gram"])
            off = np.abs(values[method] - values["svdvals"]).max() / values["svdvals"][0]
            totals[method][0] += count * cpu
            totals[method][1] += count * wall
            totals[method][2] = max(totals[method][2], peak)
            rows.append([f"{name} {size[0]} x {size[1]}", method, f"{wall:.1f}", f"{cpu:.1f}", f"{cpu / base:.1f}"])
            rows[-1] += [f"{peak / 1e6:.0f}", f"{off:.0e}"]
    for method, (cpu, wall, peak) in totals.items():
        ratio = cpu / totals["gram"][0]
        rows.append(
            ["one layer, 7 matrices", method, f"{wall:.1f}", f"{cpu:.1f}", f"{ratio:.1f}", f"{peak / 1e6:.0f}", ""]
        )
    print(f"seconds, medians of {options.repeats}, {options.threads} thread(s); memory in MB; off: largest difference")
    print("from svdvals in float64 over the largest value\n")
    print(table(["matrix", "method", "wall", "cpu", "cpu/gram", "memory", "off"], rows))
    threshold(options.threads, options.repeats)


if __name__ == "__main__":
    main()
