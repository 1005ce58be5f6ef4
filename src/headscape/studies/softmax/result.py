"""What the softmax study found: a table of heads, errors and changes, and the rule by which a head passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, mean_interval
from headscape.studies.softmax.head import COLUMNS, LATER_VARIANTS, VARIANTS
from headscape.studies.work.result import StudyResult

__all__ = ["ALL_VARIANTS", "CLOSE", "HEAD_VARIANTS", "LAYER_VARIANTS", "NAMES", "SoftmaxResult", "standing"]

Array = npt.NDArray[Any]

HEAD_VARIANTS = ("paraproduct", "corollary", "mean")
LAYER_VARIANTS = (*HEAD_VARIANTS, "paraproduct_raw")
ALL_VARIANTS = (
    *LAYER_VARIANTS,
    "corollary_raw",
    "boundary",
    "linear",
    "natural",
    "natural_corollary",
    "own",
    *LATER_VARIANTS,
)
"""What replaces the map of one head, of a layer and of all heads. All but *_raw are clipped at 0 and renormalized. own
is softmax of the captured scores, which must change nothing."""
NAMES = {
    "paraproduct": "paraproduct",
    "corollary": "Corollary 1",
    "boundary": "boundary terms alone",
    "mean": "mean alone (uniform)",
    "linear": "a + b g",
    "natural": "paraproduct, natural order",
    "natural_corollary": "Corollary 1, natural order",
    "shuffled": "paraproduct, shuffled head",
    "shuffled_corollary": "Corollary 1, shuffled head",
    "paraproduct_raw": "paraproduct, not renormalized",
    "corollary_raw": "Corollary 1, not renormalized",
    "own": "softmax itself",
    "second_order": "all terms of second order",
    "printed": "eq. 12 as printed",
}

CLOSE = 0.1
"""Relative error up to which a decomposition counts as close to softmax; also how near to 0, in nats, averages must be
for e^average to be 1 within a tenth."""


def standing(heads: pd.DataFrame, variant: str, tolerance: float) -> npt.NDArray[np.str_]:
    """Whether each head passes: yes (the whole interval of its change is within the tolerance), no (it is beyond), cannot tell."""
    low, high = (heads[f"change_{variant}_{end}"].to_numpy() for end in ("low", "high"))
    passes, fails = (low >= -tolerance) & (high <= tolerance), (low > tolerance) | (high < -tolerance)
    return np.where(passes, "yes", np.where(fails, "no", "cannot tell"))


@dataclass(frozen=True, eq=False)
class SoftmaxResult(StudyResult):
    """Softmax invariance of every head, at three depths.

    `heads` has one row per head: the mean over inputs of everything `softmax.head.measure` returns, the changes when
    the head's map is replaced (`change_*` with intervals over inputs), and whether it passes. values is (n_input,
    n_column, n_head) by `COLUMNS`; control the same for random weights, (n_column, n_head). changes_head is (n_input,
    n_variant, n_head), changes_layer (n_input, n_variant, n_layer), changes_all (n_input, n_variant); base (n_input,)
    is the loss before. unit says what a change is: "loss" (nats), "state" (relative) or "" where none was measured.
    scales is (2, n_query_octave, n_key_octave): residual and exact mixed terms over ||softmax||, mean over heads on the
    first input. maps holds the matrices of the heads that are drawn.
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

    def tables(self) -> dict[str, pd.DataFrame]:
        """What can replace softmax, and one row per head."""
        return {"variants": self.variants, "heads": self.heads}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """What can replace softmax."""
        return [
            (f"What can replace softmax: medians over {self.n_heads} heads, and shares of them", self.named_variants())
        ]

    @property
    def n_heads(self) -> int:
        """How many heads were measured."""
        return len(self.heads)

    @property
    def n_every(self) -> int:
        """How many heads the block has; those measured, where an earlier version kept the result."""
        return int(self.settings.get("of", self.n_heads))

    @property
    def unit_name(self) -> str:
        """What a change is, in words."""
        return {"loss": "nats of loss", "state": "of the final hidden state (relative change)", "": ""}[self.unit]

    def column(self, name: str) -> Array:
        """A measure of every head on every input, (n_input, n_head)."""
        return np.asarray(self.values[:, COLUMNS.index(name)])

    def median(self, column: str) -> float:
        """Median over heads of a column, NaN left out."""
        return float(self.heads[column].median())

    def change_all(self, variant: str) -> Interval:
        """Change when all heads are replaced at once, with its interval over inputs."""
        assert self.changes_all is not None
        return mean_interval(self.changes_all[:, ALL_VARIANTS.index(variant)])

    def standing(self, variant: str) -> npt.NDArray[np.str_]:
        """Whether each head passes with this in place of softmax: yes, no, cannot tell."""
        return standing(self.heads, variant, self.tolerance)

    @cached_property
    def variants(self) -> pd.DataFrame:
        """By variant: medians over heads, the share of heads that are close, and that pass or fail in the model."""
        rows = []
        known = [name for name in VARIANTS if f"{name}_error" in self.heads]  # older results have fewer
        for variant in sorted(known, key=lambda name: name != "corollary"):
            error = self.heads[f"{variant}_error"]
            row: dict[str, Any] = {"instead of softmax": variant, "error": float(error.median())}
            row |= {"KL": self.median(f"{variant}_kl"), "top 5": self.median(f"{variant}_top5")}
            row[f"error <= {CLOSE:g}"] = float((error <= CLOSE).mean())
            if self.unit:
                here = self.standing(variant) if variant in HEAD_VARIANTS else None
                row |= {
                    name: np.nan if here is None else (here == said).mean()
                    for name, said in (("passes", "yes"), ("fails", "no"))
                }
                row |= self.change_all(variant).columns("all at once")
            rows.append(row)
        return pd.DataFrame(rows)

    def named_variants(self) -> pd.DataFrame:
        """The same with names for people, and intervals as text."""
        names = list(self.variants["instead of softmax"])
        frame = self.variants.assign(**{"instead of softmax": [NAMES[name] for name in names]})
        if not self.unit:
            return frame
        frame = frame.drop(columns=[f"all at once_{end}" for end in ("low", "high", "n")])
        return frame.assign(**{"all at once": [str(self.change_all(name)) for name in names]})
