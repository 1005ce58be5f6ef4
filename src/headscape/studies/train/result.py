"""What the training comparison found: a table of runs, loss curves, token similarity by layer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError
from scipy.stats import t as student

from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Interval, Result
from headscape.storage import replacing, write_json
from headscape.studies.work.old import read_arrays, write_arrays

__all__ = ["TrainResult", "t_interval"]

Array = npt.NDArray[Any]
COLLAPSED = 0.01  # share of pairs of tokens above .99 from which a layer counts as having aligned tokens


def t_interval(values: npt.ArrayLike) -> Interval:
    """Mean with Student's 95 % interval, the one for a few seeds; one value alone has none.

    >>> str(t_interval([1.0, 2.0, 3.0]))
    '2 [-0.484, 4.48]'
    """
    x = np.asarray(values, dtype=float)
    mean = float(x.mean())
    if len(x) < 2:
        return Interval(mean, math.nan, math.nan)
    half = float(student.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
    return Interval(mean, mean - half, mean + half)


def _over(seeds: int) -> str:
    return f"over {seeds} seeds (95 %, paired by seed)" if seeds > 1 else "with one seed"


@dataclass(frozen=True, eq=False)
class TrainResult(Result):
    """The comparison.

    `trials` has one row a run: arm, rate, seed, chosen (the rate taken for its arm), valid_loss, test_loss (nats a
    token or image), score (bits per byte, or accuracy in percent, on the test part), steps, stopped_early, diverged.
    `curves`: arm, rate, seed, step, train, valid. `similarity`: of chosen runs, arm, seed, layer (0 is before layer
    1), mean, aligned. `quantiles` (n, 101): of the pairs of tokens, rows as in `similarity`.
    """

    study: ClassVar[str] = "train"
    title: ClassVar[str] = "Training with and without Hopfield attention"

    trials: pd.DataFrame
    curves: pd.DataFrame
    similarity: pd.DataFrame
    quantiles: Array
    settings: Mapping[str, Any]
    data: Mapping[str, Any]

    @classmethod
    def of_logs(
        cls,
        logs: Sequence[Mapping[str, Any]],
        best: Mapping[str, float],
        settings: Mapping[str, Any],
        data: Mapping[str, Any],
    ) -> Self:
        """Put the logs of the runs together."""
        images = settings["network"]["kind"] == "vit"
        scale = 1 / math.log(2) / float(data.get("bytes_a_token", 1.0))
        trials, curves, similarity, quantiles = [], [], [], []
        for log in logs:
            trial = dict(log["trial"])
            chosen = best[trial["arm"]] == trial["rate"]
            row = trial | {"chosen": chosen, "valid_loss": math.nan, "test_loss": math.nan, "score": math.nan}
            if not log["diverged"]:
                test = log["test"]
                score = 100 * test["accuracy"] if images else test["loss"] * scale
                row |= {"valid_loss": log["valid"]["loss"], "test_loss": test["loss"], "score": score}
            trials.append(row | {name: log[name] for name in ("steps", "stopped_early", "diverged")})
            curves += [trial | {"step": p["step"], "train": p["train"], "valid": p["loss"]} for p in log["curve"]]
            if chosen and not log["diverged"]:
                found = log["similarity"]
                for layer, (mean, aligned) in enumerate(zip(found["mean"], found["aligned"], strict=True)):
                    place = {"arm": trial["arm"], "seed": trial["seed"], "layer": layer}
                    similarity.append(place | {"mean": mean, "aligned": aligned})
                    quantiles.append(found["quantiles"][layer])
        return cls(
            trials=pd.DataFrame(trials),
            curves=pd.DataFrame(curves),
            similarity=pd.DataFrame(similarity),
            quantiles=np.array(quantiles, dtype=np.float32),
            settings=dict(settings),
            data=dict(data),
        )

    # --- numbers -----------------------------------------------------------------------------------------------------

    @property
    def arms(self) -> list[str]:
        """In the order they were run."""
        return list(dict.fromkeys(self.trials["arm"]))

    @property
    def images(self) -> bool:
        """Whether the score is an accuracy, higher being better."""
        return bool(self.settings["network"]["kind"] == "vit")

    @property
    def unit(self) -> str:
        """Of the score."""
        return "% of test images" if self.images else "bits per byte"

    def scores(self, arm: str) -> pd.Series[float]:
        """Test score by seed, at the arm's learning rate."""
        rows = self.trials[(self.trials["arm"] == arm) & self.trials["chosen"] & ~self.trials["diverged"]]
        return rows.set_index("seed")["score"]

    def difference(self, arm: str, base: str = "standard") -> Interval:
        """Mean over seeds of score(arm) - score(base), same seed, with its interval."""
        return t_interval((self.scores(arm) - self.scores(base)).dropna().to_numpy())

    def to_frame(self) -> pd.DataFrame:
        """One row an arm: learning rate, seeds, test score and difference from standard attention, with intervals."""
        rows = []
        for arm in self.arms:
            chosen = self.trials[(self.trials["arm"] == arm) & self.trials["chosen"]]
            score = t_interval(self.scores(arm))
            row: dict[str, Any] = {
                "arm": arm,
                "rate": float(chosen["rate"].iloc[0]),
                "seeds": len(self.scores(arm)),
                "score": score.value,
                "score_low": score.low,
                "score_high": score.high,
            }
            if "standard" in self.arms:
                change = self.difference(arm)
                row |= {"change": change.value, "change_low": change.low, "change_high": change.high}
            last = self.similarity[self.similarity["arm"] == arm].groupby("layer")[["mean", "aligned"]].mean()
            rows.append(row | {"similarity": float(last["mean"].iloc[-1]), "aligned": float(last["aligned"].iloc[-1])})
        return pd.DataFrame(rows)

    # --- sentences ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Each arm against standard attention, what does the work, the tokens, and what to be careful about."""
        found = [self._against(a) for a in ("both", "hidden", "skip") if a in self.arms and "standard" in self.arms]
        if {"both", "skip"} <= set(self.arms):
            found.append(self._work())
        if {"both", "standard"} <= set(self.arms):
            found.append(self._tokens())
        return [*found, *self._cautions()]

    def _verdict(self, change: Interval) -> tuple[str, bool | None]:
        """Better or worse only where the whole interval says so."""
        good, bad = (change.low > 0, change.high < 0) if self.images else (change.high < 0, change.low > 0)
        if good:
            return "better", True
        return ("worse", False) if bad else ("not shown to differ", None)

    def _against(self, arm: str) -> Finding:
        names = {
            "both": "Modern Hopfield Attention (hidden state and scaled skip)",
            "hidden": "The hidden state alone",
            "skip": "The scaled skip alone",
        }
        change = self.difference(arm)
        words, holds = self._verdict(change)
        own, base = t_interval(self.scores(arm)), t_interval(self.scores("standard"))
        return Finding(
            f"{names[arm]} is {words}: {own.value:.4g} {self.unit} against {base.value:.4g} with standard attention, a "
            f"change of {change} {_over(len(self.scores(arm)))}.",
            "scores",
            holds,
        )

    def _work(self) -> Finding:
        change = self.difference("both", "skip")
        words, _ = self._verdict(change)
        return Finding(
            f"Given the scaled skip, the hidden state is {words}: it changes the score by {change} {self.unit}.",
            "scores",
        )

    def _tokens(self) -> Finding:
        share = self.similarity.groupby(["arm", "layer"])["aligned"].mean()
        worst = {arm: float(share[arm].iloc[1:].max()) for arm in ("standard", "both")}
        text = (
            f"Pairs of tokens with a cosine above 0.99: at most {worst['standard']:.1%} in any layer with standard "
            f"attention, {worst['both']:.1%} with Modern Hopfield Attention"
        )
        if worst["standard"] < COLLAPSED:
            return Finding(f"{text}; there is no group of aligned tokens to remove.", "similarity")
        return Finding(f"{text}.", "similarity", worst["both"] < COLLAPSED)

    def _cautions(self) -> list[Finding]:
        rates = sorted(self.settings["rates"])
        chosen = {
            arm: float(self.trials[(self.trials["arm"] == arm) & self.trials["chosen"]]["rate"].iloc[0])
            for arm in self.arms
        }
        edge = [f"{arm} ({rate:g})" for arm, rate in chosen.items() if len(rates) > 1 and rate in (rates[0], rates[-1])]
        found = []
        if edge:
            found.append(
                Finding(
                    f"The best learning rate lies at the edge of those tried for {', '.join(edge)}: try more.", "rates"
                )
            )
        diverged = self.trials[self.trials["diverged"]]
        if len(diverged):
            which = ", ".join(f"{r.arm} at {r.rate:g}" for r in diverged.itertuples())
            found.append(Finding(f"Runs whose loss did not stay finite: {which}.", "rates"))
        if len(self.settings["seeds"]) < 3:
            found.append(Finding("Fewer than three seeds: the intervals say little or do not exist.", "scores"))
        return found

    def figures(self) -> list[FigureSpec]:
        """Scores, loss curves, learning rates, token similarity."""
        from headscape.studies.train.figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    _TABLES: ClassVar[tuple[str, ...]] = ("trials", "curves", "similarity")

    def save(self, folder: Path) -> None:
        """Write the tables as CSV, the quantiles, and result.json last."""
        for name in self._TABLES:
            with replacing(folder / f"{name}.csv") as partial:
                getattr(self, name).to_csv(partial, index=False, float_format="%.9g")
        write_arrays(folder / "quantiles.safetensors", {"quantiles": self.quantiles})
        write_json(
            folder / "result.json",
            {"study": self.study, "settings": dict(self.settings), "data": dict(self.data)},
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            tables = {name: pd.read_csv(folder / f"{name}.csv") for name in cls._TABLES}
            quantiles = read_arrays(folder / "quantiles.safetensors")[0]["quantiles"]
            return cls(**tables, quantiles=quantiles, settings=facts["settings"], data=facts["data"])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the train study in {folder} cannot be read ({error}); run it again") from None
