"""What the spectra study found: tables of heads and matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, mean_interval
from headscape.statistics.spectra import MarchenkoPastur
from headscape.studies.work.result import StudyResult

__all__ = ["KIND_NAMES", "Histograms", "SpectraResult"]

Array = npt.NDArray[Any]
Side = Literal["above", "below"]
KIND_NAMES = {"q": "W_q", "k": "W_k", "v": "W_v", "o": "W_o", "gate": "W_gate", "up": "W_up", "down": "W_down"}


BINS, WIDEST = 40, 2.0  # of the histograms, in units of the upper edge


class Histograms(NamedTuple):
    """Densities of singular values over the upper edge of noise, by layer, and of noise; its lower edge; that of rounding."""

    centres: Array
    layers: dict[int, Array]
    law: Array
    lower: float
    rounding: float


@dataclass(frozen=True, eq=False)
class SpectraResult(StudyResult):
    """Spectra and alignments of a model's weights, beside noise and the model's initialization.

    `heads` has one row per query head: z and p of its base alignment, by_chance (the share of random rotations with |z|
    above 3), z_other (the same with a key head of another group), shared and shared_other (how far the leading singular
    vectors of W_q are those of W_k, `shared_directions`), the share of energy in the symmetric part of its
    score matrix, evenness of its own matrices and the participation ratio of its score matrix. `matrices` has one row
    per matrix, by `statistics.spectra.describe_spectrum`. The initial_* tables are those of random weights. values
    holds the singular values: "matrix/0007" of row 7 of matrices, "head/q/decoder.3" (n_head, dim) of the heads of a
    layer. rotary says whether positions are rotations: the alignment is then that at offset 0.
    """

    study: ClassVar[str] = "spectra"
    title: ClassVar[str] = "Do the weights look random?"

    heads: pd.DataFrame
    matrices: pd.DataFrame
    initial_heads: pd.DataFrame | None
    initial_matrices: pd.DataFrame | None
    values: Mapping[str, Array]
    rotary: bool
    notes: Sequence[str]
    settings: Mapping[str, Any]

    def tables(self) -> dict[str, pd.DataFrame]:
        """Medians by kind of matrix, then one row per matrix and per head."""
        return {"kinds": self.by_kind(), "matrices": self.matrices, "heads": self.heads}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """Medians by kind of matrix, those at initialization in brackets."""
        frame = self.by_kind()
        brackets = "; at initialization in brackets" if self.has_initial else ""
        for column in [name for name in frame if f"{name}, initial" in frame]:
            both = zip(frame[column], frame.pop(f"{column}, initial"), strict=True)
            frame[column] = ["-" if own != own else f"{own:.3g} ({first:.2g})" for own, first in both]
        return [(f"Matrices by kind, medians over layers{brackets}", frame)]

    @property
    def has_initial(self) -> bool:
        """Whether the initialization was measured too."""
        return self.initial_matrices is not None

    @property
    def quantized(self) -> str:
        """In how few bits the weights were stored, "" where they were not."""
        return str(self.settings.get("quantized", ""))

    def below_rounding(self, kind: str) -> float:
        """Share of the singular values of a kind below the largest that rounding of the weights alone would make."""
        own = self.of_kind(kind)
        return float(own["below_rounding"].sum() / np.minimum(own["rows"], own["columns"]).sum())

    @property
    def kinds(self) -> list[str]:
        """The kinds of matrices there are, in the order of a layer."""
        return [kind for kind in KIND_NAMES if (self.matrices["kind"] == kind).any()]

    @property
    def like_shapes(self) -> dict[str, list[str]]:
        """The kinds of matrices by their shape, smaller side first: only like shapes compare value by value."""
        found: dict[str, list[str]] = {}
        for kind in self.kinds:
            sides = sorted(int(side) for side in self.of_kind(kind).iloc[0][["rows", "columns"]])
            found.setdefault(" x ".join(map(str, sides)), []).append(kind)
        return found

    def of_kind(self, kind: str, initial: bool = False) -> pd.DataFrame:
        """The rows of one kind of matrix."""
        table = self.initial_matrices if initial else self.matrices
        assert table is not None
        return table[table["kind"] == kind]

    def mean(self, kind: str, column: str, initial: bool = False) -> Interval:
        """Mean of a column over the layers, with its interval."""
        return mean_interval(self.of_kind(kind, initial)[column].to_numpy())

    def difference(self, kind: str, other: str, column: str, log: bool = False, initial: bool = False) -> Array:
        """Difference of two kinds (of their logarithms), paired by layer: (n_layer,)."""
        keys = ["block", "layer"]
        pairs = self.of_kind(kind, initial).merge(self.of_kind(other, initial), on=keys, suffixes=("", "_other"))
        a, b = (pairs[name].to_numpy(dtype=float) for name in (column, f"{column}_other"))
        return np.asarray(np.log(a / b) if log else a - b)

    def share_outside(self, kind: str, side: Side, initial: bool = False) -> float:
        """Share of the singular values of a kind above or below the law of their matrix's own variance and shape.

        A square matrix has no lower edge, so nothing of it can lie below: NaN.
        """
        own = self.of_kind(kind, initial)
        if side == "below" and (own["rows"] == own["columns"]).all():
            return float("nan")
        return float(own[f"{side}_own"].sum() / np.minimum(own["rows"], own["columns"]).sum())

    def by_kind(self) -> pd.DataFrame:
        """By kind of matrix: medians over layers, and at initialization where that was measured."""
        rows = []
        for kind in self.kinds:
            own = self.of_kind(kind)
            row: dict[str, Any] = {
                "matrix": KIND_NAMES[kind],
                "shape": f"{int(own['rows'].iloc[0])} x {int(own['columns'].iloc[0])}",
                "stable rank": own["stable_rank"].median(),
                "above fit": own["above"].median(),
            }
            if self.quantized:
                row["below rounding"] = self.below_rounding(kind)
            for initial in (False, True)[: 1 + self.has_initial]:
                table = self.of_kind(kind, initial)
                found = {
                    "energy": table["energy"].median(),
                    "largest/edge": table["largest_over_law"].median(),
                    "evenness": table["evenness"].median(),
                    "above": self.share_outside(kind, "above", initial),
                    "below": self.share_outside(kind, "below", initial),
                }
                row |= {f"{name}, initial" if initial else name: value for name, value in found.items()}
            rows.append(row)
        return pd.DataFrame(rows)

    def beside_noise(self, kind: str, xavier: bool = False) -> Iterator[tuple[Array, Array]]:
        """Singular values of every matrix of a kind, and those of noise of the same energy, or of Xavier's variance."""
        for i, row in self.of_kind(kind).iterrows():
            m, n = int(row["rows"]), int(row["columns"])
            law = MarchenkoPastur(m, n, 2 / (m + n) if xavier else float(row["variance"]))
            yield self.values[f"matrix/{i:04d}"], law.expected

    def histograms(self, kind: str) -> Histograms:
        """How the singular values of a kind are distributed in three layers, beside the law of noise of the same energy.

        Each matrix is measured by the upper edge of noise of its own energy and shape, so that layers share one law.
        """
        rows = self.of_kind(kind)
        first = rows.iloc[0]
        law = MarchenkoPastur(int(first["rows"]), int(first["columns"]), 1.0)
        low, high = (edge**0.5 for edge in law.edges)
        edges = np.linspace(0, WIDEST, BINS + 1)
        centres = (edges[1:] + edges[:-1]) / 2
        layers = {}
        for i, row in rows.iloc[np.unique([0, len(rows) // 2, len(rows) - 1])].iterrows():
            scale = (MarchenkoPastur(int(row["rows"]), int(row["columns"]), float(row["variance"])).edges[1]) ** 0.5
            values = self.values[f"matrix/{i:04d}"] / scale
            layers[int(row["layer"])] = np.histogram(values, edges)[0] / len(values) * BINS / WIDEST
        expected = 2 * centres * high**2 * law.density((centres * high) ** 2)
        upper = rows["variance"] ** 0.5 * high
        floor = float((rows["rounding_edge"] / upper).median()) if "rounding_edge" in rows else 0.0
        return Histograms(centres, layers, np.asarray(expected), low / high, floor)

    def above_noise(self, kind: str, xavier: bool = False) -> float:
        """Share of the singular values of a kind above those of noise at the same rank, mean over matrices."""
        return float(np.mean([(own > noise).mean() for own, noise in self.beside_noise(kind, xavier)]))
