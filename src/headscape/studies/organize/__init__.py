"""What is the landscape of heads?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["OrganizeResult", "estimate_organize", "organize"]
__getattr__, __dir__ = lazy(
    __name__, {"study": ("organize",), "result": ("OrganizeResult",), "estimate": ("estimate_organize",)}
)

if TYPE_CHECKING:
    from headscape.studies.organize.estimate import estimate_organize
    from headscape.studies.organize.result import OrganizeResult
    from headscape.studies.organize.study import organize
