"""The L1 kernel beside scipy's cityblock and a hand-written vectorised loop, in one run.

    python benchmarks/l1_kernel.py [--threads 2] [--repeats 7]

The loop is C with vector intrinsics on rows that never leave the first-level cache: what a core can do at best. It is
compiled on the spot and left out where there is no compiler. Rates are billions of |a - b| a second, by wall clock and
by CPU time; the second hardly feels other work on the machine.
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.spatial.distance import pdist

from _timing import in_turns, table
from headscape.geometry.l1 import ROWS, add_pairwise_l1

HAND_WRITTEN = r"""
#include <immintrin.h>
#include <stddef.h>
#ifdef __AVX512F__
typedef __m512 V;
#define W 16
#define LOAD _mm512_loadu_ps
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define ABS _mm512_abs_ps
#define ZERO _mm512_setzero_ps()
#define STORE _mm512_storeu_ps
#else
typedef __m256 V;
#define W 8
#define LOAD _mm256_loadu_ps
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define ABS(x) _mm256_andnot_ps(_mm256_set1_ps(-0.f), x)
#define ZERO _mm256_setzero_ps()
#define STORE _mm256_storeu_ps
#endif
/* distances of rows 0, 1 to rows 2..5, over and over */
void loop(const float *a, size_t columns, size_t times, float *out) {
  for (size_t r = 0; r < times; r++) {
    const float *x = a, *y = a + columns, *p = a + 2 * columns, *q = a + 3 * columns;
    const float *u = a + 4 * columns, *w = a + 5 * columns;
    V s[8] = {ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO};
    for (size_t k = 0; k < columns; k += W) {
      V X = LOAD(x + k), Y = LOAD(y + k), P = LOAD(p + k), Q = LOAD(q + k), U = LOAD(u + k), T = LOAD(w + k);
      s[0] = ADD(s[0], ABS(SUB(X, P))); s[1] = ADD(s[1], ABS(SUB(X, Q)));
      s[2] = ADD(s[2], ABS(SUB(X, U))); s[3] = ADD(s[3], ABS(SUB(X, T)));
      s[4] = ADD(s[4], ABS(SUB(Y, P))); s[5] = ADD(s[5], ABS(SUB(Y, Q)));
      s[6] = ADD(s[6], ABS(SUB(Y, U))); s[7] = ADD(s[7], ABS(SUB(Y, T)));
    }
    for (int i = 0; i < 8; i++) STORE(out + 16 * i, s[i]);
  }
}
"""
COLUMNS, TIMES = 1024, 100_000


def hand_written() -> Callable[[], None] | None:
    """Compile the loop; None where there is no compiler or no such processor."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    folder = Path(tempfile.mkdtemp())
    (folder / "loop.c").write_text(HAND_WRITTEN)
    command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "loop.c", "-o", "loop.so"]
    if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode:
        return None
    library = ctypes.CDLL(str(folder / "loop.so"))
    shutil.rmtree(folder)
    rows = np.random.default_rng(0).random((6, COLUMNS), dtype=np.float32)
    out = np.zeros(128, dtype=np.float32)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (rows, out)]

    def call() -> None:
        library.loop(pointers[0], ctypes.c_size_t(COLUMNS), ctypes.c_size_t(TIMES), pointers[1])

    call.arrays = (rows, out)  # type: ignore[attr-defined]  # kept alive
    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()
    calls: dict[str, Callable[[], object]] = {}
    work: dict[str, float] = {}
    loop = hand_written()
    if loop is not None:
        calls["hand-written loop, in cache, 1 thread"] = loop
        work["hand-written loop, in cache, 1 thread"] = 8.0 * COLUMNS * TIMES
    for n, columns in ((128, 120_000), (256, 60_000), (1024, 8_000)):
        rows = np.random.default_rng(n).random((n, columns), dtype=np.float32)
        total = np.zeros((n, n))
        for threads in sorted({1, given.threads}):
            name = f"ours, {n} x {columns}, {threads} thread{'s' * (threads > 1)}"
            calls[name] = lambda rows=rows, total=total, threads=threads: add_pairwise_l1(rows, total, threads)
            work[name] = n * (n + ROWS) / 2 * columns
        if n == 256:
            name = f"scipy cityblock, {n} x {columns // 10}, 1 thread"
            double = rows[:, : columns // 10].astype(np.float64)
            calls[name] = lambda double=double: pdist(double, "cityblock")
            work[name] = n * (n - 1) / 2 * (columns // 10)
    times = in_turns(calls, given.repeats)
    best = work[next(iter(work))] / next(iter(times.values())).cpu if loop is not None else float("nan")
    rows_out = []
    for name, time in times.items():
        rate = work[name] / time.cpu / 1e9
        rows_out.append([name, f"{work[name] / time.wall / 1e9:.1f}", f"{rate:.1f}", f"{1e9 * rate / best:.0%}"])
    print(table(["", "G/s", "G per CPU second", "of the hand-written loop"], rows_out))


if __name__ == "__main__":
    main()
