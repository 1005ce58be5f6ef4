"""The order of the tokens in an organized map, as the studies give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.report.gather import LINKED, Scene

__all__ = ["KEYS", "Orders", "orders_of"]

KEYS = ("query_orders", "key_orders", "query_trees", "key_trees")


@dataclass(frozen=True)
class Orders:
    """What figures contain about tokens: by block, leaf orders and labels of trees by batch."""

    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, key: str, i: int, block: str) -> npt.NDArray[np.intp] | None:
        """Entry `key` (one of KEYS) of batch i of a block; None where it is not known."""
        given = self.data.get(block, {}).get(key)
        return None if given is None or i >= len(given) or given[i] is None else np.asarray(given[i], dtype=np.intp)


def orders_of(scene: Scene) -> Orders:
    """The orders of each block, from the first figure that gives any."""
    found: dict[str, Mapping[str, Any]] = {}
    for section in scene.sections:
        for spec in section.of_kind(*LINKED):
            if spec.data.get("query_orders") is not None and section.rows is not None:
                for block in {head.block for head in scene.heads_of(section)}:
                    own = {k: v.get(block) if isinstance(v := spec.data.get(k), Mapping) else v for k in KEYS}
                    found.setdefault(block, own)
    return Orders(found)
