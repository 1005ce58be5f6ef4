"""Which heads have this role?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["find_heads", "heads_by_role"]
__getattr__, __dir__ = lazy(__name__, {"study": ("find_heads", "heads_by_role")})

if TYPE_CHECKING:
    from headscape.studies.heads.study import find_heads, heads_by_role
