"""What the collapse study found of a model: its tables, by layer and by head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.collapse.similarity import Similarity, summary_of
from headscape.intervals import Interval, geometric_interval
from headscape.studies.work.result import StudyResult

__all__ = ["FOUR", "CollapseResult", "entropy_column", "four_of"]

Array = npt.NDArray[Any]
FOUR = ("standard", "hidden", "no skip", "no skip, hidden")
"""The four variants: skip and a' = 0, skip and a' > 0, no skip and a' = 0, no skip and a' > 0."""


def four_of(weights: str) -> tuple[str, ...]:
    """The four variants of the model ("") or of random weights ("random")."""
    return FOUR if not weights else ("random", *(f"random, {name}" for name in FOUR[1:]))


def entropy_column(variant: str) -> str:
    """The column of `heads` that holds the entropies of a variant."""
    return "entropy" if variant == "standard" else "entropy_" + variant.replace(", ", "_").replace(" ", "_")


@dataclass(frozen=True, eq=False)
class CollapseResult(StudyResult):
    """Collapse of tokens and of attention along depth, in every variant of the model (`arm` in the tables).

    The first variant is the model itself. `heads` has one row per head: mean entropy of its rows by variant (divided by
    the largest possible; with an interval over inputs for the first), and D of its scores. residual and rank are
    (n_variant, n_input, n_layer + 1): before the first layer and after each. similarity and different are histograms of
    cosines (n_variant, n_input, n_layer + 1, n_bin), of all pairs of tokens and of pairs of different ones; entropy is
    (n_variant, n_input, n_head), entropies the histograms of attention rows (n_variant, n_layer, n_bin) over all inputs.
    floor (n_variant,): a residual below it is round-off. bounds has one row per variant, input and layer. Arrays are
    None where nothing is known.
    """

    study: ClassVar[str] = "collapse"
    title: ClassVar[str] = "Do tokens and attention collapse along depth?"

    block: str
    variants: tuple[str, ...]
    heads: pd.DataFrame
    residual: Array | None
    rank: Array | None
    similarity: Array | None
    different: Array | None
    entropy: Array | None
    entropies: Array | None
    floor: Array | None
    bounds: pd.DataFrame
    causal: bool
    notes: tuple[str, ...]
    settings: Mapping[str, Any]

    def tables(self) -> dict[str, pd.DataFrame]:
        """The variants after the last layer, all layers, the bounds and the heads."""
        return {"arms": self.by_variant, "layers": self.by_layer, "bounds": self.bounds, "heads": self.heads}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The variants after the last layer."""
        return [("After the last layer", self.by_variant.rename(columns={"arm": "variant"}))]

    @property
    def n_layers(self) -> int:
        """How many layers the block has."""
        return int(self.heads["layer"].nunique())

    def at(self, variant: str) -> int:
        """The index of a variant."""
        return self.variants.index(variant)

    def residuals(self, variant: str) -> Array:
        """Relative residuals (n_input, n_layer + 1), none below the round-off of the variant."""
        assert self.residual is not None
        assert self.floor is not None
        found: Array = np.maximum(self.residual[self.at(variant)], self.floor[self.at(variant)])
        return found

    def round_off(self, variant: str, layer: int = -1) -> Array:
        """Whether the residual of each input after a layer is no larger than round-off, (n_input,)."""
        assert self.floor is not None
        return np.asarray(self.residuals(variant)[:, layer] <= self.floor[self.at(variant)])

    def is_round_off(self, variant: str, layer: int = -1) -> bool:
        """Whether the residual of an input after a layer is no larger than round-off: then there is no mean of them."""
        return bool(self.round_off(variant, layer).any())

    def interval(self, variant: str, layer: int = -1) -> Interval:
        """Geometric mean over inputs of the relative residual after a layer, with its interval.

        Where inputs are round-off it is the largest, a bound without an interval. None is above 2: subtracting the mean
        row at most doubles either norm.
        """
        values, lost = self.residuals(variant)[:, layer], int(self.round_off(variant, layer).sum())
        if lost:
            why = "round-off" if lost == len(values) else f"at most that; {lost} are round-off"
            return Interval(float(values.max()), n=len(values), why=why)
        assert self.floor is not None
        return geometric_interval(values).within(float(self.floor[self.at(variant)]), 2.0)

    def alike(self, variant: str, different: bool = False) -> list[Similarity]:
        """Mode, median, mean and share of similarities over all inputs, before the first layer and after each."""
        counts = self.different if different else self.similarity
        assert counts is not None
        return [summary_of(layer) for layer in counts[self.at(variant)].sum(axis=0)]

    def alike_by_input(self, variant: str, what: str) -> Array:
        """One of mode, median, mean and share for each input and layer, (n_input, n_layer), from the first layer on."""
        assert self.similarity is not None
        counts = self.similarity[self.at(variant), :, 1:]
        return np.array([[getattr(summary_of(layer), what) for layer in layers] for layers in counts])

    @property
    def by_layer(self) -> pd.DataFrame:
        """One row per variant and layer; layer 0 is before the first."""
        rows = []
        for variant in self.variants if self.residual is not None else ():
            assert self.rank is not None
            alike = self.alike(variant)
            unlike = (
                [s.share for s in self.alike(variant, True)] if self.different is not None else [np.nan] * len(alike)
            )
            for n, similarity in enumerate(alike):
                span = self.interval(variant, n)
                row: dict[str, Any] = {"arm": variant, "layer": n, "residual": span.value, "residual_low": span.low}
                row |= {"residual_high": span.high, "n": span.n, "rank": self.rank[self.at(variant), :, n].mean()}
                rows.append(row | similarity._asdict() | {"share_different": unlike[n]})
        return pd.DataFrame(rows)

    @property
    def by_variant(self) -> pd.DataFrame:
        """One row per variant: what is left after the last layer, and the mean entropy over all heads."""
        names = {"mode": "mode", "share": "alike"}
        columns = ["arm", "residual", "residual_low", "residual_high", "n", "rank", *names]
        frame = pd.DataFrame({"arm": self.variants})
        if self.residual is not None:
            layers = self.by_layer
            frame = (
                layers.loc[layers["layer"] == layers["layer"].max(), columns]
                .rename(columns=names)
                .reset_index(drop=True)
            )
        if self.entropies is not None:
            frame["entropy"] = [self.heads[entropy_column(variant)].mean() for variant in self.variants]
        return frame
