"""What the spectra study found: tables of heads and matrices, what they say of the thesis, and how they are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError
from scipy.stats import binom

from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Interval, Result, bootstrap
from headscape.statistics.alignment import BEYOND
from headscape.statistics.spectra import MarchenkoPastur
from headscape.storage import replacing, write_json
from headscape.studies.work.old import read_arrays, write_arrays

__all__ = ["KIND_NAMES", "SpectraResult"]

Array = npt.NDArray[Any]
KIND_NAMES = {"q": "W_q", "k": "W_k", "v": "W_v", "o": "W_o", "gate": "W_gate", "up": "W_up", "down": "W_down"}
CHANCE = 0.99
"""How sure one must be that more heads stand out than rotations would make."""


@dataclass(frozen=True, eq=False)
class SpectraResult(Result):
    """Spectra and alignments of a model's weights, beside noise and the model's initialisation.

    `heads` has one row a query head: z and p of its base alignment, by_chance (the share of random rotations with |z|
    above 3), z_other (the same with a key head of another group), the share of energy in the symmetric part of its
    score matrix, evenness of its own matrices and the participation ratio of its score matrix. `matrices` has one row a
    matrix, by `statistics.spectra.COLUMNS`. The initial_* tables are those of random weights. values holds the singular
    values: "matrix/0007" of row 7 of matrices, "head/q/decoder.3" (n_head, dim) of the heads of a layer. rotary says
    whether positions are rotations: the alignment is then that at offset 0.
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

    # --- tables ------------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a head."""
        return self.heads

    @property
    def kinds(self) -> list[str]:
        """The kinds of matrices there are, in the order of a layer."""
        return [kind for kind in KIND_NAMES if (self.matrices["kind"] == kind).any()]

    def of_kind(self, kind: str, initial: bool = False) -> pd.DataFrame:
        """The rows of one kind of matrix."""
        table = self.initial_matrices if initial else self.matrices
        assert table is not None
        return table[table["kind"] == kind]

    def mean(self, kind: str, column: str, initial: bool = False) -> Interval:
        """Mean of a column over the layers, with its interval."""
        return bootstrap(self.of_kind(kind, initial)[column].to_numpy())

    def difference(self, kind: str, other: str, column: str, log: bool = False) -> Interval:
        """Mean over layers of the difference of two kinds, paired by layer, with its interval."""
        keys = ["block", "layer"]
        pairs = self.of_kind(kind).merge(self.of_kind(other), on=keys, suffixes=("", "_other"))
        a, b = pairs[column].to_numpy(dtype=float), pairs[f"{column}_other"].to_numpy(dtype=float)
        return bootstrap(np.log(a / b) if log else a - b)

    def summary(self) -> pd.DataFrame:
        """By kind of matrix: medians over layers, and at initialisation where that was looked at."""
        rows = []
        for kind in self.kinds:
            own = self.of_kind(kind)
            row: dict[str, Any] = {
                "matrix": KIND_NAMES[kind],
                "shape": f"{int(own['rows'].iloc[0])} x {int(own['columns'].iloc[0])}",
                "energy": own["energy"].median(),
                "largest/edge": own["largest_over_law"].median(),
                "stable rank": own["stable_rank"].median(),
                "evenness": own["evenness"].median(),
                "outside": self.share_outside(kind),
                "above fit": own["above"].median(),
            }
            if self.initial_matrices is not None:
                first = self.of_kind(kind, initial=True)
                row |= {
                    "energy, initial": first["energy"].median(),
                    "largest/edge, initial": first["largest_over_law"].median(),
                    "evenness, initial": first["evenness"].median(),
                    "outside, initial": self.share_outside(kind, initial=True),
                }
            rows.append(row)
        return pd.DataFrame(rows)

    def share_outside(self, kind: str, initial: bool = False) -> float:
        """Share of all singular values of a kind that lie outside the law of their matrix's own variance and shape."""
        own = self.of_kind(kind, initial)
        n = np.minimum(own["rows"], own["columns"]).sum()
        return float((own["above_own"] + own["below_own"]).sum() / n)

    def above_noise(self, kind: str, xavier: bool = False) -> Array:
        """Share of every matrix's singular values above those of noise at the same rank, (n_matrix,).

        Noise of the same energy, or of Xavier's variance 2/(m + n).
        """
        shares = []
        for i, row in self.of_kind(kind).iterrows():
            m, n = int(row["rows"]), int(row["columns"])
            law = MarchenkoPastur(m, n, 2 / (m + n) if xavier else float(row["variance"]))
            shares.append(float((self.values[f"matrix/{i:04d}"] > law.expected).mean()))
        return np.array(shares)

    # --- sentences ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """What the thesis says of spectra, then alignment, then what was left out."""
        found = [self._sparser(), self._pressed(), self._above(), self._outliers(), self._aligned(), self._symmetric()]
        return found + [Finding(note) for note in self.notes[:3]]

    def _initial(self, text: str) -> str:
        return f"; at initialisation {text}" if self.initial_matrices is not None else ""

    def _sparser(self) -> Finding:
        even = {kind: self.mean(kind, "evenness") for kind in ("q", "k", "v")}
        gaps = {kind: self.difference(kind, "v", "evenness") for kind in ("q", "k")}
        sparser = {kind: _high(gap) < 0 for kind, gap in gaps.items()}
        both = all(sparser.values())
        which = (
            "both are"
            if both
            else "neither is"
            if not any(sparser.values())
            else f"only W_{'q' if sparser['q'] else 'k'} is"
        )
        first = self._initial(
            ", ".join(f"{self.mean(kind, 'evenness', True).value:.2f}" for kind in even)
            if self.initial_matrices is not None
            else ""
        )
        return Finding(
            f"Are W_q and W_k sparser than W_v? By the participation ratio of the spectrum over that of noise of the "
            f"same shape, {which}: W_q {even['q']}, W_k {even['k']}, W_v {even['v']}{first}. Paired by layer, "
            f"W_q - W_v is {gaps['q']}, W_k - W_v {gaps['k']}.",
            "evenness",
            both,
        )

    def _pressed(self) -> Finding:
        energy = {kind: self.mean(kind, "energy") for kind in ("q", "k", "v")}
        ratios = {kind: self.difference(kind, "v", "energy", log=True) for kind in ("q", "k")}
        low = all(_high(ratio) < 0 for ratio in ratios.values())
        first = self._initial(
            ", ".join(f"{self.mean(kind, 'energy', True).value:.2g}" for kind in energy)
            if self.initial_matrices is not None
            else ""
        )
        return Finding(
            "The thesis finds the energy of W_q and W_k pressed to a tenth or a twentieth of Xavier's, that of W_v "
            f"kept. Here, over Xavier's: W_q {energy['q']}, W_k {energy['k']}, W_v {energy['v']}{first}. W_q has "
            f"{np.exp(ratios['q'].value):.2f} times the energy of W_v a layer, W_k {np.exp(ratios['k'].value):.2f} "
            "times (geometric means).",
            "energy",
            low,
        )

    def _above(self) -> Finding:
        shares = {kind: bootstrap(self.above_noise(kind)) for kind in ("q", "k", "v")}
        xavier = {kind: float(self.above_noise(kind, xavier=True).mean()) for kind in shares}
        return Finding(
            "Of the singular values, those above noise of the same energy at the same rank are "
            + ", ".join(f"{s.value:.0%} for W_{kind}" for kind, s in shares.items())
            + "; above noise of Xavier's variance, the thesis' measure (about 10 % there), "
            + ", ".join(f"{share:.0%} for W_{kind}" for kind, share in xavier.items())
            + ".",
            "against-noise",
        )

    def _outliers(self) -> Finding:
        parts = []
        for kind in self.kinds:
            initial = f" ({self.share_outside(kind, True):.1%})" if self.initial_matrices is not None else ""
            parts.append(f"{KIND_NAMES[kind]} {self.share_outside(kind):.0%}{initial}")
        brackets = ", at initialisation in brackets" if self.initial_matrices is not None else ""
        return Finding(
            "Singular values outside the law of Marchenko and Pastur for the matrix's own variance and shape"
            f"{brackets}: {', '.join(parts)}. Noise has 1 % of matrices with one such value.",
            "outside",
        )

    def _aligned(self) -> Finding:
        z = self.heads["z"].to_numpy()
        n, beyond = len(z), int((np.abs(z) > BEYOND).sum())
        chance = float(self.heads["by_chance"].mean())
        at_most = int(binom.ppf(CHANCE, n, chance))
        initial = ""
        if self.initial_heads is not None:
            count = int((np.abs(self.initial_heads["z"]) > BEYOND).sum())
            initial = f", {count} at initialisation"
        other = self.heads["z_other"].to_numpy()
        if np.isfinite(other).any():
            initial += f"; with the keys of another group there are {int((np.abs(other) > BEYOND).sum())}"
        offset = " With rotary positions this is the alignment at offset 0." if self.rotary else ""
        return Finding(
            f"{beyond} of {n} heads have a base alignment |z| > {BEYOND:g} ({int((z > BEYOND).sum())} align, "
            f"{int((z < -BEYOND).sum())} oppose queries and keys); random rotations make {n * chance:.1f} such heads, "
            f"{at_most} at most in {CHANCE:.0%} of cases{initial}. The thesis takes the alignment for that of random "
            f"matrices, which would have a spread of 1; here it is {z.std():.1f}.{offset}",
            "alignment",
            beyond <= at_most,
        )

    def _symmetric(self) -> Finding:
        share = bootstrap(self.heads["symmetric"].to_numpy())
        initial = ""
        if self.initial_heads is not None:
            initial = f" (at initialisation {bootstrap(self.initial_heads['symmetric'].to_numpy())})"
        return Finding(
            f"The symmetric part of W_q^T W_k holds {share} of its energy, mean over heads{initial}; 0.5 is what "
            f"unrelated matrices have. {int((self.heads['symmetric'] > 0.6).sum())} heads have more than 0.6, "
            f"{int((self.heads['symmetric'] < 0.4).sum())} less than 0.4.",
            "symmetric",
        )

    # --- figures -----------------------------------------------------------------------------------------------------

    def figures(self) -> list[FigureSpec]:
        """Table, spectra against noise, by layer, alignment by head."""
        from headscape.studies.spectra.figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    _TABLES: ClassVar[tuple[str, ...]] = ("heads", "matrices", "initial_heads", "initial_matrices")

    def save(self, folder: Path) -> None:
        """Write four CSV tables, result.safetensors and result.json, the last of them last."""
        for name in self._TABLES:
            table = getattr(self, name)
            if table is not None:
                with replacing(folder / f"{name}.csv") as partial:
                    table.to_csv(partial, index=False, float_format="%.9g")
        write_arrays(folder / "result.safetensors", self.values)
        facts = {"study": self.study, "rotary": self.rotary, "notes": list(self.notes)}
        tables = [name for name in self._TABLES if getattr(self, name) is not None]
        write_json(folder / "result.json", {**facts, "tables": tables, "settings": dict(self.settings)})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            tables = {
                name: pd.read_csv(folder / f"{name}.csv", dtype={"block": str}) if name in facts["tables"] else None
                for name in cls._TABLES
            }
            return cls(
                **tables,  # type: ignore[arg-type]
                values=read_arrays(folder / "result.safetensors")[0],
                rotary=facts["rotary"],
                notes=facts["notes"],
                settings=facts["settings"],
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the spectra study in {folder} cannot be read ({error}); run it again") from None


def _high(interval: Interval) -> float:
    """The upper end; the value itself where one layer leaves no interval."""
    return interval.high if np.isfinite(interval.high) else interval.value
