"""What does attention do in a few-shot prompt?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["PromptResult", "prompt"]
__getattr__, __dir__ = lazy(__name__, {"study": ("prompt",), "result": ("PromptResult",)})

if TYPE_CHECKING:
    from headscape.studies.prompt.result import PromptResult
    from headscape.studies.prompt.study import prompt
