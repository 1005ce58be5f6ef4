"""Compiled kernels that let go of the interpreter lock, and the threads that run them.

Threads are Python's own, not numba's: numba's default pool aborts the process when two Python threads enter it at once.
Every task writes its own part of the output, so the number of threads cannot change a byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar, cast

import numba

from headscape.errors import InputError

__all__ = ["compiled", "n_threads", "run_tasks"]

P = ParamSpec("P")
R = TypeVar("R")

# Sums may be regrouped into vector lanes; nothing is assumed about NaN, infinities or signs beyond -0 = 0. The
# grouping is fixed when the kernel is compiled, so the same machine gives the same bytes.
_FAST = {"reassoc", "nsz", "contract"}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile with numba: cached on disk, free of the interpreter lock, sums vectorised."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True, fastmath=_FAST)(function))


def n_threads(threads: int | None) -> int:
    """Return the number of threads to use; None means numba's setting, NUMBA_NUM_THREADS or the cores there are."""
    if threads is None:
        return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if threads < 1:
        raise InputError(f"threads must be at least 1, not {threads}")
    return int(threads)


def run_tasks(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], threads: int) -> None:
    """Call ``function(*task)`` for every task, the first ones first, on so many threads."""
    if threads == 1 or len(tasks) < 2:
        for task in tasks:
            function(*task)
        return
    with ThreadPoolExecutor(max_workers=min(threads, len(tasks))) as pool:
        for done in [pool.submit(function, *task) for task in tasks]:
            done.result()
