"""Do tokens become alike along depth? Residuals, similarities and entropies by layer, bounds, and pure attention."""

from headscape._lazy import callable_package

callable_package(__name__, "headscape.studies.collapse")
