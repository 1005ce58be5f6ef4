"""Do tokens and attention collapse along depth?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["CollapseResult", "collapse"]
__getattr__, __dir__ = lazy(__name__, {"study": ("collapse",), "result": ("CollapseResult",)})

if TYPE_CHECKING:
    from headscape.studies.collapse.result import CollapseResult
    from headscape.studies.collapse.study import collapse
