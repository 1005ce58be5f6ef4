"""Compiled kernels that release the interpreter lock, and the Python threads that run them.

One rule for the whole package: a kernel is compiled for one thread, and threads are Python's own. numba's pool
(`parallel=True`) is never entered: without OpenMP or TBB its layer is "workqueue", which aborts the process when two
Python threads enter it at once, as they do when a user fits two arrays in two threads. Every task writes its own part
of the output, so the number of threads cannot change a byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast

import numba

from headscape.checks import integer

__all__ = ["compiled", "compiled_in_order", "cores", "free_threads", "kernel_threads", "n_threads", "run_tasks"]

P = ParamSpec("P")
R = TypeVar("R")

# Sums may be regrouped into vector lanes; nothing is assumed about NaN, infinities or signs beyond -0 = 0. The
# grouping is fixed when the kernel is compiled, so the same machine gives the same bytes.
_FAST = {"reassoc", "nsz", "contract"}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with numba: cached on disk, without the interpreter lock, sums vectorized."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True, fastmath=_FAST)(function))


def compiled_in_order(function: Callable[P, R]) -> Callable[P, R]:
    """The same without fast math: sums keep their order, and equal terms cancel to an exact zero."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_threads(jobs: int = 1) -> int:
    """How many threads each of some jobs may use: its share of the cores, and no more than OMP_NUM_THREADS says."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    share = cores() // jobs
    return max(1, min(share, int(said)) if said.isdecimal() else share)


_asked: ContextVar[int | None] = ContextVar("threads of kernels", default=None)


@contextmanager
def kernel_threads(n: int) -> Iterator[None]:
    """Let kernels use n threads within the block unless they are given a number.

    numba has its own setting for this; reading or setting it starts numba's pool, which changes that of torch as well.
    """
    before = _asked.set(n)
    try:
        yield
    finally:
        _asked.reset(before)


def n_threads(threads: int | None = None) -> int:
    """The number of threads to use; None means that of `kernel_threads`, else as many as are free."""
    return _asked.get() or free_threads() if threads is None else integer("threads", threads, low=1)


def run_tasks(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], threads: int) -> None:
    """Call ``function(*task)`` for every task, in order of submission, on this many threads."""
    if threads == 1 or len(tasks) < 2:
        for task in tasks:
            function(*task)
        return
    with ThreadPoolExecutor(max_workers=min(threads, len(tasks))) as pool:
        for done in [pool.submit(function, *task) for task in tasks]:
            done.result()
