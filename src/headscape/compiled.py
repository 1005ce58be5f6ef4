"""Compiled kernels that release the interpreter lock, and the Python threads that run them.

One rule for the whole package: a kernel is compiled for one thread, and threads are Python's own. numba's pool
(`parallel=True`) is never entered: without OpenMP or TBB its layer is "workqueue", which aborts the process when two
Python threads enter it at once, as they do when a user fits two arrays in two threads. Every task writes its own part
of the output, so the number of threads cannot change a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar, cast

import numba

from headscape.checks import integer

__all__ = ["compiled", "compiled_in_order", "n_threads", "run_tasks"]

P = ParamSpec("P")
R = TypeVar("R")

# Sums may be regrouped into vector lanes; nothing is assumed about NaN, infinities or signs beyond -0 = 0. The
# grouping is fixed when the kernel is compiled, so the same machine gives the same bytes.
_FAST = {"reassoc", "nsz", "contract"}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with numba: cached on disk, without the interpreter lock, sums vectorized."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True, fastmath=_FAST)(function))


def compiled_in_order(function: Callable[P, R]) -> Callable[P, R]:
    """The same without fast math: sums keep their order, and equal parts cancel to an exact zero."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def n_threads(threads: int | None = None) -> int:
    """The number of threads to use; None takes numba's setting (`numba.set_num_threads`, NUMBA_NUM_THREADS)."""
    return int(numba.get_num_threads()) if threads is None else integer("threads", threads, low=1)


def run_tasks(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], threads: int) -> None:
    """Call ``function(*task)`` for every task, in order of submission, on this many threads."""
    if threads == 1 or len(tasks) < 2:
        for task in tasks:
            function(*task)
        return
    with ThreadPoolExecutor(max_workers=min(threads, len(tasks))) as pool:
        for done in [pool.submit(function, *task) for task in tasks]:
            done.result()
