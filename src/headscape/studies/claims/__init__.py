"""Do the claims of the papers hold on a model?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["ClaimsResult", "claims"]
__getattr__, __dir__ = lazy(__name__, {"study": ("claims",), "result": ("ClaimsResult",)})

if TYPE_CHECKING:
    from headscape.studies.claims.result import ClaimsResult
    from headscape.studies.claims.study import claims
