"""How few coefficients does a network need?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["CompressResult", "compress"]
__getattr__, __dir__ = lazy(__name__, {"study": ("compress",), "result": ("CompressResult",)})

if TYPE_CHECKING:
    from headscape.studies.compress.result import CompressResult
    from headscape.studies.compress.study import compress
