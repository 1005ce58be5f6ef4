"""What the Gaussian study found: a table of heads, predicted beside measured, and the same with inputs left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.attention.layers import NOT_PRODUCTS
from headscape.intervals import Interval, jackknife
from headscape.studies.work.result import StudyResult

__all__ = ["GaussianResult", "over_inputs"]

Array = npt.NDArray[Any]
T = TypeVar("T")


def over_inputs(parts: Sequence[T], statistic: Callable[[T], float]) -> Interval:
    """A statistic of all inputs with its interval: parts[0] is made of all inputs, parts[1 + i] with input i left out."""
    n = max(1, len(parts) - 1)

    def value(chosen: npt.NDArray[np.intp]) -> float:
        missing = n * (n - 1) // 2 - int(chosen.sum())
        return float(statistic(parts[0 if len(chosen) == n else 1 + missing]))

    return jackknife(value, n)


def _derived(frame: pd.DataFrame) -> pd.DataFrame:
    """The table of heads with what findings and figures make of it."""
    sd = frame["variance"] ** 0.5
    return frame.assign(
        sd=sd,
        ratio_independent=frame["variance_independent"] ** 0.5 / sd,
        ratio_joint=frame["variance_joint"] ** 0.5 / sd,
        ratio_self=(frame["self_variance_predicted"] / frame["self_variance"]) ** 0.5,
        shift_independent=(frame["mean_independent"] - frame["mean"]).abs() / sd,
        shift_joint=(frame["mean_joint"] - frame["mean"]).abs() / sd,
        raised=(frame["self_mean"] - frame["mean"]) / sd,
        entropy_change=frame["entropy_measured"] - frame["entropy_values"],
        information_change=frame["information_measured"] - frame["information_values"],
        cosine_size=frame["cosine_partial"].abs(),
    )


_PRODUCTS = (
    "scores",
    "normal",
    "self",
    "temperature",
    *(f"chain_{link}" for link in ("variance", "ratio", "entropy", "mixing")),
)
"""Claims about scores that are scaled products of queries and keys."""
OVERVIEW = {
    "sd": "sd of scores",
    "ratio_independent": "sd predicted / measured, independent tokens",
    "ratio_joint": "sd predicted / measured, joint tokens",
    "shift_independent": "|mean predicted - measured| / sd, independent tokens",
    "ratio_self": "sd predicted / measured, token with itself",
    "kurtosis": "excess kurtosis of scores",
    "kurtosis_independent": "the same predicted, independent tokens",
    "kurtosis_joint": "the same predicted, joint tokens",
    "directions": "directions that carry the scores",
    "covariance_off": "covariance after attention, relative error if propagated",
    "trace_ratio": "its trace, propagated / measured",
    "entropy_change": "entropy of outputs less that of values (nats)",
    "information_values": "information of neighbours, values (nats)",
    "information_measured": "the same for outputs (nats)",
    "rank90": "singular values for 90 % of a map (log n = {log:.1f})",
    "cosine_partial": "rank correlation with embedding cosine, distance held fixed",
    "data_query": "variance of the inputs along the leading directions of W_q, over that of random ones",
    "data_key": "the same, W_k",
    "data_value": "the same, W_v",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class GaussianResult(StudyResult):
    """A model compared with its Gaussians.

    `heads` has one row per head with the columns of `statistics.layer.COLUMNS`; folds (n_input, n_head, n_column) has the same
    with each input left out. control and control_folds are those of random weights. information is (n_depth,
    n_distance, 1 + n_input): mutual information of tokens beyond that of shuffled pairs, before each layer and after
    the last, of all inputs and with each left out; information_facts (n_depth, n_distance, 3) by `statistics.layer.FACTS`. arrays
    holds, by name, depth/VERSION (n_input, n_depth, 2: residual, cosine), position/VERSION (n_depth,), divergence/VERSION
    (n_depth, n_fold, 2: Jensen-Shannon, null), floor/VERSION
    (1,: numerical precision), next/SOURCE/facts (n_input, n_fact) and /spectrum (n_input, k), and embedding/*.
    settings["left_out"] says what could not be measured and why.
    """

    study: ClassVar[str] = "gaussian"
    title: ClassVar[str] = "Do Gaussians explain attention?"

    block: str
    n_token: int
    causal: bool
    heads: pd.DataFrame
    folds: Array
    control: pd.DataFrame | None = None
    control_folds: Array | None = None
    distances: Sequence[int]
    information: Array | None = None
    information_facts: Array | None = None
    control_information: Array | None = None
    arrays: Mapping[str, Array] = field(default_factory=dict)
    neighbours: Sequence[Sequence[str]] = ()
    settings: Mapping[str, Any]

    @property
    def left_out(self) -> list[str]:
        """What could not be measured and why, of all layers or of some."""
        return [*self.settings.get("left_out", []), *sorted({note for note in self.heads["note"] if note})]

    @property
    def apart(self) -> dict[str, str]:
        """Claims that are not about this network, and why."""
        if self.has("variance") or not self.heads["note"].str.contains(NOT_PRODUCTS, regex=False).all():
            return {}
        return {f"gaussian.{name}": f"a claim about products of queries and keys; {NOT_PRODUCTS}" for name in _PRODUCTS}

    def to_frame(self) -> pd.DataFrame:
        """One row per head; its note only where some head has one."""
        return self.heads if self.heads["note"].astype(bool).any() else self.heads.drop(columns="note")

    def tables(self) -> dict[str, pd.DataFrame]:
        """The overview and the heads."""
        return {"overview": self.medians(), "heads": self.to_frame()}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The overview."""
        return [(f"Gaussians against the model, {len(self.heads)} heads", self.overview)]

    def has(self, column: str) -> bool:
        """Whether a column was measured for any head."""
        frame = self.frames["trained"][0]
        return column in frame and bool(frame[column].notna().any())

    @cached_property
    def frames(self) -> dict[str, list[pd.DataFrame]]:
        """The tables of heads of all inputs, and with each left out: "trained", and "random weights" where known."""
        sources = {"trained": (self.heads, self.folds), "random weights": (self.control, self.control_folds)}
        found = {}
        for name, (heads, folds) in sources.items():
            if heads is not None and folds is not None:
                columns = heads.columns.drop(["block", "layer", "head", "note"])
                tables = [heads, *(heads.assign(**dict(zip(columns, fold.T, strict=True))) for fold in folds)]
                found[name] = [_derived(table) for table in tables]
        return found

    def over_inputs(self, statistic: Callable[[pd.DataFrame], float], of: str = "trained") -> Interval:
        """A statistic of the table of heads, with its interval over inputs."""
        return over_inputs(self.frames[of], statistic)

    def median(self, column: str, of: str = "trained") -> Interval:
        """Median over heads, with its interval over inputs."""
        return self.over_inputs(lambda frame: frame[column].median(), of)

    @cached_property
    def overview(self) -> pd.DataFrame:
        """Medians over heads with 95 % intervals over inputs, of the model and of random weights."""
        return pd.DataFrame(
            {"median over heads of": what.format(log=np.log(self.n_token))}
            | {name: str(self.median(column, name)) for name in self.frames}
            for column, what in OVERVIEW.items()
            if self.has(column)
        )

    def medians(self) -> pd.DataFrame:
        """The same as numbers: value, ends and n of every interval."""
        rows = []
        for column in [name for name in OVERVIEW if self.has(name)]:
            row: dict[str, Any] = {"median over heads of": column}
            for name in self.frames:
                row |= self.median(column, name).columns(name)
            rows.append(row)
        return pd.DataFrame(rows)
