"""What was recorded of one attention layer on a set of inputs, as plain arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

__all__ = ["NOT_PRODUCTS", "LayerData"]

Array = npt.NDArray[Any]
NOT_PRODUCTS = "scores are not scaled products of queries and keys: a bias or a cap is applied"
"""The note of a layer whose scaling is not known."""


@dataclass(frozen=True)
class LayerData:
    """One attention layer on all inputs; heads before tokens.

    `queries` (n_input, n_head, n_token, dim) and `keys` (n_input, n_kv_head, n_token, dim) are as the weights give
    them: before rotary embedding, after QK-norm where the layer has one. `rotations` (n_token, dim, dim) are the
    matrices by which the rotary embedding multiplies row vectors, by position; None without one. A score is
    scaling * (q R_i) (k R_j)^T; the scaling is NaN where it is not. `probs` and `scores` are (n_input, n_head, n_token,
    n_token), `outputs` (n_input, n_head, n_token, dim): the probs applied to the values of the head's group. What is
    not known is None. `note` says what is unusual. `inputs` (n_input, n_token, d) are what the layer's weights read, and
    `leading` directions of them (n_head, r, d) for q, k and v, of n_kv_head heads for the last two.
    """

    layer: int
    queries: Array | None
    keys: Array | None
    values: Array | None
    scores: Array | None
    probs: Array
    outputs: Array | None
    rotations: Array | None
    scaling: float
    note: str
    inputs: Array | None = None
    leading: Mapping[str, Array] = field(default_factory=dict)
