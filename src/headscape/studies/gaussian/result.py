"""What the Gaussian study found: a table of heads, predicted beside measured, and how it is stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError, safe_open

from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Interval, Result
from headscape.storage import ArrayWriter, replacing, write_json

__all__ = ["GaussianResult", "median_interval", "self_ratio"]

Array = npt.NDArray[Any]


def median_interval(values: npt.ArrayLike, random_state: int = 0, n_draws: int = 1000) -> Interval:
    """Median of values with a 95 % percentile interval over resampled values, NaN left out."""
    x = np.asarray(values, dtype=float)
    x = x[np.isfinite(x)]
    if not len(x):
        return Interval(float("nan"), float("nan"), float("nan"))
    draws = np.random.default_rng(random_state).integers(len(x), size=(n_draws, len(x)))
    low, high = np.quantile(np.median(x[draws], axis=1), [0.025, 0.975])
    return Interval(float(np.median(x)), float(low), float(high))


@dataclass(frozen=True, eq=False)
class GaussianResult(Result):
    """A model held against its Gaussians.

    `heads` has one row a head with the columns of `gaussian_layer.COLUMNS`; `control` the same of random weights.
    information is (n_depth, n_distance, 5) by `gaussian_layer.INFORMATION`, of the states before each layer and after
    the last. arrays holds, by name, depth/VERSION (n_input, n_depth, 2: residual, cosine), position/VERSION (n_depth,),
    next/SOURCE/facts (n_input, n_fact) and /spectrum (n_input, k), and embedding/*. settings["left_out"] says what
    could not be measured and why.
    """

    study: ClassVar[str] = "gaussian"
    title: ClassVar[str] = "Do Gaussians explain attention?"

    block: str
    n_token: int
    causal: bool
    heads: pd.DataFrame
    control: pd.DataFrame | None
    distances: Sequence[int]
    information: Array | None
    control_information: Array | None
    arrays: Mapping[str, Array]
    neighbours: Sequence[Sequence[str]]
    settings: Mapping[str, Any]

    # --- tables ------------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a head; its note only where some head has one."""
        return self.heads if self.heads["note"].astype(bool).any() else self.heads.drop(columns="note")

    @property
    def n_heads(self) -> int:
        """How many heads were looked at."""
        return len(self.heads)

    def has(self, column: str) -> bool:
        """Whether a column was measured of any head."""
        return bool(np.isfinite(self.heads[column].to_numpy(dtype=float)).any())

    def off(self, prediction: str, heads: pd.DataFrame | None = None) -> pd.DataFrame:
        """By head, how far a prediction ("independent", "joint") is off: mean in sd, sd relative, kurtosis."""
        frame = self.heads if heads is None else heads
        sd = np.sqrt(frame["variance"])
        return pd.DataFrame(
            {
                "mean": (frame[f"mean_{prediction}"] - frame["mean"]) / sd,
                "sd": np.sqrt(frame[f"variance_{prediction}"]) / sd - 1,
                "kurtosis": frame[f"kurtosis_{prediction}"] - frame["kurtosis"],
            }
        )

    @cached_property
    def overview(self) -> pd.DataFrame:
        """Medians over heads with 95 % intervals, of the model and of random weights."""
        rows: list[dict[str, str]] = []

        def add(what: str, values: Any) -> None:
            row = {"median over heads of": what, "trained": str(median_interval(values(self.heads)))}
            if self.control is not None:
                row["random weights"] = str(median_interval(values(self.control)))
            rows.append(row)

        if self.has("variance"):
            add("sd of scores", lambda f: np.sqrt(f["variance"]))
            for name in ("independent", "joint"):
                add(f"sd predicted / measured, {name} tokens", lambda f, n=name: 1 + self.off(n, f)["sd"])
            add(
                "|mean predicted - measured| / sd, independent tokens",
                lambda f: self.off("independent", f)["mean"].abs(),
            )
            add("sd predicted / measured, token with itself", self_ratio)
            add("excess kurtosis of scores", lambda f: f["kurtosis"])
            for name in ("independent", "joint"):
                add(f"the same predicted, {name} tokens", lambda f, n=name: f[f"kurtosis_{n}"])
            add("directions that carry the scores", lambda f: f["directions"])
        if self.has("covariance_off"):
            add("covariance after attention, relative error if propagated", lambda f: f["covariance_off"])
            add("its trace, propagated / measured", lambda f: f["trace_ratio"])
        if self.has("entropy_measured"):
            add("entropy of outputs less that of values (nats)", lambda f: f["entropy_measured"] - f["entropy_values"])
            add("information of neighbours, values (nats)", lambda f: f["information_values"])
            add("the same of outputs (nats)", lambda f: f["information_measured"])
        if self.has("rank90"):
            add(f"singular values for 90 % of a map (log n = {np.log(self.n_token):.1f})", lambda f: f["rank90"])
        if self.has("cosine_partial"):
            add("rank correlation with embedding cosine, distance taken out", lambda f: f["cosine_partial"])
        return pd.DataFrame(rows)

    # --- what the report asks for ------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Each statement of the thesis that can be put to this model, with the rule by which it holds or not."""
        from headscape.studies.gaussian.findings import findings

        return findings(self)

    def figures(self) -> list[FigureSpec]:
        """Its pictures, as plain data."""
        from headscape.studies.gaussian.figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write heads.csv, control.csv, result.safetensors and result.json, the last of them last."""
        arrays = dict(self.arrays) | {
            name: array
            for name, array in (("information", self.information), ("control_information", self.control_information))
            if array is not None
        }
        tables = {"heads": self.heads} | ({} if self.control is None else {"control": self.control})
        for name, table in tables.items():
            with replacing(folder / f"{name}.csv") as partial:
                table.to_csv(partial, index=False, float_format="%.9g")
        with ArrayWriter(folder / "result.safetensors", len(arrays)) as writer:
            for name in sorted(arrays):
                writer.add(name, np.asarray(arrays[name]))
        facts = {name: getattr(self, name) for name in ("study", "block", "n_token", "causal")}
        write_json(
            folder / "result.json",
            {
                **facts,
                "tables": list(tables),
                "distances": [int(r) for r in self.distances],
                "neighbours": [list(row) for row in self.neighbours],
                "settings": dict(self.settings),
            },
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            tables = {name: _read_table(folder / f"{name}.csv") for name in facts["tables"]}
            with safe_open(folder / "result.safetensors", framework="np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return cls(
                block=facts["block"],
                n_token=facts["n_token"],
                causal=facts["causal"],
                heads=tables["heads"],
                control=tables.get("control"),
                distances=facts["distances"],
                information=arrays.pop("information", None),
                control_information=arrays.pop("control_information", None),
                arrays=arrays,
                neighbours=facts["neighbours"],
                settings=facts["settings"],
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the Gaussian study in {folder} cannot be read ({error}); run it again") from None


def self_ratio(frame: pd.DataFrame) -> Array:
    """Predicted over measured sd of a token's score with itself, by head."""
    return np.asarray(np.sqrt(frame["self_variance_predicted"] / frame["self_variance"]))


def _read_table(path: Path) -> pd.DataFrame:
    table = pd.read_csv(path, dtype={"block": str, "note": str}, keep_default_na=True)
    table["note"] = table["note"].fillna("")
    return table
