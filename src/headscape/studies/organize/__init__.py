"""What is the landscape of heads?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["ENTROPIES", "OrganizeResult", "batch_files", "estimate_organize", "find_heads", "organize", "tensor_shape"]
__getattr__, __dir__ = lazy(
    __name__,
    {
        "study": ("batch_files", "organize"),
        "result": ("ENTROPIES", "OrganizeResult"),
        "by_role": ("find_heads",),
        "estimate": ("estimate_organize",),
        "units": ("tensor_shape",),
    },
)

if TYPE_CHECKING:
    from headscape.studies.organize.by_role import find_heads
    from headscape.studies.organize.estimate import estimate_organize
    from headscape.studies.organize.result import ENTROPIES, OrganizeResult
    from headscape.studies.organize.study import batch_files, organize
    from headscape.studies.organize.units import tensor_shape
