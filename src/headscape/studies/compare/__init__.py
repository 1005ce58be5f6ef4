"""How far apart are networks?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["CompareResult", "coarse_runs", "coarsen", "compare"]
__getattr__, __dir__ = lazy(
    __name__, {"study": ("compare",), "result": ("CompareResult",), "coarse": ("coarse_runs", "coarsen")}
)

if TYPE_CHECKING:
    from headscape.studies.compare.coarse import coarse_runs, coarsen
    from headscape.studies.compare.result import CompareResult
    from headscape.studies.compare.study import compare
