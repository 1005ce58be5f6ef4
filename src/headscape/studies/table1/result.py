"""What table 1 found: relative residuals by depth, beside the printed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.collapse.residual import roundoff
from headscape.studies.work.result import StudyResult

__all__ = ["PRINTED", "Table1Result"]

Array = npt.NDArray[Any]
PRINTED = {
    "self-attention": (
        *(0.48887348, 0.07732825, 0.00081001734, 1.7725031e-6, 1.809994e-6, 1.7835139e-6),
        *(1.7920005e-6, 1.7568021e-6, 1.75397e-6, 1.7860738e-6, 1.82849e-6, 1.7818496e-6),
    ),
    "MHA": (
        *(0.8797747, 0.8309065, 0.80018705, 0.7630522, 0.71199465, 0.67957425),
        *(0.6251911, 0.5860811, 0.52244353, 0.46130562, 0.432442, 0.39708787),
    ),
}
"""The two columns as printed; the scan lost the exponents from depth 4 on except for one, which is -6."""


@dataclass(frozen=True, eq=False)
class Table1Result(StudyResult):
    """The relative residual by depth of attention-only networks, and their bounds.

    residual is (n_setting, n_variant, n_seed, depth): the mean over images of each seed's network. bounds has one row
    per setting, variant (`cell` in the tables) and depth, for the first image and seed: the output of attention before
    any skip. along has one per seed and depth, for networks without norm and skip: what is left of the residual and
    what bounds it from the first layer on, as log10 (`headscape.collapse.attention_only.along_depth`).
    """

    study: ClassVar[str] = "table1"
    title: ClassVar[str] = "Table 1: networks of attention alone"

    names: tuple[str, ...]
    variants: tuple[str, ...]
    residual: Array
    bounds: pd.DataFrame
    along: pd.DataFrame
    settings: Mapping[str, Any]

    @property
    def depth(self) -> int:
        """Layers of the networks."""
        return int(self.residual.shape[3])

    def column(self, setting: str, variant: str) -> Array:
        """Relative residuals of one setting and variant, (n_seed, depth)."""
        found: Array = self.residual[self.names.index(setting), self.variants.index(variant)]
        return found

    def decades(self, setting: str, variant: str) -> Array:
        """The same as log10, none below the round-off of float64."""
        found: Array = np.log10(np.maximum(self.column(setting, variant), roundoff()))
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row per setting, variant and depth: mean over seeds and images, and the smallest and largest seed."""
        return pd.DataFrame(
            {"setting": setting, "cell": variant, "depth": n + 1, "mean": v.mean(), "min": v.min(), "max": v.max()}
            for setting in self.names
            for variant in self.variants
            for n, v in enumerate(self.column(setting, variant).T)
        )

    def _by_depth(self, columns: Mapping[str, Any]) -> pd.DataFrame:
        """One row per depth, the printed columns beside those given."""
        printed = {f"printed: {name}": pd.Series(values[: self.depth]) for name, values in PRINTED.items()}
        return pd.DataFrame({"depth": np.arange(1, self.depth + 1), **columns, **printed})

    @property
    def table(self) -> pd.DataFrame:
        """Table 1 with the four variants of every setting: the mean over seeds and images."""
        places = [(setting, variant) for setting in self.names for variant in self.variants]
        return self._by_depth({f"{s}: {v}": self.column(s, v).mean(axis=0) for s, v in places})

    def shown(self, setting: str) -> pd.DataFrame:
        """Table 1 of a setting for readers: the mean, and in brackets the smallest and largest seed."""
        columns = {variant: self.column(setting, variant).T for variant in self.variants}
        cells = {n: [f"{v.mean():.2g} [{v.min():.1g}, {v.max():.1g}]" for v in c] for n, c in columns.items()}
        return self._by_depth(cells)

    def theorem(self, variant: str) -> pd.DataFrame:
        """By depth: decades of the residual and of its bounds in a variant without norm and skip, means over seeds.

        What is measured is missing where it is round-off for some seed.
        """
        here = self.along[self.along["cell"] == variant]
        real = (here["measured"] > here["floor"]).groupby(here["depth"]).all()
        means = here.groupby("depth")[["measured", "repaired", "corrected", "printed"]].mean()
        return means.assign(measured=means["measured"].where(real))

    @property
    def shown_theorem(self) -> pd.DataFrame:
        """The same for readers, for both variants: powers of ten."""
        columns: dict[str, Any] = {"depth": np.arange(1, self.depth + 1)}
        titles = {"measured": "measured", "repaired": "repaired", "corrected": "D.3", "printed": "D.3 as printed"}
        for variant in self.variants[:2]:
            for name, values in self.theorem(variant).items():
                shown = [f"{x:.1f}" if np.isfinite(x) else "round-off" for x in values]
                columns[f"{titles[str(name)]}, {variant.removeprefix('no skip, ')}"] = shown
        return pd.DataFrame(columns)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Table 1, the same with the spread over seeds, and the bounds along depth."""
        return {"table": self.table, "cells": self.to_frame(), "along": self.along}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """Table 1 for each setting, and Theorem D.3."""
        found = [(f"Table 1, {name}: mean [smallest, largest seed]", self.shown(name)) for name in self.names]
        return [*found, ("Theorem D.3 beside the residual without norm and skip, powers of ten", self.shown_theorem)]
