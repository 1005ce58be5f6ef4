"""What was measured of every input, put together into the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.collapse.bounds import named_bounds
from headscape.intervals import mean_interval
from headscape.studies.collapse.result import CollapseResult, entropy_column
from headscape.tensor import HeadId

__all__ = ["Units", "summary_of_units"]

Array = npt.NDArray[Any]
Units = dict[str, list[dict[str, Array]]]
"""By variant, the measures of every input."""


def summary_of_units(
    heads: Sequence[HeadId], found: Units, notes: Sequence[str], settings: Mapping[str, Any], causal: bool
) -> CollapseResult:
    """The result of what was measured; `settings` names the block."""
    first = next(iter(found.values()))[0]

    def stacked(name: str) -> Array | None:
        """By variant and input."""
        return np.array([[unit[name] for unit in units] for units in found.values()]) if name in first else None

    floors, entropies = stacked("floor"), stacked("entropies")
    return CollapseResult(
        block=settings["block"],
        variants=tuple(found),
        heads=_heads_frame(heads, found),
        **{name: stacked(name) for name in ("residual", "rank", "similarity", "different", "entropy")},
        entropies=None if entropies is None else entropies.sum(axis=1),
        floor=None if floors is None else floors.max(axis=1),
        bounds=_bounds_frame(found),
        causal=causal,
        notes=tuple(notes),
        settings=dict(settings),
    )


def _heads_frame(heads: Sequence[HeadId], found: Units) -> pd.DataFrame:
    """One row per head: entropy by variant, with its interval for the model itself, and D."""
    frame = pd.DataFrame(heads, columns=["block", "layer", "head"])
    for variant, units in found.items():
        if "entropy" in units[0]:
            spans = [mean_interval(of_inputs) for of_inputs in np.array([unit["entropy"] for unit in units]).T]
            frame[entropy_column(variant)] = [span.value for span in spans]
            for end in ("low", "high", "n") if variant == "standard" else ():
                frame[end if end == "n" else f"entropy_{end}"] = [getattr(span, end) for span in spans]
        if "spread" in units[0]:
            name = "D" if variant == "standard" else f"D_{variant}"
            frame[name] = np.median([unit["spread"] for unit in units], axis=0)
    return frame


def _bounds_frame(found: Units) -> pd.DataFrame:
    """One row per variant, input and layer whose bounds are known."""
    return pd.DataFrame(
        {"arm": variant, "input": i, "layer": layer} | named_bounds(row)
        for variant, units in found.items()
        for i, unit in enumerate(units)
        for layer, row in enumerate(unit.get("bounds", ()))
        if np.isfinite(row[0])
    )
