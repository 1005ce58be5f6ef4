"""The cost of organizing an array: memory, disk, and time from rates measured on this machine."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from headscape.compiled import n_threads
from headscape.errors import InputError
from headscape.geometry import sketch
from headscape.geometry.build import folder_counts
from headscape.geometry.diffusion import one_blas_thread
from headscape.geometry.folder_means import chunks_of, fill_means
from headscape.geometry.l1 import ROWS, add_pairwise_l1
from headscape.geometry.questionnaire import Questionnaire
from headscape.geometry.scratch import Layouts
from headscape.tree import PartitionTree

__all__ = ["FitEstimate", "Operations", "Rates", "estimate_fit", "fit_operations", "measure_rates"]

_REPEATS, _PILOT = 3, 64
_EIGEN = 192  # rows of the matrix whose eigenvectors are timed


@dataclass(frozen=True)
class Operations:
    """How often a fit does each thing that takes time."""

    l1: float  # |a - b|
    means: float  # folder means
    cosine: float  # multiply-adds of the first affinities
    eigen: float  # n^3, summed over the trees built
    disk: float  # bytes written to scratch files and read from them


class Rates(Operations):
    """The same, per second on this machine, with the given threads."""

    def seconds(self, operations: Operations) -> float:
        """Time of these operations, one kind after another."""
        return float(sum(getattr(operations, name) / rate for name, rate in vars(self).items()))


@dataclass(frozen=True)
class FitEstimate:
    """What one fit takes."""

    memory: float  # bytes at the peak, not counting the array
    disk: float  # bytes of scratch files
    seconds: float
    on_disk: bool


def estimate_fit(
    questionnaire: Questionnaire,
    shape: tuple[int, ...],
    itemsize: int = 4,
    held: bool = True,
    rates: Rates | None = None,
    names: tuple[str, ...] | None = None,
) -> FitEstimate:
    """Estimate memory, disk and time of ``questionnaire.fit`` on an array of this shape, without the array.

    Time is the number of operations (`fit_operations`) over their measured rates. Expect it to be off by up to a factor
    of two: the trees are not known yet, nor is the other load on the machine.

    Parameters
    ----------
    questionnaire
        Its settings.
    shape, itemsize, names
        Of the array; bytes per entry; names of its axes, for messages.
    held
        Whether the array is in memory already.
    rates
        As from `measure_rates`, which is called otherwise and takes about a second.

    Raises
    ------
    InputError
        If it cannot be fitted at all: not enough memory for the (n, n) matrices.
    """
    if len(shape) < 2 or min(shape) < 1:
        raise InputError(f"an array of order 2 or more without empty axes is needed, not shape {shape}")
    threads = n_threads(questionnaire.n_jobs)
    names = names or tuple(f"axis{axis}" for axis in range(len(shape)))
    plan = questionnaire.plan(shape, names, itemsize, held, threads)
    operations = fit_operations(questionnaire, shape, itemsize, plan.tiles if plan.on_disk else None)
    rates = rates or measure_rates(threads)
    return FitEstimate(plan.memory, plan.disk, rates.seconds(operations), plan.on_disk)


def fit_operations(
    questionnaire: Questionnaire, shape: tuple[int, ...], itemsize: int = 4, tiles: float | None = None
) -> Operations:
    """Count the operations of a fit, with the largest number of folders its trees can have.

    `tiles` is the memory for folder means of a fit from disk, None for one in memory.

    >>> fit_operations(Questionnaire(n_iter=1), (4, 4)).l1     # 2 x 6 pairs x (4 leaves + 2 halves + the root)
    84.0
    """
    run = questionnaire.settings_for(len(shape))
    entries = math.prod(shape)
    folders = [_folders(n, questionnaire.tree) for n in shape]
    l1 = means = cosine = disk = 0.0
    if tiles is not None:
        disk += 2 * len(shape) * entries * itemsize  # written, and read once for cosines and bare slices
    for axis, n in enumerate(shape):
        pairs = n * (n - 1) / 2
        tuples = math.prod(count for b, count in enumerate(folders) if b != axis)
        leaves = entries // n
        if len(shape) == 2 or axis < len(shape) - 1:
            cosine += pairs * leaves
        if questionnaire.distance == "sketch" and n > sketch.SKETCH_FROM:
            l1 += run.n_iter * (pairs * questionnaire.sketch_columns + _PILOT**2 / 2 * tuples)
        elif run.level_weight == 0:
            tuples -= leaves
            l1 += pairs * leaves + run.n_iter * pairs * tuples
        else:
            l1 += run.n_iter * pairs * tuples
        means += run.n_iter * n * tuples
        if tiles is not None:
            disk += run.n_iter * math.ceil(4 * n * tuples / tiles) * entries * itemsize
    eigen = (run.n_iter + 1) * sum(float(n) ** 3 for n in shape if n <= 2000)
    return Operations(l1, means, cosine, eigen, disk)


def _folders(n: int, tree: str) -> int:
    """The most folders a tree can have: leaves, the root, and two for each split of a level."""
    if tree in ("ward", "average") and n > 2:
        return n + 1 + 2 * max(folder_counts(n), default=0) - (2 if folder_counts(n) else 0)
    return 2 * n - 1


def measure_rates(threads: int | None = None) -> Rates:
    """Time the kernels on small arrays, about a second in all; nothing is kept."""
    count = n_threads(threads)
    rng = np.random.default_rng(0)
    slices = rng.random((256, 128, 96), dtype=np.float32)
    others = [PartitionTree.dyadic(n) for n in slices.shape[1:]]
    chunk = chunks_of(slices, others, [np.ones(len(tree.sizes)) for tree in others], leaves=True)[0]
    n = len(slices)
    means = np.zeros((n + -n % ROWS, chunk.columns), dtype=np.float32)
    total = np.zeros((len(means), len(means)))
    part = slices[:, :32].reshape(n, -1)
    square = rng.random((_EIGEN, _EIGEN))
    with one_blas_thread():
        return Rates(
            l1=n * n / 2 * chunk.columns / _seconds(lambda: add_pairwise_l1(means, total, count)),
            means=n * chunk.columns / _seconds(lambda: fill_means(slices, [chunk], [means], 0, count)),
            cosine=n * n / 2 * part.shape[1] / _seconds(lambda: part @ part.T),
            eigen=_EIGEN**3 / _seconds(lambda: scipy.linalg.eigh(square + square.T, driver="evd")),
            disk=_disk_rate(),
        )


def _seconds(call: Callable[[], object]) -> float:
    """The median of a few calls, after one that compiles."""
    call()
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _disk_rate() -> float:
    """Bytes per second, written and read once; files that the system caches in memory are as fast as memory."""
    values = np.zeros((64, 256, 64), dtype=np.float32)
    began = time.perf_counter()
    with Layouts(values, ("axis0", "axis1", "axis2"), tempfile.gettempdir(), 1e9, 1) as files:
        for i in range(values.shape[1]):
            files.read(1, i, i + 1)
    return 4 * values.nbytes / (time.perf_counter() - began)
