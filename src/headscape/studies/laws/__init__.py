"""What do softmax and scores of random vectors follow?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["LawsResult", "laws"]
__getattr__, __dir__ = lazy(__name__, {"study": ("laws",), "result": ("LawsResult",)})

if TYPE_CHECKING:
    from headscape.studies.laws.result import LawsResult
    from headscape.studies.laws.study import laws
