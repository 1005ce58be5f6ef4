"""Two prompts side by side: how did the attention of each head change?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["ChangeResult", "compare_prompts"]
__getattr__, __dir__ = lazy(__name__, {"study": ("compare_prompts",), "result": ("ChangeResult",)})

if TYPE_CHECKING:
    from headscape.studies.change.result import ChangeResult
    from headscape.studies.change.study import compare_prompts
