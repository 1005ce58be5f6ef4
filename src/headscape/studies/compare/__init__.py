"""How far apart are networks?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["CompareResult", "compare"]
__getattr__, __dir__ = lazy(__name__, {"study": ("compare",), "result": ("CompareResult",)})

if TYPE_CHECKING:
    from headscape.studies.compare.result import CompareResult
    from headscape.studies.compare.study import compare
