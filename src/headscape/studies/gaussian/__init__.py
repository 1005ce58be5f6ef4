"""Do Gaussians explain attention?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["GaussianResult", "gaussian"]
__getattr__, __dir__ = lazy(__name__, {"study": ("gaussian",), "result": ("GaussianResult",)})

if TYPE_CHECKING:
    from headscape.studies.gaussian.result import GaussianResult
    from headscape.studies.gaussian.study import gaussian
