"""The questionnaire on a matrix, such as the attention of one head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.geometry.questionnaire import Questionnaire
from headscape.tree import PartitionTree

__all__ = ["OrganizedMatrix", "organize_matrix"]


@dataclass(frozen=True, eq=False)
class OrganizedMatrix:
    """A matrix with its rows and columns in the order of their trees."""

    matrix: npt.NDArray[Any]  # M[np.ix_(row_order, col_order)]
    row_order: npt.NDArray[np.intp]
    col_order: npt.NDArray[np.intp]
    row_tree: PartitionTree
    col_tree: PartitionTree
    fit: Questionnaire  # fitted, with distances, affinities and history

    @property
    def orders(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """(row_order, col_order)."""
        return self.row_order, self.col_order

    @property
    def trees(self) -> tuple[PartitionTree, PartitionTree]:
        """(row_tree, col_tree)."""
        return self.row_tree, self.col_tree


def organize_matrix(M: npt.ArrayLike, questionnaire: Questionnaire | None = None) -> OrganizedMatrix:
    """Permute rows and columns of a matrix so that similar ones are next to each other.

    Parameters
    ----------
    M
        (n_rows, n_columns).
    questionnaire
        Settings; by default ``Questionnaire()``. ``Questionnaire.paper()`` has those of the paper for matrices.

    Raises
    ------
    InputError
        If `M` is not a matrix of finite real numbers.

    >>> M = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 0.0], [1.0, 0.0, 1.0]])
    >>> hs.organize_matrix(M).matrix
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 2.]])
    """
    values = np.asarray(M)
    if values.ndim != 2:
        raise InputError(f"a matrix is needed, this array has shape {values.shape}; Questionnaire takes any order")
    settings = Questionnaire() if questionnaire is None else questionnaire
    if not isinstance(settings, Questionnaire):
        raise InputError(f"questionnaire must be a Questionnaire, not {questionnaire!r}")
    fit = Questionnaire(**settings.get_params())
    fit.traced = settings.traced
    fit.fit(values)
    (rows, columns), (row_tree, col_tree) = fit.orders_, fit.trees_
    return OrganizedMatrix(values[np.ix_(rows, columns)], rows, columns, row_tree, col_tree, fit)
