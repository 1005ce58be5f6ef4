"""The questionnaire: organize every axis of an array by the trees of the others, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from headscape.checks import finite, integer, one_of, positive, seed, within
from headscape.compiled import n_threads, run_tasks
from headscape.geometry import neighbours, sketch
from headscape.geometry.affinity import dual_affinity, median_distance
from headscape.geometry.arrays import LazyArray, as_lazy, per_axis
from headscape.geometry.build import BUILDERS, BuildOptions, build_tree
from headscape.geometry.compression import CompressionSample
from headscape.geometry.diffusion import STEEPEST, one_blas_thread
from headscape.geometry.emd import DEFAULT_MEMORY, check_range, slice_distance
from headscape.geometry.memory import Plan, keeps_layouts, plan_memory
from headscape.geometry.scratch import Layouts
from headscape.geometry.slices import AnySlices, ArraySlices, DiskSlices
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree

__all__ = ["Iteration", "Questionnaire"]

FloatArray = npt.NDArray[np.float64]


class OrderSettings(NamedTuple):
    """Settings that depend on the order of the array; the paper used other values for matrices."""

    n_iter: int
    level_weight: float
    size_weight: float


_PAPER_MATRIX = OrderSettings(10, 1.0, 0.0)
_PAPER_TENSOR = OrderSettings(3, 0.0, 1.0)
_DISTANCES = ("exact", "sketch")
SILENT = ("n_jobs", "max_memory", "scratch")
"""Settings that change no byte of a fit."""
_UPDATES = ("latest", "previous", "published")


@dataclass(frozen=True)
class Iteration:
    """What one round of the questionnaire did."""

    change: tuple[float, ...]
    """One per axis: mean off-diagonal |D/median(D) - D'/median(D')| against the round before; NaN in the first."""
    compression: float
    """l1 norm of the Haar coefficients over that of the same trees with shuffled leaves: lower is better. Measured on a
    random part of the array, see `CompressionSample`."""


class Questionnaire(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
    """Organize an array: a tree, a distance and an affinity for each of its axes, each seen through the others.

    Trees of all axes but the head's start from cosines. Each iteration then compares the slices of the head axis
    through the trees of the others (`tree_distance`), builds its tree from that, and continues with axis 0, 1, ...
    (Algorithm 1). From order 3 on the last axis plays the head's part; a matrix has no head axis.

    Parameters
    ----------
    n_iter
        Iterations at most. None takes the paper's number for the order of the array, see `paper`.
    tree
        Builder: "ward", "average", "binary" or "flexible" (the paper's); see `build_tree`.
    level_weight, size_weight
        alpha and beta of the folder weights `(|F|/n)^beta 2^(-alpha level)`. beta = 1/2 lets noise weigh the same in
        every folder, since a mean over `|F|` entries has `1/sqrt(|F|)` of their noise. None takes the paper's.
    markov_alpha
        How much of the density is normalized out of the Markov chain: 0 as printed in the paper, 1 as in its code.
    n_eigenvectors
        Diffusion coordinates of the flexible tree, not counting the constant one.
    merge_scale
        Larger values make smaller folders in the flexible tree.
    eps_scale
        Scale of the affinity exp(-D / eps), in medians of D.
    update
        Which trees of the other axes a step uses: "latest"; "previous", those the iteration began with; "published",
        the latest except for heads, which see the initial ones throughout (line 15 of Algorithm 1 as printed).
    tol
        Stop when the change of every axis falls below this.
    distance
        "exact", or "sketch": slices of an axis of more than 2,000 are compared on a random part of the folder tuples,
        with the error in `sketch_error_`; see `sketch_distance`. Shorter axes are compared exactly either way.
    sketch_columns
        Approximate number of tuples a sketch keeps; the error falls with its square root.
    n_neighbours
        An axis of more than 5,000 leaves is organized by this many neighbours of each leaf, if the tree is "ward": its
        distances and affinities are scipy sparse arrays of neighbours, see `slice_neighbours` and `neighbour_tree`.
        None compares all pairs whatever their number.
    max_memory
        Memory limit in bytes, not counting the array given. Where `memory_estimate` exceeds it, the array is copied to
        scratch files, one per axis, and processed out of core; the result is the same to the last bit. If the (n, n)
        matrices alone do not fit, nothing is started.
    scratch
        Folder of the scratch files; None is the system's temporary folder. They are removed however fitting ends.
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
        One number per axis: the estimated relative error that 95 % of the distances stay within; 0 where exact.
    history_
        One `Iteration` per round.
    n_iter_
        Number of rounds done.

    >>> P = hs.planted("blocks", (32, 32, 16), noise=0.5)
    >>> q = hs.Questionnaire().fit(P.values)
    >>> q.trees_.axis2
    PartitionTree(16 leaves, 9 levels of 1, 2, 3, 4, .., 7, 8, 16 folders)
    >>> fine = P.labels["head"]["fine"]  # 8 planted clusters of heads
    >>> len(set(zip(fine, q.trees_.axis2.level(7))))  # each is one of the 8 folders of level 7
    8
    """

    traced = True
    """Whether rounds are described by how well the trees compress the array; no setting, for it changes no tree."""

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

        The flexible tree from 12 eigenvectors, counting the constant one, with the density normalized out of the chain;
        3 iterations with level_weight 0 and size_weight 1, on a matrix 10 iterations with 1 and 0. Unlike in the
        paper's code, heads see the latest trees: ``update="published"`` gives them the initial ones.

        >>> Questionnaire.paper(n_iter=5)
        Questionnaire(level_weight=None, n_iter=5, size_weight=None, tree='flexible')
        """
        settings: dict[str, Any] = {"n_iter": None, "tree": "flexible", "level_weight": None, "size_weight": None}
        return cls(**(settings | changes))

    def fit(self, X: AttentionTensor | LazyArray | npt.ArrayLike, y: object = None) -> Questionnaire:
        """Organize an array of order two or more.

        The steps: `as_lazy` names the axes; `_open` lays the slices out, in memory or on disk; `_first_tree` builds the
        tree of each axis but the head's from cosines. Then in every round, for each axis: `_distance` compares its
        slices through the trees of the others (`slice_distance` has the formula), `_affinity_and_tree` makes an
        affinity (`dual_affinity`) and from both a tree (`build_tree`). `_change` and `CompressionSample` describe the
        round.

        Parameters
        ----------
        X
            AttentionTensor, or any real array. It is scaled and processed in float32. A ``np.memmap``, or what can only
            be sliced (`LazyArray`), is read in blocks, and never held as a whole where that exceeds `max_memory`.
        y
            Not used; scikit-learn passes it.

        Raises
        ------
        InputError
            For an array that is not real, finite and of order two or more, for invalid settings, if the least memory
            needed is above `max_memory`, or if the scratch files do not fit on the disk.
        """
        values, names = as_lazy(X)
        run = self.settings_for(len(names))
        threads = n_threads(self.n_jobs)
        head = len(names) - 1 if len(names) > 2 else None
        axes = range(len(names))
        self.history_: list[Iteration] = []
        with one_blas_thread(), self._open(values, names, threads) as slices:
            initial: list[PartitionTree | None] = [None for _ in axes]
            run_tasks(self._first_tree, [(initial, slices, axis) for axis in axes if axis != head], threads)
            sample = CompressionSample(slices.work, self.random_state) if self.traced else None
            trees = list(initial)
            distances: list[Any] = [np.zeros((0, 0)) for _ in axes]
            affinities, errors = list(distances), [0.0 for _ in axes]
            while len(self.history_) < run.n_iter:
                began, before = list(trees), list(distances)
                for axis in axes if head is None else [head, *range(head)]:
                    seen = {"latest": trees, "previous": began, "published": initial if axis == head else trees}
                    others = _others(seen[self.update], trees, axis)
                    distances[axis], errors[axis] = self._distance(slices, axis, others, run, threads)
                    affinities[axis], trees[axis] = self._affinity_and_tree(distances[axis])
                change = tuple(_change(old, new) for old, new in zip(before, distances, strict=True))
                finished = [tree for tree in trees if tree is not None]
                self.history_.append(Iteration(change, sample.compression(finished) if sample else float("nan")))
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

    def _open(self, values: npt.NDArray[Any] | LazyArray, names: tuple[str, ...], threads: int) -> AnySlices:
        """The array in memory if it fits, else in scratch files."""
        shape = tuple(values.shape)
        plan = self.plan(shape, names, np.dtype(values.dtype).itemsize, isinstance(values, np.ndarray), threads)
        if plan.on_disk:
            return DiskSlices(Layouts(values, names, self.scratch, plan.tiles, threads), threads)
        array = values if isinstance(values, np.ndarray) else np.asarray(values[0 : shape[0]])
        return ArraySlices(array, names, plan.tiles, keeps_layouts(shape, self.max_memory), threads)

    def plan(self, shape: tuple[int, ...], names: tuple[str, ...], itemsize: int, held: bool, threads: int) -> Plan:
        """Where an array of this shape would be processed, and what that takes; `held`: it is in memory already."""
        near = self.n_neighbours if self.tree == "ward" and self.distance == "exact" else None
        return plan_memory(shape, names, itemsize, self.max_memory, threads, held, near)

    def _first_tree(self, trees: list[PartitionTree | None], slices: AnySlices, axis: int) -> None:
        """Put the tree of an axis by the cosines between its slices into `trees`."""
        cosine = slices.cosine(axis)
        near = self._by_neighbours(len(cosine))
        if near:
            graph, affinity = neighbours.cosine_graph(cosine, near, self.random_state)
            trees[axis] = neighbours.neighbour_tree(graph, affinity, self._options())
            return
        trees[axis] = build_tree(1.0 - cosine, cosine, self.tree, self._options())

    def _distance(
        self, slices: AnySlices, axis: int, others: list[PartitionTree], run: OrderSettings, threads: int
    ) -> tuple[FloatArray | neighbours.NeighbourGraph, float]:
        """Distances of the slices of an axis, in units of ``slices.unit``, and their relative error."""
        weights, seed_ = (run.level_weight, run.size_weight), self.random_state
        along, memory = slices.along(axis), slices.tiles
        near = self._by_neighbours(slices.shape[axis])
        if self.distance == "sketch" and slices.shape[axis] > sketch.SKETCH_FROM:
            found = sketch.sketch_distance(along, others, *weights, self.sketch_columns, seed_, memory, threads)
            return (neighbours.neighbours_of(found.distances, near, seed_) if near else found.distances), found.error
        if near:
            return neighbours.slice_neighbours(along, others, *weights, near, seed_, memory, threads), 0.0
        leaf = slices.leaf_distance(axis) if run.level_weight == 0 else None
        D = slice_distance(along, others, *weights, memory, threads, leaf)
        check_range(D, slices.unit, *weights)
        return D, 0.0

    def _affinity_and_tree(self, D: FloatArray | neighbours.NeighbourGraph) -> tuple[Any, PartitionTree]:
        if isinstance(D, neighbours.NeighbourGraph):
            near = neighbours.neighbour_affinity(D, self.eps_scale)
            return near, neighbours.neighbour_tree(D, near, self._options())
        affinity = dual_affinity(D, self.eps_scale)
        return affinity, build_tree(D, affinity, self.tree, self._options())

    def _options(self) -> BuildOptions:
        return BuildOptions(self.markov_alpha, self.n_eigenvectors, self.merge_scale)

    def _by_neighbours(self, n: int) -> int | None:
        """How many neighbours an axis of n leaves is organized by; None for all pairs."""
        return self.n_neighbours if n > neighbours.NEIGHBOURS_FROM and self.tree == "ward" else None

    def settings_for(self, order: int) -> OrderSettings:
        """Check all settings, and return those that depend on the order of an array.

        Raises
        ------
        InputError
            For a setting that does not exist or is out of range.
        """
        for name, options in (("tree", BUILDERS), ("update", _UPDATES), ("distance", _DISTANCES)):
            one_of(name, getattr(self, name), options)
        for name in ("merge_scale", "eps_scale", "max_memory"):
            positive(name, getattr(self, name))
        for name in ("n_eigenvectors", "sketch_columns"):
            integer(name, getattr(self, name), low=1)
        within("markov_alpha", self.markov_alpha, -STEEPEST, STEEPEST)
        finite("tol", self.tol)
        if self.n_neighbours is not None:
            integer("n_neighbours", self.n_neighbours, low=1)
        if self.random_state is not None:
            seed(self.random_state)
        paper = _PAPER_MATRIX if order == 2 else _PAPER_TENSOR
        given = {name: getattr(self, name) for name in OrderSettings._fields}
        run = paper._replace(**{name: value for name, value in given.items() if value is not None})
        integer("n_iter", run.n_iter, low=1)
        finite("level_weight", run.level_weight)
        finite("size_weight", run.size_weight)
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
