"""What the training comparison found: a table of runs, loss curves, token similarity by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, mean_interval
from headscape.results import FigureSpec, Finding, Result

__all__ = ["TrainResult"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class TrainResult(Result):
    """The comparison of arms (kinds of attention).

    `trials` has one row per run: arm, rate, seed, chosen (the rate taken for its arm), valid_loss, test_loss (nats per
    token or image), score (bits per byte, or accuracy in percent, on the test part), steps, stopped_early, diverged.
    `curves`: arm, rate, seed, step, train, valid. `similarity`: of chosen runs, arm, seed, layer (0 is before layer 1),
    mean and aligned (share at .99 or more) of the cosines of pairs of tokens, on text pairs of different tokens.
    `counts` (n, n_bin): their histograms, rows as in `similarity`.
    """

    study: ClassVar[str] = "train"
    title: ClassVar[str] = "Training with and without Hopfield attention"

    trials: pd.DataFrame
    curves: pd.DataFrame
    similarity: pd.DataFrame
    counts: Array
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
        trials, curves, similarity, counts = [], [], [], []
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
                found, place = log["similarity"], {"arm": trial["arm"], "seed": trial["seed"]}
                layers = enumerate(zip(found["mean"], found["aligned"], strict=True))
                similarity += [place | {"layer": n, "mean": mean, "aligned": aligned} for n, (mean, aligned) in layers]
                counts += found["counts"]
        tables = {"trials": trials, "curves": curves, "similarity": similarity}
        frames = {name: pd.DataFrame(rows) for name, rows in tables.items()}
        return cls(**frames, counts=np.array(counts, dtype=np.int64), settings=dict(settings), data=dict(data))

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

    @property
    def pairs(self) -> str:
        """Which pairs of tokens are compared."""
        return "pairs of tokens" if self.images else "pairs of different tokens"

    def rate(self, arm: str) -> float:
        """The learning rate taken for an arm."""
        return float(self.trials.loc[(self.trials["arm"] == arm) & self.trials["chosen"], "rate"].iloc[0])

    def scores(self, arm: str) -> pd.Series[float]:
        """Test score by seed, at the arm's learning rate."""
        rows = self.trials[(self.trials["arm"] == arm) & self.trials["chosen"] & ~self.trials["diverged"]]
        return rows.set_index("seed")["score"]

    def difference(self, arm: str, base: str = "standard") -> Interval:
        """Mean over seeds of score(arm) - score(base), same seed, with its interval."""
        return mean_interval((self.scores(arm) - self.scores(base)).dropna())

    def to_frame(self) -> pd.DataFrame:
        """One row per arm: learning rate, seeds, test score and difference from standard attention, with intervals."""
        rows = []
        for arm in self.arms:
            score = mean_interval(self.scores(arm))
            row: dict[str, Any] = {"arm": arm, "rate": self.rate(arm), "seeds": score.n}
            row |= {"score": score.value, "score_low": score.low, "score_high": score.high}
            if "standard" in self.arms:
                change = self.difference(arm)
                row |= {"change": change.value, "change_low": change.low, "change_high": change.high}
            last = self.similarity[self.similarity["arm"] == arm].groupby("layer")[["mean", "aligned"]].mean()
            rows.append(row | {"similarity": float(last["mean"].iloc[-1]), "aligned": float(last["aligned"].iloc[-1])})
        return pd.DataFrame(rows)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The arms and all runs."""
        return {"arms": self.to_frame(), "trials": self.trials}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """The arms."""
        from headscape.studies.train.figures import TITLE, shown_table

        return [(TITLE, shown_table(self))]

    def findings(self) -> list[Finding]:
        """Each arm against standard attention, what makes the difference, the tokens, and cautions."""
        from headscape.studies.train.findings import findings

        return findings(self)

    def figures(self) -> list[FigureSpec]:
        """Scores, loss curves, learning rates, token similarity."""
        from headscape.studies.train.figures import figures

        return figures(self)
