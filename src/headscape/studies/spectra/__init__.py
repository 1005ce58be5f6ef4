"""Do the weights look random?"""

from typing import TYPE_CHECKING

from headscape._lazy import lazy

__all__ = ["SpectraResult", "spectra"]
__getattr__, __dir__ = lazy(__name__, {"study": ("spectra",), "result": ("SpectraResult",)})

if TYPE_CHECKING:
    from headscape.studies.spectra.result import SpectraResult
    from headscape.studies.spectra.study import spectra
