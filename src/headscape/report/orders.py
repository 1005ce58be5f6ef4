"""The order of the tokens in an organized map, as the studies give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.report.gather import LINKED, Scene

__all__ = ["Orders", "orders_of"]

KEYS = ("query_orders", "key_orders", "query_trees", "key_trees")
_ByBlock = Mapping[tuple[int, str], npt.NDArray[np.intp]]


@dataclass(frozen=True)
class Orders:
    """Leaf orders of the tokens by (batch, block), and the labels of their trees where they are known."""

    query: _ByBlock = field(default_factory=dict)
    key: _ByBlock = field(default_factory=dict)
    query_labels: _ByBlock = field(default_factory=dict)
    key_labels: _ByBlock = field(default_factory=dict)

    @classmethod
    def of_figure(cls, data: Mapping[str, Any], blocks: Sequence[str]) -> Orders:
        """Read `query_orders`, `key_orders`, `query_trees`, `key_trees`: each a list by batch, or by block such a list."""
        found: list[_ByBlock] = []
        for given in map(data.get, KEYS):
            by_block = given if isinstance(given, Mapping) else dict.fromkeys(blocks, given)
            found.append(
                {
                    (i, block): np.asarray(array, dtype=np.intp)
                    for block, arrays in by_block.items()
                    for i, array in enumerate([] if arrays is None else arrays)
                    if array is not None
                }
            )
        return cls(*found)


def orders_of(scene: Scene) -> Orders:
    """The orders that the first figure with any gives."""
    for section in scene.sections:
        for spec in section.of_kind(*LINKED):
            if spec.data.get("query_orders") is not None and section.rows is not None:
                orders = Orders.of_figure(spec.data, sorted({head.block for head in scene.heads_of(section)}))
                if orders.query:
                    return orders
    return Orders()
