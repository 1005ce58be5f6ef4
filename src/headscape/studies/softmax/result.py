"""What the softmax study found: a table of heads, the verdict and the rule it follows, and how they are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError, safe_open

from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Interval, Result, bootstrap
from headscape.storage import ArrayWriter, replacing, write_json
from headscape.studies.softmax.head import COLUMNS

__all__ = ["ALL_VARIANTS", "HEAD_VARIANTS", "LAYER_VARIANTS", "SoftmaxResult", "within"]

Array = npt.NDArray[Any]

HEAD_VARIANTS = ("paraproduct", "corollary", "mean")
LAYER_VARIANTS = (*HEAD_VARIANTS, "paraproduct_raw")
ALL_VARIANTS = (*LAYER_VARIANTS, "corollary_raw", "boundary", "linear", "natural", "natural_corollary", "own")
"""What is put in place of one head, of a layer and of all heads. All but *_raw are clipped at 0 and renormalised. own
is softmax of the captured scores, which must change nothing."""

CLOSE = 0.1
"""Relative error up to which a decomposition counts as close to softmax; also how near to 0, in nats, averages must be
for e^average to be 1 within a tenth."""
NEARLY_ALL = 0.9
"""Share of heads that must pass for a claim about heads to hold."""
TWICE = 1.9
"""Ratio of exponents from which on the residual counts as twice as regular."""
UNITS = {"loss": "nats of loss", "state": "of the final hidden state (relative change)"}


def within(heads: pd.DataFrame, variant: str, tolerance: float) -> npt.NDArray[np.bool_]:
    """Which heads pass: the whole interval of the change lies within the tolerance; one input has only its value."""
    value = heads[f"change_{variant}"].to_numpy()
    low, high = (heads[f"change_{variant}_{end}"].to_numpy() for end in ("low", "high"))
    low, high = (np.where(np.isfinite(end), end, value) for end in (low, high))
    return np.asarray((low >= -tolerance) & (high <= tolerance))


@dataclass(frozen=True, eq=False)
class SoftmaxResult(Result):
    """Softmax invariance of every head, at three depths.

    `heads` has one row a head, the mean over inputs of everything `softmax_head.measure` gives, the changes when the
    head's map is replaced (`change_*` with intervals over inputs), and whether it passes. values is (n_input, n_column,
    n_head) by `COLUMNS`; control the same of random weights, (n_column, n_head). changes_head is (n_input, n_variant,
    n_head), changes_layer (n_input, n_variant, n_layer), changes_all (n_input, n_variant); base (n_input,) is the loss
    before. unit says what a change is: "loss" (nats), "state" (relative) or "" where none was measured. scales is (2,
    n_query_octave, n_key_octave): residual and exact mixed terms over ||softmax||, mean over heads of the first input.
    maps holds the matrices of the heads that are drawn.
    """

    study: ClassVar[str] = "softmax"
    title: ClassVar[str] = "Are heads invariant to softmax?"

    block: str
    unit: str
    tolerance: float
    heads: pd.DataFrame
    values: Array
    scales: Array
    control: Array | None
    changes_head: Array | None
    changes_layer: Array | None
    changes_all: Array | None
    base: Array | None
    maps: Mapping[str, Mapping[str, Array]]
    tokens: Mapping[str, list[str]]
    settings: Mapping[str, Any]

    # --- tables ------------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a head."""
        return self.heads

    @property
    def n_heads(self) -> int:
        """How many heads were looked at."""
        return len(self.heads)

    def median(self, column: str) -> float:
        """Median over heads of a column, NaN left out."""
        values = self.heads[column].to_numpy(dtype=np.float64)
        return float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")

    def change_all(self, variant: str) -> Interval:
        """Change when all heads are replaced at once, with its interval over inputs."""
        assert self.changes_all is not None
        return bootstrap(self.changes_all[:, ALL_VARIANTS.index(variant)])

    @cached_property
    def passing(self) -> pd.DataFrame:
        """By variant: medians over heads, the share of heads that are close, and that pass when put into the model."""
        rows = []
        for variant in ("corollary", "paraproduct", "boundary", "mean", "linear", "natural", "natural_corollary"):
            error = self.heads[f"{variant}_error"]
            row: dict[str, Any] = {
                "instead of softmax": variant,
                "error": float(error.median()),
                "KL": float(self.heads[f"{variant}_kl"].median()),
                "top 5": float(self.heads[f"{variant}_top5"].median()),
                f"error <= {CLOSE:g}": float((error <= CLOSE).mean()),
            }
            if self.unit:
                row["passes"] = float(self.passes(variant).mean()) if variant in HEAD_VARIANTS else float("nan")
                row["all at once"] = str(self.change_all(variant))
            rows.append(row)
        return pd.DataFrame(rows)

    def passes(self, variant: str) -> npt.NDArray[np.bool_]:
        """Which heads pass with this in place of softmax."""
        return within(self.heads, variant, self.tolerance)

    # --- sentences ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """The verdict first, then each depth, the assumption and the controls."""
        found = [self._verdict(), self._pointwise(), self._condition(), self._regular(), self._residual()]
        if self.unit:
            found.append(self._at_once())
        if self.control is not None:
            found.append(self._random())
        return found

    def _verdict(self) -> Finding:
        n = self.n_heads
        if not self.unit:
            share = float((self.heads["corollary_error"] <= CLOSE).mean())
            return Finding(
                f"{self._words(share)}: Corollary 1's decomposition is within {CLOSE:.0%} of softmax for "
                f"{round(share * n)} of {n} heads ({share:.0%}). What that does to the model was not measured.",
                "variants",
                share >= NEARLY_ALL,
            )
        own, uniform, paraproduct = (self.passes(name) for name in ("corollary", "mean", "paraproduct"))
        share = float(own.mean())
        needed = ~uniform
        among = (
            f"of the {int(needed.sum())} heads where it does not, Corollary 1 passes for {own[needed].mean():.0%}"
            if needed.any()
            else "no head needs its map"
        )
        return Finding(
            f"{self._words(share)}: within {self.tolerance:g} {UNITS[self.unit]}, {int(own.sum())} of {n} heads "
            f"({share:.0%}) can have softmax replaced by Corollary 1's decomposition and {paraproduct.mean():.0%} by "
            f"the paraproduct; uniform attention passes for {uniform.mean():.0%}, and {among}.",
            "change-heads",
            share >= NEARLY_ALL,
        )

    @staticmethod
    def _words(share: float) -> str:
        return "Heads are invariant to softmax" if share >= NEARLY_ALL else "Heads are not invariant to softmax"

    def _pointwise(self) -> Finding:
        names = ("corollary", "paraproduct", "boundary", "mean", "linear", "natural", "shuffled")
        e = {name: f"{self.median(f'{name}_error'):.2f}" for name in names}
        share = float((self.heads["paraproduct_error"] <= CLOSE).mean())
        return Finding(
            f"Pointwise, the median relative error is {e['paraproduct']} for the paraproduct and {e['corollary']} for "
            f"Corollary 1; {e['natural']} for the paraproduct in the natural order, {e['shuffled']} for that of "
            f"shuffled heads, {e['boundary']} for boundary terms alone, {e['linear']} for a + b g, {e['mean']} for the "
            f"mean. The paraproduct is within {CLOSE:.0%} for {share:.0%} of heads.",
            "variants",
            share >= NEARLY_ALL,
        )

    def _condition(self) -> Finding:
        share = float((self.heads["average_rms"] <= CLOSE).mean())
        return Finding(
            f"Corollary 1 needs averages near 0, so that e^average = 1: they are within {CLOSE:g} nats (rms) in "
            f"{share:.0%} of heads; the median head has {self.median('average_rms'):.2f}, at most "
            f"{self.median('average_max'):.1f}. Mixed differences are {self.median('mixed_rms'):.2f} nats (rms), "
            f"{self.median('mixed_share'):.0%} of the variance of log-attention.",
            "condition",
            share >= NEARLY_ALL,
        )

    def _regular(self) -> Finding:
        regular = self.heads["alpha_low"] > 0
        share = float(regular.mean())
        return Finding(
            f"Organised log-attention has a median Hoelder exponent of {self.median('alpha'):.2f} (natural order "
            f"{self.median('alpha_natural'):.2f}, shuffled {self.median('alpha_shuffled'):.2f}, white noise -0.5); "
            f"{share:.0%} of heads have one above 0, as Theorem 1 assumes.",
            "exponents",
            share >= NEARLY_ALL,
        )

    def _residual(self) -> Finding:
        regular = self.heads[(self.heads["alpha_low"] > 0) & (self.heads["alpha_coarse"] > 0)]
        if not len(regular):
            return Finding(
                "Theorem 1 promises a residual twice as regular as the head; no head is regular enough to ask "
                f"(the median exponent of the residual is {self.median('alpha_residual'):.2f}).",
                "exponents",
            )
        ratio = float((regular["alpha_residual"] / regular["alpha_coarse"]).median())
        return Finding(
            f"Of the {len(regular)} heads with an exponent above 0, the residual's is {ratio:.2f} times the head's at "
            "the median, the finest scale left out; Theorem 1 says 2, counting scales 1.5.",
            "exponents",
            ratio >= TWICE,
        )

    def _at_once(self) -> Finding:
        assert self.base is not None
        before = f" (loss before: {float(np.mean(self.base)):.2f})" if self.unit == "loss" else ""
        changes = {name: str(self.change_all(name)) for name in ("corollary", "paraproduct", "mean", "natural")}
        return Finding(
            f"All heads at once: {changes['corollary']} {UNITS[self.unit]} by Corollary 1, {changes['paraproduct']} by "
            f"the paraproduct, {changes['natural']} by the paraproduct in the natural order, {changes['mean']} with "
            f"uniform attention{before}.{self._off()}",
            "change-all",
            bool(abs(self.change_all("corollary").value) <= self.tolerance),
        )

    def _off(self) -> str:
        """Say so when softmax of the captured scores is not what the model computes."""
        own = self.change_all("own")
        if abs(own.value) <= self.tolerance / 10:
            return ""
        return (
            f" Careful: softmax of the captured scores itself changes it by {own}: capture with --dtype float32, and "
            "mind layers with a window or a sink."
        )

    def _random(self) -> Finding:
        assert self.control is not None
        rows = {name: self.control[COLUMNS.index(f"{name}_error")] for name in ("paraproduct", "corollary", "mean")}
        spread = self.control[COLUMNS.index("spread")]
        errors = {name: f"{float(np.nanmedian(row)):.2f}" for name, row in rows.items()}
        return Finding(
            f"With random weights the median error is {errors['paraproduct']} for the paraproduct, "
            f"{errors['corollary']} for Corollary 1 and {errors['mean']} for the mean: there log-attention spreads by "
            f"{float(np.nanmedian(spread)):.2f} nats, here by {self.median('spread'):.2f}.",
            "variants",
        )

    def figures(self) -> list[FigureSpec]:
        """The paper's figures 1 and 2 for some heads, errors, exponents, condition, scales and changes."""
        from headscape.studies.softmax.figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    _ARRAYS: ClassVar[tuple[str, ...]] = (
        *("values", "scales", "control", "changes_head", "changes_layer", "changes_all", "base"),
    )

    def save(self, folder: Path) -> None:
        """Write result.safetensors, heads.csv and result.json, the last of them last."""
        arrays = {name: getattr(self, name) for name in self._ARRAYS if getattr(self, name) is not None}
        arrays |= {f"map/{head}/{name}": array for head, maps in self.maps.items() for name, array in maps.items()}
        with replacing(folder / "heads.csv") as partial:
            self.heads.to_csv(partial, index=False, float_format="%.9g")
        with ArrayWriter(folder / "result.safetensors", len(arrays)) as writer:
            for name in sorted(arrays):
                writer.add(name, np.asarray(arrays[name]))
        facts = {name: getattr(self, name) for name in ("study", "block", "unit", "tolerance")}
        write_json(
            folder / "result.json",
            {**facts, "shown": list(self.maps), "tokens": dict(self.tokens), "settings": dict(self.settings)},
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            heads = pd.read_csv(folder / "heads.csv", dtype={"block": str, "note": str}, keep_default_na=True)
            heads["note"] = heads["note"].fillna("")
            with safe_open(folder / "result.safetensors", framework="np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            maps: dict[str, dict[str, Array]] = {head: {} for head in facts["shown"]}
            for name in arrays:
                if name.startswith("map/"):
                    _, head, which = name.split("/")
                    maps[head][which] = arrays[name]
            return cls(
                block=facts["block"],
                unit=facts["unit"],
                tolerance=facts["tolerance"],
                heads=heads,
                maps=maps,
                tokens=facts["tokens"],
                settings=facts["settings"],
                **{name: arrays.get(name) for name in cls._ARRAYS},  # type: ignore[arg-type]
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the softmax study in {folder} cannot be read ({error}); run it again") from None
