"""Consensus: one geometry of the heads from many inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse

from headscape.checks import integer
from headscape.errors import InputError
from headscape.geometry.affinity import dual_affinity, median_distance
from headscape.geometry.build import BuildOptions, build_tree
from headscape.geometry.questionnaire import Questionnaire
from headscape.tree import PartitionTree

__all__ = ["Consensus", "consensus", "consensus_of"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Consensus:
    """What several fits agree on, for one axis of length n.

    >>> captured = hs.open_capture(run)
    >>> agreed = hs.consensus([hs.Questionnaire(n_iter=1).fit(captured.tensor(i)) for i in range(2)])
    >>> agreed.n_fits, agreed.distances.shape, agreed.tree.n_leaves
    (2, (8, 8), 8)
    """

    distances: FloatArray  # (n, n); mean of the distances, each over its median
    spread: FloatArray  # (n, n); their standard deviation over the fits, 0 for a single one
    affinity: FloatArray  # (n, n); exp(-D / eps)
    tree: PartitionTree
    n_fits: int


def consensus(fits: Sequence[Questionnaire], axis: int = -1) -> Consensus:
    """Geometry of the heads across batches: the mean of the batches' head distances, each scaled by its median.

    Parameters
    ----------
    fits
        Fitted questionnaires, one per batch, with the same heads. Affinity and tree are made with the settings of the
        first.
    axis
        Which axis; by default the last, the heads.

    Raises
    ------
    InputError
        If there is no fit or no such axis, one is not fitted or has only distances of neighbours, or the axes differ in
        length.

    >>> rng = np.random.default_rng(0)
    >>> two_groups = np.kron(np.eye(2), np.ones((4, 4)))
    >>> fits = [hs.Questionnaire().fit(two_groups + 0.1 * rng.normal(size=(8, 8))) for _ in range(3)]
    >>> hs.consensus(fits, axis=0).tree.level(1)  # the label of each row: the two groups are found
    array([1, 1, 1, 1, 0, 0, 0, 0])
    """
    if not fits:
        raise InputError("a consensus needs at least one fitted questionnaire, none was given")
    for i, fit in enumerate(fits):
        if not hasattr(fit, "distances_"):
            raise InputError(f"questionnaire {i} is not fitted; call fit first")
        integer("axis", axis, -len(fit.distances_), len(fit.distances_) - 1)
        if scipy.sparse.issparse(fit.distances_[axis]):
            raise InputError(f"questionnaire {i} kept neighbours only; fit with n_neighbours=None for a consensus")
    squares = [np.asarray(fit.distances_[axis]) for fit in fits]
    return consensus_of(squares, fits[0])


def consensus_of(squares: Sequence[FloatArray], settings: Questionnaire) -> Consensus:
    """The consensus of distance matrices (n, n), with affinity and tree made by the settings of a questionnaire."""
    lengths = [len(D) for D in squares]
    if len(set(lengths)) > 1:
        raise InputError(f"the fits have axes of different lengths {lengths}; a consensus needs the same heads in each")
    scaled = np.array([D / (median_distance(D) or 1.0) for D in squares])
    distances = scaled.mean(axis=0)
    affinity = dual_affinity(distances, settings.eps_scale)
    options = BuildOptions(settings.markov_alpha, settings.n_eigenvectors, settings.merge_scale)
    tree = build_tree(distances, affinity, settings.tree, options)
    return Consensus(distances, scaled.std(axis=0), affinity, tree, len(squares))
