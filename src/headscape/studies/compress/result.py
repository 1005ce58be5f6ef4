"""What compression found: errors of the maps and changes of the model by share of numbers kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import mean_interval
from headscape.studies.work.result import StudyResult

__all__ = ["NAMES", "WAYS", "CompressResult"]

Array = npt.NDArray[Any]
WAYS = ("organized", "supports", "natural", "permuted", "svd")
NAMES = {
    "organized": "organized",
    "supports": "largest supports",
    "natural": "natural order",
    "permuted": "permuted leaves",
    "svd": "singular values",
}


@dataclass(frozen=True, eq=False)
class CompressResult(StudyResult):
    """Maps rebuilt from few numbers.

    error is (n_input, n_way, n_share) by `WAYS`: the relative error of the maps as the model gets them; raw that before
    clipping and renormalizing; change that of the loss in nats, or of the final state ("state"), with all maps replaced.
    alpha (n_input, n_head) are the mixed Hölder exponents of the heads on the organized trees.
    """

    study: ClassVar[str] = "compress"
    title: ClassVar[str] = "How few coefficients does a network need?"

    shares: Array
    error: Array
    raw: Array
    alpha: Array
    change: Array | None
    unit: str
    settings: Mapping[str, Any]

    @cached_property
    def rates(self) -> dict[str, Array]:
        """How fast the error falls with the numbers kept, by way: - d log error / d log k for every input."""
        x = np.log(self.shares) - np.log(self.shares).mean()
        y = np.log(np.maximum(self.raw, 1e-12))
        spread = float(x @ x) or np.nan  # one share has no rate
        return {way: -(y[:, w] * x).sum(axis=1) / spread for w, way in enumerate(WAYS)}

    @cached_property
    def exponents(self) -> Array:
        """The mixed Hölder exponent of the median head, by input: the rate that the theorem promises, if above 0."""
        return np.array([np.nanmedian(row) if np.isfinite(row).any() else np.nan for row in self.alpha])

    def nearest(self, share: float) -> int:
        """Which of the shares is nearest to this one."""
        return int(np.abs(self.shares - share).argmin())

    def of(self, values: Array, way: str, share: float) -> Array:
        """One number per input: a way at the share nearest to the one that is named."""
        return np.asarray(values[:, WAYS.index(way), self.nearest(share)])

    def to_frame(self) -> pd.DataFrame:
        """One row per method and share of numbers kept."""
        rows = []
        for way in WAYS:
            for share in self.shares:
                row = {"from": NAMES[way], "kept": float(share)}
                row |= mean_interval(self.of(self.error, way, share)).columns("error")
                if self.change is not None:
                    row |= mean_interval(self.of(self.change, way, share)).columns("change")
                rows.append(row)
        return pd.DataFrame(rows)

    def tables(self) -> dict[str, pd.DataFrame]:
        """One row per method and share of numbers kept."""
        return {"curves": self.to_frame()}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """Errors by share of numbers kept."""
        wide = self.to_frame().pivot(index="from", columns="kept", values="error").loc[[NAMES[way] for way in WAYS]]
        return [("Relative error of the maps, by share of numbers kept", wide.reset_index())]
