"""Does a hidden state along depth help in training?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["TrainResult", "train"]
__getattr__, __dir__ = lazy(__name__, {"study": ("train",), "result": ("TrainResult",)})

if TYPE_CHECKING:
    from headscape.studies.train.result import TrainResult
    from headscape.studies.train.study import train
