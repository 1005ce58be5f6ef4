"""The questionnaire: organize every axis of an array by the trees of the others, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from headscape.compiled import n_threads, run_tasks
from headscape.errors import InputError
from headscape.geometry import neighbours, sketch
from headscape.geometry.affinity import dual_affinity, median_distance
from headscape.geometry.arrays import LazyArray, as_lazy, per_axis
from headscape.geometry.build import BuildOptions, build_tree, check_builder
from headscape.geometry.compression import CompressionSample
from headscape.geometry.diffusion import one_blas_thread
from headscape.geometry.emd import DEFAULT_MEMORY, slice_distance
from headscape.geometry.memory import keeps_layouts, plan_memory
from headscape.geometry.slices import ArraySlices, DiskSlices
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree

__all__ = ["Iteration", "Questionnaire"]

FloatArray = npt.NDArray[np.float64]


class OrderSettings(NamedTuple):
    """What depends on the order of the array; the paper's runs had other values for matrices."""

    n_iter: int
    level_weight: float
    size_weight: float


_PAPER_MATRIX = OrderSettings(10, 1.0, 0.0)
_PAPER_TENSOR = OrderSettings(3, 0.0, 1.0)
_DISTANCES = ("exact", "sketch")
_UPDATES = ("latest", "previous", "published")


@dataclass(frozen=True)
class Iteration:
    """What one round of the questionnaire did."""

    change: tuple[float, ...]
    """One an axis: mean off-diagonal |D/median(D) - D'/median(D')| against the round before; NaN in the first round."""
    compression: float
    """l1 norm of the Haar coefficients over that of the same trees with shuffled leaves: the lower, the better.
    Measured on a random part of the array, see `CompressionSample`."""


class Questionnaire(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Organize an array: a tree, a distance and an affinity for each of its axes, each seen through the others.

    Trees of all axes but the head's start from cosines. Each iteration then compares the slices of the head axis
    through the trees of the others (`tree_distance`), builds its tree from that, and goes on with axis 0, 1, ...
    (Algorithm 1). From order 3 on the last axis plays the head's part; a matrix has no head axis.

    Parameters
    ----------
    n_iter
        Iterations at most. None takes the paper's number for the order of the array, see `paper`.
    tree
        Builder: "ward", "average", "binary" or "flexible" (the paper's); see `build_tree`.
    level_weight, size_weight
        alpha and beta of the folder weights (|F|/n)^beta 2^(-alpha level). beta = 1/2 lets noise weigh the same in
        every folder, since a mean over |F| entries has 1/sqrt(|F|) of their noise. None takes the paper's.
    markov_alpha
        How much of the density is taken out of the Markov chain: 0 as the paper prints, 1 as its code did.
    n_eigenvectors
        Diffusion coordinates of the flexible tree, the constant one not counted.
    merge_scale
        Larger values make smaller folders in the flexible tree.
    eps_scale
        Scale of the affinity exp(-D / eps), in medians of D.
    update
        Which trees of the other axes a step uses: "latest"; "previous", those the iteration began with; "published",
        the latest but for heads, which see the initial ones throughout (line 15 of Algorithm 1 as printed).
    tol
        Stop when the change of every axis falls below this.
    distance
        "exact", or "sketch": slices of an axis of more than 2,000 are compared on a random part of the folder tuples,
        with the error in `sketch_error_`; see `sketch_distance`. Shorter axes are compared exactly all the same.
    sketch_columns
        How many tuples a sketch keeps, about; the error falls with the root of it.
    n_neighbours
        An axis of more than 5,000 leaves is organized by this many neighbours of each, if the tree is "ward": its
        distances and affinities are scipy sparse arrays of neighbours, see `slice_neighbours` and `neighbour_tree`.
        None compares all pairs however many there are.
    max_memory
        Bytes that fitting may take beside the array given. Where `memory_estimate` says more, the array is copied to
        scratch files, one an axis, and read from there in tiles; the result is the same to the last bit. If not even
        the (n, n) matrices fit, nothing is started.
    scratch
        Folder of the scratch files; None is the system's temporary folder. They go when fitting ends, however it ends.
    n_jobs
        Threads of the distance kernel; None is numba's setting. Any number gives the same bytes.
    random_state
        Seed of the sample and the shuffles behind `Iteration.compression`, and of sketches. Nothing else is random.

    Attributes
    ----------
    trees_, distances_, affinities_, orders_
        Named tuples in axis order: ``trees_[2]`` is ``trees_.head`` (axis0, axis1, .. for a plain array). Distances are
        in the units of the array. ``X[np.ix_(*orders_)]`` is the organized array.
    sketch_error_
        One number an axis: the relative error that 95 % of the distances are within, as estimated; 0 where exact.
    history_
        One `Iteration` a round.
    n_iter_
        Rounds done.

    >>> from headscape.geometry.planted import planted
    >>> P = planted("blocks", (32, 32, 16), noise=0.5)
    >>> q = Questionnaire().fit(P.values)
    >>> q.trees_.axis2
    PartitionTree(16 leaves, 9 levels of 1, 2, 3, 4, .., 7, 8, 16 folders)
    >>> fine = P.labels["head"]["fine"]                     # 8 planted clusters of heads
    >>> len(set(zip(fine, q.trees_.axis2.level(7))))        # each is one of the 8 folders of level 7
    8
    """

    def __init__(
        self,
        n_iter: int | None = 3,
        tree: str = "ward",
        level_weight: float | None = 0.0,
        size_weight: float | None = 0.5,
        markov_alpha: float = 1.0,
        n_eigenvectors: int = 11,
        merge_scale: float = 1.0,
        eps_scale: float = 1.0,
        update: str = "latest",
        tol: float = 0.0,
        distance: str = "exact",
        sketch_columns: int = 8192,
        n_neighbours: int | None = 64,
        max_memory: float = DEFAULT_MEMORY,
        scratch: str | None = None,
        n_jobs: int | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.n_iter = n_iter
        self.tree = tree
        self.level_weight = level_weight
        self.size_weight = size_weight
        self.markov_alpha = markov_alpha
        self.n_eigenvectors = n_eigenvectors
        self.merge_scale = merge_scale
        self.eps_scale = eps_scale
        self.update = update
        self.tol = tol
        self.distance = distance
        self.sketch_columns = sketch_columns
        self.n_neighbours = n_neighbours
        self.max_memory = max_memory
        self.scratch = scratch
        self.n_jobs = n_jobs
        self.random_state = random_state

    @classmethod
    def paper(cls, **changes: Any) -> Questionnaire:
        """Make one with the settings of the paper's runs; arguments change them.

        The flexible tree from 12 eigenvectors, the constant one counted, with the density taken out of the chain; 3
        iterations with level_weight 0 and size_weight 1, on a matrix 10 iterations with 1 and 0. Heads see the latest
        trees all the same: ``update="published"`` gives them the initial ones.

        >>> Questionnaire.paper(n_iter=5)
        Questionnaire(level_weight=None, n_iter=5, size_weight=None, tree='flexible')
        """
        settings: dict[str, Any] = {"n_iter": None, "tree": "flexible", "level_weight": None, "size_weight": None}
        return cls(**(settings | changes))

    def fit(self, X: AttentionTensor | LazyArray | npt.ArrayLike, y: object = None) -> Questionnaire:
        """Organize an array of order two or more.

        Parameters
        ----------
        X
            AttentionTensor, or any real array. It is worked on in float32, after scaling. A ``np.memmap``, or what can
            only be sliced (`LazyArray`), is read in blocks, and never held whole where that is more than `max_memory`.
        y
            Not used; there because scikit-learn passes it.

        Raises
        ------
        InputError
            For an array that is not real, finite and of order two or more, for settings that do not exist, if the
            least memory is above `max_memory`, or if the scratch files do not fit on the disk.
        """
        values, names = as_lazy(X)
        run = self.settings_for(len(values.shape))
        threads = n_threads(self.n_jobs)
        order = len(values.shape)
        head = order - 1 if order > 2 else None
        turns = range(order) if head is None else [head, *range(head)]
        self.history_: list[Iteration] = []
        with one_blas_thread(), self._slices(values, names, threads) as slices:
            initial: list[PartitionTree | None] = [None for _ in names]
            starts = [(initial, slices, axis) for axis in range(order) if axis != head]
            run_tasks(self._first_tree, starts, threads)
            sample = CompressionSample(slices.work, self.random_state)
            trees = list(initial)
            distances: list[Any] = [np.zeros((0, 0)) for _ in names]
            affinities = list(distances)
            errors = [0.0 for _ in names]
            while len(self.history_) < run.n_iter:
                began, before = list(trees), list(distances)
                for axis in turns:
                    source = {"latest": trees, "previous": began, "published": initial if axis == head else trees}
                    others = _others(source[self.update], trees, axis)
                    D, errors[axis] = self._distance(slices, axis, others, run, threads)
                    distances[axis] = D
                    affinities[axis], trees[axis] = self._affinity_and_tree(D)
                change = tuple(_change(old, new) for old, new in zip(before, distances, strict=True))
                finished = [tree for tree in trees if tree is not None]
                self.history_.append(Iteration(change, sample.compression(finished)))
                if all(c < self.tol for c in change):
                    break
        self.n_iter_ = len(self.history_)
        self.trees_ = per_axis(names, finished)
        self.orders_ = per_axis(names, (tree.order for tree in finished))
        kept = (D.distances if isinstance(D, neighbours.NeighbourGraph) else D for D in distances)
        self.distances_ = per_axis(names, (D * slices.unit for D in kept))
        self.affinities_ = per_axis(names, affinities)
        self.sketch_error_ = per_axis(names, errors)
        return self

    def _distance(
        self,
        slices: ArraySlices | DiskSlices,
        axis: int,
        others: list[PartitionTree],
        run: OrderSettings,
        threads: int,
    ) -> tuple[FloatArray | neighbours.NeighbourGraph, float]:
        """Distances of the slices of an axis, in units of ``slices.unit``, and their relative error."""
        weights = (run.level_weight, run.size_weight)
        near = self._by_neighbours(slices.shape[axis])
        if self.distance == "sketch" and slices.shape[axis] > sketch.SKETCH_FROM:
            seed = self.random_state
            found = sketch.sketch_distance(
                slices.along(axis), others, *weights, self.sketch_columns, seed, slices.tiles, threads
            )
            return (neighbours.neighbours_of(found.distances, near, seed) if near else found.distances), found.error
        if near:
            return neighbours.slice_neighbours(
                slices.along(axis), others, *weights, near, self.random_state, slices.tiles, threads
            ), 0.0
        leaf = slices.leaf_distance(axis) if run.level_weight == 0 else None
        return slice_distance(slices.along(axis), others, *weights, slices.tiles, threads, leaf), 0.0

    def _options(self) -> BuildOptions:
        return BuildOptions(self.markov_alpha, self.n_eigenvectors, self.merge_scale)

    def _by_neighbours(self, n: int) -> int | None:
        """How many neighbours an axis of n leaves is organized by; None for all pairs."""
        return self.n_neighbours if n > neighbours.NEIGHBOURS_FROM and self.tree == "ward" else None

    def _affinity_and_tree(self, D: FloatArray | neighbours.NeighbourGraph) -> tuple[Any, PartitionTree]:
        if isinstance(D, neighbours.NeighbourGraph):
            near = neighbours.neighbour_affinity(D, self.eps_scale)
            return near, neighbours.neighbour_tree(D, near, self._options())
        affinity = dual_affinity(D, self.eps_scale)
        return affinity, build_tree(D, affinity, self.tree, self._options())

    def _slices(
        self, values: npt.NDArray[Any] | LazyArray, names: tuple[str, ...], threads: int
    ) -> ArraySlices | DiskSlices:
        """The array in memory if it fits there, else in scratch files."""
        shape, itemsize = tuple(values.shape), np.dtype(values.dtype).itemsize
        held = isinstance(values, np.ndarray)
        near = self.n_neighbours if self.tree == "ward" and self.distance == "exact" else None
        plan = plan_memory(shape, names, itemsize, self.max_memory, threads, held, near)
        if plan.on_disk:
            return DiskSlices(values, names, self.scratch, plan.tiles, threads)
        array = values if isinstance(values, np.ndarray) else np.asarray(values[0 : shape[0]])
        return ArraySlices(array, names, plan.tiles, keeps_layouts(shape, self.max_memory), threads)

    def _first_tree(self, trees: list[PartitionTree | None], slices: ArraySlices | DiskSlices, axis: int) -> None:
        cosine = slices.cosine(axis)
        near = self._by_neighbours(len(cosine))
        if near:
            graph, affinity = neighbours.cosine_graph(cosine, near, self.random_state)
            trees[axis] = neighbours.neighbour_tree(graph, affinity, self._options())
            return
        trees[axis] = build_tree(1.0 - cosine, cosine, self.tree, self._options())

    def settings_for(self, order: int) -> OrderSettings:
        """Return what depends on the order of an array, after looking at all settings.

        Raises
        ------
        InputError
            For a setting that does not exist or is out of range.
        """
        check_builder(self.tree)
        if self.update not in _UPDATES:
            raise InputError(f"unknown update '{self.update}'; there are {', '.join(sorted(_UPDATES))}")
        if self.distance not in _DISTANCES:
            raise InputError(f"unknown distance '{self.distance}'; there are {', '.join(_DISTANCES)}")
        for name in ("n_eigenvectors", "merge_scale", "eps_scale", "max_memory", "sketch_columns"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, it is {getattr(self, name)}")
        if self.n_neighbours is not None and self.n_neighbours < 1:
            raise InputError(f"n_neighbours must be at least 1, or None for all pairs; it is {self.n_neighbours}")
        paper = _PAPER_MATRIX if order == 2 else _PAPER_TENSOR
        given = {name: getattr(self, name) for name in OrderSettings._fields}
        run = paper._replace(**{name: value for name, value in given.items() if value is not None})
        if run.n_iter < 1:
            raise InputError(f"n_iter must be at least 1, it is {run.n_iter}")
        return run


def _others(
    source: Sequence[PartitionTree | None], latest: Sequence[PartitionTree | None], axis: int
) -> list[PartitionTree]:
    """Trees of the other axes from `source`; the latest where it has none yet, as for heads before the first round."""
    chosen = [old or new for old, new in zip(source, latest, strict=True)]
    return [tree for b, tree in enumerate(chosen) if b != axis and tree is not None]


def _change(old: Any, new: Any) -> float:
    """Mean absolute difference of two distances, each over its median; NaN if there is no old one."""
    if isinstance(new, neighbours.NeighbourGraph):
        return new.change(old) if isinstance(old, neighbours.NeighbourGraph) else float("nan")
    if old.shape != new.shape:
        return float("nan")
    if len(new) < 2:
        return 0.0
    difference = np.abs(old / (median_distance(old) or 1.0) - new / (median_distance(new) or 1.0))
    return float(difference.sum() / (len(new) * (len(new) - 1)))
