"""Clusters of the head tree, named by the roles that are over-represented in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import hypergeom

from headscape.roles import MIXED
from headscape.tree import PartitionTree

__all__ = ["FolderRole", "name_folders"]


@dataclass(frozen=True)
class FolderRole:
    """A folder of the head tree and the role that is over-represented in it."""

    level: int
    folder: int
    size: int
    role: str
    count: int
    p: float


def name_folders(tree: PartitionTree, roles: Sequence[str], alpha: float = 0.01) -> list[FolderRole]:
    """Name the folders (not the root, not single heads) by their most over-represented role.

    p is the chance of at least so many heads of the role in a folder of that size drawn without replacement
    (hypergeometric), uncorrected; folders whose smallest p is above `alpha` stay nameless, and `mixed` is no name.
    """
    labels = np.array(roles)
    folders = tree.folders()
    named = []
    for start, stop, level in zip(folders.start, folders.stop, folders.level, strict=True):
        size = int(stop - start)
        if level == 0 or size < 2:
            continue
        members = tree.order[start:stop]
        best: FolderRole | None = None
        for role in sorted(set(labels[members]) - {MIXED}):
            count, total = int((labels[members] == role).sum()), int((labels == role).sum())
            p = float(hypergeom.sf(count - 1, len(labels), total, size))
            if best is None or p < best.p:
                best = FolderRole(int(level), int(tree.level(int(level))[members[0]]), size, str(role), count, p)
        if best is not None and best.p <= alpha:
            named.append(best)
    return named
