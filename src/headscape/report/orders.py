"""The order of the tokens in an organized map, as the studies give it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.report.gather import LINKED, Scene

__all__ = ["KEYS", "Orders", "orders_of"]

KEYS = ("query_orders", "key_orders", "query_trees", "key_trees")


@dataclass(frozen=True)
class Orders:
    """What a figure of these blocks says of tokens: leaf orders and labels of trees, by batch, or by block and batch."""

    data: Mapping[str, Any] = field(default_factory=dict)
    blocks: Collection[str] = ()

    def of(self, key: str, i: int, block: str) -> npt.NDArray[np.intp] | None:
        """Entry `key` (one of KEYS) of batch i of a block; None where it is not known."""
        given = self.data.get(key)
        if isinstance(given, Mapping):
            given = given.get(block)
        elif block not in self.blocks:
            return None
        return None if given is None or i >= len(given) or given[i] is None else np.asarray(given[i], dtype=np.intp)


def orders_of(scene: Scene) -> Orders:
    """The orders of the first figure that gives any."""
    for section in scene.sections:
        for spec in section.of_kind(*LINKED):
            if spec.data.get("query_orders") is not None and section.rows is not None:
                return Orders(spec.data, {head.block for head in scene.heads_of(section)})
    return Orders()
