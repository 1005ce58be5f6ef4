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
LOSSES = ("valid_loss", "test_loss", "score")


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
        scale = 1 / math.log(2) / float(data.get("bytes_a_token", 1.0))
        runs = pd.json_normalize([dict(log) for log in logs], sep="_").rename(
            columns=lambda c: c.removeprefix("trial_")
        )
        runs["chosen"] = runs["rate"] == runs["arm"].map(best)
        images = settings["network"]["kind"] == "vit"
        runs["score"] = 100 * runs["test_accuracy"] if images else scale * runs["test_loss"]
        found = [log for log, chosen in zip(logs, runs["chosen"], strict=True) if chosen and not log["diverged"]]
        curves = [log["trial"] | point for log in logs for point in log["curve"]]
        layers = [
            {"arm": log["trial"]["arm"], "seed": log["trial"]["seed"], "layer": n, "mean": mean, "aligned": aligned}
            for log in found
            for n, (mean, aligned) in enumerate(
                zip(log["similarity"]["mean"], log["similarity"]["aligned"], strict=True)
            )
        ]
        return cls(
            trials=runs[["arm", "rate", "seed", "chosen", *LOSSES, "steps", "stopped_early", "diverged"]],
            curves=pd.DataFrame(curves).rename(columns={"loss": "valid"}).drop(columns="accuracy"),
            similarity=pd.DataFrame(layers),
            counts=np.concatenate([log["similarity"]["counts"] for log in found]),
            settings=dict(settings),
            data=dict(data),
        )

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
