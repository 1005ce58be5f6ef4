"""Are heads invariant to softmax?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["SoftmaxResult", "softmax"]
__getattr__, __dir__ = lazy(__name__, {"study": ("softmax",), "result": ("SoftmaxResult",)})

if TYPE_CHECKING:
    from headscape.studies.softmax.result import SoftmaxResult
    from headscape.studies.softmax.study import softmax
