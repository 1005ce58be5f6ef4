"""How do the heads of a network change while it trains?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["SeriesResult", "capture_checkpoints", "series"]
__getattr__, __dir__ = lazy(
    __name__, {"study": ("series",), "result": ("SeriesResult",), "checkpoints": ("capture_checkpoints",)}
)

if TYPE_CHECKING:
    from headscape.studies.series.checkpoints import capture_checkpoints
    from headscape.studies.series.result import SeriesResult
    from headscape.studies.series.study import series
