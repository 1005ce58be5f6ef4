"""Table 1 of the supplement: do networks of attention alone collapse, and what prevents it?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["Table1Result", "table1"]
__getattr__, __dir__ = lazy(__name__, {"study": ("table1",), "result": ("Table1Result",)})

if TYPE_CHECKING:
    from headscape.studies.table1.result import Table1Result
    from headscape.studies.table1.study import table1
