"""Which heads can be removed, and at what cost?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["PruneResult", "Pruning", "prune", "rank_heads"]
__getattr__, __dir__ = lazy(
    __name__, {"study": ("prune", "rank_heads"), "result": ("PruneResult",), "pruning": ("Pruning",)}
)

if TYPE_CHECKING:
    from headscape.studies.prune.pruning import Pruning
    from headscape.studies.prune.result import PruneResult
    from headscape.studies.prune.study import prune, rank_heads
